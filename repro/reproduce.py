"""``python -m repro.reproduce``: tables and figures from the paper or from runs, and back to the config.

    list                          every item, and the scales that have runs
    render ITEM...|all --scale S  results/S/ITEM.{csv,md,tex,svg,png,...} and the table on the terminal
    show ITEM --scale S           the same on the terminal alone
    why ITEM [--scale S]          from each row to its runs, configs and the commands that make them again
    report [--scale S,...]        results/report.html, every item on one page (repro.report)
    archive ITEM --scale S        copy the small records of the item's runs to results/S/runs, to be committed
                                  (--lean: without those over depth, which few items read)

No torch: a laptop can rebuild everything from committed results. Exit code 2 and one line for bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from analysis.report_contents import Outcome
from analysis.selection import RunRow, departures
from analysis.tables import TERMINAL_WIDTH, to_text
from experiments.item import PUBLISHED, PaperItem, Rendered, Source
from experiments.items import ITEMS, find
from repro.errors import ConfigError, DataError
from repro.rendering import outcomes, write
from repro.report import register
from repro.runs.places import project_root, shown
from repro.runs.reading import read_json
from repro.runs.table import copy_records

#: Two thirds of a run's records, read by Figs. 5, 8 and 9 alone.
DEPTH_RECORDS = ("depth_weights.npz", "depth_norms.npz", "depth_matrices.npz")
SCALES = Path(__file__).resolve().parents[1] / "conf" / "scale"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        args.command(args)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe, head for one, has seen enough
        sys.stderr.close()
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m repro.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, function, many in (
        ("list", _list, None),
        ("render", _render, True),
        ("show", _show, False),
        ("why", _why, False),
        ("archive", _archive, False),
    ):
        command = commands.add_parser(name)
        command.set_defaults(command=function)
        if many is not None:
            command.add_argument("item", nargs="+" if many else 1, help=", ".join(ITEMS))
            command.add_argument("--scale", help="published, or a scale that was trained", default=None)
            command.add_argument("--setting", help="setting id, where a scale holds several", default=None)
        for folder in ("runs", "results"):
            place = project_root() / folder
            command.add_argument(f"--{folder}", type=Path, default=place, help=f"default: {shown(place)}")
        if name == "archive":
            command.add_argument("--lean", action="store_true", help=f"without {', '.join(DEPTH_RECORDS)}")
    register(commands, known_scales())
    return parser


def _list(args: argparse.Namespace) -> None:
    trained = [
        scale
        for scale in known_scales()
        if (args.runs / scale).is_dir() or (args.results / scale / "runs").is_dir()
    ]
    print(f"scales: {PUBLISHED}" + "".join(f", {scale}" for scale in trained))
    if untrained := [scale for scale in known_scales() if scale not in trained]:
        print(f"not trained yet: {', '.join(untrained)}")
    for item in ITEMS.values():
        print(f"\n{item.name}  {item.title}  (make {item.name} SCALE=...)")
        indent = "    "
        print(textwrap.fill(item.claim, TERMINAL_WIDTH, initial_indent=indent, subsequent_indent=indent))


def _render(args: argparse.Namespace) -> None:
    every = args.item == ["all"]
    for item in _all(args.scale) if every else [find(name) for name in args.item]:
        source = _source(args, item, required=True)
        try:
            rendered = item.render(source)
        except DataError as error:
            if not every:
                raise
            print(f"{item.name} is not rendered: {error}\n", file=sys.stderr)
            continue
        paths = write(item, source, rendered)
        _print(item, rendered)
        print("Written: " + shown(paths[0]) + " and " + ", ".join(path.name for path in paths[1:]))
        print(
            f"Where a number comes from: python -m repro.reproduce why {item.name} --scale {source.scale}\n"
        )


def _all(scale: str | None) -> list[PaperItem]:
    """Every item that this scale makes sense for."""
    return [item for item in ITEMS.values() if not item.scales or scale in item.scales]


def _show(args: argparse.Namespace) -> None:
    item = find(args.item[0])
    _print(item, item.render(_source(args, item, required=True)))


def _why(args: argparse.Namespace) -> None:
    item = find(args.item[0])
    source = _source(args, item, required=False)
    rendered = item.render(source)
    stem = source.results / source.scale / item.name
    print(f"{item.title}, scale {source.scale}")
    print(textwrap.fill(f"claim: {item.claim}", TERMINAL_WIDTH, subsequent_indent="  "))
    provenance = Path(f"{stem}.provenance.json")
    if provenance.exists():
        known = json.loads(provenance.read_text(encoding="utf-8"))
        print(f"rendered: {shown(stem)}.csv, .md, .tex, .svg, .png  by: {known.get('command')}")
        git = known.get("git") or {}
        print(f"source tree: {git.get('sha')}" + (" with local changes" if git.get("dirty") else ""))
        if known.get("run_ids") != [run.run_id for run in rendered.runs]:
            print("these files are older than the runs below: render again")
    else:
        print(f"not rendered yet: python -m repro.reproduce render {item.name} --scale {source.scale}")
    print(f"make target: make {item.name} SCALE={source.scale}")
    if source.is_published:
        print("every number: experiments/published/ (README.md there says how each file was read)")
        return
    if not {"arm", "row", "status"} <= set(rendered.records[0]):
        for run in rendered.runs:
            print(f"\n{run.arm}")
            _print_run(run, source.scale)
        return
    for record in rendered.records:
        arm = str(record["arm"])
        print(f"\n{record['row']}  ({record['status']})")
        runs = [run for run in rendered.runs if run.arm == arm]
        for run in runs:
            _print_run(run, source.scale)
        if not runs:
            print(f"  no run: python -m repro.train arm={arm} scale={source.scale}")


def _print_run(run: RunRow, scale: str) -> None:
    loss = f"val loss {run.val_loss:.4f}" if run.status == "done" else "no result"
    print(f"  run {run.run_id}  seed {run.seed_label}  {run.status}  {loss}")
    print(f"    records     {shown(run.directory)}")
    print(f"    config      {shown(run.directory / 'config.yaml')}")
    print(f"    trained by  {_recorded_command(run.directory)}")
    print(f"    again       {_command(run, scale)}")


def _command(run: RunRow, scale: str) -> str:
    if start := run.config.get("start"):  # from another run's weights
        place = f"runs/{scale}/prenorm/{start['run']}"
        budget = run.config["budget"]
        steps = budget["tokens"] // (budget["batch_size"] * budget["context"])
        return f"python -m repro.convert run={place} arm={run.arm} method={start['method']} steps={steps}"
    parts = [f"python -m repro.train arm={run.arm} scale={scale} seed={run.seed}"]
    parts += [
        f"{name}={getattr(run, name)}"
        for name in ("init_seed", "data_seed")
        if getattr(run, name) != run.seed
    ]
    return " ".join(parts + [f"{key}={value}" for key, value in departures(run, scale).items()])


def _recorded_command(directory: Path) -> str:
    try:
        return str(read_json(directory / "meta.json")["command"])
    except (FileNotFoundError, DataError, KeyError, TypeError):
        return "not recorded"


def _archive(args: argparse.Namespace) -> None:
    item = find(args.item[0])
    source = _source(args, item, required=True)
    if source.is_published:
        raise ConfigError("--scale", source.scale, "published has no runs to archive")
    runs = item.render(source).runs
    target = source.results / source.scale / "runs"
    for run in runs:
        copy_records(run.directory, target, DEPTH_RECORDS if args.lean else ())
    print(f"{len(runs)} runs of {item.name} in {shown(target)}")


def _source(args: argparse.Namespace, item: PaperItem, *, required: bool) -> Source:
    known = [PUBLISHED, *known_scales()]
    scale = args.scale
    if scale is None and required:
        raise ConfigError("--scale", scale, f"must be one of {', '.join(known)}")
    if scale is None:  # the last one rendered from runs, else the paper's numbers
        files = sorted(
            args.results.glob(f"**/{item.name}.provenance.json"), key=lambda path: path.stat().st_mtime
        )
        rendered = [path.parent.relative_to(args.results).as_posix() for path in files]
        scale = next((name for name in reversed(rendered) if name != PUBLISHED), PUBLISHED)
        if scale == PUBLISHED and item.scales and PUBLISHED not in item.scales:
            raise DataError(f"nothing of {item.name} is rendered yet: make {item.name} SCALE=quick")
    if scale not in known or (item.scales and scale not in item.scales):
        raise ConfigError("--scale", scale, f"must be one of {', '.join(item.scales or known)}")
    return Source(scale, args.runs, args.results, args.setting)


def known_scales() -> list[str]:
    return sorted(path.relative_to(SCALES).with_suffix("").as_posix() for path in SCALES.glob("**/*.yaml"))


def _line(word: str, outcome: Outcome) -> str:
    text = f"  {word}  {outcome.statement}  {outcome.evidence}"
    return textwrap.fill(text, TERMINAL_WIDTH, subsequent_indent=" " * 9)


def _print(item: PaperItem, rendered: Rendered) -> None:
    for table in rendered.terminal:
        print(to_text(table))
    found = outcomes(item, rendered)
    undecided = [outcome for outcome in found if outcome.holds is None]
    for outcome in found:
        if outcome.holds is not None:
            print(_line("holds" if outcome.holds else "fails", outcome))
    for outcome in undecided if len(undecided) < len(found) else ():
        print(_line("open ", outcome))
    if found and len(undecided) == len(found):
        print(f"None of the paper's {len(found)} statements is decided: few seeds, or wide intervals.")
    if found:
        print()


if __name__ == "__main__":
    sys.exit(main())
