"""The notebooks: what they import, that every cell runs and draws, and that what they say is so."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from analysis.notebook_cells import CODE, MARKDOWN, Page, cells, execute
from repro import notebooks
from repro.depth.prenorm import PreNorm
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
    assert [round(interval.estimate, 3) for _, interval in rows[:3]] == [-0.143, -0.013, -0.04]
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
    assert [round(v, 3) for v in (contrast.estimate, contrast.low, contrast.high)] == [-0.022, -0.174, 0.130]
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
