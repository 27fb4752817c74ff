"""An ``AblationTable`` as text tables and csv records: columns, number formats and the notes below."""

from __future__ import annotations

from analysis.ablation import BASELINE, PAPER_SUBLAYERS, AblationTable, ArmRow, Contrast
from analysis.contrast_statistics import ContrastStatistics, family_statistics
from analysis.number_text import interval_text, signed
from analysis.statistics_view import statistics_notes, statistics_record, statistics_tables
from analysis.stats import DRAWS, LEVEL, VERDICT_RULE, Interval
from analysis.step_time import how_measured
from analysis.tables import EMPTY, Column, Table

DAGGER = "†"


def tables(table: AblationTable, title: str, *, experiment: str, wide: bool) -> list[Table]:
    """The rows against PreNorm and, below, those whose parent is another arm against that parent.

    experiment: the one whose step times to measure, should there be none.
    wide: with standard deviation and parameters (files); without, the first table fits a terminal.
    """
    if table.scale == "published":
        return _published(table, title)
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
    notes = _notes(table, experiment, wide)
    main = Table(title, columns, [_main_cells(row, mark) for row in table.rows], notes)
    found = [main]
    rows = [_parent_cells(table, row, mark) for row in table.rows if row.to_parent]
    if rows:
        parent_columns = [
            Column("label", "Arm", numeric=False),
            Column("parent", "minus", numeric=False),
            Column("difference", "difference [95 %]"),
            Column("paper", "paper"),
            Column("verdict", "verdict", numeric=False),
        ]
        found.append(Table("Against the arm each is a variant of", parent_columns, rows))
    found += statistics_tables(table, wide=wide)
    bare = [Table(part.title, part.columns, part.rows) for part in found[:-1]]
    return [*bare, Table(found[-1].title, found[-1].columns, found[-1].rows, main.notes)]


def records(table: AblationTable) -> list[dict[str, object]]:
    """One csv record per row, every digit kept; seeds and run ids are separated by spaces."""
    to_prenorm = family_statistics([row.to_prenorm for row in table.rows])
    to_parent = family_statistics([row.to_parent for row in table.rows])
    return [
        # A row whose parent is PreNorm has one contrast, and it is in both sets of columns.
        _record(row, table.num_sublayers, a, b if row.to_parent else a)
        for row, a, b in zip(table.rows, to_prenorm, to_parent, strict=True)
    ]


def num_blocks(block_size: int, num_sublayers: int) -> int:
    """N: blocks of S sublayers over L; the last one is smaller where S does not divide L."""
    return -(-num_sublayers // block_size)


def transformer_blocks(block_size: int) -> str:
    """A block size in transformer blocks, as text (two sublayers each)."""
    number = f"{block_size / 2:g}"
    return f"{number} transformer block" + ("" if number == "1" else "s")


def _published(table: AblationTable, title: str) -> list[Table]:
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
        cells["paper"] = signed(row.to_prenorm.paper) if row.to_prenorm else EMPTY
        if row.to_parent:
            cells |= {"parent": _label(table, row.to_parent), "parent_paper": signed(row.to_parent.paper)}
        rows.append(cells)
    note = (
        "Scale: published. The paper's numbers (arXiv:2603.15031v1), validation loss in nats per token, "
        "printed to 0.001; one run per row, no seeds and no intervals, so no verdict."
    )
    return [_paper_form(table, title), Table("As differences", columns, rows, [note, *_block_note(table)])]


def _paper_form(table: AblationTable, title: str) -> Table:
    """Variant and loss, in the paper's order; an arm that others are variants of begins a group."""
    parents = {row.spec.parent for row in table.rows} - {None, BASELINE}
    rows = [{"label": row.spec.label, "loss": f"{row.spec.paper_loss:.3f}"} for row in table.rows]
    groups = [place for place, row in enumerate(table.rows) if row.spec.name in parents]
    return Table(title, [Column("label", "Variant", numeric=False), Column("loss", "loss")], rows, (), groups)


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
    cells = {"paper": signed(contrast.paper), "verdict": contrast.verdict or EMPTY}
    if contrast.ours:
        cells["difference"] = _interval(contrast.ours, mark)
    return cells


def _record(
    row: ArmRow,
    num_sublayers: int | None,
    to_prenorm: ContrastStatistics | None,
    to_parent: ContrastStatistics | None,
) -> dict[str, object]:
    step, size = row.step_time, row.spec.block_size
    record: dict[str, object] = {
        "arm": row.spec.name,
        "row": row.spec.label,
        "parent": row.spec.parent,
        "block_size": size,
        "num_blocks": num_blocks(size, num_sublayers) if size and num_sublayers else None,
        "status": row.status,
        "seeds": " ".join(map(str, row.seeds)),
        "loss": row.loss,
        "loss_sd": row.sd,
        "bits_per_byte": row.bits_per_byte,
        "parameters": row.parameters,
        "step_time_ratio": step.ratio if step else None,
        "step_time_ratio_lower_quartile": step.lower_quartile if step else None,
        "step_time_ratio_upper_quartile": step.upper_quartile if step else None,
        "paper_loss": row.spec.paper_loss,
    }
    for name, contrast, statistics in (
        ("prenorm", row.to_prenorm, to_prenorm),
        ("parent", row.to_parent or row.to_prenorm, to_parent),
    ):
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
            **statistics_record(statistics, contrast, name),
        }
    record["run_ids"] = " ".join(run.run_id for run in row.done)
    return record


def _notes(table: AblationTable, experiment: str, wide: bool) -> list[str]:
    labels = dict(sorted((run.seeds, run.seed_label) for row in table.rows for run in row.done))
    seeds = ", ".join(labels.values())
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
    if times := [row.step_time for row in table.rows if row.step_time]:
        notes.append(how_measured(times))
    else:
        command = f"python -m repro.train.step_time experiment={experiment} scale={table.scale}"
        notes.append(f"step × is not measured at this scale: {command}")
    return [*notes, VERDICT_RULE, *statistics_notes(table, wide=wide), *_block_note(table), *table.notes]


def _block_note(table: AblationTable) -> list[str]:
    """Each block size above one sublayer in both units, with N at this L."""
    sizes = sorted({row.spec.block_size or 1 for row in table.rows} - {1}, reverse=True)
    if not sizes:
        return []
    depth = table.num_sublayers
    parts = []
    for size in sizes:
        part = f"S={size} is {transformer_blocks(size)}"
        if depth:
            count, rest = num_blocks(size, depth), depth % size
            part += f", N={count}" + (f" (the last of {rest} sublayers)" if rest and count > 1 else "")
        parts.append(part)
    at = f" at L={depth} sublayers" if depth else " in sublayers"
    at += f" (the paper: L={PAPER_SUBLAYERS})" if depth not in (None, PAPER_SUBLAYERS) else ""
    return [f"Block size S and number of blocks N{at}: {'; '.join(parts)}."]


def _marks_documents(table: AblationTable) -> bool:
    return {"seeds", "documents"} <= {i.kind for i in table.intervals}


def _label(table: AblationTable, contrast: Contrast) -> str:
    return table.row(contrast.reference).spec.label


def _interval(interval: Interval, mark: bool) -> str:
    return interval_text(interval) + (DAGGER if mark and interval.kind == "documents" else "")


def _number(value: float | int | None, form: str) -> str:
    return EMPTY if value is None else format(value, form)
