"""A py:percent notebook (jupytext) as cells, and their execution in one namespace, without Jupyter.

A cell begins at a line ``# %%`` (code) or ``# %% [markdown]`` (prose, commented); a header may stand first.
As in Jupyter, the value of a code cell's last expression is shown unless it is None. A line like
``# %matplotlib inline`` is a comment here, and a magic where jupytext opens the file.
"""

from __future__ import annotations

import ast
import io
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from repro.errors import DataError

CODE, MARKDOWN = "code", "markdown"


@dataclass(frozen=True)
class Cell:
    """kind: ``code`` or ``markdown``; source: its text, prose without the leading ``# ``; line: its first."""

    kind: str
    source: str
    line: int


@dataclass(frozen=True)
class Shown:
    """A cell after execution: what it printed, and the value of its last expression."""

    cell: Cell
    printed: str = ""
    value: Any = None

    @property
    def figure(self) -> Figure | None:
        """The picture of the cell: its value, where that is a figure."""
        return self.value if isinstance(self.value, Figure) else None

    @property
    def text(self) -> str:
        """What was printed, and the value where it is not a picture."""
        lines = [self.printed.rstrip("\n")] if self.printed.strip() else []
        if self.value is not None and self.figure is None:
            lines.append(str(self.value))
        return "\n".join(lines)


@dataclass
class Page:
    """An executed notebook; namespace: what its cells defined."""

    name: str
    shown: list[Shown] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)

    @property
    def figures(self) -> list[Figure]:
        """All pictures, in order."""
        return [shown.figure for shown in self.shown if shown.figure is not None]


class CellError(DataError):
    """A cell raised; the text names file, line and error, ``details`` is the traceback."""

    def __init__(self, path: Path, line: int, error: BaseException, details: str) -> None:
        super().__init__(f"{path.name}:{line}: {type(error).__name__}: {error}")
        self.details = details


def cells(text: str) -> list[Cell]:
    """The cells of a py:percent source, empty ones left out.

    A ``DataError`` for a cell of another kind and for prose that is not commented.
    """
    found: list[Cell] = []
    for start, kind, lines in _pieces(text):
        while lines and not lines[0].strip():
            start, lines = start + 1, lines[1:]
        while lines and not lines[-1].strip():
            lines = lines[:-1]
        if not lines:
            continue
        if kind == MARKDOWN:
            lines = [_prose(line, start + offset) for offset, line in enumerate(lines)]
        found.append(Cell(kind, "\n".join(lines), start))
    return found


def execute(path: Path) -> Page:
    """Run all code cells in order, in one new namespace; a ``CellError`` where one raises."""
    page = Page(path.stem, namespace={"__name__": f"notebook_{path.stem}"})
    for cell in cells(path.read_text(encoding="utf-8")):
        page.shown.append(Shown(cell) if cell.kind == MARKDOWN else _execute(cell, path, page.namespace))
    return page


def _execute(cell: Cell, path: Path, namespace: dict[str, Any]) -> Shown:
    printed, value = io.StringIO(), None
    try:
        tree = ast.parse(cell.source, str(path))
        ast.increment_lineno(tree, cell.line - 1)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(printed):
            exec(compile(tree, str(path), "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), str(path), "eval"), namespace)
    except Exception as error:
        line = cell.line - 1 + (error.lineno or 1) if isinstance(error, SyntaxError) else _line(error, path)
        details = "".join(traceback.format_exception(error))
        raise CellError(path, line or cell.line, error, details) from error
    return Shown(cell, printed.getvalue(), value)


def _line(error: BaseException, path: Path) -> int | None:
    """The deepest line of the notebook itself in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), None)


def _pieces(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """First line (from 1), kind and lines of each cell."""
    kind, start = "", 0
    lines: Sequence[str] = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line != "# %%" and not line.startswith("# %% "):
            continue
        if kind:
            yield start, kind, list(lines[start - 1 : number - 1])
        kind, start = _kind(line, number), number + 1
    if kind:
        yield start, kind, list(lines[start - 1 :])


def _kind(marker: str, number: int) -> str:
    rest = marker.removeprefix("# %%").strip()
    if rest not in ("", "[markdown]"):
        raise DataError(f"line {number}: cell marker {marker!r} must be '# %%' or '# %% [markdown]'")
    return MARKDOWN if rest else CODE


def _prose(line: str, number: int) -> str:
    if line.rstrip() != "#" and not line.startswith("# "):
        raise DataError(f"line {number}: prose must begin with '# '")
    return line[2:].rstrip()
