"""Fig. 5 in numbers: how loss, magnitudes and gradients differ between arms, the paper's beside ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.dynamics import MEASURES, NORMS, TENSORS, ArmDynamics, period
from analysis.dynamics_figure import NORM_LABELS, TENSOR_LABELS
from analysis.stats import Interval, point, seed_interval
from analysis.tables import EMPTY, Column, Table

SHOWN = {
    "growth": "last / first",
    "spread": "largest / smallest",
    "largest": "largest",
    "evenness": "evenness",
}
QUANTITIES = (
    "validation loss at the end",
    "minus PreNorm",
    *(f"magnitude: {text}" for text in SHOWN.values()),
    "magnitude: period",
    *(f"gradient: {text}" for text in SHOWN.values()),
)
NORMS_TITLE = "Every recorded norm: largest / smallest over transformer blocks (spread), and evenness"
NORMS_NOTES = (
    "Means over seeds; intervals are in the csv. An addition hands its gradient on unchanged, so the running "
    "tensor has the gradient of the output that it ends with.",
)
NOTES = (
    "Magnitudes are taken after each transformer block. Ours: RMS of the running tensor (PreNorm: the "
    "residual stream; Block: the partial sum of the open block; Full: the output). The paper does not define "
    "its own.",
    "Evenness is (sum x)^2 / (n sum x^2): 1 where all transformer blocks are alike, 1/n where one holds all. "
    "Period: commonest distance between falls of the magnitude, in transformer blocks.",
)


@dataclass(frozen=True)
class DynamicsData:
    """The paper's arms and, at a trained scale, ours."""

    scale: str
    paper: tuple[ArmDynamics, ...]
    ours: tuple[ArmDynamics, ...]

    def arm(self, name: str, paper: bool) -> ArmDynamics | None:
        """An arm whose name begins so (the paper does not say Block's size in this figure)."""
        arms = self.paper if paper else self.ours
        return next((arm for arm in arms if arm.arm.startswith(name)), None)


def final_loss(arm: ArmDynamics) -> Interval:
    """Validation loss at the end of the curve, averaged over seeds."""
    return point(float(arm.mean_curve().loss[-1]))


def final_difference(arm: ArmDynamics, reference: ArmDynamics) -> Interval | None:
    """Loss at the end minus the reference's, nats, over the seeds that both have."""
    if not arm.runs:
        return point(float(arm.mean_curve().loss[-1] - reference.mean_curve().loss[-1]))
    other = dict(zip([run.seeds for run in reference.runs], reference.curves, strict=True))
    differences = [
        float(curve.loss[-1] - other[run.seeds].loss[-1])
        for run, curve in zip(arm.runs, arm.curves, strict=True)
        if run.seeds in other
    ]
    if len(differences) > 1:
        return seed_interval(differences)
    return point(differences[0]) if differences else None


def tables(data: DynamicsData, title: str, notes: Sequence[str] = ()) -> list[Table]:
    """The main numbers, and at a trained scale the same shapes for every recorded norm."""
    arms = [("paper", arm) for arm in data.paper] + [("ours", arm) for arm in data.ours]
    columns = [Column("label", "", numeric=False)]
    columns += [Column(f"{who} {arm.arm}", f"{who} {arm.label}") for who, arm in arms]
    rows: list[dict[str, str]] = []
    for record in records(data):
        if record["tensor"] in ("loss", "stream") and record["norm"] in ("", "rms"):
            key = str(record["quantity"])
            row = next((row for row in rows if row["label"] == key), None)
            if row is None:
                rows.append(row := {"label": key})
            for who, arm in arms:
                if record["arm"] == arm.arm or (who == "paper" and str(record["arm"]).startswith(arm.arm)):
                    text = _text(record, who)
                    if text != EMPTY:
                        row[f"{who} {arm.arm}"] = text
    rows.sort(key=lambda row: QUANTITIES.index(row["label"]))
    scale = "the paper" if not data.ours else f"scale {data.scale}, {_seeds(data.ours)}"
    main = Table(f"{title} ({scale})", columns, rows, [*NOTES, *_bounds(data)])
    return [main, _norms(data, notes)] if data.ours else [main]


def records(data: DynamicsData) -> list[dict[str, object]]:
    """One record per arm and quantity: the paper's value, ours with interval and number of seeds."""
    rows = []
    names = ["prenorm", "block", "full"]
    for name in names:
        paper, ours = data.arm(name, True), data.arm(name, False)
        if paper is None and ours is None:
            continue
        label = (ours or paper).arm  # type: ignore[union-attr]
        losses = [final_loss(arm) if arm else None for arm in (paper, ours)]
        rows.append(_record(label, "loss", "", "validation loss at the end", losses[0], losses[1], ours))
        if name != "prenorm":
            known, found = (_difference(data, name, is_paper) for is_paper in (True, False))
            rows.append(_record(label, "loss", "", "minus PreNorm", known, found, ours))
        for gradient, what in (("", "magnitude"), ("_grad", "gradient")):
            for measure, text in SHOWN.items():
                known = paper.shape(f"stream{gradient}_paper", measure) if paper else None
                found = ours.shape(f"stream{gradient}_rms", measure) if ours else None
                rows.append(_record(label, "stream", "rms", f"{what}: {text}", known, found, ours))
            if not gradient:
                rows.append(_period(label, paper, ours))
        for tensor in TENSORS:
            for norm in NORMS:
                for gradient in ("", "_grad"):
                    for measure in MEASURES:
                        found = ours.shape(f"{tensor}{gradient}_{norm}", measure) if ours else None
                        if found and (tensor, norm) != ("stream", "rms"):
                            quantity = f"{'gradient' if gradient else 'magnitude'}: {SHOWN[measure]}"
                            rows.append(_record(label, tensor, norm, quantity, None, found, ours))
    return rows


def _difference(data: DynamicsData, name: str, paper: bool) -> Interval | None:
    arm, reference = data.arm(name, paper), data.arm("prenorm", paper)
    return final_difference(arm, reference) if arm and reference else None


def _period(label: str, paper: ArmDynamics | None, ours: ArmDynamics | None) -> dict[str, object]:
    def found(arm: ArmDynamics | None, name: str) -> Interval | None:
        if arm is None or not arm.series or name not in arm.series[0]:
            return None
        result = period(arm.blocks(name).mean(0))
        return point(float(result[0])) if result else None

    known, own = found(paper, "stream_paper"), found(ours, "stream_rms")
    return _record(label, "stream", "rms", "magnitude: period", known, own, ours)


def _record(
    arm: str,
    tensor: str,
    norm: str,
    quantity: str,
    paper: Interval | None,
    ours: Interval | None,
    runs: ArmDynamics | None,
) -> dict[str, object]:
    bounded = ours if ours and math.isfinite(ours.low) else None
    return {
        "arm": arm,
        "tensor": tensor,
        "norm": norm,
        "quantity": quantity,
        "paper": paper.estimate if paper else None,
        "ours": ours.estimate if ours else None,
        "low": bounded.low if bounded else None,
        "high": bounded.high if bounded else None,
        "seeds": " ".join(run.seed_label for run in runs.runs) if runs else None,
    }


def _text(record: dict[str, object], who: str) -> str:
    value, quantity = record[who], str(record["quantity"])
    if not isinstance(value, float):
        return EMPTY
    gradient = quantity == "gradient: largest"
    form = "{:.1e}" if gradient else "{:.0f}" if quantity.endswith("period") else "{:.3f}"
    if not gradient and abs(value) >= 10:
        form = "{:.1f}" if abs(value) < 100 else "{:.0f}"
    if quantity == "minus PreNorm":
        form = "{:+.4f}" if who == "paper" else "{:+.3f}"
    text = form.format(value)
    high = record["high"]
    if who == "ours" and isinstance(high, float):
        text += f" ± {form.replace('+', '').format(high - value)}"
    return text


def _norms(data: DynamicsData, notes: Sequence[str]) -> Table:
    columns = [Column("tensor", "tensor", numeric=False), Column("norm", "norm", numeric=False)]
    for arm in data.ours:
        columns += [
            Column(f"{arm.arm} spread", f"{arm.label} spread"),
            Column(f"{arm.arm} even", "even"),
        ]
    rows = []
    for tensor in TENSORS:
        for gradient in ("", "_grad"):
            for norm in NORMS:
                what = ("gradient of " if gradient else "") + TENSOR_LABELS[tensor]
                row = {"tensor": what, "norm": NORM_LABELS[norm]}
                for arm in data.ours:
                    name = f"{tensor}{gradient}_{norm}"
                    spread, even = arm.shape(name, "spread"), arm.shape(name, "evenness")
                    if spread and even:
                        row |= {f"{arm.arm} spread": f"{spread.estimate:.2f}"}
                        row |= {f"{arm.arm} even": f"{even.estimate:.3f}"}
                rows.append(row)
    return Table(NORMS_TITLE, columns, rows,
                 [*NORMS_NOTES, *notes])  # fmt: skip


def _bounds(data: DynamicsData) -> list[str]:
    notes = [
        "The paper's curves are digitised (loss ±0.0005, magnitude ±0.02, gradient ±5e-8), one run each."
    ]
    if any(len(arm.runs) > 1 for arm in data.ours):
        notes.append("± is the half-width of the 95 % t interval over seeds (paired for differences).")
    if data.ours:
        notes.append("Our losses are of the validation subset of the snapshots; Table 4 has the whole set's.")
    return notes


def _seeds(arms: Sequence[ArmDynamics]) -> str:
    sets = {tuple(run.seed_label for run in arm.runs) for arm in arms}
    if len(sets) > 1:
        return f"{min(map(len, sets))} to {max(map(len, sets))} seeds per arm"
    seeds = sets.pop()
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
