"""W&B: what goes out, what is sent, and one line where it cannot be; nothing here needs an account."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from analysis.report_contents import Contents, Inconsistency, Item, Outcome, Rendering
from analysis.report_text import sections
from analysis.tables import Column, Table
from repro import wandb_account, wandb_report, wandb_sync
from repro.errors import DataError
from repro.train import job
from repro.train.mirror import SINGLE, Mirror
from tests.synthetic_runs import config, write_run


class FakeRun:
    def __init__(self, **given: Any) -> None:
        self.given, self.rows, self.summary, self.finished = given, [], {}, False

    def log(self, row: dict[str, Any], step: int) -> None:
        self.rows.append((step, row))

    def finish(self) -> None:
        self.finished = True


@pytest.mark.parametrize(("group", "expected"), [("table4", "table4"), (None, SINGLE)])
def test_a_run_is_mirrored_under_its_identity_and_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None, expected: str
) -> None:
    import wandb

    opened: list[FakeRun] = []

    def init(**given: Any) -> FakeRun:
        opened.append(FakeRun(**given))
        return opened[-1]

    monkeypatch.setattr(wandb, "init", init)
    settings = {"mode": "offline", "project": "p", "group": group}
    mirror = Mirror(settings, {**config("full", 3), "paths": {"runs": "/home/x"}}, "0123456789ab", tmp_path)
    mirror({"step": 10, "kind": "val", "loss": 4.5, "by_source": {"wiki": {"loss": 4.0}}})
    mirror.finish({"val_loss": 4.4})
    (run,) = opened
    given = run.given
    assert (given["id"], given["resume"]) == ("0123456789ab", "allow")
    assert (given["group"], given["job_type"], given["tags"]) == (expected, "quick", ["quick", "full"])
    assert (given["project"], given["mode"], given["name"]) == ("p", "offline", "full-seed3")
    assert "paths" not in given["config"]
    assert run.rows == [(10, {"val/loss": 4.5, "val/by_source/wiki/loss": 4.0})]
    assert run.summary == {"final/val_loss": 4.4}
    assert run.finished


@pytest.mark.parametrize(
    ("experiment", "group", "expected"),
    [("table4", None, "table4"), ("table4", "mine", "mine"), (None, None, None), ("null", None, None)],
)
def test_the_experiment_of_the_command_is_the_group(
    monkeypatch: pytest.MonkeyPatch, experiment: str | None, group: str | None, expected: str | None
) -> None:
    hydra = SimpleNamespace(runtime=SimpleNamespace(choices={"experiment": experiment}))
    monkeypatch.setattr(job, "HydraConfig", SimpleNamespace(get=lambda: hydra))
    composed = OmegaConf.create({"logger": {"mode": "offline", "project": "p", "group": group}})
    OmegaConf.set_struct(composed, True)
    assert job._grouped(composed).logger.group == expected


def offline(runs: Path, started: str, run_id: str, sent: bool = False) -> Path:
    place = runs / ".wandb" / "wandb" / f"offline-run-{started}-{run_id}"
    place.mkdir(parents=True)
    (place / f"run-{run_id}.wandb").write_bytes(b"")
    if sent:
        (place / f"run-{run_id}.wandb.synced").write_bytes(b"")
    return place


def test_what_is_sent(tmp_path: Path) -> None:
    done = write_run(tmp_path, "prenorm", 1, [4.0] * 3).name
    training = write_run(tmp_path, "full", 1, None, status="running").name
    second = offline(tmp_path, "20260102_000000", done)
    first = offline(tmp_path, "20260101_000000", done)
    offline(tmp_path, "20251231_000000", done, sent=True)
    offline(tmp_path, "20260103_000000", training)
    assert wandb_sync.offline_files(tmp_path) == ([first, second], [training])


def test_sync_hands_the_files_to_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = offline(tmp_path, "20260101_000000", "0123456789ab")
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> Any:
        commands.append(command)
        return SimpleNamespace(returncode=len(commands) - 1)

    monkeypatch.setattr(wandb_sync, "require_login", lambda: None)
    monkeypatch.setattr(subprocess, "run", run)
    assert wandb_sync.main(["--runs", str(tmp_path)]) == 0
    assert commands[0][1:] == ["-m", "wandb", "sync", str(place)]
    assert wandb_sync.main(["--runs", str(tmp_path)]) == 1


def test_nothing_to_send_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert wandb_sync.main(["--runs", str(tmp_path)]) == 0
    assert "nothing to send" in capsys.readouterr().out


def no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setattr(wandb, "login", lambda **_: False)


@pytest.mark.parametrize("command", ["sync", "report"])
def test_no_login_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    no_login(monkeypatch)
    offline(tmp_path, "20260101_000000", "0123456789ab")
    if command == "sync":
        assert wandb_sync.main(["--runs", str(tmp_path)]) == 2
    else:
        monkeypatch.setattr(wandb_report, "_package", Blocks)
        assert wandb_report.main(["--runs", str(tmp_path), "--results", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: no W&B login here: run `wandb login` once")
    assert err.count("\n") == 1


def test_a_missing_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wandb_report, "PACKAGE", "wandb_workspaces_that_is_not_here")
    assert wandb_report.main([]) == 2
    assert capsys.readouterr().err == "error: wandb-workspaces is not installed: pip install -e '.[report]'\n"


def test_a_refused_login_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def login(**_: Any) -> bool:
        raise RuntimeError("key too short\nand more")

    monkeypatch.setattr(wandb, "login", login)
    with pytest.raises(DataError, match=r"^W&B refused the login \(key too short\): run `wandb login` once$"):
        wandb_account.require_login()


class Blocks:
    """Stands for wandb_workspaces.reports.v2: each class keeps what it was given."""

    def __getattr__(self, name: str) -> Any:
        return lambda **given: SimpleNamespace(kind=name, **given)


def test_a_refused_report_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save() -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(wandb_report, "_package", Blocks)
    monkeypatch.setattr(wandb_report, "require_login", lambda: None)
    monkeypatch.setattr(wandb_report, "collect", lambda *_: contents(tmp_path))
    monkeypatch.setattr(wandb_report, "build", lambda *_: SimpleNamespace(save=save))
    assert wandb_report.main(["--runs", str(tmp_path), "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "error: W&B did not take the report: no route\n"


def contents(tmp_path: Path) -> Contents:
    table = Table(
        "Losses", [Column("0", "arm", numeric=False), Column("1", "loss")], [{"0": "full", "1": "4.5"}]
    )
    outcome = Outcome("Full is better.", None, "-0.064 [-0.223, +0.095], paper -0.029, underpowered")
    shown = Rendering(
        "quick", "results/quick/table4", "render table4", "abc", ("0123456789ab", "ba9876543210"), (outcome,),
        (table,), tmp_path / "x.svg", "seeds 1, 2, 3: full", (3, 3), "Models: width 64.",
    )  # fmt: skip
    item = Item("table4", "Table 4. Arms", "A claim.", ("Small models.",), (shown,))
    return Contents([item], [Inconsistency("k", "said", "found", ("table4",))], ["published", "quick"])


def test_the_report_has_the_sections_of_the_page(tmp_path: Path) -> None:
    report = wandb_report.build(Blocks(), sections(contents(tmp_path)), "p", "e")
    assert (report.kind, report.project, report.entity) == ("Report", "p", "e")
    kinds = [block.kind for block in report.blocks]
    assert kinds == [
        "TableOfContents", "H1", "MarkdownBlock", "H1", "MarkdownBlock", "H2", "MarkdownBlock", "PanelGrid",
        "H1", "MarkdownBlock", "H1", "MarkdownBlock",
    ]  # fmt: skip
    titles = [block.text for block in report.blocks if block.kind in ("H1", "H2")]
    assert titles == [
        "Verdicts", "Table 4. Arms", "Runs at scale quick", "Where the paper disagrees with itself",
        "How to rebuild",
    ]  # fmt: skip
    verdicts = report.blocks[2].text
    assert (
        "| table4 | Full is better. | -0.029 | – | quick, 3 seeds | -0.064 | [-0.223, +0.095] "
        "| open underpowered |" in verdicts
    )
    assert "| full | 4.5 |" in report.blocks[6].text
    (runset,) = report.blocks[7].runsets
    assert json.loads(runset.filters.partition(" in ")[2]) == ["0123456789ab", "ba9876543210"]
    assert [panel.y for panel in report.blocks[7].panels] == [
        ["val/loss"],
        ["train/loss"],
        ["train/grad_norm"],
    ]


def test_the_real_package_takes_the_blocks(tmp_path: Path) -> None:
    wr = pytest.importorskip("wandb_workspaces.reports.v2")
    report = wandb_report.build(wr, sections(contents(tmp_path)), "p", "e")
    assert len(report.blocks) == 12
    model = report.blocks[7]._to_model().metadata.run_sets[0].model_dump(by_alias=True)
    (found,) = model["filters"]["filters"]
    assert found["key"] == {"section": "run", "name": "name"}  # W&B's word for a run's id
    assert (found["op"], found["value"]) == ("IN", ["0123456789ab", "ba9876543210"])
    assert model["grouping"] == [{"section": "config", "name": "arm.value.name"}]
    assert all(block._to_model() is not None for block in report.blocks)
    assert report.title == "Attention Residuals, reproduced"
