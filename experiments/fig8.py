"""Fig. 8: which sources each read of Full and Block prefers, and whether the paper's sentences hold."""

from __future__ import annotations

from analysis import depth_weights_table as view
from analysis.depth_weights import PRE_ATTENTION, PRE_MLP, ArmWeights, read_published, read_runs
from analysis.depth_weights_checks import DepthWeightsData, Side, digitised, digitised_cells, larger
from analysis.depth_weights_figure import depth_weights_figure
from experiments.item import PUBLISHED_FILES, Check, PaperItem, Rendered, Source
from repro.errors import DataError

TITLE = "Fig. 8. Depth weights"
ARMS = {"full": "Full", "block_s4": "Block (S=4)"}
FILES = {"full": "full", "block_s4": "block"}


def render(source: Source) -> Rendered:
    """The paper's four panels, or ours with the paper's numbers beside them."""
    paper = {arm: _published(arm) for arm in ARMS}
    ours: dict[str, ArmWeights] = {}
    notes: list[str] = []
    if not source.is_published:
        runs, notes = source.select("fig8", tuple(ARMS))
        found = [
            read_runs(arm, label, [run for run in runs if run.arm == arm]) for arm, label in ARMS.items()
        ]
        ours = {arm.arm: arm for arm in found if arm.models}
        if not ours:
            raise DataError(
                f"no finished runs of fig8 at scale {source.scale}: make fig8 SCALE={source.scale} "
                "trains them"
            )
    data = DepthWeightsData(source.scale, paper, ours)
    tables = view.tables(data, TITLE, notes)
    return Rendered(
        records=view.records(data),
        text=tables,
        terminal=tables,
        figure=depth_weights_figure(list(data.shown.values()), _caption(data)),
        runs=[run for arm in ours.values() for run in arm.runs],
        data=data,
    )


def _published(arm: str) -> ArmWeights:
    names = {PRE_ATTENTION: "pre_attn", PRE_MLP: "pre_mlp"}
    files = {panel: PUBLISHED_FILES / f"fig8_{FILES[arm]}_{name}.csv" for panel, name in names.items()}
    return read_published(arm, ARMS[arm], files)


def _caption(data: DepthWeightsData) -> str:
    if data.is_published:
        return "Paper: 436M activated parameters, one model per row of panels, digitised"
    seeds = {len(arm.models) for arm in data.ours.values()}
    count = " to ".join(map(str, sorted(seeds)))
    return f"Ours: scale {data.scale}, mean over {count} seed{'' if seeds == {1} else 's'}"


def _every(statistic: str) -> list[Side]:
    return [(arm, panel, statistic) for arm in ARMS for panel in (PRE_ATTENTION, PRE_MLP)]


def _between_panels(statistic: str, larger_panel: int) -> list[tuple[Side, Side | float]]:
    other = PRE_MLP if larger_panel == PRE_ATTENTION else PRE_ATTENTION
    return [((arm, larger_panel, statistic), (arm, other, statistic)) for arm in ARMS]


ITEM = PaperItem(
    name="fig8",
    title=TITLE,
    claim=(
        "Each sublayer attends most to its immediate predecessor, with selected sources far back; the "
        "embedding keeps weight throughout, most before attention, and reads before MLPs are sharper and "
        "more local; Block keeps this structure with sharper weights."
    ),
    experiment="fig8",
    arms=tuple(ARMS),
    render=render,
    checks=(
        Check(
            "Digitised: 4, 7, 7, 11 of 16 rows have their maximum at the predecessor.",
            digitised(dict(zip(_every("predecessor"), (4, 7, 7, 11), strict=True)), 0, rows=16),
        ),
        Check(
            "Digitised: mean embedding weight 0.067, 0.036, 0.219, 0.198.",
            digitised(dict(zip(_every("embedding"), (0.067, 0.036, 0.219, 0.198), strict=True)), 0.001),
        ),
        Check(
            "Digitised: Full puts 0.57 and 0.80 on attention outputs, 0.37 and 0.17 on MLP outputs.",
            digitised(
                {
                    ("full", PRE_ATTENTION, "attention"): 0.57,
                    ("full", PRE_MLP, "attention"): 0.80,
                    ("full", PRE_ATTENTION, "mlp"): 0.37,
                    ("full", PRE_MLP, "mlp"): 0.17,
                },
                0.0051,  # the facts are rounded to 0.01
            ),
        ),
        Check(
            "Digitised: Full's strong single sources.",
            digitised_cells(
                {
                    ("full", PRE_ATTENTION, 4, 5): 0.758,
                    ("full", PRE_ATTENTION, 15, 27): 0.416,
                    ("full", PRE_ATTENTION, 16, 27): 0.596,
                    ("full", PRE_MLP, 2, 3): 0.702,
                    ("full", PRE_MLP, 5, 9): 0.794,
                },
                0.0005,
            ),
        ),
        Check(
            "Most rows of every panel have their maximum at the immediate predecessor.",
            larger([(side, 0.5) for side in _every("predecessor")]),
        ),
        Check(
            "Most rows have it in their own or the preceding transformer block.",
            larger([(side, 0.5) for side in _every("previous block")]),
        ),
        Check(
            "The embedding has more weight before attention than before MLPs.",
            larger(_between_panels("embedding", PRE_ATTENTION)),
        ),
        Check(
            "Reads before MLPs are sharper (less entropy).",
            larger(_between_panels("entropy", PRE_ATTENTION)),
        ),
        Check(
            "Reads before MLPs are more local (weight of the predecessor).",
            larger(_between_panels("last source", PRE_MLP)),
        ),
        Check(
            "Block is sharper than Full (entropy over uniform).",
            larger(
                [
                    (("full", panel, "entropy"), ("block_s4", panel, "entropy"))
                    for panel in (PRE_ATTENTION, PRE_MLP)
                ]
            ),
        ),
    ),
    order=8,
)
