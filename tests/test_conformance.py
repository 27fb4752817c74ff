"""The harness sees planted faults, takes any way of failing for an outcome, and passes what is right."""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from pathlib import Path

import pytest

from repro.conformance import adapters, compare, install, run, table, worker
from repro.conformance.compare import Verdict
from repro.conformance.run import Outcome
from tests import conformance_faults as faults

ROOT = Path(__file__).resolve().parents[1]
FAULTS = faults.__name__
OURS = f"{adapters.__name__}.ours"


#: Cases that a fault cannot change: one source, no key norm to leave out, a width of 1, or weights that are
#: one-hot to 1e-29 and a query gradient that cancels.
BLIND = {
    "keys not normalised": {"softmax_n1", "sharp_query", "no_key_norm", "no_key_norm_big_source"},
    "query without gradient": {"softmax_n1", "sharp_query", "width_1"},
    "scaled by 1/sqrt(d)": {"softmax_n1", "sharp_query", "width_1"},
    "tokens share weights": {"softmax_n1"},
    "values normalised": {"no_key_norm", "no_key_norm_big_source"},
    "not finite": set[str](),
}


def judged(name: str, folder: Path, module: str = FAULTS) -> tuple[Outcome, list[Verdict]]:
    """Outcome of an adapter that behaves, in this process: what the worker writes, and the verdicts on it."""
    file = folder / "lines.jsonl"
    worker.main(module, name, str(file))
    adapter = next(a for _, a in run.adapters([module]) if a.name == name)
    outcome = run.outcome_of(adapter, file.read_text(), 0, [], 1.0)
    return outcome, compare.judge(outcome)


def by_status(verdicts: list[Verdict], status: str) -> set[str]:
    return {verdict.case for verdict in verdicts if verdict.status == status}


@pytest.mark.parametrize("name", ["right read", "gain in the query"])
def test_a_right_read_passes_all_it_can_express(name: str, tmp_path: Path) -> None:
    outcome, verdicts = judged(name, tmp_path)
    assert outcome.stopped == ""
    assert len(verdicts) == 29
    assert by_status(verdicts, "fail") == by_status(verdicts, "raised") == set()
    refused = by_status(verdicts, "not expressible")
    key_norm = {"no_key_norm", "no_key_norm_big_source"} if name == "gain in the query" else set()
    assert refused - key_norm == {
        *("sigmoid", "sigmoid_sharp", "sigmoid_no_norm", "heads_2", "heads_3", "heads_6"),
    }


def test_the_reference_passes_everything(tmp_path: Path) -> None:
    outcome, verdicts = judged("this suite, reference", tmp_path, OURS)
    assert {verdict.status for verdict in verdicts} == {"pass"}
    assert len(verdicts) == 29
    assert set(verdicts[0].errors) == {"output", "weights", "grad_sources", "grad_query", "grad_gain"}
    assert table.cannot_run(outcome, verdicts) == ""


@pytest.mark.parametrize("execution", ["per_read", "score_on_write", "two_phase"])
def test_every_execution_passes_every_walk(execution: str, tmp_path: Path) -> None:
    _, verdicts = judged(f"this suite, {execution}", tmp_path, OURS)
    assert {verdict.status for verdict in verdicts} == {"pass"}
    assert len(verdicts) == 6


@pytest.mark.parametrize("fault", faults.READ_FAULTS)
def test_a_fault_of_a_read_fails(fault: str, tmp_path: Path) -> None:
    _, verdicts = judged(fault, tmp_path)
    quantity = {"query without gradient": "grad_query"}.get(fault, "output")
    assert table.worst(verdicts, quantity)[0] > 0.1
    assert by_status(verdicts, "pass") == BLIND[fault]


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("boundary one late", {"partial", "output"}),  # the closed block and the partial sum are one sum
        ("boundary one early", {"boundary", "partial", "output"}),
        ("placeholder", {"boundary", "output"}),
        ("plain sum at the end", {"output"}),
        ("cumulative", {"boundary", "partial", "output"}),
        ("embedding in the first block", {"boundary", "partial", "output"}),
        ("queries not zero", {"zero_init"}),
    ],
)
def test_a_fault_of_a_walk_is_named(fault: str, wrong: set[str], tmp_path: Path) -> None:
    """In the walk of four sublayers in blocks of two, by the question that it answers wrongly."""
    _, verdicts = judged(fault, tmp_path)
    verdict = next(verdict for verdict in verdicts if verdict.case == "L4_S2")
    assert verdict.status == "fail"
    questions = ("embedding", "boundary", "partial", "output", "zero_init")
    assert {key for key in questions if not verdict.facts[key]} == wrong
    assert bool(verdict.reason) == (fault != "queries not zero")


def test_a_right_walk_passes(tmp_path: Path) -> None:
    _, verdicts = judged("right walk", tmp_path)
    assert {verdict.status for verdict in verdicts} == {"pass"}


def test_what_a_wrong_read_saw_is_said_in_words(tmp_path: Path) -> None:
    _, verdicts = judged("plain sum at the end", tmp_path)
    said = next(verdict.reason for verdict in verdicts if verdict.case == "L4_S2")
    assert said == "output read sees e + f1 + f2 + f3 + f4; literal: e, f1 + f2, f3 + f4"


def test_refusals_and_exceptions_are_outcomes(tmp_path: Path) -> None:
    outcome, verdicts = judged("raises", tmp_path)
    assert by_status(verdicts, "not expressible") == {"L6_S1", "L7_S3"}
    assert by_status(verdicts, "raised") == {"L4_S2", "L5_S2", "L6_S4", "L6_S6"}
    assert table.cannot_run(outcome, verdicts) == "RuntimeError: no such kernel"


def test_a_package_that_is_missing_is_an_outcome(tmp_path: Path) -> None:
    outcome, verdicts = judged("missing", tmp_path)
    assert outcome.stopped == "not installed: no-such-distribution-at-all"
    assert verdicts == []


def test_a_process_that_dies_keeps_the_cases_before() -> None:
    adapter = next(a for a in faults.ADAPTERS if a.name == "dies")
    outcome = run.run(FAULTS, adapter, sys.executable, 60)
    assert outcome.stopped == "died of SIGSEGV after 2 cases"
    assert [verdict.status for verdict in compare.judge(outcome)] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("script", "stopped"),
    [
        ("sleep 60 & sleep 60", "ended after 0.5 s, with 1 cases done"),
        (
            "echo 'ImportError: no such symbol' >&2; exit 1",
            "stopped after 1 cases: ImportError: no such symbol",
        ),
        ("exit 0", "stopped after 1 cases: exit code 0"),
        ('printf \'{"kind": "mi\' >> "$5"; kill -9 $$', "died of SIGKILL after 1 cases"),
    ],
)
def test_hanging_failing_and_torn_lines(script: str, stopped: str, tmp_path: Path) -> None:
    """A stand-in for the interpreter writes one line and then does what a peer might."""
    stand_in = tmp_path / "python"
    line = '{"kind": "mix", "case": "softmax_n1", "refused": "no"}'
    stand_in.write_text(f"#!/bin/sh\necho '{line}' >> \"$5\"\n{script}\n")
    stand_in.chmod(0o755)
    outcome = run.run(FAULTS, faults.ADAPTERS[0], str(stand_in), 0.5 if "sleep" in script else 20)
    assert outcome.stopped == stopped


def test_the_pages_have_every_implementation_and_every_case(tmp_path: Path) -> None:
    names = ("right read", "scaled by 1/sqrt(d)", "placeholder", "raises", "missing")
    results = []
    for i, name in enumerate(names):
        (tmp_path / str(i)).mkdir()
        results.append(judged(name, tmp_path / str(i)))
    table.write(results, tmp_path / "out", "a machine", "make conformance")
    text = (tmp_path / "out" / "conformance.md").read_text()
    assert all(f"| {name} |" in text for name in names)
    assert "23 of 23" in text
    assert "not installed: no-such-distribution-at-all" in text
    tables = [line.count("|") for line in text.splitlines() if line.startswith("|")]
    assert sorted(set(tables)) == [9, 10, 13]  # 8, 9 and 12 columns, none torn by a cell's text
    with (tmp_path / "out" / "conformance.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 29 + 29 + 6 + 6 + 1
    assert {row["status"] for row in rows} == {"pass", "fail", "not expressible", "raised", "not run"}


def test_every_adapter_has_a_case_to_run_and_five_packages_are_public() -> None:
    found = [adapter for _, adapter in run.adapters(adapters.MODULES)]
    assert len({adapter.name for adapter in found}) == len(found)
    assert all(adapter.mix or adapter.walk for adapter in found)
    assert all("|" not in adapter.name + adapter.ran + adapter.differs for adapter in found)
    assert len({adapter.distribution for adapter in found} - {table.OURS}) >= 5


def test_pins_agree_with_the_extra_and_the_constraints() -> None:
    pins = dict(pin.split("==") for pin in install.pins())
    found = [adapter for _, adapter in run.adapters(adapters.MODULES)]
    peers = [adapter for adapter in found if adapter.distribution != table.OURS]
    needed = {package for adapter in peers for package in (adapter.distribution, *adapter.needs)}
    assert needed <= set(pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = dict(re.split("==", pin) for pin in project["optional-dependencies"]["peers"])
    constraints = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    assert {name: pins[name] for name in extra} == extra
    assert {name: constraints[name] for name in extra} == extra
