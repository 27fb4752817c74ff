"""Fig. 7: the planner against the decoder and the paper's facts, the grid's files, partial grids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.arch_sweep import Cell, flops_per_token, paper_shape, parameters
from experiments.fig7 import ITEM
from experiments.fig7_grids import CONF_GRID, GRIDS, files, plans
from experiments.item import Source
from repro.model.build import build_decoder
from tests.synthetic_runs import write_run
from tests.test_configs import composed


def test_the_files_are_the_plan() -> None:
    assert {path.name: path.read_text() for path in CONF_GRID.iterdir()} == files()


@pytest.mark.parametrize("scale", sorted(GRIDS))
def test_cells_compose_into_what_was_planned(scale: str) -> None:
    """Parameters and FLOPs of the planner are those of the decoder that the config builds."""
    for planned in (plans(scale)[0], plans(scale)[-1]):
        config = composed(f"scale={scale}", "arm=prenorm", f"grid={scale}-{planned.cell.name}")
        decoder = build_decoder(config, device="meta")
        tables = decoder.embedding.numel() + decoder.head.numel()
        assert decoder.num_parameters() - tables == parameters(planned.shape)
        grid = GRIDS[scale]
        assert (config.model.vocab_size, config.budget.context) == (grid.vocab_size, grid.context)
        assert config.budget.batch_size == grid.batch_size
        per_token = flops_per_token(planned.shape, grid.vocab_size, grid.context)
        assert decoder.flops_per_token() == pytest.approx(per_token, rel=1e-12)
        assert config.budget.tokens == planned.shape.tokens
        assert config.budget.tokens % (grid.batch_size * grid.context) == 0


@pytest.mark.parametrize("scale", sorted(GRIDS))
def test_parameters_and_compute_are_fixed(scale: str) -> None:
    for planned in plans(scale):
        assert abs(planned.parameters_error) < 0.005
        assert abs(planned.flops_error) < 0.015
        assert planned.shape.width % (2 * planned.shape.num_heads) == 0


def test_one_cell_of_quick_is_the_scales_own_model() -> None:
    """So its runs are those of Table 4: shape of conf/scale/quick.yaml."""
    (own,) = [p.shape for p in plans("quick") if p.cell == Cell(4, 0.25)]
    scale = yaml.safe_load((CONF_GRID.parent / "scale/quick.yaml").read_text())
    assert scale["model"] == {"width": 64, "num_transformer_blocks": 16, "num_heads": 4, "mlp_width": 176}
    assert (own.width, own.num_transformer_blocks, own.num_heads, own.mlp_width) == (64, 16, 4, 176)
    assert own.tokens == scale["budget"]["tokens"] == 655360


@pytest.mark.parametrize(
    ("cell", "blocks", "width", "heads"),
    [((15, 0.7), 29.1, 437, 20.4), ((60, 0.3), 16.1, 965, 4.8), ((45, 0.5), 18.2, 819, 9.1)],
)
def test_inferred_shapes_of_the_paper(
    cell: tuple[float, float], blocks: float, width: float, heads: float
) -> None:
    shape = paper_shape(Cell(*cell))
    assert shape.num_transformer_blocks == pytest.approx(blocks, abs=0.06)
    assert shape.width == pytest.approx(width, abs=1.1)
    assert shape.num_heads == pytest.approx(heads, abs=0.06)
    assert 21e9 < shape.tokens < 43e9


def _write(root: Path, arm: str, place: int, loss: float, seed: int = 1, **changes: object) -> None:
    s = plans("smoke")[place].shape
    model = {
        "width": s.width,
        "num_transformer_blocks": s.num_transformer_blocks,
        "num_heads": s.num_heads,
        "mlp_width": s.mlp_width,
    }
    write_run(
        root, arm, seed, [loss] * 3, scale="smoke", model=model, budget={"tokens": s.tokens}, **changes  # type: ignore[arg-type]
    )  # fmt: skip


def test_an_unfinished_grid_renders_and_a_finished_one_has_stars(tmp_path: Path) -> None:
    source = Source("smoke", tmp_path / "runs", tmp_path / "results")
    runs = tmp_path / "runs"
    write_run(runs, "prenorm", 1, [1.0] * 3, scale="smoke")  # of another shape, and lower: not in the grid
    _write(runs, "prenorm", 0, 4.5)
    _write(runs, "full", 0, 4.25)
    _write(runs, "prenorm", 1, 4.0)
    rendered = ITEM.render(source)
    gains = [row["gain"] for row in rendered.records]
    assert gains == [pytest.approx(0.25), None, None, None]
    assert rendered.data.ours.optimum("prenorm") is None
    panels = [axes for axes in rendered.figure.axes if axes.images]
    masked = [int(np.ma.getmaskarray(axes.images[0].get_array()).sum()) for axes in panels]
    assert masked == [0, 0, 0, 2, 3, 3]
    for place in (1, 2, 3):
        _write(runs, "full", place, 3.5 + place / 10)
    for place in (2, 3):
        _write(runs, "prenorm", place, 4.75)
    data = ITEM.render(source).data
    assert data.ours.optimum("prenorm") == Cell(6, 0.25)
    assert data.ours.optimum("full") == Cell(6, 0.25)
    outcomes = {check.statement: check.test(data)[0] for check in ITEM.checks}
    assert outcomes["AttnRes is better in every cell."] is None  # one seed


def test_cells_are_compared_under_one_setting(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for place in (0, 1):
        _write(runs, "prenorm", place, 4.0)
    _write(runs, "prenorm", 0, 3.0, optim={"lr": 0.5})
    data = ITEM.render(Source("smoke", runs, tmp_path / "results")).data
    assert data.ours.loss("prenorm", plans("smoke")[0].cell) == pytest.approx(4.0)
    assert data.ours.notes == ("1 runs of the same shapes under other settings left out.",)


def test_three_seeds_decide(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for seed in (1, 2, 3):
        for place in range(4):
            base = 4.0 + 0.1 * place + 0.01 * seed
            _write(runs, "prenorm", place, base, seed)
            _write(runs, "full", place, base - 0.05 - 0.001 * seed, seed)
    data = ITEM.render(Source("smoke", runs, tmp_path / "results")).data
    outcomes = {check.statement: check.test(data) for check in ITEM.checks}
    assert outcomes["AttnRes is better in every cell."] == (True, "in 4 of 4 cells")
    # Both prefer the first cell with every seed, so neither is deeper.
    assert outcomes["AttnRes prefers a deeper, narrower model (smaller d / L_b)."][0] is False


def test_cells_are_compared_at_the_seeds_that_all_have(tmp_path: Path) -> None:
    """The cell that Table 4 trains has more seeds; its mean over them would be of other draws."""
    runs = tmp_path / "runs"
    for place in range(4):
        _write(runs, "prenorm", place, 4.0 + 0.1 * place)
        _write(runs, "full", place, 3.9 + 0.1 * place)
    _write(runs, "prenorm", 3, 1.0, seed=2)
    data = ITEM.render(Source("smoke", runs, tmp_path / "results")).data
    cells = [plan.cell for plan in plans("smoke")]
    assert [data.ours.loss("prenorm", cell) for cell in cells] == pytest.approx([4.0, 4.1, 4.2, 4.3])
    assert data.ours.optimum("prenorm") == cells[0]
    assert data.ours.seeds == ["1"]
    assert data.ours.notes == ("1 runs with seeds that not every cell has are left out.",)
