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
# # Reading a run
#
# A run leaves a directory, and everything that this suite reports is computed from such directories,
# without torch. This notebook opens one, follows its losses from training steps to single validation
# documents, compares two arms the way every table here does, and goes back from a number to the config and
# the command behind it.
#
# It reads the records committed under `results/quick/runs`; point `RUNS` at `runs/` to read your own.

# %%
# %matplotlib inline
import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullFormatter, ScalarFormatter

from analysis import style
from analysis.joint import joint_interval
from analysis.number_text import interval_text
from analysis.power import seeds_needed_with_range
from analysis.selection import load, select
from analysis.stats import VERDICT_RULE, document_interval, seed_interval, verdict
from repro.runs import (
    load_arrays,
    load_metrics,
    load_runs,
    load_timings,
    load_val_losses,
    project_root,
    run_id,
)
from repro.runs.reading import read_config, read_json

SCALE = "quick"
RUNS = project_root() / "results" / SCALE / "runs"

# %% [markdown]
# ## All runs as one table
#
# `load_runs` walks a directory and returns a row per run: what was trained, how it ended, and what it was
# trained on. It changes nothing, and never raises for what it finds: a run that is unfinished or damaged is
# a row that says so in `status` and `problem`.

# %%
runs = load_runs(RUNS, SCALE)
print(len(runs), "runs, columns:", ", ".join(runs.columns))
print(runs.groupby("arm")["status"].value_counts().unstack(fill_value=0).to_string())

# %% [markdown]
# PreNorm and Block (S = 4) have more runs than seeds. A scale may hold several *settings*: everything that
# decides a run's numbers except its arm and its seeds. Here the learning rate and the initialisation were
# swept before anything was compared. Averaging over all rows of an arm would mix those sweeps into its
# loss, so tables use `select`, which keeps one setting and says what it left out.

# %%
found, problems = load(RUNS, SCALE, ["prenorm", "full", "block_s4"])
chosen, notes = select(found, SCALE)
for run in sorted(chosen, key=lambda run: (run.arm, run.seeds)):
    print(
        f"{run.arm:9} seed {run.seed_label}  {run.run_id}  "
        f"loss {run.val_loss:.4f}  {run.val_bpb:.4f} bits/byte"
    )
print(*problems, *notes, sep="\n")
by_arm = {arm: {run.seed: run for run in chosen if run.arm == arm} for arm in ("prenorm", "full", "block_s4")}

# %% [markdown]
# ## One directory
#
# The directory's name is a hash of the part of the config that decides the numbers. Threads, device, logger
# and paths do not count; the seed does. The hash can be recomputed from the config beside it, so a record
# that was moved or edited is noticed.

# %%
run = by_arm["full"][1]
for path in sorted(run.directory.iterdir()):
    print(f"{path.stat().st_size:>8} bytes  {path.name}")
config = read_config(run.directory / "config.yaml")
print("id from the config:", run_id(config), "  directory:", run.directory.name)
meta = read_json(run.directory / "meta.json")
print("trained by:", meta["command"])
print("source tree:", meta["git"]["sha"], "  parameters:", meta["parameters"], "  threads:", meta["threads"])

# %% [markdown]
# | file | what it holds |
# |---|---|
# | `config.yaml` | the resolved config |
# | `status.json` | new, running (with a heartbeat), done, diverged or failed |
# | `meta.json` | versions, host, command, fingerprint of the data, parameters, FLOPs per token |
# | `metrics.jsonl` | a row per logged training step, and one per validation of the subset at a snapshot |
# | `timings.jsonl` | speed and memory; apart from the metrics, which a resumed run repeats bit for bit |
# | `final.json` | loss over the whole validation set, in total and by source |
# | `val_losses.npz` | per validation document: summed loss, tokens, bytes, source |
# | `depth_weights.npz`, `depth_norms.npz` | snapshots behind Fig. 8 and Fig. 5, see `depth_attention.py` |

# %% [markdown]
# ## Losses over training
#
# Training rows are losses of one batch; validation rows are of a fixed subset and are taken at log-spaced
# steps. In the left picture the seeds of one arm differ as much as the arms do. In the right one each curve
# is a difference to PreNorm *of the same seed*: the seed sets initialisation and data order, and what two
# arms have in common starts equal, so part of what moves a loss moves both. The gaps of all seeds are
# largest at a quarter of the budget and are less than half as wide at the end. A gap is a statement about a
# budget.

# %%
LOOKS = {"prenorm": style.PRENORM, "full": style.FULL, "block_s4": style.ORANGE}
LABELS = {"prenorm": "PreNorm", "full": "Full", "block_s4": "Block (S=4)"}
metrics = {
    (arm, seed): load_metrics(run.directory) for arm, own in by_arm.items() for seed, run in own.items()
}


def subset_losses(arm: str, seed: int) -> pd.Series:
    """Validation loss of the subset by tokens seen, nats per token."""
    rows = metrics[arm, seed]
    return rows[rows["kind"] == "val"].set_index("tokens")["loss"]


def training_figure():
    with style.styled():
        figure, (left, right) = style.new_figure(11.5, 4.3, 2)
        for (arm, seed), rows in metrics.items():
            train = rows[rows["kind"] == "train"]
            label = LABELS[arm] if seed == 1 else None
            left.plot(train["tokens"] / 1e3, train["loss"], color=LOOKS[arm], lw=0.9, alpha=0.8, label=label)
        left.set_xlabel("tokens seen (thousands)")
        left.set_ylabel("training loss of a batch (nats per token)")
        left.legend(title=f"scale {SCALE}, seeds 1, 2, 3")
        for arm in ("full", "block_s4"):
            for seed, marker in zip((1, 2, 3), "os^", strict=True):
                gap = subset_losses(arm, seed) - subset_losses("prenorm", seed)
                gap = gap[gap.index > 0]
                right.plot(
                    gap.index / 1e3, gap, color=LOOKS[arm], marker=marker, ms=4.5, lw=1.1,
                    label=f"{LABELS[arm]}, seed {seed}",
                )  # fmt: skip
        right.axhline(0, color=style.PRENORM, lw=1)
        right.set_xscale("log")
        right.xaxis.set_major_locator(FixedLocator([5, 10, 20, 50, 100, 200, 500]))
        right.xaxis.set_major_formatter(ScalarFormatter())
        right.xaxis.set_minor_formatter(NullFormatter())
        right.set_xlabel("tokens seen (thousands)")
        right.set_ylabel("loss minus PreNorm's, same seed (nats per token)")
        right.legend(fontsize=8, ncols=2)
        figure.tight_layout(w_pad=2.5)
        return figure


training_figure()

# %% [markdown]
# Speed is recorded beside the metrics. It is what the run saw, on a machine that may have been shared with
# other runs; compare speeds with `results/quick/step_time.csv`, which is measured interleaved and alone.

# %%
timings = load_timings(run.directory)
print(timings.tail(3).to_string(index=False))

# %% [markdown]
# ## Validation, document by document
#
# `val_losses.npz` has a row per document. The pooled loss, total nats over total tokens, is the number in
# `final.json` and in every table.

# %%
documents = load_val_losses(run.directory)
pooled = documents["loss_sum"].sum() / documents["tokens"].sum()
print(documents.head(4).to_string())
print(
    f"{len(documents)} documents, {documents['tokens'].sum()} tokens; "
    f"pooled {pooled:.6f}, recorded {run.val_loss:.6f}"
)
by_source = documents.groupby("source")[["loss_sum", "tokens", "bytes"]].sum()
by_source["nats_per_token"] = by_source["loss_sum"] / by_source["tokens"]
by_source["bits_per_byte"] = by_source["loss_sum"] / np.log(2) / by_source["bytes"]
print(by_source.round(3).to_string())

# %% [markdown]
# Two arms of one seed have seen the same documents, so their losses are compared document by document. A
# few long documents hold much of the validation text: the interval resamples whole documents and weighs
# them by their tokens, as the pooled loss does.

# %%
baseline = load_val_losses(by_arm["prenorm"][1].directory)
per_token = (documents["loss_sum"] - baseline["loss_sum"]) / documents["tokens"]
by_documents = document_interval(documents["loss_sum"], baseline["loss_sum"], documents["tokens"])
ordered = documents["tokens"].sort_values(ascending=False)
print(
    "half of all tokens are in the",
    int((ordered.cumsum() < ordered.sum() / 2).sum()) + 1,
    "longest documents",
)
print("Full minus PreNorm, seed 1:", interval_text(by_documents), by_documents.kind, by_documents.n)


def documents_figure():
    with style.styled():
        figure, (axes,) = style.new_figure(8.2, 4.2)
        colours = (style.BLUE, style.ORANGE, style.GREEN, style.VERMILION, style.PURPLE)
        for colour, source in zip(colours, sorted(documents["source"].unique()), strict=True):
            own = documents["source"] == source
            axes.plot(
                documents["tokens"][own], per_token[own], "o", ms=3, alpha=0.6, color=colour, label=source
            )
        axes.axhline(by_documents.estimate, color="black", lw=1.2, label="pooled, 95 % over documents")
        axes.axhspan(by_documents.low, by_documents.high, color="black", alpha=0.2, lw=0)
        axes.axhline(0, color=style.PRENORM, lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_xlabel("tokens of the document")
        axes.set_ylabel("Full minus PreNorm (nats per token)")
        axes.set_title(f"Validation documents, scale {SCALE}, seed 1")
        axes.legend(ncols=2, markerscale=1.8)
        figure.tight_layout()
        return figure


documents_figure()

# %% [markdown]
# ## Two arms compared
#
# That interval is narrow, and it is about one pair of runs: other documents would hardly move the
# difference. It is silent about other seeds. With several seeds the unit is the seed: one difference per
# seed, and a t interval of their mean. `joint_interval` adds the spread over documents, which hardly widens
# it: the seeds decide.

# %%
SEEDS = sorted(by_arm["prenorm"])


def gaps(arm: str, reference: str) -> list[float]:
    """Loss minus the reference's, one per seed, nats per token."""
    return [by_arm[arm][seed].val_loss - by_arm[reference][seed].val_loss for seed in SEEDS]


def document_gaps(arm: str, reference: str) -> tuple[np.ndarray, pd.Series]:
    """Differences in nats [seeds, documents], and tokens [documents]."""
    frames = []
    for seed in SEEDS:
        one, other = (load_val_losses(by_arm[name][seed].directory) for name in (arm, reference))
        frames.append((one["loss_sum"] - other["loss_sum"], one["tokens"]))
    return np.stack([difference for difference, _ in frames]), frames[0][1]


rows = []
for arm in ("full", "block_s4"):
    differences, tokens = document_gaps(arm, "prenorm")
    for seed, own in zip(SEEDS, differences, strict=True):
        rows.append((f"{LABELS[arm]}, seed {seed}", document_interval(own, np.zeros(len(own)), tokens)))
    rows.append((f"{LABELS[arm]}, three seeds", seed_interval(gaps(arm, "prenorm"))))
    rows.append((f"{LABELS[arm]}, seeds and documents", joint_interval(differences, tokens)))
for label, interval in rows:
    print(f"{label:34} {interval_text(interval)}")


def intervals_figure():
    with style.styled():
        figure, (axes,) = style.new_figure(8.6, 4.4)
        for place, (label, interval) in enumerate(rows):
            colour = LOOKS["full" if label.startswith("Full") else "block_s4"]
            wide = interval.kind != "documents"
            reach = [[interval.estimate - interval.low], [interval.high - interval.estimate]]
            axes.errorbar(
                interval.estimate, place, xerr=reach, color=colour, fmt="D" if wide else "o", ms=6,
                elinewidth=2.2 if wide else 1.4,
            )  # fmt: skip
        axes.axvline(0, color=style.PRENORM, lw=1)
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.invert_yaxis()
        axes.set_xlabel("minus PreNorm (nats per token), 95 %")
        axes.set_title(f"The same runs, three kinds of interval (scale {SCALE})")
        figure.tight_layout()
        return figure


intervals_figure()

# %% [markdown]
# Each seed alone excludes zero, and the seeds disagree by far more than their intervals allow: PreNorm's
# own loss moves more from seed to seed than the arms differ. One run per arm would have looked like a clear
# win here, of a size that depends on the seed. So a table gives a verdict from three seeds on, from the
# interval over seeds, and says how many seeds the paper's gap would take at the spread that was seen. Three
# seeds measure a spread badly, hence the range.

# %%
PAPER = {"full": -0.029, "block_s4": -0.020}  # Table 4, minus PreNorm
print(VERDICT_RULE, "\n")
for arm, paper in PAPER.items():
    own = gaps(arm, "prenorm")
    needed = seeds_needed_with_range(paper, float(np.std(own, ddof=1)), len(own))
    print(
        f"{LABELS[arm]}: {interval_text(seed_interval(own))}, the paper {paper:+.3f}: "
        f"{verdict(seed_interval(own), paper)}; seeds for the paper's gap {needed.at_measured} "
        f"({needed.at_low} to {needed.at_high})"
    )

# %% [markdown]
# ## From a number back to its config
#
# What makes a comparison fair is that two runs differ in the arm alone. That is a property of their
# records, and can be looked up:

# %%


def flat(value: dict, prefix: str = "") -> dict:
    """A nested mapping as dotted keys."""
    items = {}
    for key, item in value.items():
        items |= flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item}
    return items


one, other = flat(by_arm["full"][1].identity), flat(by_arm["prenorm"][1].identity)
for key in sorted({*one, *other}):
    if one.get(key) != other.get(key):
        print(f"{key:24} full: {one.get(key)}   prenorm: {other.get(key)}")

# %% [markdown]
# On the command line the same chain, from a rendered row to runs, configs and the command that trains each
# again, is
#
# ```bash
# python -m repro.reproduce why table4 --scale quick
# ```
#
# Everything else in a run directory is an array with named parts, for example the norms behind Fig. 5:

# %%
for name, array in load_arrays(run.directory, "depth_norms").items():
    print(f"{name:22} {array.shape}")
