"""Fig. 9 from symbols, from depth weights and from checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from analysis.matrices import (
    EXACT,
    WEIGHTS,
    cut_ranks,
    from_depth_weights,
    ordinary_rank,
    plain_sum,
    read_measured,
)
from analysis.mixing_forms import block, forms, full, highway, standard, streams
from experiments import fig9
from experiments.item import Source
from repro.depth.attnres import AttnRes
from repro.depth.base import DepthMixer
from repro.depth.denseformer import DenseFormer
from repro.depth.hyper_connections import MHC
from repro.depth.matrix import depth_matrix
from repro.depth.static import Static
from repro.probe.__main__ import main as probe
from repro.probe.trained import open_trained
from repro.reproduce import main as reproduce
from repro.runs.arrays import write_npz
from repro.train.evaluate import DepthWeightRecorder
from tests.synthetic_runs import write_run
from tests.tiny import only_run, train
from tests.toy import Toy, default_dtype, randomise, rms_norm

ROOT = Path(__file__).resolve().parents[1]


def entries(form: Any) -> list[list[str]]:
    L = len(form.numbers)
    return [[e.tex for e in form.entries if e.row == l] for l in range(1, L + 1)]


def test_symbols_are_those_of_the_paper() -> None:
    """L = 4, S = 2, row by row (facts of Fig. 9)."""
    assert entries(standard(4)) == [["1"] * l for l in (1, 2, 3, 4)]
    g = r"\gamma^{\times}_{%d\to %d}"
    assert entries(highway(4)) == [
        ["1"],
        [g % (1, 2), "g_{2}"],
        [g % (1, 3), "g_{2}" + g % (2, 3), "g_{3}"],
        [g % (1, 4), "g_{2}" + g % (2, 4), "g_{3}" + g % (3, 4), "g_{4}"],
    ]
    b, a = r"\beta_{%d}^{\top}", r"A^{\times}_{%d\to %d}"
    last = r"\,\alpha_{4}"
    assert entries(streams(4, 2))[0] == [b % 0 + r"\,\alpha_{1}"]
    assert entries(streams(4, 2))[3] == [
        b % 0 + a % (1, 4) + last, b % 1 + a % (2, 4) + last, b % 2 + a % (3, 4) + last, b % 3 + last,
    ]  # fmt: skip
    assert entries(full(4))[2] == [rf"\phi(w_{{3}}, k_{{{i}}})" for i in range(3)]
    spans = [[(e.first, e.last, e.partial) for e in block(4, 2).entries if e.row == l] for l in (1, 2, 3, 4)]
    assert spans == [
        [(0, 0, False)],
        [(0, 0, False), (1, 1, True)],
        [(0, 0, False), (1, 2, False)],
        [(0, 0, False), (1, 2, False), (3, 3, True)],
    ]
    assert entries(block(4, 2))[3][1] == r"\phi(w_{4}, k_{1}+k_{2})"


def test_instances_have_the_structure_they_are_named_for() -> None:
    found = {form.name: form.numbers for form in forms(12, 3, 2)}
    assert np.allclose(found["Highway"].sum(1), 1)
    ranks = {name: cut_ranks(numbers, EXACT) for name, numbers in found.items()}
    assert (ranks["Standard residual"] == 1).all()
    assert (ranks["Highway"] == 1).all()
    assert ranks["(m)HC"].max() == 2
    assert ranks["AttnRes Full"].max() == 6  # of a 6 by 7 or 7 by 6 block
    assert ranks["AttnRes Block (S = 3)"].max() <= 5  # N + 1
    assert all(ordinary_rank(numbers) == 12 for numbers in found.values())


def test_rank_sees_a_vanishing_diagonal() -> None:
    square = np.tril(np.ones((4, 4)))
    square[2, 2] = 0
    assert ordinary_rank(square) == 3  # rows 1 and 2 are then equal
    square[:, :] = 0
    square[:, 0] = 1
    assert ordinary_rank(square) == 1


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (AttnRes, {}),
        (AttnRes, {"block_size": 3}),
        (AttnRes, {"num_blocks": 3}),
        (AttnRes, {"window": 2}),
        (AttnRes, {"block_size": 2, "heads": 4}),
        (Static, {}),
        (DenseFormer, {"over": "blocks"}),
    ],
)
def test_recorded_weights_give_the_matrix_of_the_same_tokens(scheme: Any, options: Any) -> None:
    """What validation records, against the matrix of the same pass through gradients."""
    with default_dtype(torch.float64):
        mixer: DepthMixer = randomise(scheme(8, 16, **options))
    toy = Toy(8, 16, embedding_std=1.0)

    def sublayer(l: int, x: torch.Tensor) -> torch.Tensor:
        return toy.output_std * torch.tanh(rms_norm(x, 0.0) @ toy.matrices[l])

    expected = depth_matrix(mixer, toy.embedding, sublayer).weights.mean((2, 3, 4)).numpy()
    recorder = DepthWeightRecorder(mixer, 5)
    with recorder, torch.no_grad():
        toy.walk(mixer)
    arrays = {"mean": recorder.arrays()["mean"][None], **recorder.labels()}
    found = from_depth_weights(arrays)
    assert found is not None
    assert np.abs(found - expected).max() < 1e-12


def test_weights_over_other_sources_give_no_matrix() -> None:
    names = np.array([["b0", ""], ["b0", "zero"]])
    assert from_depth_weights({"sources": names, "mean": np.ones((1, 2, 2, 1))}) is None
    assert from_depth_weights({"sources": np.array([[""]]), "mean": np.full((1, 1, 1, 1), np.nan)}) is None


def test_the_plain_sum() -> None:
    found = plain_sum(3)
    assert found.mean.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert found.square.shape == (3, 3)


@pytest.mark.parametrize("arm", ["block_s4_h16", "mhc"])
def test_matrices_of_a_trained_run(tmp_path: Path, arm: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command reads a checkpoint, and what it writes reproduces the reads of the loaded model."""
    width = [] if arm == "mhc" else ["model.width=32"]
    assert train(tmp_path, f"arm={arm}", *width) == 0
    run = only_run(tmp_path)
    arguments = ["matrices", f"run={run.directory}", "tokens=40", f"data={tmp_path / 'data'}"]
    assert probe(arguments) == 0
    out = capsys.readouterr().out
    assert "residual" in out
    with np.load(run.directory / "depth_matrices.npz") as file:
        assert ("mixing_residual" in file) == ("sums of A off one by" in out) == (arm == "mhc")
        if arm == "mhc":  # four sublayers; eight steps leave H_res near its doubly stochastic start
            assert file["mixing_residual"].shape == (4,)
            assert 0 < file["mixing_residual"].max() < 1e-2
    found = read_measured(run.directory)
    assert found is not None
    assert found.single is not None
    assert (found.origin, found.tokens) == ("checkpoint", 48)  # three windows of 16
    assert found.residual is not None
    assert found.residual < 1e-12
    assert found.mean.shape == (5, 5)
    assert found.single.shape == (8, 5, 5)
    decoder = open_trained(run.directory, tmp_path / "data").decoder.double()
    assert run.read_arrays("depth_matrices")["step"] == 8
    tokens = torch.arange(16).view(1, 16) % 60
    again = depth_matrix(
        decoder.mixer, F.embedding(tokens, decoder.embedding), lambda l, x: decoder.sublayers[l](x)
    )
    values = []
    state = decoder.mixer.begin(F.embedding(tokens, decoder.embedding))
    values.append(F.embedding(tokens, decoder.embedding))
    for l, sublayer in enumerate(decoder.sublayers):
        x, state = decoder.mixer.read(state, l)
        values.append(sublayer(x))
        state = decoder.mixer.write(state, l, values[-1])
    heads = decoder.mixer.depth_heads
    stacked = torch.stack(values).unflatten(-1, (heads, -1))
    output = (again.weights[4].movedim(1, -1).unsqueeze(-1) * stacked).sum(0).flatten(-2)
    assert torch.allclose(output, decoder.mixer.finish(state), atol=1e-12)
    before = (run.directory / "depth_matrices.npz").read_bytes()
    capsys.readouterr()
    assert probe(arguments) == 0
    assert "is there already" in capsys.readouterr().out
    assert probe([*arguments, "force=true"]) == 0
    assert (run.directory / "depth_matrices.npz").read_bytes() == before


def test_a_run_without_checkpoint_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_run(tmp_path, "full", 1, [4.0] * 3)
    for words in ([f"run={directory}"], [f"run={tmp_path}"], [f"run={directory}", "tokens=0"]):
        assert probe(["matrices", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    for line, told in zip(lines, ("missing", "a run directory", "tokens=0"), strict=True):
        assert told in line


def recorded_runs(folder: Path) -> None:
    """PreNorm, a Block of uniform depth weights with S = 2, and mHC with two streams from a checkpoint."""
    depth = {"num_transformer_blocks": 2}
    write_run(folder / "runs", "prenorm", 1, [4.0] * 3, model=depth)
    node = {"name": "block_s4", "label": "b", "parent": None, "mixer": {"_target_": "x", "block_size": 2}}
    directory = write_run(folder / "runs", "block_s4", 1, [4.0] * 3, model=depth, arm_node=node)
    labels = [
        ["b0", "", ""],
        ["b0", "partial(1)", ""],
        ["b0", "b1", ""],
        ["b0", "b1", "partial(1)"],
        ["b0", "b1", "b2"],
    ]
    weights = [[1, np.nan, np.nan], [0.5, 0.5, np.nan], [0.4, 0.6, np.nan], [0.2, 0.3, 0.5], [0.1, 0.2, 0.7]]
    arrays = {
        "steps": np.array([3]),
        "sources": np.array(labels),
        "mean": np.array(weights)[None, :, :, None],
    }
    write_npz(directory / "depth_weights.npz", arrays)
    node = {"name": "mhc", "label": "m", "parent": None, "mixer": {"_target_": "x", "streams": 2}}
    directory = write_run(folder / "runs", "mhc", 1, [4.0] * 3, model=depth, arm_node=node)
    with default_dtype(torch.float64):
        mixer = randomise(MHC(4, 16, streams=2))
    toy = Toy(4, 16, embedding_std=1.0)
    weights_of = depth_matrix(mixer, toy.embedding, lambda l, x: torch.tanh(x @ toy.matrices[l])).weights
    tokens = weights_of.flatten(3)
    write_npz(
        directory / "depth_matrices.npz",
        {
            "mean": tokens.mean(-1).numpy(),
            "std": tokens.std(-1).numpy(),
            "single": tokens.movedim(-1, 0).numpy(),
            "num_tokens": 10,
            "residual": 1e-16,
        },
    )


def test_the_item_renders_from_either_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_runs(tmp_path)
    source = Source("quick", tmp_path / "runs", tmp_path / "results")
    rendered = fig9.ITEM.render(source)
    rows = rendered.data
    block_row = rows["block_s4"].found[0]
    assert block_row.origin == WEIGHTS
    assert block_row.mean.tolist() == [
        [1, 0, 0, 0, 0],
        [0.5, 0.5, 0, 0, 0],
        [0.4, 0.6, 0.6, 0, 0],
        [0.2, 0.3, 0.3, 0.5, 0],
        [0.1, 0.2, 0.2, 0.7, 0.7],
    ]
    assert rows["prenorm"].found[0].origin == "closed form"
    assert rows["mhc"].across_cuts_of_tokens() == 2
    assert rows["full"].found == []
    outcomes = {check.statement: check.test(rows)[0] for check in fig9.ITEM.checks}
    assert list(outcomes.values()) == [True, True, True, True]  # L = 4 lies between N = 2 and N + S = 4
    text = rendered.text[0]
    assert [row["origin"] for row in text.rows if row["label"] == "AttnRes Full"] == ["no run"]
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert reproduce(["render", "fig9", "--scale", "quick", *folders]) == 0
    assert reproduce(["archive", "fig9", "--scale", "quick", *folders]) == 0
    assert list((tmp_path / "results/quick/runs").glob("mhc/*/depth_matrices.npz"))
    assert reproduce(["why", "fig9", "--scale", "quick", *folders]) == 0
    out = capsys.readouterr().out
    assert "python -m repro.train arm=mhc scale=quick seed=1" in out
    assert max(map(len, out[: out.index("Written")].splitlines())) <= 120


def test_on_the_paper_the_wording_about_rank_fails() -> None:
    rendered = fig9.ITEM.render(Source("published"))
    outcomes = [check.test(rendered.data) for check in fig9.ITEM.checks]
    assert [holds for holds, _ in outcomes] == [True, True, True, False]
    assert outcomes[3][1] == "it is L = 32; N = 8, N + S = 12"
