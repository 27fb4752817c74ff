"""An ``AblationTable`` as text tables and csv records: columns, number formats and the notes below."""

from __future__ import annotations

import math
from collections.abc import Callable

from analysis.ablation import AblationTable, ArmRow, Contrast
from analysis.stats import DRAWS, LEVEL, MIN_SEEDS, VERDICT_RULE, Interval
from analysis.tables import EMPTY, Column, Table

DAGGER = "†"
ContrastCheck = Callable[[AblationTable], tuple[bool | None, str]]


def tables(table: AblationTable, title: str, *, wide: bool) -> list[Table]:
    """The rows against PreNorm and, below, those whose parent is another arm against that parent.

    wide: with standard deviation and parameters (files); without, the first table fits a terminal.
    """
    if table.scale == "published":
        return [_published(table, title)]
    mark = _marks_documents(table)
    columns = [Column("label", "Arm", numeric=False), Column("n", "n"), Column("loss", "loss")]
    columns += [Column("sd", "sd")] if wide else []
    columns += [Column("bpb", "bits/B")]
    columns += [Column("parameters", "parameters")] if wide else []
    columns += [
        Column("step", "step ×"),
        Column("difference", "minus PreNorm [95 %]"),
        Column("paper", "paper"),
    ]
    columns += [Column("verdict", "verdict", numeric=False)]
    columns += [Column("paper_loss", "paper loss")] if wide else []
    main = Table(title, columns, [_main_cells(row, mark) for row in table.rows], _notes(table))
    rows = [_parent_cells(table, row, mark) for row in table.rows if row.to_parent]
    if not rows:
        return [main]
    parent_columns = [
        Column("label", "Arm", numeric=False),
        Column("parent", "minus", numeric=False),
        Column("difference", "difference [95 %]"),
        Column("paper", "paper"),
        Column("verdict", "verdict", numeric=False),
    ]
    first, second = main, Table("Against the arm each is a variant of", parent_columns, rows, main.notes)
    return [Table(first.title, first.columns, first.rows), second]


def records(table: AblationTable) -> list[dict[str, object]]:
    """One csv record per row, every digit kept; seeds and run ids are separated by spaces."""
    return [_record(row) for row in table.rows]


def _published(table: AblationTable, title: str) -> Table:
    columns = [
        Column("label", "Arm", numeric=False),
        Column("paper_loss", "loss"),
        Column("paper", "minus PreNorm"),
    ]
    if any(row.to_parent for row in table.rows):
        columns += [Column("parent", "variant of", numeric=False), Column("parent_paper", "minus that")]
    rows = []
    for row in table.rows:
        cells = {"label": row.spec.label, "paper_loss": f"{row.spec.paper_loss:.3f}"}
        cells["paper"] = _signed(row.to_prenorm.paper) if row.to_prenorm else EMPTY
        if row.to_parent:
            cells |= {"parent": _label(table, row.to_parent), "parent_paper": _signed(row.to_parent.paper)}
        rows.append(cells)
    note = (
        "Scale: published. The paper's numbers (arXiv:2603.15031v1), validation loss in nats per token, "
        "printed to 0.001; one run per row, no seeds and no intervals, so no verdict."
    )
    return Table(title, columns, rows, [note])


def _main_cells(row: ArmRow, mark: bool) -> dict[str, str]:
    cells = {"label": row.spec.label, "n": str(len(row.done)), "paper_loss": f"{row.spec.paper_loss:.3f}"}
    cells["loss"] = _number(row.loss, ".3f")
    cells["sd"] = _number(row.sd, ".3f")
    cells["bpb"] = _number(row.bits_per_byte, ".3f")
    cells["parameters"] = _number(row.parameters, ",d")
    if row.step_time:
        cells["step"] = f"{row.step_time.ratio:.2f}"
    cells |= _contrast_cells(row.to_prenorm, mark)
    if row.status != "done":
        cells["difference"] = row.status
    return cells


def _parent_cells(table: AblationTable, row: ArmRow, mark: bool) -> dict[str, str]:
    assert row.to_parent is not None
    cells = {"label": row.spec.label, "parent": _label(table, row.to_parent)}
    cells |= _contrast_cells(row.to_parent, mark)
    if row.status != "done":
        cells["difference"] = row.status
    return cells


def _contrast_cells(contrast: Contrast | None, mark: bool) -> dict[str, str]:
    if contrast is None:
        return {}
    cells = {"paper": _signed(contrast.paper), "verdict": contrast.verdict or EMPTY}
    if contrast.ours:
        cells["difference"] = _interval(contrast.ours, mark)
    return cells


def _record(row: ArmRow) -> dict[str, object]:
    step = row.step_time
    record: dict[str, object] = {
        "arm": row.spec.name,
        "row": row.spec.label,
        "parent": row.spec.parent,
        "status": row.status,
        "seeds": " ".join(map(str, row.seeds)),
        "loss": row.loss,
        "loss_sd": row.sd,
        "bits_per_byte": row.bits_per_byte,
        "parameters": row.parameters,
        "step_time_ratio": step.ratio if step else None,
        "step_time_ratio_low": step.low if step else None,
        "step_time_ratio_high": step.high if step else None,
        "paper_loss": row.spec.paper_loss,
    }
    for name, contrast in (("prenorm", row.to_prenorm), ("parent", row.to_parent or row.to_prenorm)):
        ours = contrast.ours if contrast else None
        has_interval = ours is not None and ours.kind != "none"
        record |= {
            f"minus_{name}": ours.estimate if ours else None,
            f"minus_{name}_low": ours.low if ours and has_interval else None,
            f"minus_{name}_high": ours.high if ours and has_interval else None,
            f"minus_{name}_interval": ours.kind if ours else None,
            f"minus_{name}_n": ours.n if ours else None,
            f"minus_{name}_paper": contrast.paper if contrast else None,
            f"minus_{name}_verdict": contrast.verdict if contrast else None,
        }
    record["run_ids"] = " ".join(run.run_id for run in row.done)
    return record


def _notes(table: AblationTable) -> list[str]:
    seeds = ", ".join(map(str, sorted({seed for row in table.rows for seed in row.seeds})))
    plural = "s" if "," in seeds else ""
    trained = f"seed{plural} {seeds} (n: how many an arm finished)" if seeds else "no finished run"
    notes = [
        f"Scale: {table.scale}; {trained}. Loss in nats per token and bits per byte (bits/B) over the "
        "whole validation set; the paper's numbers (436M activated parameters) are from arXiv:2603.15031v1."
    ]
    by_kind = {
        kind: [i.n for i in table.intervals if i.kind == kind] for kind in ("seeds", "documents", "none")
    }
    if by_kind["seeds"]:
        notes.append(f"Intervals: {100 * LEVEL:.0f} %, t over paired seeds, all on one validation set.")
    if by_kind["documents"]:
        subject = f"Those marked {DAGGER}" if _marks_documents(table) else "Intervals"
        documents = " or ".join(map(str, sorted(set(by_kind["documents"]))))
        notes.append(
            f"{subject}: one seed only, so {100 * LEVEL:.0f} % over validation documents alone (paired "
            f"bootstrap of {documents} documents, {DRAWS} draws). The spread over seeds is not in them and "
            "may be larger."
        )
    if by_kind["none"]:
        notes.append(
            "Differences without an interval: per-document losses are not recorded, or there is one document."
        )
    if any(row.step_time for row in table.rows):
        notes.append(
            "step ×: time of a training step relative to PreNorm, measured interleaved in one process."
        )
    else:
        command = f"python -m repro.train.step_time experiment=table4 scale={table.scale}"
        notes.append(f"step × is not measured at this scale: {command}")
    return [*notes, VERDICT_RULE, *table.notes]


def _marks_documents(table: AblationTable) -> bool:
    return {"seeds", "documents"} <= {i.kind for i in table.intervals}


def _label(table: AblationTable, contrast: Contrast) -> str:
    return table.row(contrast.reference).spec.label


def _interval(interval: Interval, mark: bool) -> str:
    text = _signed(interval.estimate)
    if math.isfinite(interval.low):
        text += f" [{_signed(interval.low)}, {_signed(interval.high)}]"
    return text + (DAGGER if mark and interval.kind == "documents" else "")


def _signed(value: float) -> str:
    text = f"{value:+.3f}"
    return text.replace("+0.000", "0.000").replace("-0.000", "0.000")


def _number(value: float | int | None, form: str) -> str:
    return EMPTY if value is None else format(value, form)


def better(arm: str, reference: str) -> ContrastCheck:
    """A check that ``arm`` has the lower loss: by our verdict, or by the sign of the paper's difference."""
    return _contrast_check(arm, reference, sign=-1)


def worse(arm: str, reference: str) -> ContrastCheck:
    """A check that ``arm`` has the higher loss, else as ``better``."""
    return _contrast_check(arm, reference, sign=1)


def _contrast_check(arm: str, reference: str, sign: int) -> ContrastCheck:
    def test(table: AblationTable) -> tuple[bool | None, str]:
        contrast = table.contrast(arm, reference)
        if table.scale == "published":
            return contrast.paper * sign > 0, _signed(contrast.paper)
        if contrast.ours is None:
            return None, "no finished pair of runs"
        evidence = f"{_interval(contrast.ours, False)}, paper {_signed(contrast.paper)}"
        if contrast.verdict is None:
            return None, f"{evidence}, no verdict under {MIN_SEEDS} seeds"
        if contrast.verdict == "underpowered":
            return None, f"{evidence}, underpowered"
        side = contrast.ours.estimate * sign > 0
        return side and contrast.verdict != "no difference", f"{evidence}, {contrast.verdict}"

    return test
