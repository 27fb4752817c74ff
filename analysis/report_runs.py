"""What the report says about the runs behind a rendering: seeds, setting, and runs it does not know of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.report_contents import Rendering
from analysis.selection import RunRow


def with_runs(
    rendering: Rendering,
    arms: Sequence[str],
    runs: Mapping[str, RunRow],
    is_newer: Callable[[RunRow], bool] = lambda run: False,
) -> Rendering:
    """The rendering with seeds, setting and warnings from the runs of its scale that exist now.

    arms: of the item.  runs: run id -> run, all of that scale.  is_newer: whether a run ended after the files
    were written, where that is known.
    """
    known = [runs[run_id] for run_id in rendering.run_ids if run_id in runs]
    done = [run for run in known if run.status == "done"]
    if not rendering.run_ids:
        return rendering
    return replace(
        rendering,
        seeds="; ".join(filter(None, (seeds_text(done), unfinished_text(known)))),
        num_seeds=num_seeds(done),
        setting=setting_text(known),
        warnings=warnings(rendering, arms, runs, is_newer),
    )


def seeds_text(runs: Sequence[RunRow]) -> str:
    """``seeds 1, 2, 3: prenorm, full; seed 1: full_static``: the arms, grouped by their seeds."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for arm, seeds in _seeds_by_arm(runs).items():
        groups.setdefault(seeds, []).append(arm)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[0]), group[0]))
    return "; ".join(
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}: {', '.join(sorted(arms))}"
        for seeds, arms in ordered
    )


def unfinished_text(runs: Sequence[RunRow]) -> str:
    """``diverged: full_input_query, seed 2``: the runs that have no result, by what became of them."""
    groups: dict[str, list[str]] = {}
    for run in runs:
        if run.status != "done":
            groups.setdefault(run.status, []).append(f"{run.arm} seed {run.seed_label}")
    return "; ".join(f"{status}: {', '.join(sorted(names))}" for status, names in sorted(groups.items()))


def num_seeds(runs: Sequence[RunRow]) -> tuple[int, int] | None:
    """Fewest and most seeds of an arm; None without runs."""
    counts = [len(seeds) for seeds in _seeds_by_arm(runs).values()]
    return (min(counts), max(counts)) if counts else None


def setting_text(runs: Sequence[RunRow]) -> str:
    """Shape, data and budget of the runs in one sentence; what they do not share is left out."""
    if not runs:
        return ""
    parts = [
        _shared(runs, lambda run: run.num_sublayers, "{} sublayers"),
        _shared(runs, lambda run: _node(run, "model", "width"), "width {}"),
        _shared(runs, lambda run: _tokens(_node(run, "budget", "tokens")), "{} tokens"),
        _shared(runs, lambda run: _node(run, "data", "name"), "corpus {}"),
        _shared(runs, lambda run: _node(run, "optim", "lr"), "peak learning rate {}"),
    ]
    parameters = sorted(run.parameters for run in runs if run.parameters)
    if parameters:
        low, high = (f"{count / 1e6:.3g}M" for count in (parameters[0], parameters[-1]))
        parts.append(f"{low} parameters" if low == high else f"{low} to {high} parameters")
    said = [part for part in parts if part]
    return ("Models: " + ", ".join(said) + ".") if said else ""


def warnings(
    rendering: Rendering,
    arms: Sequence[str],
    runs: Mapping[str, RunRow],
    is_newer: Callable[[RunRow], bool],
) -> list[str]:
    """Where the rendered files do not match the runs: runs that are gone, and finished ones left out.

    A finished run is missed where an arm of the item has it under a setting that is shown, but the rendering
    has none of its arm, setting and seeds. An item may show one seed of several on purpose (a sweep of
    settings), so a rendering of one seed misses a run of another only if that ended after the files were
    written.
    """
    shown = [runs[run_id] for run_id in rendering.run_ids if run_id in runs]
    gone = [run_id for run_id in rendering.run_ids if run_id not in runs]
    settings = {run.setting_id for run in shown}
    seeds = {run.seeds for run in shown}
    cells = {(run.arm, run.setting_id, run.seeds) for run in shown}
    missed = sorted(
        f"{run.run_id} ({run.arm}, seed {run.seed_label})"
        for run in runs.values()
        if run.status == "done"
        and run.arm in arms
        and run.setting_id in settings
        and (run.arm, run.setting_id, run.seeds) not in cells
        and (len(seeds) > 1 or run.seeds in seeds or is_newer(run))
    )
    found = []
    if missed:
        found.append(f"Older than its runs: rendered without {_few(missed)}. Again: {rendering.command}")
    if gone:
        found.append(f"Rendered from runs whose records are not here: {_few(gone)}.")
    return found


def _few(names: Sequence[str], most: int = 6) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _seeds_by_arm(runs: Sequence[RunRow]) -> dict[str, tuple[str, ...]]:
    arms: dict[str, set[tuple[int, str]]] = {}
    for run in runs:
        arms.setdefault(run.arm, set()).add((run.seed, run.seed_label))
    return {arm: tuple(label for _, label in sorted(seeds)) for arm, seeds in arms.items()}


def _shared(runs: Sequence[RunRow], of: Any, form: str) -> str:
    values = {of(run) for run in runs}
    value = values.pop()
    return "" if values or value is None else form.format(value)


def _node(run: RunRow, name: str, key: str) -> Any:
    node = run.config.get(name)
    return node.get(key) if isinstance(node, Mapping) else None


def _tokens(count: Any) -> str | None:
    return f"{count / 1e6:.3g}M" if isinstance(count, int | float) else None
