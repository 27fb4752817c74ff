"""Theoretical occupancy: the share of a multiprocessor's warps that a kernel's resources leave room for.

NVIDIA limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (8.0, 9.0, 10.0);
allocation units: `cuda_occupancy.h` of the CUDA toolkit (registers per warp in units of 256, warps in fours,
one per scheduler; from 8.0 on the system takes 1 KB of shared memory per block).

AMD gfx942 (CDNA 3 instruction set guide; LLVM's AMDGPU subtarget): a compute unit has 4 SIMDs of up to 8
waves, 512 vector registers per lane and SIMD in units of 8, 64 KB of LDS and, through its barriers, 16
groups of several waves; more than 100 scalar registers leave room for 7 waves per SIMD.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of one multiprocessor (compute unit), in warps (waves), blocks (groups), registers and bytes."""

    warp_size: int
    max_warps: int
    max_blocks: int
    schedulers: int
    registers: int  # per scheduler, counted per thread times the threads of a warp
    register_unit: int  # allocated per warp in multiples of this
    shared_bytes: int
    shared_per_block: int
    shared_unit: int
    shared_reserved: int  # per block, taken by the system
    max_registers: int  # per thread


TARGETS: dict[str, Limits] = {
    "sm_80": Limits(32, 64, 32, 4, 16384, 256, 164 << 10, 163 << 10, 128, 1 << 10, 255),
    "sm_90": Limits(32, 64, 32, 4, 16384, 256, 228 << 10, 227 << 10, 128, 1 << 10, 255),
    "sm_100": Limits(32, 64, 32, 4, 16384, 256, 228 << 10, 227 << 10, 128, 1 << 10, 255),
    "gfx942": Limits(64, 32, 16, 4, 512 * 64, 8 * 64, 64 << 10, 64 << 10, 512, 0, 512),
}


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(
    target: str, registers: int, shared_bytes: int, num_warps: int, scalar_registers: int = 0
) -> tuple[float, str]:
    """Resident warps as a share of the maximum, and what limits them: registers, shared, blocks or warps.

    registers: per thread.  shared_bytes, num_warps: per block.  0.0 where a block does not fit at all.
    """
    limits = TARGETS[target]
    per_scheduler = limits.registers // _up(max(registers, 1) * limits.warp_size, limits.register_unit)
    per_scheduler = min(per_scheduler, limits.max_warps // limits.schedulers)
    by_registers = per_scheduler * limits.schedulers
    if target.startswith("gfx") and scalar_registers > 100:
        by_registers = min(by_registers, 7 * limits.schedulers)
    taken = _up(shared_bytes, limits.shared_unit) + limits.shared_reserved
    if shared_bytes > limits.shared_per_block or registers > limits.max_registers:
        return 0.0, "shared" if shared_bytes > limits.shared_per_block else "registers"
    blocks = {
        "warps": limits.max_warps // num_warps,
        "blocks": limits.max_blocks,
        "registers": by_registers // num_warps,
        "shared": limits.shared_bytes // taken if taken else limits.max_blocks,
    }
    # The first of equals: what cannot be changed before what can.
    limiting = min(blocks, key=lambda name: blocks[name])
    return min(1.0, blocks[limiting] * num_warps / limits.max_warps), limiting
