# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Adding an arm
#
# An *arm* is one residual scheme with its options, under a name: a YAML file, and a small class where the
# scheme is new. This notebook shows both for an example, the commands that train it, and then how its
# comparison with its parent is read from the records afterwards. The code of the arm is text here, since
# notebooks import no torch; the test suite takes it from this page and runs it. The reading part is
# executed, on arms that have been trained.
#
# ## 1. One YAML
#
# The example is a leaky residual: before a sublayer's output is added, the stream loses a learned share of
# itself,
#
# h_l = (1 - a_{l-1}) h_{l-1} + f_{l-1}(norm(h_{l-1})),
#
# with one scalar per sublayer that starts at zero, so that training starts as PreNorm.
# `conf/arm/leaky.yaml`:
#
# ```yaml
# name: leaky
# label: "Leaky residual"
# parent: prenorm
# # One scalar per sublayer, started at zero: PreNorm at the first step.
# mixer: {_target_: repro.depth.leaky.Leaky}
# ```
#
# `name` is the file's name and the run's directory. `parent` is the arm it changes in one respect, which is
# what it is compared with. `label` is the text of its row. The keys under `mixer` are the constructor's
# arguments; `num_sublayers`, `width` and the runtime's choices are filled in. Nothing has to be registered.
# An arm that only sets options of a scheme that exists (`repro.depth.attnres.AttnRes` with another block
# size, say) ends here.

# %% [markdown]
# ## 2. One small class
#
# `repro/depth/leaky.py`, all of it:
#
# ```python
# """A leaky residual: the stream loses a learned share of itself before each output is added."""
#
# from __future__ import annotations
#
# from typing import Any
#
# import torch
# from torch import Tensor
#
# from repro.depth.base import DepthMixer, State, tagged
# from repro.depth.facts import STATIC, SchemeFacts
#
#
# class Leaky(DepthMixer):
#     """h_l = (1 - a_{l-1}) h_{l-1} + f_{l-1}(norm(h_{l-1})); a starts at zero, which is PreNorm."""
#
#     FACTS = SchemeFacts(
#         system="Leaky residual",
#         weight=STATIC,
#         source="h[l-1]",
#         update="h[l] = (1 - a[l-1]) h[l-1] + f(h[l-1])",
#         update_tex=r"h_l = (1 - a_{l-1}) h_{l-1} + f_{l-1}(h_{l-1})",
#     )
#
#     def __init__(self, num_sublayers: int, width: int, **common: Any) -> None:
#         super().__init__(num_sublayers, width, **common)
#         self.leaks = tagged(torch.zeros(num_sublayers), "scalar")
#
#     def begin(self, embedding: Tensor) -> State:
#         return (embedding,)
#
#     def read(self, state: State, l: int) -> tuple[Tensor, State]:
#         return state[0], state
#
#     def write(self, state: State, l: int, output: Tensor) -> State:
#         return (state[0] * (1 - self.leaks[l]) + output,)
#
#     def finish(self, state: State) -> Tensor:
#         return state[0]
#
#     def stream(self, state: State) -> Tensor | None:
#         return state[0]
#
#     def flops_per_token(self) -> float:
#         return float(2 * self.num_sublayers * self.width)
# ```
#
# What is easy to miss:
#
# - The decoder is one loop for every scheme: `read`, norm, attention or MLP, `write`. Sublayers count from
#   0, two per transformer block; `finish` gives what the final norm sees.
# - A mixer holds parameters only. What `write` needs from `read` travels in the state, which is an
#   immutable tuple.
# - `tagged(tensor, group)` says which optimiser treats a parameter and whether it decays: `query`, `gain`
#   and `scalar` go to AdamW without decay. Nothing is routed by shape.
# - Weights that depend on activations pass through `self.held(...)`, so that the depth-mixing matrix of
#   Fig. 9 can hold them constant, and `self.record(l, weights)` hands them to the recorder behind
#   `depth_weights.npz`.
# - A choice that a paper leaves open is a named option with a default and one line of reason in the YAML;
#   the alternative is an arm of its own. An option that cannot be used raises
#   `ConfigError("arm.mixer.<key>", value, ...)`.

# %% [markdown]
# ## 3. The commands
#
# ```bash
# python -m pytest -q tests/test_arms.py -k leaky                      # gradients, tags, causality
# python -m repro.train arm=leaky --cfg job                            # the whole config, nothing is run
# python -m repro.train arm=leaky scale=smoke                          # seconds, generated data
# python -m repro.train -m arm=prenorm,leaky seed=1,2,3 scale=quick hydra/launcher=joblib
# python -m repro.train.step_time arm=leaky scale=quick                # its cost, with nothing else running
# make facts                                                           # its row in Table 5
# ```
#
# The tests of every arm find the new one by its YAML. The sweep names the parent too; its runs that are
# done are not trained again. Batches are a function of the seed and the step, and parameters that both arms
# have are drawn from the seed and their name, so the two runs of a seed are a pair without further care.
#
# ## 4. Reading the comparison
#
# From here on, code. `ARM` is an arm with committed records; put yours there, and `RUNS` at `runs/`. Its
# parent is read from the config.

# %%
# %matplotlib inline
import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from analysis import style
from analysis.equivalence import equivalence_p
from analysis.number_text import interval_text
from analysis.paired_t import p_value
from analysis.power import power, seeds_needed_with_range, smallest_visible
from analysis.selection import RunRow, load, select
from analysis.stats import MARGIN, MIN_SEEDS, Interval, document_interval, seed_interval
from analysis.step_time import read_step_times
from repro.runs import load_metrics, load_runs, load_val_losses, project_root

ARM, SCALE = "mhc", "quick"
RESULTS = project_root() / "results" / SCALE
RUNS = RESULTS / "runs"

found, problems = load(RUNS, SCALE, sorted(load_runs(RUNS, SCALE)["arm"].unique()))
chosen, notes = select(found, SCALE)
by_arm: dict[str, dict[tuple, RunRow]] = {}
for run in chosen:
    if run.status == "done":
        by_arm.setdefault(run.arm, {})[run.seeds] = run
PARENT = next(iter(by_arm[ARM].values())).config["arm"]["parent"]
print(f"{ARM} against its parent {PARENT}; seeds that both finished:", end=" ")
shared = sorted(set(by_arm[ARM]) & set(by_arm[PARENT]))
print([by_arm[ARM][seeds].seed_label for seeds in shared])
if len(shared) < 2:
    raise ValueError(f"{ARM} and {PARENT} share {len(shared)} finished seeds: what follows needs two or more")
print(*problems, *notes, sep="\n")

# %% [markdown]
# First the pair itself. A comparison is only about the arm if nothing else differs, and the records can say
# so: `setting` is the identity without arm and seeds, `fingerprint` a hash of the data.

# %%
one, other = by_arm[ARM][shared[0]], by_arm[PARENT][shared[0]]
print("settings equal:", one.setting == other.setting, "  data equal:", one.fingerprint == other.fingerprint)
print("arm:   ", one.identity["arm"]["mixer"])
print("parent:", other.identity["arm"]["mixer"])
print(f"parameters: {one.parameters:,} and {other.parameters:,} ({one.parameters - other.parameters:+,})")

# %% [markdown]
# Then the difference, paired by seed. It is worth looking at it over training: a gap that opens early and
# closes, or that is still growing at the last step, is a statement about the budget as much as about the
# arm.

# %%


def subset_losses(run: RunRow) -> pd.Series:
    """Validation loss of the subset by tokens seen, without step 0, nats per token."""
    rows = load_metrics(run.directory)
    rows = rows[(rows["kind"] == "val") & (rows["step"] > 0)]
    return rows.set_index("tokens")["loss"]


def gap_figure():
    with style.styled():
        figure, (axes,) = style.new_figure(7.6, 4.2)
        gaps = [subset_losses(by_arm[ARM][s]) - subset_losses(by_arm[PARENT][s]) for s in shared]
        for seeds, gap, marker in zip(shared, gaps, "os^Dv", strict=False):
            label = f"seed {by_arm[ARM][seeds].seed_label}"
            axes.plot(gap.index / 1e3, gap, marker=marker, ms=4.5, lw=1.1, color=style.SKY, label=label)
        mean = sum(gaps) / len(gaps)
        axes.plot(mean.index / 1e3, mean, color=style.OURS, lw=2.4, label="mean")
        axes.axhline(0, color=style.PRENORM, lw=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator([5, 10, 20, 50, 100, 200, 500]))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("tokens seen (thousands)")
        axes.set_ylabel("loss minus parent's, same seed (nats per token)")
        axes.set_title(f"{ARM} minus {PARENT}, validation subset, scale {SCALE}")
        axes.legend()
        figure.tight_layout()
        return figure


gap_figure()

# %% [markdown]
# The final numbers are of the whole validation set. From two seeds on the interval is over seeds; one seed
# allows an interval over documents only, which says how the difference would move on other text and nothing
# about other seeds.


# %%
def differences(arm: str, parent: str) -> list[float]:
    """Loss minus the parent's over the seeds that both finished, nats per token."""
    both = sorted(set(by_arm[arm]) & set(by_arm[parent]))
    return [by_arm[arm][s].val_loss - by_arm[parent][s].val_loss for s in both]


def compare(arm: str, parent: str) -> Interval:
    """The difference with its interval: over seeds from two on, else over documents."""
    gaps = differences(arm, parent)
    if len(gaps) > 1:
        return seed_interval(gaps)
    (seeds,) = set(by_arm[arm]) & set(by_arm[parent])
    own, reference = (load_val_losses(by_arm[name][seeds].directory) for name in (arm, parent))
    return document_interval(own["loss_sum"], reference["loss_sum"], own["tokens"])


contrast, gaps = compare(ARM, PARENT), differences(ARM, PARENT)
print(f"{ARM} minus {PARENT}: {interval_text(contrast)} nats per token, over {contrast.n} {contrast.kind}")
print("by seed:", np.round(gaps, 4))
print(
    f"paired t test: p = {p_value(gaps):.3f};  within +-{MARGIN} nats of zero: p = {equivalence_p(gaps):.3f}"
)

# %% [markdown]
# Three outcomes are results: an interval on one side of zero, an interval on the other, and an interval
# within the margin. The fourth, an interval that holds zero and reaches beyond the margin, is none: the
# runs are too few for the question. It is not evidence that the arm makes no difference. What it takes is a
# matter of the spread of the paired differences:

# %%
spread = float(np.std(gaps, ddof=1))
print(f"standard deviation of the paired differences: {spread:.4f} nats")
print(f"seen with 80 % power by {len(gaps)} seeds: {smallest_visible(spread, len(gaps)):.3f} nats")
for size in (0.1, 0.05, 0.02):
    needed = seeds_needed_with_range(size, spread, len(gaps))
    print(
        f"seeds for {size} nats: {needed.at_measured} (spread uncertain: {needed.at_low} to {needed.at_high})"
    )


def power_figure():
    with style.styled():
        figure, (axes,) = style.new_figure(7.6, 4.2)
        sizes = np.geomspace(0.005, 0.4, 80)
        looks = ((3, style.GREY, ":"), (5, style.SKY, "-."), (10, style.OURS, "--"), (30, style.GREEN, "-"))
        for count, colour, line in looks:
            chance = [power(count, size, spread) for size in sizes]
            axes.plot(sizes, chance, color=colour, ls=line, label=f"{count} seeds")
        axes.axhline(0.8, color=style.GREY, lw=0.8)
        axes.axvline(abs(contrast.estimate), color=style.ORANGE, lw=1.4, label="our estimate")
        axes.set_xscale("log")
        axes.set_xticks(
            [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4], ["0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.4"]
        )
        axes.set_xticks([], minor=True)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("true difference (nats per token)")
        axes.set_ylabel("chance that the 95 % interval excludes zero")
        axes.set_title(f"Power at the measured spread ({spread:.3f} nats, {ARM} minus {PARENT})")
        axes.legend(loc="lower right")
        figure.tight_layout()
        return figure


power_figure()

# %% [markdown]
# ## 5. Beside the other arms
#
# Every committed arm against its own parent, the interval over seeds where there are some, over documents
# (thin) where there is one seed. Those thin ones look decisive, and are not: compare their widths with
# those of the arms that have three seeds. No verdict is given below three.

# %%
parents = {arm: next(iter(runs.values())).config["arm"]["parent"] for arm, runs in by_arm.items()}
contrasts = {
    arm: compare(arm, parent)
    for arm, parent in parents.items()
    if parent in by_arm and set(by_arm[arm]) & set(by_arm[parent])
}
times = read_step_times(RESULTS / "step_time.csv")
rows = [
    (
        arm, parents[arm], interval_text(interval), f"{interval.n} {interval.kind}",
        f"{times[arm].ratio:.2f}" if arm in times else "not measured",
    )
    for arm, interval in contrasts.items()
]  # fmt: skip
print(
    pd.DataFrame(rows, columns=["arm", "parent", "minus parent [95 %]", "over", "step time x"]).to_string(
        index=False
    )
)


def forest_figure():
    ordered = sorted(
        contrasts, key=lambda arm: (parents[arm] != "prenorm", parents[arm], contrasts[arm].estimate)
    )
    with style.styled():
        figure, (axes,) = style.new_figure(8.8, 0.32 * len(ordered) + 1.4)
        for place, arm in enumerate(ordered):
            interval = contrasts[arm]
            enough = interval.kind == "seeds" and interval.n >= MIN_SEEDS
            colour = style.VERMILION if arm == ARM else style.OURS if enough else style.GREY
            axes.plot((interval.low, interval.high), (place, place), color=colour, lw=2.4 if enough else 1.2)
            axes.plot(interval.estimate, place, "D" if enough else "o", color=colour, ms=6)
        axes.axvline(0, color="black", lw=0.9)
        axes.set_yticks(range(len(ordered)), [f"{arm} minus {parents[arm]}" for arm in ordered])
        axes.invert_yaxis()
        axes.set_xlabel("difference in validation loss (nats per token), 95 %")
        marks = f"diamond: {MIN_SEEDS} seeds or more, circle: fewer; red: {ARM}"
        axes.set_title(f"Arms against their parents, scale {SCALE}\n{marks}", fontsize=10)
        figure.tight_layout()
        return figure


forest_figure()

# %% [markdown]
# To have the arm in a table of the suite with all of this, its checks and its provenance, an item is one
# more small file: `experiments/<name>.py` with `ITEM = PaperItem(...)`, and the sweep in
# `conf/experiment/<name>.yaml`. Runs that are done are found there by their identity, whatever experiment
# trained them.
