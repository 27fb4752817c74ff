"""What `make gpu-check` does, in this order: what comes last is left out where time runs short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from repro.bench import (
    gpu_accuracy,
    gpu_compile,
    gpu_kernels,
    gpu_model,
    gpu_passes,
    gpu_peers,
    roofline,
)
from repro.bench.gpu_accuracy import Kind
from repro.bench.supervised import Case


@dataclass(frozen=True)
class Plan:
    """Sizes of everything; the defaults are those of a real check."""

    device: str = "cuda"
    repeats: int = 10
    #: elements of the copy, sides of the products in bfloat16 and float32
    copied: int = 2**29
    sides: tuple[int, int] = (8192, 4096)
    #: kernels; the first width is also timed in float32, which activations are in under autocast
    tokens: int = 16384
    widths: tuple[int, ...] = (2304, 1168, 4096)
    sources: tuple[int, ...] = (9, 33)
    of_rows: tuple[str, ...] = tuple(gpu_kernels.OF_ROWS)
    of_sources: tuple[str, ...] = tuple(gpu_kernels.OF_SOURCES)
    #: accuracy: dtypes, leading axes and width of checks; sources beyond one launch too; heads at a width
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    lead: tuple[int, int] = (4, 128)
    checked_width: int = 1168
    many: tuple[int, ...] = (33, 70)
    headed_width: int = 256
    #: passes: sublayers and width
    sublayers: int = 16
    pass_width: int = 256
    #: training steps, and the step that is compiled: arms, backends, blocks, width and overrides
    arms: tuple[str, ...] = ("block_s4", "full")
    schemes: tuple[str, ...] = tuple(gpu_passes.BLOCK_SIZES)
    backends: tuple[str, ...] = ("eager", "triton")
    blocks: int = 16
    model_width: int = 1024
    batch: tuple[int, int] = (8, 2048)
    model: tuple[str, ...] = (
        "trainer=gpu",
        "precision=bf16-mixed",
        "model.num_heads=16",
        "model.vocab_size=32768",
        "budget.batch_size=8",
        "budget.context=2048",
        "budget.tokens=16384",
    )
    rounds: int = 5
    compiled_blocks: int = 4
    compiled_width: int = 256
    compiled: tuple[str, ...] = (
        "trainer=gpu",
        "model.vocab_size=1024",
        "budget.batch_size=2",
        "budget.context=128",
        "budget.tokens=256",
    )
    compiler: str = "inductor"
    #: reads side by side: backends, widths (the first first)
    peers: tuple[str, ...] = ("triton", "liger", "fla")
    peer_widths: tuple[int, ...] = (2304, 4096, 1168)


#: For `--dry-run`: one case of each kind, in the interpreter.
DRY = Plan(
    device="cpu",
    repeats=1,
    copied=2**16,
    sides=(32, 32),
    tokens=4,
    widths=(24,),
    sources=(2,),
    of_rows=("merge",),
    of_sources=("read",),
    dtypes=("float32",),
    lead=(2, 2),
    checked_width=24,
    many=(),
    headed_width=24,
    sublayers=4,
    pass_width=16,
    arms=("block_s4",),
    schemes=("Block (S=4)",),
    backends=("triton",),
    blocks=2,
    model_width=16,
    batch=(1, 4),
    model=(
        "trainer=cpu",
        "model.vocab_size=16",
        "budget.batch_size=1",
        "budget.context=4",
        "budget.tokens=4",
    ),
    rounds=1,
    compiled_blocks=1,
    compiled_width=16,
    compiled=(
        "trainer=cpu",
        "model.vocab_size=16",
        "budget.batch_size=1",
        "budget.context=4",
        "budget.tokens=4",
    ),
    compiler="eager",
    peers=("triton", "fla"),
    peer_widths=(24,),
)


def cases(plan: Plan) -> list[Case]:
    card = (plan.device, plan.copied, plan.sides, plan.repeats)
    checked = list(_checks(plan))
    return [
        Case("card", "rates", roofline.card, card),
        Case("compile", "kernels", gpu_compile.ahead, (plan.device, list(_parts(plan)), 110.0), limit=125.0),
        *(Case("accuracy", _name(*check), gpu_accuracy.measure, check) for check in checked),
        *_passes(plan),
        *_kernels(plan),
        Case(
            "graph",
            plan.schemes[0],
            gpu_passes.graph,
            (plan.schemes[0], *_pass_sizes(plan), plan.tokens, plan.model_width, plan.repeats),
        ),
        *(
            Case(
                "training",
                arm,
                gpu_model.race,
                (arm, plan.backends, plan.blocks, plan.model_width, plan.model, plan.rounds),
                limit=90.0,
            )
            for arm in plan.arms
        ),
        Case(
            "compiled",
            plan.arms[0],
            gpu_model.compiled,
            (plan.arms[0], plan.compiled_blocks, plan.compiled_width, plan.compiled, plan.compiler),
            limit=90.0,
        ),
        *_reads(plan),
    ]


def _name(name: str, _: str, dtype: str, lead: object, width: int, num: int, kind: Kind) -> str:
    heads = f", {kind.heads} heads, {kind.act}" if kind.heads > 1 else ""
    return f"{name}, {dtype}, width {width}, {num}{heads}"


def _checks(plan: Plan) -> Iterator[tuple[str, str, str, tuple[int, ...], int, int, Kind]]:
    """Arguments of `gpu_accuracy.measure`: a number is that of sources or queries."""
    size = (plan.lead, plan.checked_width)
    for dtype in plan.dtypes:
        for name in gpu_accuracy.CHECKS:
            yield (name, plan.device, dtype, *size, plan.sources[0], Kind())
        for num in plan.many:
            for name in ("read", "mix on priors"):
                yield (name, plan.device, dtype, *size, num, Kind())
    if plan.many:
        for name in gpu_accuracy.CHECKS:
            headed = (plan.lead, plan.headed_width, plan.sources[0], Kind("sigmoid", 4))
            yield (name, plan.device, "float32", *headed)


def _pass_sizes(plan: Plan) -> tuple[str, str, int]:
    return plan.device, plan.dtypes[0], plan.sublayers


def _passes(plan: Plan) -> Iterator[Case]:
    for scheme in plan.schemes:
        for dtype in plan.dtypes:
            arguments = (scheme, plan.device, dtype, plan.sublayers, plan.lead, plan.pass_width)
            yield Case("accuracy", f"pass of {scheme}, {dtype}", gpu_passes.accuracy, arguments)


def _sized(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """dtype, width and sources (0: none) for which kernels are timed."""
    for dtype in plan.dtypes:
        for width in plan.widths if dtype == plan.dtypes[0] else plan.widths[:1]:
            yield dtype, width, 0
            for num in plan.sources if dtype == plan.dtypes[0] else plan.sources[:1]:
                yield dtype, width, num


def _kernels(plan: Plan) -> Iterator[Case]:
    for dtype, width, num in _sized(plan):
        for name in plan.of_sources if num else plan.of_rows:
            label = f"{name}, {dtype}, width {width}" + (f", {num} sources" if num else "")
            arguments = (name, plan.device, dtype, plan.tokens, width, num, plan.repeats)
            yield Case("kernels", label, gpu_kernels.measure, arguments)


def _reads(plan: Plan) -> Iterator[Case]:
    """A peer may tune itself for a minute: the most telling sizes first."""
    for num in plan.sources:
        for width in plan.peer_widths:
            for backend in plan.peers:
                arguments = (backend, plan.device, plan.dtypes[0], plan.tokens, width, num, plan.repeats)
                label = f"{backend}, width {width}, {num} sources"
                yield Case("peers", label, gpu_peers.measure, arguments, limit=75.0)


def _parts(plan: Plan) -> Iterator[gpu_compile.Part]:
    """What is worth compiling beforehand, in the order in which it is needed."""
    for name, _, *rest in _checks(plan):
        yield gpu_compile.of_check, (name, *rest)
    for scheme in plan.schemes:
        for dtype in plan.dtypes:
            yield gpu_compile.of_pass, (scheme, dtype, plan.sublayers, plan.lead, plan.pass_width)
    graph = (plan.schemes[0], plan.dtypes[0], plan.sublayers, (plan.tokens,), plan.model_width)
    yield gpu_compile.of_pass, graph
    for dtype, width, num in _sized(plan):
        names = plan.of_sources if num else plan.of_rows
        yield gpu_compile.of_kernels, (dtype, plan.tokens, width, names, num)
    for scheme in plan.schemes:
        yield gpu_compile.of_pass, (scheme, "float32", 2 * plan.blocks, plan.batch, plan.model_width)
