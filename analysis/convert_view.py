"""Conversions as text table and csv records."""

from __future__ import annotations

import math

from analysis.ablation import BASELINE
from analysis.convert import ConvertData, Row
from analysis.number_text import interval_text, signed
from analysis.stats import MIN_SEEDS, Interval
from analysis.tables import EMPTY, Column, Table

ONE_SEED = "one seed"
METHOD_TEXT = {"exact": "eps / n²", "keep_eps": "eps kept"}


def tables(data: ConvertData, title: str) -> list[Table]:
    """A row per arm and method."""
    columns = [
        Column("label", "started from PreNorm", numeric=False),
        Column("method", "norms", numeric=False),
        Column("n", "n"),
        Column("before", "before"),
        Column("jump", "just after"),
        Column("loss", f"after {data.steps} steps"),
        Column("gain", "minus continued PreNorm [95 %]"),
        Column("deviation", "logits off by"),
    ]
    return [Table(title, columns, [_cells(row) for row in data.rows], _notes(data))]


def records(data: ConvertData) -> list[dict[str, object]]:
    """One csv record per arm and method, every digit kept."""
    found = []
    for row in data.rows:
        gain = row.gain
        has_interval = gain is not None and math.isfinite(gain.low)
        found.append(
            {
                "arm": row.arm,
                "method": row.method,
                "state": row.status,
                "seeds": " ".join(row.seeds),
                "parent_steps": data.parent_steps,
                "steps": data.steps,
                "loss_before": row.before,
                "jump": row.jump.estimate,
                "loss_after_steps": row.loss,
                "minus_continued": gain.estimate if gain else None,
                "minus_continued_low": gain.low if gain and has_interval else None,
                "minus_continued_high": gain.high if gain and has_interval else None,
                "minus_continued_interval": gain.kind if gain else None,
                "largest_logit_deviation": row.deviation,
                "parents": " ".join(str(pair.run.setting["start.run"]) for pair in row.pairs),
                "run_ids": " ".join(pair.run.run_id for pair in row.pairs),
            }
        )
    return found


def _cells(row: Row) -> dict[str, str]:
    gain = row.gain
    cells = {
        "label": "continued PreNorm" if row.arm == BASELINE else row.label,
        "method": EMPTY if row.arm == BASELINE else METHOD_TEXT.get(row.method, row.method),
        "n": str(len(row.done)),
        "before": f"{row.before:.4f}",
        "jump": _jump(row.jump),
        "loss": f"{row.loss:.4f}" if row.loss is not None else row.status,
        "deviation": f"{row.deviation:.0e}" if row.deviation else "0",
    }
    if gain is not None:
        cells["gain"] = interval_text(gain) + (f" ({ONE_SEED})" if gain.kind != "seeds" else "")
    return cells


def _jump(jump: Interval) -> str:
    value = jump.estimate
    return signed(value, 4) if value == 0 or abs(value) >= 1e-4 else f"{value:+.0e}"


def _notes(data: ConvertData) -> list[str]:
    notes = [
        f"Scale: {data.scale}. PreNorm runs of {data.parent_steps} steps, each converted and trained for "
        f"{data.steps} more beside its own continuation: same weights, batches, schedule; the optimizer "
        "starts anew in both. Validation loss in nats per token.",
        "just after: change of the loss by the conversion alone. logits off by: largest deviation in float64 "
        "relative to the largest logit, on validation text; training itself is in the run's precision.",
        "eps / n²: the norm of a read of n sources has its eps divided by n², so the function is that of "
        "PreNorm; eps kept: equal only as eps vanishes.",
    ]
    if data.num_seeds < MIN_SEEDS:
        notes.append(
            f"{data.num_seeds} seed{'s' * (data.num_seeds != 1)}: no verdict under {MIN_SEEDS}. An interval "
            "of one seed is over validation documents alone and says nothing about other seeds."
        )
    return [*notes, *data.notes]
