"""Fig. 7 as tables: every cell with its planned shape, what integers leave over, losses and gain."""

from __future__ import annotations

import math

from analysis.arch_sweep import Cell, paper_shape
from analysis.arch_sweep_results import PRENORM, Sweep
from analysis.tables import Column, Table


def tables(paper: Sweep, ours: Sweep | None, title: str) -> list[Table]:
    """Cells of the source shown, and where each arm is lowest beside the paper's."""
    if ours is None:
        return [_summary(paper, None, title), _paper_cells(paper)]
    return [_summary(paper, ours, title), _our_cells(ours)]


def records(paper: Sweep, ours: Sweep | None) -> list[dict[str, object]]:
    """One record per cell of the source shown."""
    shown = ours or paper
    plans = {plan.cell: plan for plan in shown.plans}
    rows = []
    for cell in shown.cells:
        gain, plan = shown.gain(cell), plans.get(cell)
        bounded = gain if gain and math.isfinite(gain.low) else None
        row: dict[str, object] = {
            "width_per_block": cell.width_per_block,
            "heads_per_block": cell.heads_per_block,
            "prenorm_loss": shown.loss(PRENORM, cell),
            "attnres_loss": shown.loss(shown.attnres, cell),
            "gain": round(gain.estimate, 6) if gain else None,
            "gain_low": bounded.low if bounded else None,
            "gain_high": bounded.high if bounded else None,
            "seeds": gain.n if gain and gain.kind == "seeds" else int(gain is not None),
            "num_transformer_blocks": plan.shape.num_transformer_blocks if plan else None,
            "width": plan.shape.width if plan else None,
            "num_heads": plan.shape.num_heads if plan else None,
            "mlp_width": plan.shape.mlp_width if plan else None,
            "tokens": plan.shape.tokens if plan else None,
            "parameters_error": plan.parameters_error if plan else None,
            "flops_error": plan.flops_error if plan else None,
        }
        rows.append(row)
    return rows


def _summary(paper: Sweep, ours: Sweep | None, title: str) -> Table:
    rows = []
    for label, arm in (("optimum of PreNorm", "prenorm"), ("optimum of AttnRes", "attnres")):
        row = {"label": label, "paper": _optimum(paper, arm)}
        rows.append(row | ({"ours": _optimum(ours, arm)} if ours else {}))
    for label, extreme in (("smallest gain", min), ("largest gain", max)):
        row = {"label": label, "paper": _gain(paper, extreme)}
        rows.append(row | ({"ours": _gain(ours, extreme)} if ours else {}))
    columns = [Column("label", "", numeric=False), Column("paper", "paper", numeric=False)]
    columns += [Column("ours", f"ours (scale {ours.scale})", numeric=False)] if ours else []
    notes = [
        "Place (d / L_b, H / L_b) and validation loss, nats per token; gain is PreNorm's loss minus "
        "AttnRes's. The paper has one run per cell and no intervals, and does not say whether its AttnRes is "
        "Full or Block."
    ]
    if ours:
        seeds = ", ".join(ours.seeds) or "none"
        notes.append(
            f"Ours: AttnRes Full, seeds {seeds}; one learning rate for all cells. Under three seeds an "
            "optimum or a gain is a number without a verdict."
        )
        done = sum(1 for arm in (PRENORM, ours.attnres) for cell in ours.cells if ours.loss(arm, cell))
        if done < 2 * len(ours.cells):
            notes.append(
                f"{done} of {2 * len(ours.cells)} losses are there; make fig7 SCALE={ours.scale} goes on. An "
                "optimum is starred when all cells of an arm have a loss."
            )
        notes += ours.notes
    return Table(title, columns, rows, notes)


def _optimum(source: Sweep | None, which: str) -> str:
    if source is None:
        return ""
    arm = PRENORM if which == "prenorm" else source.attnres
    best = source.optimum(arm)
    if best is None:
        return "grid not finished"
    return f"({best.width_per_block:g}, {best.heads_per_block:g})  {source.loss(arm, best):.3f}"


def _gain(source: Sweep | None, extreme: object) -> str:
    found = []
    for cell in source.cells if source else ():
        gain = source.gain(cell) if source else None
        if gain:
            found.append((gain.estimate, cell))
    if not found:
        return "no finished pair"
    value, cell = extreme(found, key=lambda pair: pair[0])  # type: ignore[operator]
    return f"{value:+.3f}  at ({cell.width_per_block:g}, {cell.heads_per_block:g})"


def _paper_cells(paper: Sweep) -> Table:
    rows = []
    for cell in paper.cells:
        shape = paper_shape(cell)
        rows.append(
            _losses(paper, cell)
            | {
                "shape": f"{shape.num_transformer_blocks:.1f} / {shape.width:.0f} / {shape.num_heads:.1f}",
                "tokens": f"{shape.tokens / 1e9:.1f}",
                "parameters": f"{100 * shape.rounded_error():+.1f}",
            }
        )
    columns = [
        *_loss_columns(),
        Column("shape", "L_b / d / H (inferred)"),
        Column("tokens", "10^9 tokens (inferred)"),
        Column("parameters", "parameters, rounded (%)"),
    ]
    note = (
        "The paper prints losses only. Shapes are solved for 2.3e8 activated parameters and tokens for "
        "6.5e19 FLOPs by the account inferred from Table 2 (256 experts, d_ff / d = 0.45), in real numbers; "
        "the last column is the parameter error after rounding L_b, d and H."
    )
    return Table("Cells of the paper", columns, rows, [note])


def _our_cells(ours: Sweep) -> Table:
    plans = {plan.cell: plan for plan in ours.plans}
    rows = []
    for cell in ours.cells:
        plan = plans[cell]
        s = plan.shape
        ratios = (plan.width_error, plan.heads_error, plan.mlp_error)
        rows.append(
            _losses(ours, cell)
            | {
                "shape": f"{s.num_transformer_blocks} / {s.width} / {s.num_heads} / {s.mlp_width}",
                "tokens": f"{s.tokens:,}",
                "parameters": f"{100 * plan.parameters_error:+.2f}",
                "flops": f"{100 * plan.flops_error:+.2f}",
                "ratio": ", ".join(f"{100 * error:+.0f}" for error in ratios),
            }
        )
    columns = [
        *_loss_columns(),
        Column("shape", "L_b / d / H / m"),
        Column("tokens", "tokens"),
        Column("parameters", "N %"),
        Column("flops", "C %"),
        Column("ratio", "ratios %"),
    ]
    note = (
        "N %, C %: by how much whole numbers miss the fixed parameters (without embedding and head) and "
        "compute, PreNorm's; AttnRes adds its mixing on top. Ratios %: the same for d / L_b, H / L_b and "
        "m / d. Heads are d / H wide, so H / L_b changes their size and not the parameters of attention; the "
        "paper's have size 128."
    )
    return Table("Cells", columns, rows, [note])


def _loss_columns() -> list[Column]:
    return [
        Column("width", "d/L_b"),
        Column("heads", "H/L_b"),
        Column("prenorm", "PreNorm"),
        Column("attnres", "AttnRes"),
        Column("gain", "gain [95 %]"),
    ]


def _losses(source: Sweep, cell: Cell) -> dict[str, str]:
    row = {"width": f"{cell.width_per_block:g}", "heads": f"{cell.heads_per_block:g}"}
    for key, arm in (("prenorm", PRENORM), ("attnres", source.attnres)):
        loss = source.loss(arm, cell)
        state = source.states.get((arm, cell), "no run") if source.plans else ""
        row[key] = f"{loss:.3f}" if loss is not None else state
    gain = source.gain(cell)
    if gain:
        interval = f" [{gain.low:+.3f}, {gain.high:+.3f}]" if math.isfinite(gain.low) else ""
        row["gain"] = f"{gain.estimate:+.3f}{interval}"
    return row
