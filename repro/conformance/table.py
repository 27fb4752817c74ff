"""The pages: conformance.csv with every case, conformance.md to read, and the summary that is printed."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from repro.conformance import cases
from repro.conformance.compare import Verdict
from repro.conformance.run import Outcome

Result = tuple[Outcome, list[Verdict]]
ERRORS = (*cases.QUANTITIES, "output_read")
IN_WORDS = {
    "output": "output",
    "weights": "weights",
    "grad_sources": "gradient of the sources",
    "grad_query": "gradient of the query",
    "grad_gain": "gradient of the key gain",
    "output_read": "output read",
}
OURS = "attnres-repro"
INTRODUCTION = """\
The literals of `tests/data/attnres_literals.json` ({reads} reads and {walks} walks, computed
independently in 50 digits) and {larger} larger reads of width 64 against the float64 reference, through
every backend here and {peers} public packages, each implementation in a process of its own. An error is
max |a - b| / max |b|; gradients of query and gain that cancel are measured against the terms that cancel.
Three tokens per read, one of them with other values and no gradient. Kernels of Triton run in its
interpreter where there is no GPU. A case that an implementation has no setting for is not counted against
it.
"""
ABOUT_WALKS = """\
Sublayers are replaced by ones that write tagged outputs, and what each read mixes is recorded (e the
embedding, f3 the output of sublayer 3) and held against the source sets of the literals; then the values
of all reads with the literals' outputs, queries and gains. L sublayers, L + 1 reads.
"""
NOT_FOUND = """\
Released packages whose source was searched without finding the operation: torchtitan 0.3.0, megatron-core
0.19.2. Not looked into: inference servers."""
GAINS = {
    "own": "own parameter",
    "folded": "folded into the query by its model",
    "none": "none (folded into the query here)",
}


def cannot_run(outcome: Outcome, verdicts: Sequence[Verdict]) -> str:
    """Why there is no number at all, or what ended it early; empty where it ran."""
    if outcome.stopped:
        return outcome.stopped
    tried = [verdict for verdict in verdicts if verdict.status != "not expressible"]
    if tried and all(verdict.status == "raised" for verdict in tried):
        return tried[0].reason
    return ""


def worst(verdicts: Iterable[Verdict], quantity: str | None = None) -> tuple[float, str, str]:
    """Largest error, its quantity and its case; (nan, "", "") where nothing was measured."""
    found = [
        (error, name, verdict.case)
        for verdict in verdicts
        for name, error in verdict.errors.items()
        if quantity in (None, name)
    ]
    return max(found, default=(math.nan, "", ""))


def number(error: float) -> str:
    if math.isnan(error):
        return "–"
    return "not finite" if math.isinf(error) else "0" if error == 0 else f"{error:.0e}".replace("e-0", "e-")


def count(verdicts: Sequence[Verdict], status: str = "pass") -> str:
    tried = [verdict for verdict in verdicts if verdict.status != "not expressible"]
    return f"{sum(verdict.status == status for verdict in tried)} of {len(tried)}" if tried else "–"


def version(outcome: Outcome) -> str:
    return outcome.about.get("versions", {}).get(outcome.adapter.distribution, "–")


def _of(result: Result, kind: str) -> list[Verdict]:
    return [verdict for verdict in result[1] if verdict.kind == kind]


def _rows(header: str, rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + header.replace("|", " | ") + " |", "|" + "---|" * (header.count("|") + 1)]
    return lines + ["| " + " | ".join(row).replace("\n", " ") + " |" for row in rows]


def reads_table(results: Sequence[Result]) -> list[str]:
    def row(result: Result) -> list[str]:
        outcome, adapter = result[0], result[0].adapter
        mixes, reason = _of(result, "mix"), cannot_run(*result)
        error, quantity, case = worst(mixes)
        refused = sum(verdict.status == "not expressible" for verdict in mixes)
        return [
            adapter.name,
            version(outcome),
            f"`{adapter.ran}`" if " " not in adapter.ran else adapter.ran,
            f"{adapter.dtype}, {number(cases.TOLERANCES[adapter.dtype])}",
            "–" if reason and not any(v.errors for v in mixes) else count(mixes),
            f"{number(error)} ({IN_WORDS[quantity]}, {case})" if quantity else "–",
            str(refused),
            reason,
        ]

    return _rows(
        "implementation|version|what was run|inputs, bound|passes|worst error|not expressible"
        "|cannot run here because",
        (row(result) for result in results if result[0].adapter.mix),
    )


def quantities_table(results: Sequence[Result]) -> list[str]:
    def row(result: Result) -> list[str]:
        mixes = _of(result, "mix")
        failed = [f"{v.case}" for v in mixes if v.status in ("fail", "raised")]
        ran = any(verdict.errors for verdict in mixes)
        one = [v.errors["grad_query"] for v in mixes if v.case == "softmax_n1" and v.errors]
        every = f"all {len(failed)}" if len(failed) > 5 else ", ".join(failed) or "none"
        return [
            result[0].adapter.name,
            *(number(worst(mixes, quantity)[0]) for quantity in cases.QUANTITIES),
            "–" if not one else "exactly 0" if one == [0.0] else number(one[0]),
            every if ran else "–",
        ]

    return _rows(
        "|".join(("implementation", *(IN_WORDS[name] for name in cases.QUANTITIES)))
        + "|query gradient of one source|cases that fail",
        (row(result) for result in results if result[0].adapter.mix),
    )


def options_table(results: Sequence[Result]) -> list[str]:
    def row(outcome: Outcome) -> list[str]:
        adapter = outcome.adapter
        return [
            adapter.name,
            "yes" if "sigmoid" in adapter.acts else "no",
            "yes" if adapter.heads else "no",
            "yes" if adapter.raw_keys else "no",
            GAINS[adapter.gain],
            adapter.eps,
            "yes" if adapter.token_query else "no",
            str(adapter.max_sources or "no bound"),
            adapter.widths,
        ]

    return _rows(
        "implementation|sigmoid|heads|no key norm|key gain|eps|query per token|sources at most|widths",
        (row(outcome) for outcome, _ in results if outcome.adapter.mix),
    )


def walks_table(results: Sequence[Result]) -> list[str]:
    def row(result: Result) -> list[str]:
        walked, reason = _of(result, "walk"), cannot_run(*result)
        facts = [verdict.facts for verdict in walked if verdict.facts]

        def always(key: str) -> str:
            return ("yes" if all(fact[key] for fact in facts) else "**no**") if facts else "–"

        zero = {fact["zero_init"] for fact in facts}
        queries = {
            f"L{fact['num_queries'] - int(verdict.case[1:].partition('_')[0]):+d}".replace("L+0", "L")
            if fact["num_queries"]
            else "none"
            for verdict in walked
            if (fact := verdict.facts)
        }
        return [
            result[0].adapter.name,
            version(result[0]),
            f"{sum(bool(v.facts) for v in walked)} of {len(walked)}" if walked else "–",
            *(always(key) for key in ("embedding", "boundary", "partial", "output")),
            ", ".join(sorted(queries)) or "–",
            "–" if not facts else "caller's or loaded" if None in zero else "yes" if all(zero) else "**no**",
            number(worst(walked, "output")[0]),
            number(worst(walked, "output_read")[0]),
            reason or next((v.reason for v in walked if v.status == "fail" and v.reason), ""),
        ]

    return _rows(
        "implementation|version|walks run|embedding kept|block boundary|partial sum|output read|queries"
        "|zero at start|error of reads|error of output read|first difference",
        (row(result) for result in results if result[0].adapter.walk),
    )


def page(results: Sequence[Result], machine: str, command: str) -> str:
    """The Markdown page."""
    differs = [f"- {o.adapter.name}: {o.adapter.differs}" for o, _ in results if o.adapter.differs]
    lines = [
        "# Conformance",
        "",
        f"Written by `{command}` ({machine}).",
        "",
        INTRODUCTION.format(
            reads=len(cases.mixes()) - len(cases.LARGER),
            walks=len(cases.walks()),
            larger=len(cases.LARGER),
            peers=len({outcome.adapter.distribution for outcome, _ in results} - {OURS}),
        ),
        "## One read",
        "",
        *reads_table(results),
        "",
        "Worst error by quantity (weights only where the implementation returns them):",
        "",
        *quantities_table(results),
        "",
        "What of this suite's contract an implementation has a setting for, as read in its source:",
        "",
        *options_table(results),
        "",
        "## Source sets of the model code",
        "",
        ABOUT_WALKS,
        *walks_table(results),
        "",
        "## What differs",
        "",
        *differs,
        "",
        NOT_FOUND,
    ]
    return "\n".join(lines) + "\n"


def csv_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every case of every implementation; one row without a case where there is none."""
    rows = []
    for outcome, verdicts in results:
        adapter = outcome.adapter
        start = {
            "implementation": adapter.name,
            "package": adapter.distribution,
            "version": version(outcome),
            "inputs": adapter.dtype,
            "bound": cases.TOLERANCES[adapter.dtype],
        }
        for verdict in verdicts:
            errors = {name: f"{error:.3g}" for name, error in verdict.errors.items()}
            what = {"kind": verdict.kind, "case": verdict.case, "status": verdict.status}
            rows.append({**start, **what, **errors, "reason": verdict.reason})
        if outcome.stopped:
            rows.append({**start, "status": "not run", "reason": outcome.stopped})
    return rows


def write(results: Sequence[Result], folder: Path, machine: str, command: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conformance.md").write_text(page(results, machine, command), encoding="utf-8")
    fields = ["implementation", "package", "version", "kind", "case", "status", *ERRORS]
    with (folder / "conformance.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*fields, "inputs", "bound", "reason"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(csv_rows(results))


def summary(result: Result) -> str:
    """One line for the terminal."""
    reason = cannot_run(*result)
    parts = []
    for kind, word in (("mix", "reads"), ("walk", "walks")):
        verdicts = _of(result, kind)
        if any(verdict.errors for verdict in verdicts):
            error = worst(verdicts)[0]
            parts.append(f"{count(verdicts)} {word} (worst {number(error)})")
    text = ", ".join(parts) or "no numbers"
    return f"{result[0].adapter.name:36} {text}{'; ' + reason if reason else ''}"
