"""The notebooks: what they import, that every cell runs and draws, and that what they say is so."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from matplotlib.figure import Figure

from analysis.depth_snapshots import position_names, ratio_to_uniform, read_snapshots
from analysis.notebook_cells import CODE, MARKDOWN, Cell, CellError, Page, cells, execute
from repro import notebooks
from repro.depth.prenorm import PreNorm
from repro.errors import DataError
from repro.runs.arrays import add_snapshot, write_npz
from tests.toy import Toy, default_dtype, normal, randomise

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
OTHERS = {"numpy", "pandas", "matplotlib", "scipy", "pathlib"}


def executed(name: str) -> Page:
    """A notebook after execution: every cell ran, something was drawn, and no NaN was printed."""
    page = execute(ROOT / "notebooks" / f"{name}.py")
    assert len(page.figures) >= 1
    for figure in page.figures:
        assert figure.axes
        assert any(axes.has_data() for axes in figure.axes)
    assert re.search(r"\bnan\b|Warning|Traceback", printed(page)) is None
    return page


def prose(page: Page) -> str:
    return "\n".join(shown.cell.source for shown in page.shown if shown.cell.kind == MARKDOWN)


def printed(page: Page) -> str:
    return "\n".join(shown.text for shown in page.shown)


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


# What the notebooks import


def imported(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module or "")
        elif isinstance(node, ast.Name):
            assert node.id not in ("__import__", "importlib", "exec", "eval")
    return found


def allowed(module: str) -> bool:
    names = module.split(".")
    return names[0] in OTHERS | {"analysis"} or names[:2] == ["repro", "runs"]


def test_notebooks_import_only_analysis_and_runs() -> None:
    assert [path.stem for path in SOURCES] == sorted(notebooks.NAMES)
    for path in SOURCES:
        modules = imported(path.read_text(encoding="utf-8"))
        assert [name for name in sorted(modules) if not allowed(name)] == []
        assert any(name.startswith("analysis") for name in modules)


@pytest.mark.parametrize(
    "module", ["torch", "repro.depth.base", "experiments.item", "repro", "os", "repro.errors"]
)
def test_the_rule_refuses(module: str) -> None:
    assert not allowed(module)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_source_has_the_header_that_jupytext_reads(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    end = lines.index("# ---", 1)
    header = yaml.safe_load("\n".join(line[2:] for line in lines[1:end]))["jupyter"]
    assert lines[0] == "# ---"
    assert header["jupytext"]["text_representation"]["format_name"] == "percent"
    assert header["kernelspec"]["name"] == "python3"
    found = cells("\n".join(lines))
    assert found[0].kind == MARKDOWN
    assert found[0].source.startswith("# ")
    # Without it Jupyter shows a figure as text.
    assert next(cell for cell in found if cell.kind == CODE).source.startswith("# %matplotlib inline")


# That they run, and that what they say is so: one test per notebook, which is executed once


def test_reading_a_run() -> None:
    page = executed("reading_a_run")
    # The pooled losses of the documents are the recorded loss.
    run, documents = page.namespace["run"], page.namespace["documents"]
    final = json.loads((run.directory / "final.json").read_text())
    assert abs(documents["loss_sum"].sum() / documents["tokens"].sum() - final["val_loss"]) < 1e-9
    # The intervals over seeds are those of the README.
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("−", "-")
    for arm, row in (("full", "AttnRes Full"), ("block_s4", "Block (S=4)")):
        stated = re.search(rf"\| {re.escape(row)} \|.*?\| (\S+ \[\S+, \S+\]) \| underpowered", readme)
        assert stated is not None
        assert f"{page.namespace['LABELS'][arm]}: {stated[1]}, the paper" in printed(page)
    rows = page.namespace["rows"]
    # One seed alone excludes zero, three seeds do not: the point of the last picture.
    for label, interval in rows:
        assert (interval.low > 0 or interval.high < 0) == (interval.kind == "documents"), label
    # Seeds are different runs: Full minus PreNorm as in their final.json.
    assert [round(interval.estimate, 3) for _, interval in rows[:3]] == [-0.137, -0.016, -0.039]
    # The gaps of the first picture: largest at a quarter of the budget, less than half of that at the end.
    for arm in ("full", "block_s4"):
        for seed in (1, 2, 3):
            gap = page.namespace["subset_losses"](arm, seed) - page.namespace["subset_losses"](
                "prenorm", seed
            )
            assert gap.idxmin() == 655360 / 4
            assert abs(gap.iloc[-1]) < 0.5 * abs(gap.min())


def test_depth_attention() -> None:
    page = executed("depth_attention")
    text = printed(page)
    # Digitised: 4, 7, 7 and 11 of 16 rows, here as shares minus one half.
    section = text[text.index("the paper's panels:") : text.index("ours:")]
    assert re.findall(r"minus 0\.5 (\S+)", section)[:4] == [f"{n / 16 - 0.5:+.3f}" for n in (4, 7, 7, 11)]
    assert re.findall(r"^  (holds|fails|open) ", section, flags=re.M) == ["fails"] * 2 + ["holds"] * 4
    assert "4, 7, 7 and 11 of 16" in prose(page)
    # What the prose says of ours: sharper before MLPs, the rest not.
    ours = re.findall(r"^  (holds|fails|open) ", text[text.index("ours:") :], flags=re.M)
    assert ours == ["fails", "fails", "fails", "holds", "fails", "open"]
    for runs in page.namespace["snapshots"].values():
        assert len(runs) == 3
        for run in runs:
            first = run.weights[0]
            assert np.nanmax(np.abs(first * np.isfinite(first).sum(-1, keepdims=True) - 1)) < 1e-5
            assert np.nanmax(run.spread[0]) < 1e-4
    first, last = (
        np.array(page.namespace["by_position"][0][bucket].values(1, "embedding")) for bucket in (0, -1)
    )
    np.testing.assert_allclose(first - last, -0.05, atol=0.005)  # Full, pre-MLP, each seed


def test_scaling_law() -> None:
    """Coefficients and ratios that were computed apart from this code, from the printed table."""
    page = executed("scaling_law")
    table = page.namespace["coefficients"].set_index(["arm", "fit"])
    known = {"PreNorm": (1.8921, 0.0566), "Block (N=8)": (1.8716, 0.0582), "Full": (1.8653, 0.0574)}
    for arm, (a, alpha) in known.items():
        assert abs(table.loc[(arm, "OLS, log-log"), "A"] - a) < 1e-4
        assert abs(table.loc[(arm, "OLS, log-log"), "alpha"] - alpha) < 1e-4
    least = table[table.index.get_level_values("fit").isin(["OLS, log-log", "least squares, loss"])]
    assert least["A - printed"].abs().max() < 0.002
    assert least["alpha - printed"].abs().max() < 0.001
    assert round(table.loc[("Full", "sum-Huber, log"), "A - printed"], 3) == -0.005
    assert "coefficients, printed: 1.254" in printed(page)
    assert "coefficients, drawn: 1.267" in printed(page)
    # 126 = C(9, 4) resamples of five; one size alone: 5 / 5^5.
    assert "126 resamples; undefined with probability 0.0016" in printed(page)
    # What the prose says: 1.27 to 1.30 everywhere, an interval that holds 1.25 and excludes 1, ...
    advantages = page.namespace["advantages"]
    assert advantages["advantage"].between(1.265, 1.305).all()
    assert (advantages["low"].dropna() > 1).all()
    assert (advantages["low"].dropna() < 1.25).all()
    # ... and two groups of resamples, with and without the largest size.
    draws, largest = page.namespace["draws"], page.namespace["drawn"].counts[:, 4] > 0
    assert np.nanmin(draws[largest]) > np.nanmax(draws[~largest])


def test_adding_an_arm() -> None:
    page = executed("adding_an_arm")
    contrast = page.namespace["contrast"]
    # The README's row of mHC.
    assert [round(v, 3) for v in (contrast.estimate, contrast.low, contrast.high)] == [-0.019, -0.158, 0.120]
    assert "settings equal: True   data equal: True" in printed(page)


# The arm that one of them adds


def blocks(language: str) -> list[str]:
    """The fenced texts of the notebook about adding an arm."""
    text = "\n".join(
        cell.source
        for cell in cells((ROOT / "notebooks/adding_an_arm.py").read_text(encoding="utf-8"))
        if cell.kind == MARKDOWN
    )
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def example_class() -> Any:
    (source,) = blocks("python")
    module = ModuleType("leaky")
    exec(compile(source, "leaky.py", "exec"), module.__dict__)
    return module.__dict__["Leaky"]


def test_the_example_yaml_is_an_arm() -> None:
    (text,) = blocks("yaml")
    arm = yaml.safe_load(text)
    assert set(arm) == {"name", "label", "parent", "mixer"}
    assert (ROOT / "conf" / "arm" / f"{arm['parent']}.yaml").exists()
    assert arm["mixer"] == {"_target_": "repro.depth.leaky.Leaky"}


def test_the_example_class_starts_as_prenorm_and_leaks_as_it_says() -> None:
    toy = Toy(6, 16)
    with default_dtype(torch.float64):
        mixer, baseline = example_class()(6, 16), PreNorm(6, 16)
    assert all(torch.equal(a, b) for a, b in zip(toy.walk(mixer), toy.walk(baseline), strict=True))
    assert mixer.leaks.group == "scalar"
    randomise(mixer)
    # Written out: h <- h - a h + f, and every read is h.
    stream = normal("stream", 1, 2, 16)
    state = mixer.begin(stream)
    for l in range(6):
        read, state = mixer.read(state, l)
        assert torch.allclose(read, stream, rtol=0, atol=1e-13)
        output = normal(f"output {l}", 1, 2, 16)
        stream = stream - mixer.leaks[l] * stream + output
        state = mixer.write(state, l, output)
    mixer.finish(state).square().sum().backward()
    assert mixer.leaks.grad is not None
    assert (mixer.leaks.grad != 0).all()


def test_the_commands_of_the_example_exist() -> None:
    (text,) = [block for block in blocks("bash") if "repro.train" in block]
    for module in re.findall(r"python -m (repro[\w.]*)", text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", text, flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


# Snapshots


def test_snapshots_reduce_what_a_run_records(tmp_path: Path) -> None:
    """Two reads, two columns, two heads, two position buckets; every number by hand."""
    nan = np.nan
    mean = np.array([[[1.0, 1.0], [nan, nan]], [[0.25, 0.75], [0.75, 0.25]]])
    square = np.array([[[1.0, 1.0], [nan, nan]], [[0.0725, 0.5625], [0.5725, 0.0625]]])
    by_position = np.stack([mean, mean], axis=-1)
    by_position[1, 0] = [[0.2, 0.3], [0.6, 0.9]]
    arrays = {"mean": mean, "mean_square": square, "entropy": np.array([[0.0, 0.0], [0.4, 0.6]])}
    fixed = {"position_edges": np.array([0, 1, 4]), "sources": np.array([["b0", ""], ["b0", "b1"]])}
    write_npz(
        tmp_path / "depth_weights.npz", add_snapshot(None, 7, fixed, {**arrays, "by_position": by_position})
    )
    found = read_snapshots(tmp_path)
    assert found.steps.tolist() == [7]
    np.testing.assert_allclose(found.weights[0], [[1.0, nan], [0.5, 0.5]])
    # Variances by head 0.01 and 0, hence the root of 0.005.
    np.testing.assert_allclose(found.spread[0], [[0.0, nan], [0.005**0.5, 0.005**0.5]], atol=1e-12)
    np.testing.assert_allclose(found.entropy[0], [0.0, 0.5])
    np.testing.assert_allclose(found.by_position[0, 1, 0], [0.4, 0.6])
    np.testing.assert_allclose(found.at_position(1).weights[1], [0.6, 0.5])
    assert position_names(found.edges) == ["0", "1-3"]
    np.testing.assert_allclose(ratio_to_uniform(found.weights[0]), [[1.0, nan], [1.0, 1.0]])


def test_snapshots_that_lack_an_array_are_refused(tmp_path: Path) -> None:
    write_npz(tmp_path / "depth_weights.npz", {"mean": np.ones((1, 1, 1, 1))})
    with pytest.raises(DataError, match="no 'mean_square'"):
        read_snapshots(tmp_path)


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
