"""The grids of Fig. 7 at the scales here, and their cells as choices of the config group ``grid``.

    python -m experiments.fig7_grids     # writes conf/grid/<scale>-<cell>.yaml, one cell each

Hydra's basic sweeper has no zip, so a cell, which sets five keys together, is one choice. A test holds the
files equal to the plan.
"""

from __future__ import annotations

from pathlib import Path

from analysis.arch_sweep import Grid, Plan, Shape, flops_per_token, parameters, plan

CONF_GRID = Path(__file__).resolve().parents[1] / "conf" / "grid"


def _like(
    reference: Shape,
    width_per_block: tuple[float, ...],
    heads_per_block: tuple[float, ...],
    vocab_size: int,
    context: int,
    batch_size: int,
) -> Grid:
    """A grid with the parameters, compute and MLP ratio of a reference shape."""
    return Grid(
        width_per_block,
        heads_per_block,
        parameters=parameters(reference),
        flops=flops_per_token(reference, vocab_size, context) * reference.tokens,
        mlp_ratio=reference.mlp_width / reference.width,
        vocab_size=vocab_size,
        context=context,
        batch_size=batch_size,
    )


# The paper's heads have size 128 whatever the width; ours are d / H wide, so H / L_b changes the size of
# heads and not the parameters of attention. Quick: one of the cells is the scale's own model. Cpu: that
# scale's model with a quarter of its tokens, so that eighteen runs take about two hours on two cores.
GRIDS = {
    "smoke": _like(Shape(24, 8, 2, 66, 2560), (3, 6), (0.25, 0.5), 64, 32, 8),
    "quick": _like(Shape(64, 16, 4, 176, 655360), (2, 4, 8), (0.125, 0.25, 0.5), 2048, 128, 16),
    "cpu": _like(Shape(64, 24, 4, 176, 1310720), (2, 4, 8), (0.125, 0.25, 0.5), 2048, 128, 16),
}


def plans(scale: str) -> list[Plan]:
    """All cells of a scale's grid with their shapes."""
    return [plan(GRIDS[scale], cell) for cell in GRIDS[scale].cells()]


def cell_text(planned: Plan) -> str:
    """The YAML of one cell."""
    s = planned.shape
    return (
        "# @package _global_\n"
        f"# Fig. 7, cell d/L_b = {planned.cell.width_per_block:g}, H/L_b = {planned.cell.heads_per_block:g}; "
        "written by `python -m experiments.fig7_grids`.\n"
        f"model: {{width: {s.width}, num_transformer_blocks: {s.num_transformer_blocks}, "
        f"num_heads: {s.num_heads}, mlp_width: {s.mlp_width}}}\n"
        f"budget: {{tokens: {s.tokens}}}\n"
    )


def files() -> dict[str, str]:
    """Name of every file of ``conf/grid`` with its text."""
    return {f"{scale}-{p.cell.name}.yaml": cell_text(p) for scale in GRIDS for p in plans(scale)}


def main() -> None:
    """Write the cells, and remove those of an earlier plan."""
    CONF_GRID.mkdir(exist_ok=True)
    texts = files()
    for path in CONF_GRID.glob("*.yaml"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (CONF_GRID / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
