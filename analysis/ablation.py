"""Table 4 and Fig. 6 as numbers: a row per arm, its paired differences to PreNorm and to its parent arm.

A difference is taken over the seeds that both arms finished: between runs that share seed, initialisation
seed and data seed. Diverged, failed and missing arms stay in the table as such. Rendering is elsewhere
(``analysis.ablation_view``, ``analysis.forest``, ``analysis.block_size``).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.joint import joint_interval
from analysis.selection import RunRow
from analysis.stats import Interval, document_interval, point, seed_interval, verdict
from analysis.step_time import StepTime
from repro.errors import DataError

BASELINE = "prenorm"
PAPER_SUBLAYERS = 32  # L of the paper's ablation model: one block of S = 32 is all of it (Fig. 6)


@dataclass(frozen=True)
class ArmSpec:
    """A row of the paper: name in ``conf/arm``, text of the row, arm it is compared with, paper's loss.

    block_size: S in sublayers, where the row is about blocks.
    """

    name: str
    label: str
    parent: str | None
    paper_loss: float
    block_size: int | None = None


@dataclass(frozen=True)
class Contrast:
    """Arm minus ``reference``, nats per token: ours (None if no seed finished both), paper's, verdict.

    differences: one per seed that both finished; joint: the interval over seeds and documents, from two seeds
    on where losses per document are recorded.
    """

    reference: str
    ours: Interval | None
    paper: float
    verdict: str | None
    differences: tuple[float, ...] = ()
    joint: Interval | None = None


@dataclass(frozen=True)
class ArmRow:
    """One arm: done, missing, or what became of its runs; losses are means over its finished seeds."""

    spec: ArmSpec
    status: str
    runs: tuple[RunRow, ...]
    to_prenorm: Contrast | None
    to_parent: Contrast | None
    step_time: StepTime | None = None

    @property
    def done(self) -> tuple[RunRow, ...]:
        """The finished runs, by seed."""
        return tuple(run for run in self.runs if run.status == "done")

    @property
    def seeds(self) -> tuple[str, ...]:
        """Seeds of the finished runs, as ``RunRow.seed_label``."""
        return tuple(run.seed_label for run in self.done)

    @property
    def loss(self) -> float | None:
        """Mean validation loss over seeds, nats per token."""
        return _mean([run.val_loss for run in self.done])

    @property
    def sd(self) -> float | None:
        """Standard deviation of the validation loss over seeds (n - 1), None for one seed."""
        losses = [run.val_loss for run in self.done]
        return float(np.std(losses, ddof=1)) if len(losses) > 1 else None

    @property
    def bits_per_byte(self) -> float | None:
        """Mean validation bits per byte over seeds."""
        return _mean([run.val_bpb for run in self.done])

    @property
    def parameters(self) -> int | None:
        """Parameters of the model, None where no run says."""
        return next((run.parameters for run in self.runs if run.parameters is not None), None)


@dataclass(frozen=True)
class AblationTable:
    """All rows at one scale, in the paper's order; ``notes`` are the lines that these runs call for.

    num_sublayers: L of the models, None where no run says.
    """

    scale: str
    rows: tuple[ArmRow, ...]
    notes: tuple[str, ...] = ()
    num_sublayers: int | None = None

    @property
    def run_ids(self) -> list[str]:
        """Every run behind a number, in row and seed order."""
        return [run.run_id for row in self.rows for run in row.done]

    @property
    def intervals(self) -> list[Interval]:
        """Every interval of ours in the table."""
        contrasts = [c for row in self.rows for c in (row.to_prenorm, row.to_parent) if c]
        return [c.ours for c in contrasts if c.ours]

    def row(self, arm: str) -> ArmRow:
        """The row of one arm."""
        return next(row for row in self.rows if row.spec.name == arm)

    def contrast(self, arm: str, reference: str) -> Contrast:
        """Any two rows compared."""
        return compare(self.row(arm), self.row(reference))


def published_table(specs: Sequence[ArmSpec]) -> AblationTable:
    """The paper's rows alone."""
    rows = [ArmRow(spec, "published", (), None, None) for spec in specs]
    return AblationTable("published", _with_contrasts(rows), num_sublayers=PAPER_SUBLAYERS)


def ablation_table(
    scale: str,
    specs: Sequence[ArmSpec],
    runs: Sequence[RunRow],
    step_times: Mapping[str, StepTime],
    notes: Sequence[str] = (),
) -> AblationTable:
    """The rows at a trained scale; ``runs`` are one per arm and seeds (``analysis.selection`` sees to it)."""
    rows = []
    for spec in specs:
        own = tuple(sorted((r for r in runs if r.arm == spec.name), key=lambda r: r.seeds))
        rows.append(ArmRow(spec, _status(own), own, None, None, step_times.get(spec.name)))
    depths = {run.num_sublayers for run in runs}
    depth = depths.pop() if len(depths) == 1 else None
    return AblationTable(scale, _with_contrasts(rows), (*_run_notes(rows), *notes), depth)


def compare(row: ArmRow, reference: ArmRow) -> Contrast:
    """One contrast over the seeds that both finished: t over two or more, documents for one, else None."""
    paper = round(row.spec.paper_loss - reference.spec.paper_loss, 4)
    other = {run.seeds: run for run in reference.done}
    pairs = [(run, other[run.seeds]) for run in row.done if run.seeds in other]
    for a, b in pairs:
        _require_pair(a, b)
    if not pairs:
        return Contrast(reference.spec.name, None, paper, None)
    differences = tuple(a.val_loss - b.val_loss for a, b in pairs)
    documents = [_document_differences(a, b) for a, b in pairs]
    joint = None
    if len(pairs) > 1:
        ours = seed_interval(differences)
        joint = _over_seeds_and_documents(documents)
    else:
        ours = _over_documents(*pairs[0], documents[0])
    return Contrast(reference.spec.name, ours, paper, verdict(ours, paper), differences, joint)


def read_published(path: Path) -> list[dict[str, str]]:
    """A csv of ``experiments/published`` as rows of text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _with_contrasts(rows: Sequence[ArmRow]) -> tuple[ArmRow, ...]:
    by_name = {row.spec.name: row for row in rows}
    full = []
    for row in rows:
        parent = row.spec.parent
        to_prenorm = compare(row, by_name[BASELINE]) if parent and BASELINE in by_name else None
        to_parent = compare(row, by_name[parent]) if parent in by_name and parent != BASELINE else None
        full.append(ArmRow(row.spec, row.status, row.runs, to_prenorm, to_parent, row.step_time))
    return tuple(full)


def _status(runs: Sequence[RunRow]) -> str:
    if not runs:
        return "missing"
    if any(run.status == "done" for run in runs):
        return "done"
    for run in runs:
        if run.status == "diverged":
            return _diverged(run)
    return runs[0].status


def _diverged(run: RunRow) -> str:
    return "diverged" if run.diverged_at_step is None else f"diverged at step {run.diverged_at_step}"


def _document_differences(a: RunRow, b: RunRow) -> pd.DataFrame | None:
    """Losses of a pair per document, ``difference`` in nats beside ``tokens``; None where not recorded."""
    first, second = a.documents(), b.documents()
    if first is None or second is None:
        return None
    same = first.drop(columns="loss_sum")
    if not same.equals(second.drop(columns="loss_sum")):
        raise DataError(
            f"runs {a.run_id} and {b.run_id} were validated on different documents; retrain one of them"
        )
    return same.assign(difference=first["loss_sum"] - second["loss_sum"])


def _over_documents(a: RunRow, b: RunRow, documents: pd.DataFrame | None) -> Interval:
    if documents is None:
        return point(a.val_loss - b.val_loss)
    interval = document_interval(documents["difference"], np.zeros(len(documents)), documents["tokens"])
    if not math.isclose(interval.estimate, a.val_loss - b.val_loss, abs_tol=1e-3):
        raise DataError(
            f"runs {a.run_id} and {b.run_id}: losses per document differ by {interval.estimate:.4f} nats, "
            f"those of final.json by {a.val_loss - b.val_loss:.4f}; the records are not of one run: retrain"
        )
    return interval


def _over_seeds_and_documents(documents: Sequence[pd.DataFrame | None]) -> Interval | None:
    """None unless every pair has losses per document, of one validation set of two or more documents."""
    found = [frame for frame in documents if frame is not None]
    if len(found) < len(documents) or len(found[0]) < 2:
        return None
    if any(not frame["tokens"].equals(found[0]["tokens"]) for frame in found):
        return None
    return joint_interval(np.stack([frame["difference"] for frame in found]), found[0]["tokens"])


def _require_pair(a: RunRow, b: RunRow) -> None:
    if a.fingerprint != b.fingerprint:
        raise DataError(
            f"runs {a.run_id} ({a.arm}) and {b.run_id} ({b.arm}) are no pair: data.fingerprint is "
            f"{a.fingerprint} and {b.fingerprint}; train both arms in one experiment"
        )


def _run_notes(rows: Sequence[ArmRow]) -> list[str]:
    notes = []
    for row in rows:
        for run in row.runs:
            if run.status != "done" and row.done:
                what = _diverged(run) if run.status == "diverged" else run.status
                notes.append(
                    f"{row.spec.label}: seed {run.seed_label} {what}; it is in no number of its row."
                )
    done = [run for row in rows for run in row.done]
    for name in ("device", "precision", "compile"):
        values = sorted({str(getattr(run, name)) for run in done})
        if len(values) > 1:
            mixed = ", ".join(values)
            notes.append(
                f"The runs mix {name}: {mixed}. That may change a loss by rounding, not its meaning."
            )
    counts = {row.seeds for row in rows if row.done}
    if len(counts) > 1:
        notes.append("Arms have different seeds; a difference is taken over the seeds that both arms have.")
    seeds = {run.seeds for run in done}
    for place, name in ((1, "init_seed"), (2, "data_seed")):
        count = len({triple[place] for triple in seeds})
        if count < len(seeds):
            spread = f"{count} value{'s' * (count > 1)} in {len(seeds)} seeds"
            lack = "understate" if count > 1 else "leave out"
            notes.append(f"{name} takes {spread}: intervals over seeds {lack} its spread.")
    return notes


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
