"""The picture that the paper lacks: what each arm of Table 4 and Fig. 6 gains against what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from analysis import tradeoff_view
from analysis.ablation import ArmSpec, ablation_table, published_table
from analysis.step_memory import read_step_memory
from analysis.step_time import StepTime, how_measured
from analysis.tradeoff import Cost, CostAxis, TradeOff
from analysis.tradeoff_figure import tradeoff_figure
from experiments.fig6 import SIZES
from experiments.fig6 import specs as fig6_specs
from experiments.item import Check, PaperItem, Rendered, Source
from experiments.table4 import BLOCK_SIZES
from experiments.table4 import specs as table4_specs

NAME = "tradeoff"
TITLE = "Loss against cost: the arms of Table 4 and Fig. 6"

# The model of Table 4: L sublayers of width d, m streams of mHC (Table 1's typical value).
SUBLAYERS, WIDTH, STREAMS, PARAMETERS = 32, 1168, 4, 436e6
# Full's two phases work on groups of S = 4 sublayers, N = 8 of them, as Table 4's Block does.
GROUP = 4

# Table 1, total reads and writes per token and sublayer in units of d. It has these four mechanisms only.
MHC_IO = (8 * STREAMS + 2) + (2 * STREAMS**2 + 4 * STREAMS) / WIDTH


def block_io(size: int) -> float:
    """(N / S + 5) of Block in two phases, with N = L / S blocks of S sublayers."""
    return SUBLAYERS / size / size + 5


IO: Mapping[str, float] = {
    "prenorm": 3,
    "mhc": MHC_IO,
    "full": GROUP + SUBLAYERS / GROUP,
    **{arm: block_io(size) for arm, size in SIZES.items() if size > 1},
}

# Parameters beside PreNorm's, derived from the paper's sentences: one vector w and one RMSNorm gain per
# sublayer for AttnRes; a d x d matrix per sublayer instead of w for the input-dependent query; one scalar per
# sublayer and source where the mixing is input-independent. It does not say enough for DenseFormer, mHC and
# several heads.
ATTNRES_PARAMETERS = 2 * WIDTH * SUBLAYERS
EXTRA_PARAMETERS: Mapping[str, float] = {
    "prenorm": 0,
    **dict.fromkeys((*SIZES, "full_sigmoid", "window_1p8"), ATTNRES_PARAMETERS),
    "full_no_key_norm": WIDTH * SUBLAYERS,
    "block_s4_no_key_norm": WIDTH * SUBLAYERS,
    "full_input_query": WIDTH * SUBLAYERS + WIDTH**2 * SUBLAYERS,
    "full_static": SUBLAYERS * (SUBLAYERS + 1) / 2,
}


PUBLISHED_NOTES = [
    "Scale: published. Losses of arXiv:2603.15031v1, Table 4 and Fig. 6, one run each, without intervals. "
    f"I/O from Table 1's formulas at the L = {SUBLAYERS} sublayers of that model (Full: two phases over "
    f"groups of S = {GROUP}; mHC: m = {STREAMS} streams), not at the table's typical L = 128.",
    "extra parameters: derived from the paper's sentences (one vector and one RMSNorm per sublayer, a d x d "
    "matrix for the input-dependent query, a scalar per sublayer and source without input), output read not "
    "counted. –: the paper does not say enough, and nothing is drawn. It gives no compute by arm (the same "
    "for all rows; below 4 % more training time with pipelining, for AttnRes as a whole).",
]
FRONT_NOTE = (
    "front: no other arm is as low in loss and in this cost and lower in one, by the estimates; only arms "
    "with all of PreNorm's seeds take part. Where intervals overlap it may be another."
)


def specs() -> tuple[ArmSpec, ...]:
    """Table 4's rows, with the other block sizes of Fig. 6 around its Block."""
    rows = list(table4_specs())
    known = {spec.name for spec in rows}
    sizes = [
        ArmSpec(spec.name, f"Block (S={spec.block_size})", "prenorm", spec.paper_loss, spec.block_size)
        for spec in fig6_specs()
        if spec.name not in known
    ]
    place = next(index for index, spec in enumerate(rows) if spec.name == "block_s4")
    coarse = [spec for spec in sizes if (spec.block_size or 0) > BLOCK_SIZES["block_s4"]]
    fine = [spec for spec in sizes if spec not in coarse]
    return (*rows[:place], *coarse, rows[place], *fine, *rows[place + 1 :])


ARMS = tuple(spec.name for spec in specs())


def published() -> TradeOff:
    """The paper's losses against Table 1's I/O and the parameters that its sentences imply."""
    io = CostAxis(
        "io",
        "I/O (d)",
        f"I/O per token and sublayer, units of d (Table 1 at L = {SUBLAYERS}, m = {STREAMS})",
        {arm: Cost(value) for arm, value in IO.items()},
        "not stated by the paper",
        scale="log",
    )
    parameters = CostAxis(
        "extra_parameters",
        "extra parameters",
        f"parameters beside PreNorm's (of {PARAMETERS / 1e6:.0f}M; linear below 1000)",
        {arm: Cost(value) for arm, value in EXTRA_PARAMETERS.items()},
        "not stated by the paper",
        form=",.0f",
        scale="symlog",
    )
    return TradeOff(published_table(specs()), (io, parameters))


def measured(source: Source) -> tuple[TradeOff, list[str]]:
    """The runs of one scale against step time and step memory, and how these were measured."""
    runs, notes = source.select(NAME, ARMS)
    times = source.step_times()
    memory = read_step_memory(source.results / source.scale / "step_memory.csv")
    time_command = f"python -m repro.train.step_time experiment={NAME} scale={source.scale}"
    memory_command = f"python -m repro.bench.step_memory experiment={NAME} scale={source.scale}"
    step = CostAxis(
        "step_time",
        "step ×",
        "time of a training step relative to PreNorm's",
        {arm: _of_time(time) for arm, time in times.items()},
        f"not measured:\n{time_command}",
    )
    peak = CostAxis(
        "step_memory",
        "memory ×",
        "peak memory of a training step relative to PreNorm's",
        {arm: Cost(ratio) for arm, ratio in memory.items()},
        f"not measured:\n{memory_command}",
    )
    data = TradeOff(ablation_table(source.scale, specs(), runs, times, notes), (step, peak))
    how = [how_measured(list(times.values()))] if times else [f"step × is not measured here: {time_command}"]
    how.append(
        "memory ×: most bytes that live at once in a training step, weights and optimizer state included, "
        "relative to PreNorm's; counted by the allocator, so without spread."
        if memory
        else f"memory × is not measured here: {memory_command}"
    )
    return data, how


def render(source: Source) -> Rendered:
    """The table and the picture from one source."""
    if source.is_published:
        data, title = published(), f"{TITLE} (the paper's numbers)"
        notes = PUBLISHED_NOTES
    else:
        data, how = measured(source)
        seeds = len(data.table.rows[0].seeds)
        title = f"{TITLE} (scale {source.scale}, {seeds} seed{'s' * (seeds != 1)})"
        notes = [
            f"Scale: {source.scale}. Loss minus PreNorm in nats per token, 95 %: t over paired seeds; with "
            "one seed over validation documents alone.",
            *how,
        ]
    notes = [*notes, FRONT_NOTE, *data.table.notes]
    text = tradeoff_view.tables(data, title, notes)
    runs = [run for row in data.table.rows for run in row.runs]
    return Rendered(tradeoff_view.records(data), text, text, tradeoff_figure(data, title), runs, data)


def cheaper(arm: str, other: str) -> Callable[[TradeOff], tuple[bool | None, str]]:
    """``arm`` costs less than ``other`` on the first axis; open unless the quartiles are apart."""

    def test(data: TradeOff) -> tuple[bool | None, str]:
        axis = data.axes[0]
        if arm not in axis.costs or other not in axis.costs:
            return None, f"{axis.header} not measured"
        a, b = axis.costs[arm], axis.costs[other]
        evidence = f"{axis.header} {a.value:{axis.form}} against {b.value:{axis.form}}"
        if data.is_published:
            return a.value < b.value, evidence
        apart = a.high < b.low or b.high < a.low
        return (a.value < b.value if apart else None), evidence

    return test


def _of_time(time: StepTime) -> Cost:
    if time.lower_quartile is None or time.upper_quartile is None:
        return Cost(time.ratio)
    return Cost(time.ratio, time.lower_quartile, time.upper_quartile)


ITEM = PaperItem(
    name=NAME,
    title=TITLE,
    claim=(
        "Not a figure of the paper, which states costs (Table 1) and losses (Table 4, Fig. 6) apart: Block "
        "keeps most of Full's gain at a lower cost, and mHC costs more than Block for the same loss."
    ),
    experiment=NAME,
    arms=ARMS,
    render=render,
    checks=(
        Check("Block (S=4) costs less than Full.", cheaper("block_s4", "full")),
        Check("Block (S=4) costs less than mHC.", cheaper("block_s4", "mhc")),
        Check("Full costs less than mHC.", cheaper("full", "mhc")),
    ),
    order=6.5,
)
