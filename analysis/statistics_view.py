"""The statistics of a table's contrasts as text table, csv columns and notes."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.ablation import AblationTable, ArmRow, Contrast
from analysis.contrast_statistics import ContrastStatistics, family_statistics
from analysis.number_text import interval_text
from analysis.power import MOST_SEEDS, POWER, SeedsNeeded
from analysis.stats import LEVEL, MARGIN, MIN_SEEDS
from analysis.tables import EMPTY, Column, Table

Entry = tuple[ArmRow, Contrast, ContrastStatistics]


def statistics_tables(table: AblationTable, *, wide: bool) -> list[Table]:
    """One table per family (against PreNorm; against the arm each is a variant of) that has three seeds.

    wide: with the interval over seeds and documents and the comparison with the paper's size (files).
    """
    found = []
    for title, entries in (
        ("Statistics of the differences to PreNorm", prenorm_family(table)),
        ("Statistics of the differences to the arm each is a variant of", parent_family(table)),
    ):
        if entries:
            found.append(_table(title, entries, wide))
    return found


def prenorm_family(table: AblationTable) -> list[Entry]:
    """The rows whose difference to PreNorm has its statistics."""
    return _entries(table.rows, [row.to_prenorm for row in table.rows])


def parent_family(table: AblationTable) -> list[Entry]:
    """The rows whose difference to another parent than PreNorm has its statistics."""
    return _entries(table.rows, [row.to_parent for row in table.rows])


def statistics_record(
    entry: ContrastStatistics | None, contrast: Contrast | None, name: str
) -> dict[str, object]:
    """The csv columns of one contrast, every digit kept; empty fields where there are too few seeds."""
    joint, needed = contrast.joint if contrast else None, entry.needed if entry else None
    return {
        f"minus_{name}_sd": entry.sd if entry else None,
        f"minus_{name}_p": entry.p if entry else None,
        f"minus_{name}_p_holm": entry.p_holm if entry else None,
        f"minus_{name}_seeds_needed": needed.at_measured if needed else None,
        f"minus_{name}_seeds_needed_low": needed.at_low if needed else None,
        f"minus_{name}_seeds_needed_high": needed.at_high if needed else None,
        f"minus_{name}_visible": entry.visible if entry else None,
        f"minus_{name}_zero_equivalence_p": entry.equal_p if entry else None,
        f"minus_{name}_paper_equivalence_p": entry.paper_size_p if entry else None,
        f"minus_{name}_joint_low": joint.low if joint else None,
        f"minus_{name}_joint_high": joint.high if joint else None,
    }


def p_text(p: float | None) -> str:
    """A p-value with three decimals, ``<0.001`` below."""
    if p is None:
        return EMPTY
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def sd_text(sd: float) -> str:
    """A standard deviation with three decimals, one digit where these would be zero."""
    return f"{sd:.3f}" if sd >= 0.001 or sd == 0 else f"{sd:.1g}"


def needed_text(needed: SeedsNeeded | None) -> str:
    """``41 [13, 1512]``: at the measured spread, and at the ends of its interval."""
    if needed is None:
        return EMPTY
    texts = [_count(n) for n in (needed.at_measured, needed.at_low, needed.at_high)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def statistics_notes(table: AblationTable, *, wide: bool) -> list[str]:
    """What the columns are, for a table that has them."""
    families = [family for family in (prenorm_family(table), parent_family(table)) if family]
    if not families:
        return []
    few = min(len(contrast.differences) for family in families for _, contrast, _ in family)
    sizes = " and ".join(str(len(family)) for family in families)
    found = [
        f"p: paired t test over seeds, two-sided. p (Holm): corrected for the {sizes} contrasts of its table "
        f"that have {MIN_SEEDS} seeds or more. Verdicts and intervals are not corrected: each row tests a "
        "sentence of its own. Who picks the best of the rows should read the corrected p.",
        f"seeds needed: paired seeds that show the paper's difference with {100 * POWER:.0f} % power at the "
        f"measured spread (sd of the paired differences); in brackets, at the ends of the "
        f"{100 * LEVEL:.0f} % interval of that spread, which {few} seeds leave wide. {EMPTY} where the "
        "paper's difference is within its rounding.",
    ]
    if wide:
        found.append(
            "seeds and documents: the interval for other seeds and other validation text. as paper, p: two "
            f"one-sided tests that our difference is within ±{MARGIN} nats of the paper's, which is taken as "
            "printed; below 0.05 the two have the same size, above it nothing follows."
        )
    return found


def _entries(rows: Sequence[ArmRow], contrasts: Sequence[Contrast | None]) -> list[Entry]:
    found = zip(rows, contrasts, family_statistics(contrasts), strict=True)
    return [(row, contrast, entry) for row, contrast, entry in found if contrast and entry]


def _table(title: str, entries: Sequence[Entry], wide: bool) -> Table:
    columns = [
        Column("label", "Arm", numeric=False),
        Column("difference", "difference [95 %]"),
        Column("p", "p"),
        Column("holm", "p (Holm)"),
        Column("sd", "sd"),
        Column("needed", "seeds needed [95 %]"),
    ]
    if wide:
        columns += [Column("joint", "seeds and documents [95 %]"), Column("paper", "as paper, p")]
    rows = [
        {
            "label": row.spec.label,
            "difference": interval_text(contrast.ours) if contrast.ours else EMPTY,
            "p": p_text(entry.p),
            "holm": p_text(entry.p_holm),
            "sd": sd_text(entry.sd),
            "needed": needed_text(entry.needed),
            "joint": interval_text(contrast.joint) if contrast.joint else EMPTY,
            "paper": p_text(entry.paper_size_p),
        }
        for row, contrast, entry in entries
    ]
    return Table(title, columns, rows)


def _count(number: int | None) -> str:
    return f">{MOST_SEEDS}" if number is None else str(number)
