"""The zoo as text tables and csv records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.ablation import BASELINE
from analysis.number_text import interval_text, signed
from analysis.stats import MIN_SEEDS
from analysis.tables import EMPTY, Column, Table
from analysis.zoo import Entry, Zoo

_NARROW_LABEL = 36


def tables(data: Zoo, title: str, notes: Sequence[str], *, wide: bool) -> list[Table]:
    """A row per arm under a row per group; wide: with systems, losses' spread and p-values (files)."""
    columns = [Column("label", "Arm", numeric=False)]
    columns += [Column("system", "system", numeric=False)] if wide else []
    columns += [Column("n", "n"), Column("loss", "loss")]
    columns += [Column("sd", "sd")] if wide else []
    columns += [Column("difference", "minus PreNorm [95 %]")]
    columns += [Column("p", "p (Holm)")] if wide else []
    columns += [Column("paper", "paper"), Column("step", "step ×"), Column("memory", "memory ×")]
    columns += [Column("parameters", "extra parameters" if wide else "parameters")]
    rows: list[dict[str, str]] = []
    starts: list[int] = []
    for group in data.groups:
        starts.append(len(rows))
        rows.append({**dict.fromkeys((c.key for c in columns), ""), "label": f"[{group}]"})
        rows += [_cells(entry, wide) for entry in data.entries if entry.group == group]
    return [Table(title, columns, rows, notes, starts[1:])]


def records(data: Zoo) -> list[dict[str, object]]:
    """One csv record per arm, every digit kept; empty where nothing was measured."""
    found: list[dict[str, object]] = []
    for entry in data.entries:
        row, ours, time = entry.row, entry.difference, entry.step_time
        has_interval = ours is not None and math.isfinite(ours.low)
        found.append(
            {
                "group": entry.group,
                "system": entry.system or None,
                "arm": row.spec.name,
                "row": row.spec.label,
                "parent": row.spec.parent,
                "status": row.status,
                "seeds": " ".join(row.seeds),
                "loss": row.loss,
                "loss_sd": row.sd,
                "minus_prenorm": ours.estimate if ours else None,
                "minus_prenorm_low": ours.low if ours and has_interval else None,
                "minus_prenorm_high": ours.high if ours and has_interval else None,
                "minus_prenorm_interval": ours.kind if ours else None,
                "minus_prenorm_p_holm": entry.p_holm,
                "minus_prenorm_paper": _paper(entry),
                "outcome": entry.outcome,
                "step_time_ratio": time.ratio if time else None,
                "step_time_ratio_lower_quartile": time.lower_quartile if time else None,
                "step_time_ratio_upper_quartile": time.upper_quartile if time else None,
                "step_memory_ratio": entry.memory,
                "extra_parameters": entry.extra_parameters,
                "run_ids": " ".join(run.run_id for run in row.done),
            }
        )
    return found


def standing_notes(data: Zoo) -> list[str]:
    """How to read the columns."""
    compared = sum(entry.difference is not None for entry in data.entries)
    notes = [
        f"Scale: {data.scale}. Validation loss in nats per token; differences over paired seeds, 95 %: t "
        "over two or more, with one over validation documents alone, which says nothing about other seeds. "
        "Learning rate and initialisation were chosen under PreNorm; no arm was tuned.",
        "parameters: beside PreNorm's, whole model. paper: Table 4, where it has the arm.",
    ]
    if any(entry.p_holm is not None for entry in data.entries):
        notes.append(
            f"{compared} arms are compared with PreNorm: of as many without any effect {compared / 20:.1f} "
            "would exclude zero by chance, which p (Holm) allows for "
            f"(paired t test, all arms of {MIN_SEEDS} seeds or more as one family; in csv and Markdown)."
        )
    if any(entry.row.status.startswith("diverged") for entry in data.entries):
        notes.append("diverged: the loss was no longer finite at that step; such a run is a result.")
    return notes


def _cells(entry: Entry, wide: bool) -> dict[str, str]:
    row, ours = entry.row, entry.difference
    label = row.spec.label
    if not wide and len(label) > _NARROW_LABEL:
        label = label[: _NARROW_LABEL - 1] + "…"
    paper = _paper(entry)
    cells = {
        "label": label,
        "system": entry.system or EMPTY,
        "n": str(len(row.done)),
        "loss": EMPTY if row.loss is None else f"{row.loss:.3f}",
        "sd": EMPTY if row.sd is None else f"{row.sd:.3f}",
        "difference": interval_text(ours) if ours else EMPTY,
        "p": EMPTY if entry.p_holm is None else f"{entry.p_holm:.2g}",
        "paper": EMPTY if paper is None else signed(paper),
        "step": f"{entry.step_time.ratio:.2f}" if entry.step_time else EMPTY,
        "memory": EMPTY if entry.memory is None else f"{entry.memory:.2f}",
        "parameters": EMPTY if entry.extra_parameters is None else f"{entry.extra_parameters:,}",
    }
    return cells if row.status == "done" else {**cells, "difference": row.status}


def _paper(entry: Entry) -> float | None:
    contrast = entry.row.to_prenorm
    if contrast is None or entry.row.spec.name == BASELINE or not math.isfinite(contrast.paper):
        return None
    return contrast.paper
