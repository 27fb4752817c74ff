"""The command: files written, numbers traced back to runs, one line and exit code 2 for bad input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from experiments import fig6, table4
from experiments.item import Source
from experiments.items import ITEMS
from repro.reproduce import _parser, main
from tests.synthetic_runs import write_run

ROOT = Path(__file__).resolve().parents[1]
FORMS = ("csv", "md", "tex", "svg", "png", "provenance.json")


def as_shown(path: Path) -> str:
    """A printed path: from the current directory where that is shorter, so it depends on where tests run."""
    return min(str(path), os.path.relpath(path), key=len)


def run(folder: Path, *arguments: str) -> int:
    return main([*arguments, "--runs", str(folder / "runs"), "--results", str(folder / "results")])


def quick_runs(folder: Path) -> dict[str, Path]:
    """PreNorm, Full and a diverged DenseFormer, one seed."""
    return {
        "prenorm": write_run(folder / "runs", "prenorm", 1, [4.0, 5.0, 4.0]),
        "full": write_run(folder / "runs", "full", 1, [4.0, 4.9, 4.1]),
        "denseformer": write_run(
            folder / "runs", "denseformer", 1, None, status="diverged", diverged_at_step=31
        ),
    }


PUBLISHED_ITEMS = [name for name, item in ITEMS.items() if not item.scales or "published" in item.scales]


@pytest.mark.parametrize("item", PUBLISHED_ITEMS)
def test_published_items_render(tmp_path: Path, item: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "render", item, "--scale", "published") == 0
    folder = tmp_path / "results/published"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{item}.{form}" for form in FORMS)
    out = capsys.readouterr().out
    assert f"{as_shown(folder / item)}.csv" in out
    assert max(map(len, out[: out.index("Written")].splitlines())) <= 120
    provenance = json.loads((folder / f"{item}.provenance.json").read_text())
    assert provenance["item"] == item
    assert provenance["scale"] == "published"
    assert provenance["run_ids"] == []
    assert provenance["command"] == f"python -m repro.reproduce render {item} --scale published"
    assert str(tmp_path) not in (folder / f"{item}.provenance.json").read_text()


def test_all_renders_what_has_runs_and_names_what_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_runs(tmp_path)
    assert run(tmp_path, "render", "all", "--scale", "quick") == 0
    written = {path.name for path in (tmp_path / "results/quick").glob("*.md")}
    assert {"table4.md", "fig6.md"} <= written
    errors = capsys.readouterr().err
    assert "interventions is not rendered: " in errors
    assert run(tmp_path, "render", "interventions", "--scale", "quick") == 2
    assert "repro.probe interventions scale=quick writes it" in capsys.readouterr().err
    assert run(tmp_path, "why", "interventions") == 2
    assert "nothing of interventions is rendered yet: make interventions" in capsys.readouterr().err


def test_statements_and_their_outcomes_stand_below_the_table(tmp_path: Path) -> None:
    assert run(tmp_path, "render", "fig3", "--scale", "published") == 0
    text = (tmp_path / "results/published/fig3.md").read_text(encoding="utf-8")
    assert "**Statements checked**" in text
    assert "| holds |" in text


def test_rendering_again_gives_the_same_bytes(tmp_path: Path) -> None:
    quick_runs(tmp_path)
    contents = []
    for _ in range(2):
        assert run(tmp_path, "render", "table4", "fig6", "--scale", "quick") == 0
        folder = tmp_path / "results/quick"
        contents.append({path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"})
    assert len(contents[0]) == 10
    assert contents[0] == contents[1]


def test_why_leads_from_every_row_to_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = quick_runs(tmp_path)
    assert run(tmp_path, "render", "table4", "--scale", "quick") == 0
    capsys.readouterr()
    assert run(tmp_path, "why", "table4") == 0  # the scale is that of the last rendering
    out = capsys.readouterr().out
    assert "make table4 SCALE=quick" in out
    assert "python -m repro.reproduce render table4 --scale quick" in out
    assert "older than the runs" not in out
    for arm, directory in directories.items():
        assert f"run {directory.name}" in out
        assert as_shown(directory / "config.yaml") in out
        assert (directory / "config.yaml").exists()
        assert re.search(rf"python -m repro\.train arm={arm} scale=quick seed=1\b", out)
    assert "diverged" in out
    assert "no run: python -m repro.train arm=mhc scale=quick" in out
    assert "val loss 4.6000" in out  # PreNorm: (400 + 1500 + 400) / 500
    write_run(tmp_path / "runs", "mhc", 1, [4.0] * 3)
    assert run(tmp_path, "why", "table4", "--scale", "quick") == 0
    assert "older than the runs" in capsys.readouterr().out


def test_why_gives_the_overrides_that_a_run_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs", "prenorm", 1, [4.0] * 3, optim={"lr": 0.5}, data_seed=7)
    assert run(tmp_path, "why", "table4", "--scale", "quick") == 0
    out = capsys.readouterr().out
    assert "python -m repro.train arm=prenorm scale=quick seed=1 data_seed=7 optim.lr=0.5" in out


def test_committed_records_stand_in_for_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = quick_runs(tmp_path)
    checkpoint = directories["full"] / "checkpoints/last.ckpt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"weights")
    assert run(tmp_path, "render", "table4", "--scale", "quick") == 0
    before = (tmp_path / "results/quick/table4.csv").read_bytes()
    assert run(tmp_path, "archive", "table4", "--scale", "quick") == 0
    archived = tmp_path / "results/quick/runs/full" / directories["full"].name
    assert (archived / "val_losses.npz").exists()
    assert not (archived / "checkpoints").exists()
    (tmp_path / "runs").rename(tmp_path / "gone")
    assert run(tmp_path, "render", "table4", "--scale", "quick") == 0
    assert (tmp_path / "results/quick/table4.csv").read_bytes() == before
    capsys.readouterr()
    assert run(tmp_path, "why", "table4", "--scale", "quick") == 0
    assert as_shown(archived) in capsys.readouterr().out


def test_committed_records_and_runs_of_this_machine_are_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single local run hides nothing that is committed; of one id the local records are read."""
    directories = quick_runs(tmp_path)
    assert run(tmp_path, "archive", "table4", "--scale", "quick") == 0
    (tmp_path / "runs").rename(tmp_path / "gone")
    write_run(tmp_path / "runs", "mhc", 1, [4.0] * 3)
    again = write_run(tmp_path / "runs", "prenorm", 1, [4.5] * 3)
    assert again.name == directories["prenorm"].name
    source = Source("quick", tmp_path / "runs", tmp_path / "results")
    found, notes = source.load("table4", table4.ITEM.arms)
    assert notes == []
    assert {(r.arm, r.run_id) for r in found} == {
        *((arm, directory.name) for arm, directory in directories.items()),
        ("mhc", next((tmp_path / "runs/quick/mhc").iterdir()).name),
    }
    data = table4.ITEM.render(source).data
    assert data.row("prenorm").loss == pytest.approx(4.5)  # committed: 4.6
    assert data.row("full").loss == pytest.approx(4.56)  # committed only: (400 + 1470 + 410) / 500
    assert data.row("mhc").loss == pytest.approx(4.0)
    lr = ITEMS["lr"].render(source)
    assert [row["prenorm_loss"] for row in lr.records] == [pytest.approx(4.5)]
    (again / "final.json").write_text("{")  # a damaged local run: the committed one stands in, and it is said
    found, notes = source.load("table4", table4.ITEM.arms)
    assert [r.val_loss for r in found if r.arm == "prenorm"] == [pytest.approx(4.6)]
    assert len(notes) == 1


def test_a_sweep_over_settings_is_archived_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lr in (0.001, 0.002):
        write_run(tmp_path / "runs", "prenorm", 1, [4.0] * 3, optim={"lr": lr})
    assert run(tmp_path, "archive", "lr", "--scale", "quick") == 0
    assert len(list((tmp_path / "results/quick/runs/prenorm").iterdir())) == 2


def test_runs_and_results_are_those_of_the_project_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs", "results"):
        assert getattr(_parser().parse_args(["list"]), folder) == ROOT / folder
        assert getattr(Source("quick"), folder) == ROOT / folder
    assert main(["render", "table4", "--scale", "published", "--results", str(tmp_path / "out")]) == 0
    assert "Written: out/published/table4.csv and table4.md" in capsys.readouterr().out


def test_a_rendering_that_cannot_be_finished_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, "render", "table4", "--scale", "published") == 0
    folder = tmp_path / "results/published"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def half(self: Figure, path: Path, **options: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    assert run(tmp_path, "render", "table4", "--scale", "published") == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_show_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick_runs(tmp_path)
    assert run(tmp_path, "show", "table4", "--scale", "quick") == 0
    assert "diverged at step 31" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_everything_shown_fits_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2, 3):
        for index, arm in enumerate(fig6.ITEM.arms):
            losses = [10.0 + seed + index / 7] * 3
            write_run(tmp_path / "runs", arm, seed, losses, model={"num_transformer_blocks": 24})
    for item in ("fig6", "table4"):
        assert run(tmp_path, "show", item, "--scale", "quick") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert any(line.startswith("  fails  S=2, 4 and 8") for line in lines)


def test_list_names_items_and_scales(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick_runs(tmp_path)
    assert run(tmp_path, "list") == 0
    out = capsys.readouterr().out
    assert "scales: published, quick" in out
    for item in ITEMS.values():
        assert item.title in out
        assert item.claim in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["render", "table9", "--scale", "published"], "table4"),
        (["render", "table4"], "must be one of"),
        (["render", "table4", "--scale", "huge"], "quick"),
        (["render", "table4", "--scale", "quick"], "make table4 SCALE=quick"),
        (["show", "fig6", "--scale", "smoke"], "make fig6 SCALE=smoke"),
        (["why", "table4", "--scale", "quick"], "make table4 SCALE=quick"),
        (["archive", "table4", "--scale", "published"], "no runs to archive"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert captured.out == ""
    assert not (tmp_path / "results").exists()


def test_results_that_cannot_be_written_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").write_text("a file")
    assert run(tmp_path, "render", "table4", "--scale", "published") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "lightning", "hydra"):
            raise ImportError(name)

sys.meta_path.insert(0, NoTorch())
from repro.reproduce import main
sys.exit(main(["render", "table4", "--scale", "published", "--results", {str(tmp_path)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1.766" in done.stdout


def test_the_picture_shows_every_row() -> None:
    """All labels and losses of the forest plot are inside the canvas and not on one another."""
    rendered = table4.ITEM.render(Source("published"))
    figure = rendered.figure
    figure.canvas.draw()
    axes = figure.axes[0]
    texts = [t for t in axes.texts if t.get_text().strip()]
    for spec in table4.specs():
        assert any(t.get_text().strip() == spec.label for t in texts)
        assert any(t.get_text() == f"{spec.paper_loss:.3f}" for t in texts)
    boxes = [t.get_window_extent() for t in texts]
    width, height = figure.canvas.get_width_height()
    assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= width and b.y1 <= height for b in boxes)
    overlaps = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.overlaps(b)]
    assert overlaps == []
