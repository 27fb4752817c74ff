"""The kernels of a plan compiled beforehand by all cores, into the cache where launches look for them.

A launch compiles what it needs on one core; for a hundred forms that takes longer than everything else
together. Each form is described by the launch itself (`recording`) and compiled under the key that the launch
will ask for. A form that is missed here costs its time later, and nothing else.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.bench import gpu_accuracy, gpu_kernels, gpu_passes
from repro.bench.gpu_accuracy import Kind
from repro.bench.gpu_data import DTYPES, Draw
from repro.bench.supervised import Row, Skipped
from repro.ops.triton.launch import recording
from repro.ops.triton.specialisation import Specialisation

#: Worker processes at most: each is a Python with torch in it.
WORKERS = 16


class Form(NamedTuple):
    """A specialisation as it travels to a worker: its function by name, everything else as it is."""

    module: str
    function: str
    signature: dict[str, Any]
    constexprs: dict[str, Any]
    attributes: dict[tuple[int, ...], list[list[Any]]]
    num_warps: int
    num_stages: int


def form(spec: Specialisation) -> Form:
    """With what a launch also states: an argument without attributes has an empty list of them."""
    known = spec.attributes()
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, kind in enumerate(spec.signature.values()):
        for j, part in enumerate(kind if isinstance(kind, tuple) else (kind,)):
            path: tuple[int, ...] = (i, j) if isinstance(kind, tuple) else (i,)
            if part != "fp32":
                attributes[path] = known.get(path, [])
    function = spec.function.fn
    name = (function.__module__, function.__name__)
    sizes = (spec.num_warps, spec.num_stages)
    return Form(*name, dict(spec.signature), dict(spec.constexprs), attributes, *sizes)


def of_kernels(dtype: str, tokens: int, width: int, names: Sequence[str], num: int) -> list[Specialisation]:
    """What `gpu_kernels.measure` launches."""
    with recording() as found:
        for name in names:
            operation = gpu_kernels.operation(name, Draw("meta", dtype, (tokens,), width), num)
            operation.backward(operation.forward())
    return found


def of_check(
    name: str, dtype: str, lead: tuple[int, ...], width: int, num: int, kind: Kind
) -> list[Specialisation]:
    """What `gpu_accuracy.measure` launches."""
    with recording() as found:
        gpu_accuracy.CHECKS[name](Draw("meta", dtype, lead, width), kind, num).ours(None)
    return found


def of_pass(
    scheme: str, dtype: str, sublayers: int, lead: tuple[int, ...], width: int
) -> list[Specialisation]:
    """What a pass of a scheme launches, forward and backward; tensors hold nothing and are not touched."""
    mixer = gpu_passes.build(scheme, sublayers, width, "triton", "cpu")

    def empty() -> Tensor:
        return torch.empty(*lead, width, dtype=DTYPES[dtype])

    with recording() as found:
        gpu_passes.there_and_back(mixer, [empty() for _ in range(sublayers + 1)], [empty()] * (sublayers + 1))
    return found


def compile_form(form: Form, target: Any) -> str:
    """In a worker: "", or the first line of what the compiler raised."""
    import triton
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(form.module), form.function)
    source = ASTSource(function, form.signature, form.constexprs, form.attributes)
    try:
        triton.compile(
            source, target=target, options={"num_warps": form.num_warps, "num_stages": form.num_stages}
        )
    except Exception as error:
        return f"{form.function}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return ""


Part = tuple[Callable[..., list[Specialisation]], tuple[Any, ...]]


def ahead(device: str, parts: Sequence[Part], seconds: float) -> Iterator[Row]:
    """Compile the forms of all parts, the first parts first, for about so many seconds."""
    if device != "cuda":
        raise Skipped("the interpreter compiles nothing")
    from triton.runtime import driver

    started = time.monotonic()
    target = driver.active.get_current_target()
    forms: dict[str, Form] = {}
    for record, arguments in parts:
        for spec in record(*arguments):
            found = form(spec)
            forms.setdefault(str(found), found)
    workers = min(WORKERS, len(forms), os.cpu_count() or 1)
    problems = []
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    futures = [pool.submit(compile_form, each, target) for each in forms.values()]
    done = 0
    try:
        for future in as_completed(futures, timeout=max(1.0, seconds - (time.monotonic() - started))):
            done += 1
            problems += [problem for problem in [future.result()] if problem]
    except TimeoutError:
        problems.append(f"{len(forms) - done} forms were not compiled in time")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for problem in problems:
        print(f"    {problem}"[:300], flush=True)
    taken = {"operation": "compilation", "value": time.monotonic() - started, "unit": "s"}
    yield taken | {"quantity": f"{done} of {len(forms)} forms by {workers} processes"}
