"""What the tests of run directories share: a run that was just opened, and what lies in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.runs import Run
from tests.test_identity import CONFIG


@pytest.fixture
def opened_run(tmp_path: Path) -> Run:
    """The run of CONFIG under tmp_path; a test module takes it in with ``run = opened_run``."""
    return Run.open(CONFIG, tmp_path)


def names(directory: Path) -> set[str]:
    """Names of everything in a directory."""
    return {path.name for path in directory.iterdir()}
