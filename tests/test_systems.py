"""Table 5: facts that schemes state once, counts taken from them, and a file that is theirs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from analysis.systems import MISSING, arms_without_facts, read_schemes, system_table, systems
from experiments import table5
from experiments.item import PUBLISHED_FILES, Source
from repro.depth.attnres import AttnRes
from repro.depth.base import DepthMixer, State, tagged
from repro.depth.denseformer import DenseFormer
from repro.depth.facts import SchemeFacts, num_parameters, state_per_token
from repro.depth.hyper_connections import MHC
from repro.depth.prenorm import PreNorm
from repro.depth.static import Static
from repro.errors import DataError
from repro.train import facts

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "results/published/schemes.json"


@pytest.mark.parametrize(
    ("scheme", "options", "expected"),
    [
        (PreNorm, {}, (1, 0)),  # the stream
        (AttnRes, {}, (9, 0)),  # the embedding and eight outputs
        (AttnRes, {"block_size": 4}, (3, 0)),  # the embedding and two block sums
        (AttnRes, {"block_size": 3}, (4, 0)),  # blocks of 3, 3 and 2
        (AttnRes, {"query": "mixed_state"}, (10, 0)),  # also what the previous sublayer read
        (Static, {}, (9, 0)),
        (DenseFormer, {"over": "blocks"}, (6, 0)),  # X_0 to X_4 and the stream
        (MHC, {"streams": 3}, (3, 3 + 9)),  # between read and write also H_post and H_res
    ],
)
def test_state_is_what_the_walk_holds(scheme: Any, options: Any, expected: tuple[int, int]) -> None:
    assert state_per_token(lambda width: scheme(8, width, **options), 8) == expected


def test_parameters_are_counted_not_stated() -> None:
    """L + 1 queries and gains of width D; L (L + 3) / 2 scalars; nothing."""
    assert num_parameters(AttnRes(6, 10)) == 2 * 7 * 10
    assert num_parameters(Static(6, 10)) == 27
    assert num_parameters(PreNorm(6, 10)) == 0


def test_facts_follow_the_options() -> None:
    assert AttnRes(8, 4).facts().system == "AttnRes Full"
    assert AttnRes(8, 4, block_size=2).facts().system == "AttnRes Block"
    assert AttnRes(8, 4, num_blocks=8).facts().system == "AttnRes Full"  # every block one sublayer
    assert AttnRes(8, 4, window=3).facts().source == "h[1] and the last 3 outputs"
    with pytest.raises(ValueError, match="fixed"):
        replace(PreNorm.FACTS, weight="learned")


def test_the_committed_file_is_that_of_the_schemes() -> None:
    """Stale where it fails: python -m repro.train.facts."""
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(facts.schemes()))


def test_every_system_of_the_paper_is_a_row() -> None:
    found = systems(PUBLISHED_FILES / "table5_systems.csv", read_schemes(FILE))
    paper = [system.name for system in found if system.paper]
    assert paper == [
        "Residual", "ReZero", "LayerScale", "Highway", "DeepNorm", "KEEL", "SiameseNorm", "HC/mHC", "DDL",
        "DenseNet", "DenseFormer", "MRLA", "AttnRes Full", "AttnRes Block",
    ]  # fmt: skip
    own = {system.name: [arm.arm for arm in system.principal] for system in found}
    assert own["Residual"] == ["prenorm"]
    assert own["AttnRes Full"] == ["full"]
    assert "block_n8" in own["AttnRes Block"]
    assert arms_without_facts(read_schemes(FILE)) == []


class ReZero(DepthMixer):
    """A class of the tests, not the suite's own: what an added scheme brings along."""

    FACTS = SchemeFacts("ReZero", "static", "h[l-1]", "h[l] = h[l-1] + a[l] f(h[l-1])", "h")

    def __init__(self, num_sublayers: int, width: int, **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        self.gates = tagged(torch.zeros(num_sublayers), "scalar")

    def begin(self, embedding: Tensor) -> State:
        return (embedding,)

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, l: int, output: Tensor) -> State:
        return (state[0] + self.gates[l] * output,)

    def finish(self, state: State) -> Tensor:
        return state[0]


def test_a_new_scheme_fills_its_row(tmp_path: Path) -> None:
    """One class and one YAML: the export finds them, and the row says what the class states and has."""
    arms = tmp_path / "arm"
    arms.mkdir()
    target = f"{__name__}.ReZero"
    (arms / "scaled.yaml").write_text(
        f"name: scaled\nlabel: ReZero\nparent: null\nmixer: {{_target_: {target}}}\n"
    )
    path = tmp_path / "schemes.json"
    path.write_text(json.dumps(facts.schemes(arms)))
    schemes = read_schemes(path)
    found = {s.name: s for s in systems(PUBLISHED_FILES / "table5_systems.csv", schemes)}
    cells = system_table([found["ReZero"], found["KEEL"]], schemes, "t", wide=True).rows
    assert cells[0]["arms"] == "scaled"
    assert (cells[0]["parameters"], cells[0]["state"]) == ("32", "1d")
    assert cells[1]["arms"] == MISSING
    assert "scaled" in arms_without_facts(schemes)  # it is no arm of conf/arm


def test_a_wrong_kind_of_weight_is_noticed() -> None:
    found, stale = table5.ITEM.render(Source("published")).data
    check = table5.ITEM.checks[0].test
    assert check((found, stale))[0] is True
    wrong = [
        replace(s, arms=tuple(replace(a, weight="static") for a in s.arms)) if s.name == "HC/mHC" else s
        for s in found
    ]
    assert check((wrong, stale)) == (False, "not HC/mHC")


def test_facts_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"repro\.train\.facts"):
        read_schemes(tmp_path / "schemes.json")
    (tmp_path / "schemes.json").write_text('{"schemes": [{}]}')
    with pytest.raises(DataError, match=r"repro\.train\.facts"):
        read_schemes(tmp_path / "schemes.json")


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert facts.main(["--results", str(tmp_path)]) == 0
    assert (tmp_path / "published/schemes.json").read_bytes() == FILE.read_bytes()
    assert "arms" in capsys.readouterr().out
