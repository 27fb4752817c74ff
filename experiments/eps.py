"""The eps confound: averaging over depth shrinks the stream, so the norms' eps matters more to AttnRes."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from analysis import eps as view
from analysis.choices import choices
from analysis.eps import EpsData
from analysis.eps_figure import eps_figure
from analysis.selection import CONF
from analysis.stats import MIN_SEEDS
from experiments.item import Check, PaperItem, Rendered, Source
from repro.errors import DataError

TITLE = "The eps confound"
LABELS = {"prenorm": "PreNorm", "block_s4": "Block (S=4)", "full": "Full"}
DEFAULT, USUAL = 1e-8, 1e-5
SMALL = 0.01  # standard deviations of PreNorm's logits
Outcome = tuple[bool | None, str]


def render(source: Source) -> Rendered:
    """Deviations of the scale's file and losses of its sweep, whichever is there."""
    scale = source.scale
    deviations = view.read_deviations(source.results / scale / "eps_deviation.csv")
    swept = None
    notes: list[str] = []
    try:
        runs, notes = source.load("eps", tuple(LABELS))
        found = choices(scale, runs, (view.KEY,), tuple(LABELS))
        swept = found if len(found.values) > 1 else None  # one value alone is no sweep
    except DataError:
        pass  # no runs at all: the deviations stand alone
    if deviations is None and swept is None:
        raise DataError(
            f"nothing of eps at scale {scale}: python -m repro.train.eps_deviation scale={scale} computes "
            f"deviations, make eps SCALE={scale} trains the sweep"
        )
    data = EpsData(scale, deviations, swept, _own_depth(scale), tuple(notes))
    text = view.tables(data, TITLE, LABELS)
    return Rendered(
        records=view.records(data),
        text=text,
        terminal=text,
        figure=eps_figure(data, LABELS),
        runs=swept.runs if swept else (),
        data=data,
    )


def _own_depth(scale: str) -> int | None:
    settings = yaml.safe_load((CONF / "scale" / f"{scale}.yaml").read_text(encoding="utf-8"))
    return (settings.get("model") or {}).get("num_transformer_blocks")


def _deviation(eps: float, init_place: int, limit: float, *, below: bool) -> Callable[[EpsData], Outcome]:
    """At the scale's own depth, every arm deviates by less (or more) than a limit.

    init_place: 0 is the scale's own initialisation, -1 the usual one; both come in this order in the file.
    """

    def test(data: EpsData) -> Outcome:
        found, depth = data.deviations, data.own_depth
        if found is None or depth is None:
            return None, "deviations not computed"
        init = found.levels(0)[init_place]
        keys = [(init, arm, depth, eps) for arm in found.levels(1)]
        if any(key not in found.values for key in keys):
            return None, f"no deviation at eps {eps:g} and {depth} transformer blocks"
        means = {key[1]: found.mean(*key) for key in keys}
        told = ", ".join(f"{LABELS[arm]} {value:.1e}" for arm, value in means.items())
        return all((value < limit) == below for value in means.values()), told

    return test


def _deeper(data: EpsData) -> Outcome:
    """In every initialisation, arm and eps the deviation grows with depth."""
    found = data.deviations
    if found is None:
        return None, "deviations not computed"
    depths = sorted(found.levels(2))
    grown = [
        found.mean(init, arm, depths[-1], eps) / found.mean(init, arm, depths[0], eps)
        for init in found.levels(0)
        for arm in found.levels(1)
        for eps in found.levels(3)
    ]
    return min(
        grown
    ) > 1, f"{min(grown):.2g} to {max(grown):.2g} times from {depths[0]} to {depths[-1]} blocks"


def _changes_loss(arm: str) -> Callable[[EpsData], Outcome]:
    """The final loss at a usual eps differs from that at the default: the interval excludes zero."""

    def test(data: EpsData) -> Outcome:
        if not {DEFAULT, USUAL} <= set(data.eps):
            return None, "not trained"
        change = data.change(arm, USUAL)
        if change is None:
            return None, "no finished pair of runs"
        if change.kind != "seeds" or change.n < MIN_SEEDS:
            return None, f"{view.interval_text(change)}, no verdict under {MIN_SEEDS} seeds"
        excludes = change.low > 0 or change.high < 0
        return (True if excludes else None), view.interval_text(change)

    return test


ITEM = PaperItem(
    name="eps",
    title=TITLE,
    claim=(
        "Not in the paper, which states no eps: an untrained AttnRes is PreNorm only as the norms' eps "
        "vanishes, and the deeper the model, the smaller eps must be."
    ),
    experiment="eps",
    arms=tuple(LABELS),
    render=render,
    checks=(
        Check(
            "At eps 1e-8 an untrained AttnRes is PreNorm to 0.01 standard deviations.",
            _deviation(DEFAULT, 0, SMALL, below=True),
        ),
        Check(
            "At eps 1e-5 it is so too with the scale's own initialisation.",
            _deviation(USUAL, 0, SMALL, below=True),
        ),
        Check(
            "At eps 1e-5 it is not with GPT-2's initialisation.",
            _deviation(USUAL, -1, SMALL, below=False),
        ),
        Check("The deviation grows with depth.", _deeper),
        Check("Eps 1e-5 instead of 1e-8 changes Full's final loss.", _changes_loss("full")),
        Check("Eps 1e-5 instead of 1e-8 changes Block's final loss.", _changes_loss("block_s4")),
    ),
    scales=tuple(sorted(path.stem for path in (CONF / "scale").glob("*.yaml"))),
    order=104,
)
