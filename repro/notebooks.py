"""``python -m repro.notebooks [NAME ...]``: the notebooks executed, as pages to read.

Every notebook is executed without Jupyter and written as Markdown with its pictures; where jupytext, nbclient
and ipykernel are installed, it is also executed in a kernel and written as .ipynb, and as one HTML file where
nbconvert is there too. No torch, no training: the notebooks read committed results.

    --into DIR    where to write (default notebooks/executed, which git ignores)
    --check       execute only, write nothing

Exit code 1 where a cell raised (its traceback is on stderr), 2 and one line for bad input.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from analysis.notebook_cells import MARKDOWN, CellError, Page, execute
from repro.errors import ConfigError, DataError
from repro.runs.atomic import replace_atomically, write_bytes
from repro.runs.places import project_root, shown

SOURCES = project_root() / "notebooks"
# In the order in which they are read.
NAMES = ("reading_a_run", "depth_attention", "scaling_law", "adding_an_arm")
JUPYTER = ("jupytext", "nbclient", "ipykernel")
SECONDS_PER_CELL = 300
DPI = 110  # of pictures in pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m repro.notebooks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help=f"of {', '.join(NAMES)}; all where none is given")
    parser.add_argument("--into", type=Path, default=SOURCES / "executed")
    parser.add_argument("--check", action="store_true", help="execute only, write nothing")
    args = parser.parse_args(arguments)
    try:
        for name in args.name:
            if name not in NAMES:
                raise ConfigError("notebook", name, f"must be one of {', '.join(NAMES)}")
        names = args.name or list(NAMES)
        code = max(_read(name, None if args.check else args.into) for name in names)
        return code if args.check else max(code, _jupyter(names, args.into))
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _read(name: str, into: Path | None) -> int:
    """Execute one notebook and write its page; 1 where a cell raised."""
    matplotlib.use("Agg")
    start = time.perf_counter()
    try:
        page = execute(SOURCES / f"{name}.py")
    except CellError as error:
        print(error.details, file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        raise DataError(f"{error.filename}: missing; notebooks are in a checkout, not in a wheel") from None
    seconds = time.perf_counter() - start
    where = f" -> {shown(write_page(page, into))}" if into else ""
    print(f"{name}: {len(page.shown)} cells, {len(page.figures)} pictures, {seconds:.1f} s{where}")
    return 0


def write_page(page: Page, into: Path) -> Path:
    """``<into>/<name>.md`` with its ``<name>-<n>.png``: prose as it is, code and text fenced; its path."""
    parts, number = [], 0
    for cell in page.shown:
        if cell.cell.kind == MARKDOWN:
            parts.append(cell.cell.source)
            continue
        parts.append(f"```python\n{cell.cell.source}\n```")
        if cell.text:
            parts.append(f"```text\n{cell.text}\n```")
        if cell.figure is not None:
            number += 1
            picture = f"{page.name}-{number}.png"
            data = io.BytesIO()
            cell.figure.savefig(data, format="png", dpi=DPI)
            write_bytes(into / picture, data.getvalue())
            parts.append(f"![picture {number}]({picture})")
    return write_bytes(into / f"{page.name}.md", ("\n\n".join(parts) + "\n").encode("utf-8"))


def missing_for_jupyter() -> list[str]:
    """What .ipynb files need and is not installed."""
    return [name for name in JUPYTER if importlib.util.find_spec(name) is None]


def _jupyter(names: Sequence[str], into: Path) -> int:
    """The same notebooks in a kernel, as .ipynb; one line where that cannot be."""
    if missing := missing_for_jupyter():
        print(f"no .ipynb: {', '.join(missing)} not installed (pip install -e '.[notebooks]')")
        return 0
    code = 0
    for name in names:
        try:
            for path in write_ipynb(SOURCES / f"{name}.py", into):
                print(f"{name}: {shown(path)}")
        except Exception as error:  # nbclient's CellExecutionError, a kernel that does not start
            print(f"error: {name} in Jupyter: {error}", file=sys.stderr)
            code = 1
    return code


def write_ipynb(source: Path, into: Path) -> list[Path]:
    """Executes a notebook in a kernel of this Python; ``<into>/<name>.ipynb``, and .html with nbconvert."""
    jupytext: Any = importlib.import_module("jupytext")
    nbclient: Any = importlib.import_module("nbclient")
    notebook = jupytext.read(source)
    place = {"metadata": {"path": str(project_root())}}  # the kernel's directory: this checkout is imported
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources=place,
        record_timing=False,  # no times in the file: the same sources give the same notebook
    )
    client.execute()
    into.mkdir(parents=True, exist_ok=True)
    paths = [
        replace_atomically(
            into / f"{source.stem}.ipynb", lambda path: jupytext.write(notebook, path, fmt="ipynb")
        )
    ]
    if importlib.util.find_spec("nbconvert") is not None:
        body, _ = importlib.import_module("nbconvert").HTMLExporter().from_notebook_node(notebook)
        paths.append(write_bytes(into / f"{source.stem}.html", body.encode("utf-8")))
    return paths


if __name__ == "__main__":
    sys.exit(main())
