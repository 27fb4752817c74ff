"""The README's examples run as printed, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.S)


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=range(len(PYTHON_BLOCKS)))
def test_example_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(block.splitlines()) <= 20, "an example of at most 20 lines"
    exec(compile(block, "README.md", "exec"), {})
    # A printed line states its output in a comment behind it.
    stated = re.findall(r"print\(.*?\)\s+# (.*?)(?:: .*)?$", block, flags=re.M)
    printed = capsys.readouterr().out.splitlines()
    assert printed == stated


def test_there_are_two_examples() -> None:
    assert len(PYTHON_BLOCKS) == 2


def test_example_arm_is_a_valid_arm() -> None:
    block = re.search(r"```yaml\n(.*?)```", README, flags=re.S)
    assert block is not None
    arm = yaml.safe_load(block.group(1))
    assert set(arm) == set(yaml.safe_load((ROOT / "conf/arm/block_s4.yaml").read_text(encoding="utf-8")))
    # A reader may have added it; it must not repeat an arm under another name.
    others = [p for p in (ROOT / "conf/arm").glob("*.yaml") if p.stem != arm["name"]]
    mixers = [yaml.safe_load(p.read_text(encoding="utf-8"))["mixer"] for p in others]
    assert arm["mixer"] not in mixers, "the example must add an arm, not repeat one"


def test_targets_and_paths_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    items = re.findall(r"^ITEMS +:= (.*)", makefile, flags=re.M)[0].split()
    for target in set(re.findall(r"`make ([a-z0-9_-]+)", README)) | {"reproduce"}:
        assert target in items or re.search(rf"^{target}:", makefile, flags=re.M), target
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    for test in re.findall(r"tests/(test_\w+\.py)", README):
        assert (ROOT / "tests" / test).exists(), test
    for experiment in re.findall(r"experiment=(\w+)", README):
        assert (ROOT / f"conf/experiment/{experiment}.yaml").exists(), experiment


def test_nothing_is_left_to_fill_in() -> None:
    prose = re.sub(r"`[^`]*`", "", README)
    assert not re.findall(r"\b[A-Z0-9]+_[A-Z_]+\b", prose)
