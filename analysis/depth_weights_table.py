"""Fig. 8 in numbers: a table per arm, the paper's panels beside ours; records of statistics and weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.depth_weights import PANELS, ArmWeights, sinks
from analysis.depth_weights_checks import DepthWeightsData
from analysis.stats import Interval
from analysis.tables import EMPTY, Column, Table

LABELS = {
    "predecessor": "max at predecessor",
    "previous block": "max in this or last block",
    "embedding": "embedding weight",
    "last source": "predecessor weight",
    "largest": "largest weight of a row",
    "attention": "weight on attention outputs",
    "mlp": "weight on MLP outputs",
    "entropy": "entropy / uniform, mean",
    "token entropy": "entropy / uniform, by token",
    "contribution predecessor": "max of weight x RMS there",
    "contribution attention": "attention's part of weight x RMS",
}
COUNTED = ("predecessor", "previous block", "contribution predecessor")  # shares of rows, shown as counts
NOTES = (
    "Rows are the reads of the transformer blocks, the first pre-attention row (one source) included in the "
    "counts; means are over blocks 2 and later, of weights that sum to one in each row.",
    "Predecessor: the newest source, i.e. the last sublayer output (Full) or the partial sum or block just "
    "completed (Block). This or last block: the largest source holds an output of the same or the preceding "
    "transformer block. A block sum mixes attention and MLP outputs, hence no such split for Block.",
    "Entropy of the mean weights misses what varies over tokens; by token is the mean of each token's "
    "entropy. Weight x RMS leaves the embedding out (its size is not recorded).",
)
COLUMNS = ("paper 0", "ours 0", "paper 1", "ours 1", "ours out")


def tables(data: DepthWeightsData, title: str, notes: Sequence[str] = ()) -> list[Table]:
    """A table per arm, then the largest weights off the diagonal; notes: on the runs that were chosen."""
    return [*(_arm(data, arm, title) for arm in data.paper), _sinks(data, notes)]


def records(data: DepthWeightsData) -> list[dict[str, object]]:
    """Statistics first, then every weight: mean over seeds, standard deviation, and the paper's value."""
    rows: list[dict[str, object]] = []
    for arm, paper in data.paper.items():
        ours = data.ours.get(arm)
        for panel in [*PANELS, None]:
            for name in LABELS:
                found = ours.statistic(panel, name) if ours else None
                known = paper.statistic(panel, name)
                if found or known:
                    rows.append(_record(arm, panel, None, None, name, known, found, len(_seeds(ours))))
        rows += _weights(arm, paper, ours)
    return rows


def _weights(arm: str, paper: ArmWeights, ours: ArmWeights | None) -> list[dict[str, object]]:
    shown = ours or paper
    rows = []
    for l, c in np.argwhere(np.isfinite(shown.mean.weights)):
        # The paper's cells are beside ours only where both models have them (same depth and same sources).
        same = paper.mean.num_sublayers == shown.mean.num_sublayers and c < paper.mean.weights.shape[1]
        known = float(paper.mean.weights[l, c]) if same else np.nan
        panel = None if l == shown.mean.num_sublayers else int(l % 2)
        row = _record(arm, panel, None if panel is None else int(l // 2) + 1, int(c), "weight", None, None, 0)
        row |= {"paper": known if np.isfinite(known) else None}
        if ours:
            spread = float(ours.spread[l, c])
            row |= {"ours": float(ours.mean.weights[l, c]), "seeds": len(ours.models)}
            row |= {"sd": spread if np.isfinite(spread) else None}
        rows.append(row)
    return rows


def _record(
    arm: str,
    panel: int | None,
    block: int | None,
    source: int | None,
    quantity: str,
    paper: Interval | None,
    ours: Interval | None,
    seeds: int,
) -> dict[str, object]:
    bounded = ours if ours and np.isfinite(ours.low) else None
    return {
        "model": arm,
        "read": "output" if panel is None else PANELS[panel],
        "transformer_block": block,
        "source": source,
        "quantity": quantity,
        "paper": paper.estimate if paper else None,
        "ours": ours.estimate if ours else None,
        "low": bounded.low if bounded else None,
        "high": bounded.high if bounded else None,
        "sd": None,
        "seeds": seeds or None,
    }


def _arm(data: DepthWeightsData, arm: str, title: str) -> Table:
    paper, ours = data.paper[arm], data.ours.get(arm)
    rows = []
    for name, label in LABELS.items():
        row = {"label": label + (f" (of {_num_rows(name, ours or paper)})" if name in COUNTED else "")}
        for panel in PANELS:
            row[f"paper {panel}"] = _cell(name, paper.statistic(panel, name), paper)
            row[f"ours {panel}"] = _cell(name, ours.statistic(panel, name) if ours else None, ours)
        row["ours out"] = _cell(name, ours.statistic(None, name) if ours else None, ours)
        rows.append({key: text for key, text in row.items() if text != EMPTY})
    kept = [key for key in COLUMNS if ours or key.startswith("paper")]
    rows = [row for row in rows if any(key in row for key in kept)]
    columns = [Column("label", "", numeric=False), *(Column(key, _header(key)) for key in kept)]
    scale = "the paper" if ours is None else f"scale {data.scale}, {_who(ours)}"
    if arm != next(iter(data.paper)):
        return Table(f"{paper.label} ({scale})", columns, rows)
    bounds = (
        ["± is the half-width of the 95 % t interval over seeds."] if ours and len(ours.models) > 1 else []
    )
    source = "The paper's panels are digitised (±0.005, above 0.9 clipped): one model each, no interval."
    return Table(f"{title}: {paper.label} ({scale})", columns, rows, [*NOTES, source, *bounds])


def _header(key: str) -> str:
    who, _, panel = key.partition(" ")
    return f"{who} " + {"0": "pre-attn", "1": "pre-MLP", "out": "output read"}[panel]


def _who(arm: ArmWeights) -> str:
    return f"seed{'s' * (len(arm.models) > 1)} " + ", ".join(_seeds(arm))


def _seeds(arm: ArmWeights | None) -> list[str]:
    return [run.seed_label for run in arm.runs] if arm else []


def _cell(name: str, value: Interval | None, arm: ArmWeights | None) -> str:
    if value is None or arm is None:
        return EMPTY
    factor, form = 1, "{:.3f}"
    if name in COUNTED:
        factor, form = _num_rows(name, arm), "{:.1f}" if len(arm.models) > 1 else "{:.0f}"
    text = form.format(value.estimate * factor)
    if np.isfinite(value.low):
        text += " ± " + form.format((value.high - value.estimate) * factor)
    return text


def _num_rows(name: str, arm: ArmWeights) -> int:
    return arm.mean.num_sublayers // 2 - (name == "contribution predecessor")


def _sinks(data: DepthWeightsData, notes: Sequence[str]) -> Table:
    sources: list[tuple[str, Sequence[ArmWeights]]] = [("paper", list(data.paper.values()))]
    sources += [("ours", list(data.ours.values()))] if data.ours else []
    rows = []
    for who, arms in sources:
        for arm in arms:
            for panel, name in PANELS.items():
                cells = [f"{b} from {c}: {weight:.3f}" for b, c, weight in sinks(arm.mean, panel)]
                rows.append(
                    {"arm": arm.label, "panel": name, "who": who}
                    | {str(i): text for i, text in enumerate(cells)}
                )
    columns = [Column("who", "", numeric=False), Column("arm", "", numeric=False)]
    columns += [Column("panel", "reads", numeric=False), *(Column(str(i), f"{i + 1}.") for i in range(3))]
    note = "Reading transformer block, source column, weight (mean over seeds)."
    return Table(
        "Largest weights on neither embedding nor predecessor (sinks)", columns, rows, [note, *notes]
    )
