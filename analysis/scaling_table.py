"""The fits of a study and its compute advantages, as text tables and csv records."""

from __future__ import annotations

import math
from collections.abc import Mapping

from analysis.compute_axis import NAMES as AXES
from analysis.scaling import NAMES, Curve
from analysis.scaling_study import AdvantageRow, CurveRow, Study
from analysis.tables import EMPTY, Column, Table

_KINDS = {"free": "own alpha", "shared": "one alpha", "irreducible": "with E"}

# (source, arm) -> (A, alpha): the paper's coefficients, ``printed`` and as ``drawn`` in Fig. 4.
Printed = Mapping[tuple[str, str], Curve]


def curve_table(study: Study, printed: Printed, *, wide: bool) -> Table:
    """A and alpha of every arm by estimator, with intervals; wide: shared exponents and the other axes too.

    The csv has every axis with every estimator.
    """
    ladder = study.ladder
    columns = [Column("arm", "arm", numeric=False), Column("fit", "fit", numeric=False)]
    columns += [Column("axis", "C", numeric=False)] if wide else []
    columns += [Column("a", "A [95 %]"), Column("alpha", "alpha [95 %]")]
    columns += [Column("e", "E [95 %]")] if wide else []
    columns += [Column("points", "alpha, bootstrap")] if wide else []
    rows = []
    for k, (arm, label) in enumerate(zip(ladder.arms, ladder.labels, strict=True)):
        for source in ("printed", "drawn") if ladder.scale == "published" else ():
            if (source, arm) in printed:
                curve = printed[source, arm]
                cells = {"arm": label, "fit": f"the paper, {source}", "axis": AXES["digitised"]}
                digits = 3 if source == "printed" else 4
                cells["a"] = f"{float(curve.a):.{digits}f}"
                cells["alpha"] = f"{float(curve.alpha):.{digits + (source == 'drawn')}f}"
                rows.append(cells)
        own = [row for row in study.curves if row.arm == k]
        for row in own:
            plain = row.axis == study.axis and row.kind == "free"
            if plain or (wide and (row.axis == study.axis or (row.estimator, row.kind) == ("ols", "free"))):
                rows.append(_curve_cells(label, row))
    notes = [
        f"L = A C^-alpha, C in {ladder.unit} "
        f"({AXES[study.axis]}{'' if wide else '; other axes in the files'}): A is "
        f"the loss at C = 1. {_where(study)}",
        "Intervals of A and alpha: profile likelihood of the residuals, t with n - 2 degrees of freedom (n = "
        f"{len(study.fitted.sizes) if study.fitted else 0} sizes); sum-Huber has no likelihood.",
    ]
    if wide:
        notes.append(
            "one alpha: the exponent is shared among the arms. with E: L = E + A C^-alpha; an interval of "
            "E that "
            "reaches 0 says that these sizes do not show an irreducible loss. bootstrap: over points, all "
            "resamples; alpha is undefined in a resample of a single size."
        )
    return Table("Fitted curves", columns, rows, notes)


def _where(study: Study) -> str:
    if study.ladder.scale == "published":
        return "The paper does not say how it fitted."
    count = len(study.ladder.seeds)
    return f"Scale {study.ladder.scale}, {count} seed{'s' * (count != 1)} per point."


def _curve_cells(label: str, row: CurveRow) -> dict[str, str]:
    fit = NAMES[row.estimator] + ("" if row.kind == "free" else f", {_KINDS[row.kind]}")
    cells = {"arm": label, "fit": fit, "axis": AXES[row.axis]}
    cells["a"] = f"{float(row.curve.a):.4f}" + (f" [{row.a[0]:.3f}, {row.a[1]:.3f}]" if row.a else "")
    cells["alpha"] = f"{float(row.curve.alpha):.4f}" + (
        f" [{row.alpha[0]:.3f}, {row.alpha[1]:.3f}]" if row.alpha else ""
    )
    cells["e"] = EMPTY
    if row.kind == "irreducible":
        cells["e"] = f"{float(row.curve.e):.2f}" + (f" [{row.e[0]:.2f}, {row.e[1]:.2f}]" if row.e else "")
    if row.points:
        alpha = row.points[1]
        cells["points"] = f"[{alpha.low:.3f}, {alpha.high:.3f}], {100 * alpha.undefined:.2f} % undefined"
    return cells


def advantage_table(study: Study, printed: Printed, *, wide: bool) -> Table:
    """Compute advantages over the baseline; wide: shared exponents and the other axes too."""
    ladder = study.ladder
    columns = [Column("arm", "arm", numeric=False), Column("place", "at", numeric=False)]
    columns += [Column("axis", "C", numeric=False)] if wide else []
    columns += [Column("fit", "fit", numeric=False), Column("ratio", "advantage [95 %]")]
    columns += [Column("points", "bootstrap, points")]
    has_seeds = any(row.seeds for row in study.advantages)
    columns += [Column("seeds", "t, seeds")] if has_seeds else []
    columns += (
        [Column("both", "bootstrap, both"), Column("documents", "documents")]
        if wide and not _paper(study)
        else []
    )
    columns += [Column("step", "per 0.001")]
    rows = []
    for k, (arm, label) in enumerate(zip(ladder.arms, ladder.labels, strict=True)):
        if k == 0:
            continue
        for source in ("printed", "drawn") if _paper(study) else ():
            if (source, arm) in printed:
                place = next(row.place for row in study.advantages if row.arm == k)
                ratio = place.ratio(printed[source, ladder.arms[0]], printed[source, arm])
                rows.append(
                    {
                        "arm": label, "place": _place(study, place.at, place.value),
                        "axis": AXES["digitised"],
                        "fit": f"the paper, {source}", "ratio": f"{ratio:.3f}",
                    }
                )  # fmt: skip
        for row in study.advantages:
            drawn, ols = row.axis == study.axis, row.estimator == "ols"
            narrow = drawn and row.kind == "free" and (ols or row.place.at == "method")
            also = row.place.at == "method" and (drawn or ols)
            if row.arm == k and (narrow or (wide and also)):
                rows.append(_advantage_cells(study, label, row))
    notes = [
        f"Advantage: the baseline's compute over the method's at one loss. {_where(study)} [95 %]: t "
        "interval of the "
        "residuals of the two curves, paired by size (n - 2 degrees of freedom). bootstrap: over points, all "
        "resamples; it is too narrow at five points.",
        "per 0.001: the largest change when one loss moves by its last printed digit.",
    ]
    undefined = max((row.points.undefined for row in study.advantages if row.points), default=0.0)
    notes.append(f"Share of resamples in which an advantage is undefined: at most {100 * undefined:.2f} %.")
    if has_seeds:
        notes.append("t, seeds: one ladder per seed, t over their log advantages; the interval to quote.")
    return Table("Compute advantage over PreNorm", columns, rows, notes)


def _paper(study: Study) -> bool:
    return study.ladder.scale == "published"


def _place(study: Study, at: str, value: float) -> str:
    if at == "loss":
        return f"loss {value:.3f}"
    who = "its" if at == "method" else "PreNorm's"
    unit = "PF-days" if _paper(study) else study.ladder.unit
    return f"{who} {value:.3g} {unit}"


def _advantage_cells(study: Study, label: str, row: AdvantageRow) -> dict[str, str]:
    cells = {"arm": label, "place": _place(study, row.place.at, row.place.value), "axis": AXES[row.axis]}
    cells["fit"] = NAMES[row.estimator] + ("" if row.kind == "free" else f", {_KINDS[row.kind]}")
    cells["ratio"] = _number(row.ratio) + (_ends(*row.paired) if row.paired else "")
    if row.points:
        cells["points"] = _ends(row.points.low, row.points.high).strip()
    if row.seeds:
        cells["seeds"] = _number(row.seeds.estimate) + _ends(row.seeds.low, row.seeds.high)
    if row.both:
        cells["both"] = _ends(row.both.low, row.both.high).strip()
    if row.documents:
        cells["documents"] = _ends(row.documents.low, row.documents.high).strip()
    if row.step:
        cells["step"] = f"{row.step.change:.3f}"
    return cells


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "undefined"


def _ends(low: float, high: float) -> str:
    if math.isnan(low):
        return ""
    return f" [{low:.2f}, {high:.2f}]" if math.isfinite(high) else " [unbounded]"


def curve_records(study: Study) -> list[dict[str, object]]:
    """One csv record per fitted curve and per advantage, told apart by ``quantity``."""
    ladder = study.ladder
    records: list[dict[str, object]] = []
    names = (
        "quantity", "variant", "axis", "unit", "estimator", "exponent", "A", "A_low", "A_high", "alpha",
        "alpha_low", "alpha_high", "E", "E_low", "E_high", "at", "value", "advantage", "low", "high",
        "points_low", "points_high", "points_undefined", "seeds_low", "seeds_high", "seeds", "per_0.001",
    )  # fmt: skip
    for row in study.curves:
        found = {
            "quantity": "curve", "variant": ladder.arms[row.arm], "axis": row.axis, "unit": ladder.unit,
            "estimator": row.estimator, "exponent": row.kind, "A": float(row.curve.a),
            "alpha": float(row.curve.alpha), "E": float(row.curve.e), **_pair("A", row.a),
            **_pair("alpha", row.alpha), **_pair("E", row.e),
        }  # fmt: skip
        records.append({name: found.get(name) for name in names})
    for a in study.advantages:
        found = {
            "quantity": "advantage", "variant": ladder.arms[a.arm], "axis": a.axis, "unit": ladder.unit,
            "estimator": a.estimator, "exponent": a.kind, "at": a.place.at, "value": a.place.value,
            "advantage": a.ratio, "per_0.001": a.step.change if a.step else None,
        }  # fmt: skip
        if a.paired:
            found |= {"low": a.paired[0], "high": a.paired[1]}
        if a.points:
            found |= {
                **_pair("points", (a.points.low, a.points.high)),
                "points_undefined": a.points.undefined,
            }
        if a.seeds:
            found |= {**_pair("seeds", (a.seeds.low, a.seeds.high)), "seeds": a.seeds.n}
        records.append({name: found.get(name) for name in names})
    return records


def _pair(name: str, ends: tuple[float, float] | None) -> dict[str, object]:
    return {} if ends is None else {f"{name}_low": ends[0], f"{name}_high": ends[1]}
