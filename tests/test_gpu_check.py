"""`make gpu-check` where there is no GPU: its script, its accounts, and what it refuses or reports."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from repro.bench import gpu, gpu_accuracy, gpu_aims, gpu_kernels, gpu_table
from repro.bench.counting import counting
from repro.bench.gpu_accuracy import Kind
from repro.bench.gpu_data import Draw
from repro.bench.gpu_plan import DRY, Plan, cases
from repro.bench.supervised import Case, Outcome, run_apart, run_here
from tests import supervised_cases as ends

ROOT = Path(__file__).resolve().parents[1]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs the interpreter")


@NO_GPU
def test_without_a_gpu_it_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: gpu-check: ")
    assert error.count("\n") == 1
    assert "finds no GPU" in error


@INTERPRETED
@pytest.mark.filterwarnings("ignore")
def test_the_whole_plan_runs_dry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "check.csv"
    assert gpu.main(["--dry-run", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["gpu"] for row in rows} == {"none (dry run)"}
    ended = {row["section"] for row in rows if row["status"] == "done"}
    assert ended == {"card", "accuracy", "kernels", "graph", "training", "compiled", "peers"}
    judged = [row for row in rows if row["limit"]]
    assert len(judged) > 30
    assert {row["within"] for row in judged} == {"True"}
    times = [row for row in rows if row["section"] == "kernels"]
    assert {(row["operation"], row["direction"]) for row in times} == {
        (name, direction) for name in ("merge", "read") for direction in ("forward", "backward")
    }
    assert all(float(row["value"]) > 0 and float(row["share_of_copy"]) > 0 for row in times)
    # What cannot run in the interpreter is told, in the file and in the table.
    assert [row["operation"] for row in rows if row["section"] == "compile"] == ["kernels"]
    for title in ("The card", "Errors against", "Kernels:", "Reads side", "Training steps", "Not done"):
        assert f"\n{title}" in printed


def test_the_plan_holds_what_was_asked_for() -> None:
    plan = cases(Plan())
    kernels = {case.arguments[:1] + case.arguments[2:6] for case in plan if case.section == "kernels"}
    for width in (1168, 2304, 4096):
        for num in (9, 33):
            assert ("read", "bfloat16", 16384, width, num) in kernels
        assert ("merge", "bfloat16", 16384, width, 0) in kernels
    checked = {(case.arguments[0], case.arguments[2]) for case in plan if case.section == "accuracy"}
    for name in ("read", "score", "mix of a history", "mix on priors", "merge", "Block (S=4)", "Full"):
        assert {(name, "bfloat16"), (name, "float32")} <= checked
    assert [case.name for case in plan if case.section == "training"] == ["block_s4", "full"]
    assert {case.arguments[0] for case in plan if case.section == "peers"} == {"triton", "liger", "fla"}
    assert len({case.title for case in plan}) == len(plan)
    # Correctness comes before what is left out where time runs short.
    sections = [case.section for case in plan]
    assert max(i for i, name in enumerate(sections) if name == "accuracy") < sections.index("kernels")
    assert {case.section for case in cases(DRY)} == set(sections)


@INTERPRETED
@pytest.mark.parametrize("name", [*gpu_kernels.OF_SOURCES, *gpu_kernels.OF_ROWS])
def test_streams_are_those_that_the_kernels_move(name: str) -> None:
    """Counted access by access in the interpreter: activations [1, 3, 24] of float32."""
    operation = gpu_kernels.operation(name, Draw("cpu", "float32", (1, 3), 24), 2)
    with counting() as forward:
        saved = operation.forward()
    with counting() as backward:
        operation.backward(saved)
    moved = [traffic.total(shape=(1, 3, 24)) / (3 * 24 * 4) for traffic in (forward, backward)]
    assert tuple(moved) == operation.streams


@INTERPRETED
@pytest.mark.parametrize("broken", ["mixed", "lse"])
def test_a_wrong_number_is_an_error(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element half as large again, or none at all."""
    right = gpu_accuracy.read_forward

    def wrong(*arguments: Any) -> Any:
        mixed, z, inverse, lse = right(*arguments)
        (mixed if broken == "mixed" else lse).view(-1)[3] *= 1.5 if broken == "mixed" else torch.nan
        return mixed, z, inverse, lse

    monkeypatch.setattr(gpu_accuracy, "read_forward", wrong)
    case = Case("accuracy", "read", gpu_accuracy.measure, ("read", "cpu", "float32", (2, 2), 8, 3, Kind()))
    outcomes = run_here([case], time.monotonic() + 60, lambda _: None)
    found = gpu_table.problems(gpu_table.records(outcomes, {}))
    assert any(f"error of {'mix' if broken == 'mixed' else 'lse'} is" in problem for problem in found)


def outcome(section: str, status: str = "done", **row: Any) -> Outcome:
    case = Case(section, "a case", ends.measured)
    return Outcome(case, status, "a reason", 1.0, [{"operation": "an operation", **row}] if row else [])


def test_shares_of_what_the_card_can_do() -> None:
    """1000 GB/s and 100 TFLOP/s: 1 GB takes 1 ms at least, and 4e11 operations 4 ms."""
    card = [
        outcome("card", operation="copy", dtype="float32", value=1000.0),
        outcome("card", operation="matrix product", dtype="bfloat16", value=100.0),
    ]
    time_of: dict[str, Any] = {"quantity": "time", "value": 5.0, "bytes": 10**9, "units": "matrix"}
    rows = gpu_table.records([*card, outcome("kernels", flops=4 * 10**11, **time_of)], {"gpu": "one"})
    assert {row["gpu"] for row in rows} == {"one"}
    assert rows[-1]["gigabytes_per_s"] == 200.0
    assert rows[-1]["share_of_copy"] == 0.2
    assert rows[-1]["share_of_roofline"] == 0.8
    vector = gpu_table.records([*card, outcome("kernels", flops=1, **time_of | {"units": "vector"})], {})[-1]
    assert vector["share_of_roofline"] == 0.2


def test_aims_name_the_slowest_kernel_and_the_fastest_peer() -> None:
    def row(section: str, backend: str, value: float, share: float | None, width: int, **other: Any) -> Any:
        return {
            **{"section": section, "backend": backend, "value": value, "share_of_copy": share},
            **{
                "width": width,
                "quantity": "time",
                "status": "done",
                "operation": "read",
                "dtype": "bfloat16",
            },
            **{"tokens": 4, "sources": 9, "direction": "forward", **other},
        }

    rows = [
        row("kernels", "triton", 1.0, 0.9, 1168),
        row("kernels", "triton", 1.0, 0.8, 2304),
        row("kernels", "triton", 1.0, 0.85, 2304, direction="backward"),
        row("kernels", "triton", 1.0, 0.1, 9, status="failed", direction="backward"),
        row("peers", "triton", 1.01, 0.9, 1168),
        row("peers", "fla", 1.0, 0.9, 1168),
        row("peers", "triton", 1.3, 0.9, 2304),
        row("peers", "fla", 1.2, 0.9, 2304),
        row("peers", "liger", 1.1, 0.9, 2304),
        row("peers", "liger", 0.1, 0.9, 4096),  # ours was left out: nothing to compare
    ]
    found = [(line["aim"], line["found"], line[""]) for line in gpu_aims.aims(rows)]
    at = "read, bfloat16, width"
    copy = "at 85% of the copy bandwidth"
    assert found == [
        (f"forward {copy}", f"1 of 2; least 80% ({at} 2304, 9 sources)", "MISSED"),
        (f"backward {copy}", f"1 of 1; least 85% ({at} 2304, 9 sources)", "reached"),
        (f"forward of a read no slower than fla, {at} 1168, 9 sources", "1.010 and 1.000 ms", "reached"),
        (f"forward of a read no slower than liger, {at} 2304, 9 sources", "1.300 and 1.100 ms", "MISSED"),
    ]


def test_what_makes_it_fail() -> None:
    def problems(*outcomes: Outcome) -> list[str]:
        return gpu_table.problems(gpu_table.records(outcomes, {}))

    error: dict[str, Any] = {"quantity": "error of mix", "limit": 1e-5}
    assert problems(outcome("accuracy", value=1e-5, **error)) == []
    assert len(problems(outcome("accuracy", value=1.1e-5, **error))) == 1
    assert len(problems(outcome("graph", value=float("nan"), **error))) == 1
    for status, section, count in (
        ("failed", "kernels", 1),
        ("failed", "peers", 0),
        ("left out", "kernels", 0),
        ("left out", "accuracy", 1),
        ("skipped", "accuracy", 1),
        ("skipped", "training", 0),
    ):
        assert len(problems(outcome(section, status))) == count, (status, section)


def test_another_cards_file_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "gpu" / "check.csv"
    path.parent.mkdir(parents=True)
    path.write_text("gpu,section\nCard A,card\n", encoding="utf-8")
    monkeypatch.setattr(gpu, "project_root", lambda: tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Card B")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert gpu.main([]) == 2
    error = capsys.readouterr().err
    assert "Card A" in error
    assert "--out names a file for Card B" in error
    assert path.read_text(encoding="utf-8") == "gpu,section\nCard A,card\n"


def test_a_case_takes_no_other_with_it() -> None:
    """A process for all, and a new one after a case that broke it, used up its card, or took too long."""
    plan = [
        Case("a", "first", ends.process),
        Case("a", "raises", ends.raises, ("wrong\nin two lines",)),
        Case("a", "same", ends.process),
        Case("a", "breaks", ends.raises, ("CUDA error: an illegal memory access",)),
        Case("a", "new", ends.process),
        Case("a", "dies", ends.dies),
        Case("a", "hangs", ends.hangs, limit=1.0),
        Case("a", "last", ends.measured, (5,)),
    ]
    said: list[str] = []
    found = {o.case.name: o for o in run_apart(plan, time.monotonic() + 60, said.append)}
    assert [o.status for o in found.values()] == [
        *("done", "failed", "done", "failed", "done", "failed", "left out", "done")
    ]
    assert found["first"].rows == found["same"].rows != found["new"].rows
    assert found["raises"].note == "RuntimeError: wrong"
    assert found["dies"].note == "its process ended with 3"
    assert found["hangs"].note == "stopped after 1 s"
    assert [row["value"] for o in found.values() for row in o.rows if row["value"] < 10] == [0, 0, 7, 8, 5, 6]
    assert len(said) == len(plan)


def test_what_has_no_time_left_is_listed() -> None:
    plan = [Case("a", "one", ends.measured, (1,)), Case("a", "two", ends.measured, (2,))]
    for run in (run_here, run_apart):
        found = run(plan, time.monotonic() - 1, lambda _: None)
        assert [(o.status, o.note, o.rows) for o in found] == [("left out", "no time was left", [])] * 2


def test_what_cannot_run_here_says_why() -> None:
    plan = [Case("a", "skipped", ends.skipped), Case("a", "exhausted", ends.exhausted)]
    found = run_here(plan, time.monotonic() + 60, lambda _: None)
    assert [(o.status, o.note) for o in found] == [("skipped", "not here"), ("skipped", "out of memory")]


# What a launch asks the compiler's cache for, beside the key under which forms are compiled beforehand. The
# driver is a stand-in: it says what the target is, and nothing is compiled.
KEYS = """
import importlib, pkgutil
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import get_cache_invalidating_env_vars, get_cache_key, make_backend
from triton.runtime import driver, jit
import repro.ops.triton
from repro.bench import gpu_compile, gpu_kernels
from repro.bench.gpu_accuracy import Kind

target = GPUTarget("cuda", 90, 32)
backend, env = make_backend(target), get_cache_invalidating_env_vars()

class Driver:
    def get_current_target(self): return target
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

class Asked(Exception): pass

asked = set()
def do_compile(self, key, signature, device, constexprs, options, attrs, warmup):
    asked.add(get_cache_key(ASTSource(self, signature, constexprs, attrs), backend, options, env_vars=env))
    raise Asked

def launch(kernel, grid, num_warps, *, num_stages=1, **arguments):
    try: kernel.run(grid=grid, warmup=True, num_warps=num_warps, num_stages=num_stages, **arguments)
    except Asked: pass

def forms():
    names = [*gpu_kernels.OF_SOURCES, *gpu_kernels.OF_ROWS]
    found = gpu_compile.of_kernels("bfloat16", 64, 48, names, 3)
    found += gpu_compile.of_check("read", "float32", (4, 16), 32, 70, Kind("sigmoid", 4))
    return found + gpu_compile.of_pass("Full", "bfloat16", 4, (4, 16), 32)

made = set()
for spec in forms():
    form = gpu_compile.form(spec)
    function = getattr(importlib.import_module(form.module), form.function)
    source = ASTSource(function, form.signature, form.constexprs, form.attributes)
    options = backend.parse_options({"num_warps": form.num_warps, "num_stages": form.num_stages})
    made.add(get_cache_key(source, backend, options, env_vars=env))

driver.set_active(Driver())
jit.JITFunction._do_compile = do_compile
for info in pkgutil.iter_modules(repro.ops.triton.__path__):
    module = importlib.import_module(f"repro.ops.triton.{info.name}")
    if hasattr(module, "launch"): module.launch = launch
forms()
print(len(made), len(asked), len(asked - made), len(made - asked))
"""


def test_forms_are_compiled_under_the_key_of_their_launch() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "ignore", "-c", KEYS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    made, asked, missing, needless = map(int, done.stdout.split())
    assert made == asked > 30
    assert missing == needless == 0
