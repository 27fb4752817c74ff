"""Cells of a py:percent source, their execution, and ``python -m repro.notebooks``."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.figure import Figure

from analysis.notebook_cells import CODE, MARKDOWN, Cell, CellError, cells, execute
from repro import notebooks
from repro.errors import DataError

ROOT = Path(__file__).resolve().parents[1]


# The cells of a source


def test_a_source_becomes_cells() -> None:
    header, prose = "# ---\n# jupyter:\n# ---\n\n", "# %% [markdown]\n# # Title\n#\n# Text.\n\n"
    text = header + prose + "# %%\n\nx = 1\n\n\n# %%\nx\n# %%\n"
    assert cells(text) == [
        Cell(MARKDOWN, "# Title\n\nText.", 6),
        Cell(CODE, "x = 1", 12),
        Cell(CODE, "x", 16),
    ]


def test_a_magic_is_a_comment_and_no_cell() -> None:
    assert cells("# %%\n# %matplotlib inline\nx = 1\n") == [Cell(CODE, "# %matplotlib inline\nx = 1", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# %% [raw]\nx\n", "line 1: cell marker"),
        ("# %% [markdown]\n# fine\nnot commented\n", "line 3: prose must begin"),
    ],
)
def test_what_is_no_cell_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        cells(text)


def test_execution_shares_a_namespace_and_shows_the_last_value(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(
        "# %% [markdown]\n# Words\n"
        "# %%\nfrom matplotlib.figure import Figure\nx = 20\nprint('seen', x)\nx + 1\n"
        "# %%\nx *= 2\n"
        "# %%\nFigure()\n"
    )
    page = execute(path)
    assert [shown.text for shown in page.shown] == ["", "seen 20\n21", "", ""]
    assert page.namespace["x"] == 40
    assert len(page.figures) == 1
    assert isinstance(page.figures[0], Figure)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("x = 1\nx / 0", "broken.py:5: ZeroDivisionError: division by zero"),
        ("def f():\n    return {}['a']\n\nf()", "broken.py:5: KeyError: 'a'"),
        ("x = 1\nx = = 2", "broken.py:5: SyntaxError: "),
        ("import json\njson.loads('{')", "broken.py:5: JSONDecodeError: "),
    ],
)
def test_a_cell_that_raises_is_named_by_its_line(tmp_path: Path, cell: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(f"# %%\ny = 1\n# %%\n{cell}\n")
    with pytest.raises(CellError, match=re.escape(message)):
        execute(path)


# The command


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two notebooks, one of which fails."""
    (tmp_path / "good.py").write_text(
        "# %% [markdown]\n# # Good\n# %%\nfrom matplotlib.figure import Figure\nfigure = Figure()\n"
        "figure.subplots().plot([1, 2])\nprint('two')\n# %%\nfigure.tight_layout() or figure\n"
    )
    (tmp_path / "bad.py").write_text("# %%\nx = 1\nx.missing\n")
    monkeypatch.setattr(notebooks, "SOURCES", tmp_path)
    monkeypatch.setattr(notebooks, "NAMES", ("good", "bad"))
    return tmp_path


def without_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "missing_for_jupyter", lambda: ["jupytext"])


def test_a_page_is_markdown_with_pictures(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_jupyter(monkeypatch)
    assert notebooks.main(["good", "--into", str(small / "out")]) == 0
    page = (small / "out" / "good.md").read_text()
    assert page.startswith("# Good\n\n```python\n")
    assert "```text\ntwo\n```" in page
    assert "![picture 1](good-1.png)" in page
    assert (small / "out" / "good-1.png").read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("good: 3 cells, 1 pictures")
    assert lines[1] == "no .ipynb: jupytext not installed (pip install -e '.[notebooks]')"


def test_a_failing_notebook_is_exit_code_one(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert notebooks.main(["--check"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("good: ")
    assert "error: bad.py:3: AttributeError" in err
    assert not (small / "executed").exists()


def test_an_unknown_notebook_is_one_line(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert notebooks.main(["other"]) == 2
    assert capsys.readouterr().err == "error: notebook='other': must be one of good, bad\n"


def test_with_jupyter_a_kernel_executes_the_source(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stand-ins with the calls of jupytext and nbclient: what is read, executed, and written where."""
    calls: list[Any] = []

    class Client:
        def __init__(self, notebook: Any, **options: Any) -> None:
            calls.append((notebook, options))

        def execute(self) -> None:
            if calls[-1][0]["source"].name == "bad.py":
                raise RuntimeError("a cell raised")
            calls[-1][0]["executed"] = True

    def write(notebook: Any, path: Path, fmt: str) -> None:
        assert fmt == "ipynb"
        Path(path).write_text(json.dumps({"executed": notebook["executed"]}))

    for name, parts in {
        "jupytext": {"read": lambda path: {"source": path}, "write": write},
        "nbclient": {"NotebookClient": Client},
    }.items():
        module = ModuleType(name)
        module.__dict__.update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(notebooks, "missing_for_jupyter", lambda: [])
    monkeypatch.setattr(notebooks.importlib.util, "find_spec", lambda name: None)
    assert notebooks.main(["good", "--into", str(small / "out")]) == 0
    assert json.loads((small / "out" / "good.ipynb").read_text()) == {"executed": True}
    assert calls[0][1]["kernel_name"] == "python3"
    assert calls[0][1]["resources"] == {"metadata": {"path": str(ROOT)}}
    assert notebooks.main(["bad", "--into", str(small / "out")]) == 1
    assert "error: bad in Jupyter: a cell raised" in capsys.readouterr().err
    assert not (small / "out" / "bad.ipynb").exists()
