"""The step bench on models of four sublayers: pairing, peak memory, resuming, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import initialize_config_dir
from torch import nn

from repro.bench import __main__ as command
from repro.bench import entrants, machine, memory, racing, steps, table
from repro.bench.entrants import Entrant, Setting
from repro.errors import DataError
from repro.model.build import build_decoder
from repro.train.paths import config_directory
from repro.train.sweep import register

CPU = torch.device("cpu")
SMALL = (
    "model.vocab_size=64",
    "budget.batch_size=2",
    "budget.context=8",
    "budget.tokens=64",
)
TINY = Setting(
    "standard",
    2,
    32,
    (Entrant("prenorm"), Entrant("block_s4"), Entrant("full", "per_read", "reference"), Entrant("full")),
)


@pytest.fixture
def hydra() -> Iterator[None]:
    register()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        yield


def mebi(byte_count: int) -> int:
    return byte_count * 2**20


def test_peak_memory_of_steps_counted_by_hand() -> None:
    count = 2**18  # floats in a MiB

    def freed_and_kept() -> torch.Tensor:
        kept = torch.empty(2 * count)
        kept[:count].add_(1.0)  # in place: nothing
        temporary = torch.empty(3 * count)
        del temporary
        torch.empty(count)
        return kept

    assert memory.peak_bytes(freed_and_kept, CPU) == pytest.approx(mebi(5), rel=1e-3)

    weight = torch.full((count,), 0.5, requires_grad=True)

    def saved_for_backward() -> None:
        weight.exp().exp().exp().sum().backward()
        weight.grad = None

    # Three saved outputs, and the first gradient beside them before any of them is released.
    assert memory.peak_bytes(saved_for_backward, CPU) == pytest.approx(mebi(4), rel=1e-3)
    assert memory.peak_bytes(lambda: weight.detach().mul_(1.0), CPU) < 100


def test_resident_memory_counts_each_storage_once() -> None:
    layer = nn.Linear(64, 64, bias=False)
    layer.register_buffer("view", layer.weight.detach()[:2])
    optimizer = torch.optim.AdamW(layer.parameters())
    assert memory.resident_bytes(layer, optimizer) == 64 * 64 * 4
    layer(torch.ones(64)).sum().backward()
    optimizer.step()
    scalar = 4  # the step count
    assert memory.resident_bytes(layer, optimizer) == 3 * 64 * 64 * 4 + scalar


class Scripted:
    """Stands in for a racer: in round r everything takes r + 1 times `factor` seconds."""

    def __init__(self, factor: float) -> None:
        self.factor, self.turns = factor, 0

    def turn(self) -> dict[str, float]:
        self.turns += 1
        return dict.fromkeys(racing.QUANTITIES, self.factor * self.turns)


def test_ratios_are_taken_within_a_round() -> None:
    racers = {"prenorm": Scripted(1.0), "full": Scripted(1.5)}
    seconds = racing.race(racers, 5)  # type: ignore[arg-type]
    assert all(racer.turns == 5 for racer in racers.values())
    assert list(seconds["step"]["full"]) == [1.5, 3.0, 4.5, 6.0, 7.5]
    times = racing.paired(seconds["step"]["full"], seconds["step"]["prenorm"])
    assert times == {
        "median": 4500.0,
        "ratio_median": 1.5,
        "ratio_lower_quartile": 1.5,
        "ratio_upper_quartile": 1.5,
        "extra_median": 1500.0,
    }
    own, base = np.array([1.0, 1.2, 1.1, 1.3, 9.0]), np.ones(5)
    assert racing.paired(own, base)["ratio_median"] == 1.2
    assert racing.paired(own, base)["ratio_upper_quartile"] == 1.3
    assert racing.spread(own) == pytest.approx(0.2 / 1.2)


def test_machine_is_quiet_by_both_marks() -> None:
    assert machine.is_quiet(0.1, 0.05)
    assert machine.is_quiet(None, 0.05)
    assert not machine.is_quiet(0.5, 0.05)
    assert not machine.is_quiet(0.1, 0.2)


def test_an_entrant_that_computes_something_else_is_not_timed() -> None:
    arms = {"prenorm:a": "prenorm", "full:a": "full", "full:b": "full"}
    racing.check_agreement({"prenorm:a": 2.0, "full:a": 1.0, "full:b": 1.0 + 1e-6}, arms, 1e-4)
    for wrong in (1.001, float("nan")):
        with pytest.raises(DataError, match="full:b computes another loss than full:a"):
            racing.check_agreement({"prenorm:a": 2.0, "full:a": 1.0, "full:b": wrong}, arms, 1e-4)


def test_race_is_written_kept_and_measured_again(
    tmp_path: Path, hydra: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "is_quiet", lambda others, spread: True)
    monkeypatch.setattr(machine, "others_now", lambda: 0.0)
    monkeypatch.setattr(steps, "_code_digest", lambda: "one")  # the sources may be edited while this runs
    path, said = tmp_path / "bench" / "steps.csv", []

    def run(setting: Setting = TINY, rounds: int = 2) -> pd.DataFrame:
        said.clear()
        assert steps.run([setting], path, overrides=SMALL, rounds=rounds, say=said.append)
        return table.read(path)

    first = run()
    assert len(first) == 4 * 5
    assert set(first["quantity"]) == {*racing.QUANTITIES, "memory", "memory_beyond_state"}
    prenorm = first[first["arm"] == "prenorm"]
    assert (prenorm["ratio_median"] == 1).all()
    assert (prenorm["extra_median"] == 0).all()
    assert (first["median"] > 0).all()
    assert (first["rounds"] == 2).all()
    # Full over four sublayers: reads of 1, 2, 3, 4 sources, and 5 for the output.
    assert set(first.loc[first["arm"] == "full", "sources_mean"]) == {3.0}
    # Weights, gradients and two moments in float32; the rotary tables and step counts are small beside them.
    config = entrants.configuration(TINY, TINY.entrants[0], SMALL)
    floats = build_decoder(config).num_parameters()
    held = prenorm.set_index("quantity")["median"] * memory.MIB
    assert held["memory"] > 4 * 4 * floats
    assert held["memory"] - held["memory_beyond_state"] == pytest.approx(3 * 4 * floats, rel=0.01)

    assert run().equals(first)
    assert said == ["standard: 2 blocks, width 32, eager: already measured"]
    other = Setting("depth", 1, 32, (Entrant("prenorm"), Entrant("full")))
    both = run(other)
    assert list(both["sweep"].unique()) == ["standard", "depth"]
    again = run(other, rounds=3)  # another stamp: this race alone is exchanged
    assert list(again.groupby("sweep", sort=False)["rounds"].first()) == [2, 3]
    assert len(again) == len(both)
    monkeypatch.setattr(steps, "_code_digest", lambda: "two")
    assert list(run(other).groupby("sweep", sort=False)["code"].first()) == ["one", "two"]
    noisy = table.read(path).assign(quiet=False)
    assert not table.kept(noisy, TINY, {}, noisy=False)
    assert table.kept(noisy, TINY, {}, noisy=True)


def test_busy_machine_and_foreign_file_are_refused(
    tmp_path: Path, hydra: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "others_now", lambda: 1.0)
    with pytest.raises(DataError, match=r"other processes keep 1\.00 cores busy"):
        steps.run([TINY], tmp_path / "steps.csv", overrides=SMALL, rounds=1)
    (tmp_path / "steps.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not a table of the step bench"):
        table.read(tmp_path / "steps.csv")


def test_fla_is_a_backend_of_the_arm(hydra: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.ops.packages.check", lambda name, device: None)
    config = entrants.configuration(TINY, Entrant("block_s4", "per_read", "fla"), SMALL)
    mixer = build_decoder(config).mixer
    assert (mixer.backend, mixer.execution) == ("fla", "per_read")


def test_plan_reaches_128_sublayers_and_names_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = entrants.planned()
    assert max(2 * setting.blocks for setting in plan if setting.sweep == "depth") == 128
    assert {setting.width for setting in plan if setting.sweep == "width"} == {64, 128, 256}
    assert all(setting.entrants[0] == Entrant("prenorm") for setting in plan)
    assert [setting.mode for setting in plan if setting.sweep == "compiled"] == ["compiled"]
    for installed, ways in ((True, 6), (False, 5)):
        monkeypatch.setattr(entrants, "fla_is_installed", lambda installed=installed: installed)
        names = [entrant.name for entrant in entrants.all_entrants()]
        assert len(set(names)) == len(names) == 1 + 2 * ways


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in (["--rounds", "0"], ["nothing.here=1"]):
        assert command.main(["steps", "--results", str(tmp_path), *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
