"""`make kernels`: every kernel compiled ahead of time, without a GPU, and its resources as a table.

Writes kernels.csv and kernels.md; exits 1, with names, where a kernel does not compile, does not fit its
target, or spills registers on sm_90 at a width up to 4096. What an earlier run compiled is not compiled
again.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import multiprocessing
import os
import pkgutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton

import repro.ops.triton
from analysis.tables import Column, Table, to_csv, to_markdown
from repro.bench.compiled import Figures, cached, compile_figures, content_key
from repro.bench.occupancy import TARGETS
from repro.ops.triton.specialisation import Specialisation
from repro.runs.atomic import write_bytes

WIDTHS = (1024, 1168, 2304, 4096, 7168)
SOURCES = (2, 9, 33)
DTYPE = torch.bfloat16
#: No kernel may spill registers here.
NO_SPILLS = ("sm_90", 4096)


@dataclass(frozen=True)
class Job:
    """One row of the table; the specialisation is found again from it in a worker process."""

    module: str
    index: int
    width: int
    sources: int
    target: str

    def specialisation(self) -> Specialisation:
        return specialisations(self.module, self.width, self.sources)[self.index]


@functools.cache
def specialisations(module: str, width: int, sources: int) -> tuple[Specialisation, ...]:
    return tuple(importlib.import_module(module).specialisations(width, sources, DTYPE))


def sizes(spec: Specialisation) -> dict[str, int]:
    """What tells the forms of one kernel apart: lengths of its tuples, and its compiled-in integers."""
    tuples = {name: len(kind) for name, kind in spec.signature.items() if isinstance(kind, tuple)}
    return tuples | {name: int(v) for name, v in spec.constexprs.items() if isinstance(v, int)}


def form(job: Job) -> str:
    """Name of the row's form where a kernel is compiled in several at one width and number of sources."""
    spec = job.specialisation()
    everything = specialisations(job.module, job.width, job.sources)
    others = [other for other in everything if other.kernel == spec.kernel]
    found = {tuple(sizes(other).items()): sizes(other) for other in others}
    for name, value in sizes(spec).items():
        values = [other[name] for other in found.values() if name in other]
        if len(set(values)) == len(found) > 1:
            return f"{name}={value}"
    absent = [{name for name, value in other.constexprs.items() if value is None} for other in others]
    for name in sorted(set().union(*absent)):
        if len({name in names for names in absent}) > 1:
            return f"without {name}" if spec.constexprs.get(name, 0) is None else f"with {name}"
    return ""


def kernel_modules() -> list[str]:
    """Every module of kernels, found rather than listed so that none is left out."""
    package = repro.ops.triton
    names = [f"{package.__name__}.{info.name}" for info in pkgutil.iter_modules(package.__path__)]
    return [name for name in names if hasattr(importlib.import_module(name), "specialisations")]


def jobs(targets: Sequence[str], widths: Sequence[int], sources: Sequence[int]) -> Iterator[Job]:
    for module in kernel_modules():
        for target in targets:
            for width in widths:
                for count in sources:
                    for index in range(len(specialisations(module, width, count))):
                        yield Job(module, index, width, count, target)


def compile_job(job: Job) -> tuple[Figures | None, str, float]:
    """In a worker: figures, or the first line of what the compiler raised; and seconds."""
    start = time.perf_counter()
    try:
        figures, error = compile_figures(job.specialisation(), job.target), ""
    except Exception as problem:
        figures, error = None, f"{type(problem).__name__}: {problem}".strip()
    return figures, error, time.perf_counter() - start


def compile_all(keys: dict[str, Job], workers: int) -> tuple[dict[str, Figures], dict[str, str]]:
    """Figures and errors by content key, in worker processes of one thread each."""
    done = {key: figures for key in keys if (figures := cached(key)) is not None}
    errors: dict[str, str] = {}
    missing = {key: job for key, job in keys.items() if key not in done}
    print(
        f"{len(keys)} distinct kernels, {len(done)} compiled earlier, {len(missing)} to compile", flush=True
    )
    if not missing:
        return done, errors
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the workers
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        futures = {pool.submit(compile_job, job): key for key, job in missing.items()}
        for count, future in enumerate(as_completed(futures), 1):
            key = futures[future]
            job = missing[key]
            figures, error, seconds = future.result()
            label = f"{job.specialisation().kernel} {job.target} width {job.width} sources {job.sources}"
            if figures is not None:
                done[key] = figures
            else:
                errors[key] = f"{label}: {error}"
                print(f"  does not compile: {errors[key][:400]}", flush=True)
            if seconds > 20 or count % max(1, len(missing) // 25) == 0:
                elapsed = time.perf_counter() - start
                print(f"  {count}/{len(missing)} after {elapsed:.0f} s: {label}, {seconds:.1f} s", flush=True)
    return done, errors


def record(jobs: Sequence[Job], figures: Figures) -> dict[str, Any]:
    """A row of kernels.csv: one binary, and the numbers of sources that are served by it."""
    job = jobs[0]
    spec = job.specialisation()
    share, limit = figures.occupancy(job.target, spec.num_warps)
    return {
        "kernel": spec.kernel,
        "form": form(job),
        "target": job.target,
        "width": job.width,
        "sources": " ".join(str(count) for count in sorted({job.sources for job in jobs})),
        "num_warps": spec.num_warps,
        "num_stages": spec.num_stages,
        **asdict(figures),
        "occupancy": round(share, 4),
        "limited_by": limit,
        "constants": " ".join(f"{name}={value}" for name, value in sizes(spec).items()),
    }


def refusals(records: Sequence[dict[str, Any]]) -> list[str]:
    """What makes the command fail: spills where there may be none, and kernels that cannot be launched."""
    target, width = NO_SPILLS
    found = []
    for row in records:
        label = f"{row['kernel']} on {row['target']} at width {row['width']}, {row['sources']} sources"
        spilled = row["spill_store_bytes"] + row["spill_load_bytes"]
        if row["target"] == target and row["width"] <= width and spilled:
            found.append(f"{label} spills {spilled} bytes per thread")
        if row["occupancy"] == 0:
            found.append(f"{label} does not fit: too much of {row['limited_by']}")
    return found


def summary(records: Sequence[dict[str, Any]], target: str) -> Table:
    """Kernels and numbers of sources against width, one line each."""
    widths = sorted({row["width"] for row in records})
    columns = [Column("kernel", "kernel", numeric=False), Column("sources", "sources")]
    columns += [Column(str(width), f"width {width}") for width in widths]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in records:
        if row["target"] != target:
            continue
        name = f"{row['kernel']} {row['form']}".strip()
        line = rows.setdefault((name, row["sources"]), {"kernel": name, "sources": row["sources"]})
        spilled = row["spill_store_bytes"] + row["spill_load_bytes"]
        cell = f"{row['registers']} / {row['num_warps']} / {row['occupancy']:.0%}"
        line[str(row["width"])] = cell + (f", spills {spilled}" if spilled else "")
    notes = [
        "Registers per thread / warps per block / theoretical occupancy; bytes spilled per thread, if any.",
        f"Compiled by Triton {triton.__version__} and the assemblers that it brings; no GPU involved.",
    ]
    return Table(f"Kernels compiled for {target}, bfloat16", columns, list(rows.values()), notes)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m repro.bench.aot",
        description=__doc__,
        epilog="with a choice of kernels, targets, widths or sources: printed as csv, no table is written",
    )
    parser.add_argument("--results", type=Path, default=Path("results/published"))
    parser.add_argument("--jobs", type=int, default=2, help="worker processes, one thread each")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--sources", nargs="+", type=int, default=list(SOURCES))
    parser.add_argument("--kernels", nargs="+", help="by name")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("unset TRITON_INTERPRET: interpreted kernels cannot be compiled")

    start = time.perf_counter()
    rows = [
        job
        for job in jobs(options.targets, options.widths, options.sources)
        if not options.kernels or job.specialisation().kernel in options.kernels
    ]
    if not rows:
        parser.error("no kernel to compile")
    keys = [content_key(job.specialisation(), job.target) for job in rows]
    figures, errors = compile_all(dict(zip(keys, rows, strict=True)), options.jobs)
    binaries: dict[tuple[str, int], list[Job]] = {}  # one binary can serve several widths
    for job, key in zip(rows, keys, strict=True):
        binaries.setdefault((key, job.width), []).append(job)
    records = [record(jobs, figures[key]) for (key, _), jobs in binaries.items() if key in figures]
    records.sort(key=lambda row: (row["kernel"], row["form"]))  # otherwise in the order asked for
    problems = [error.splitlines()[0] for error in errors.values()] + refusals(records)

    chosen = (options.targets, options.widths, options.sources)
    if options.kernels or chosen != (list(TARGETS), list(WIDTHS), list(SOURCES)):
        print(to_csv(records) if records else "")
    elif records:
        tables = [summary(records, target) for target in options.targets]
        for suffix, text in ((".csv", to_csv(records)), (".md", to_markdown(tables))):
            print(write_bytes(options.results / f"kernels{suffix}", text.encode()))
    print(f"{len(records)} rows in {time.perf_counter() - start:.0f} s")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
