"""A write that the disk refuses leaves every earlier record intact and nothing behind."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from repro.errors import DataError
from repro.runs import Run, replace_atomically
from tests.run_cases import names, opened_run

ROOT = Path(__file__).resolve().parents[1]
run = opened_run


def test_a_full_disk_leaves_the_earlier_file_and_no_temporary(run: Run) -> None:
    run.replace_atomically(run.checkpoint, lambda path: path.write_bytes(b"earlier"))

    def write_to_full_disk(path: Path) -> None:
        path.write_bytes(b"half")
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"rest")

    with pytest.raises(DataError, match=r"No space left on device.*earlier record is intact"):
        run.replace_atomically(run.checkpoint, write_to_full_disk)
    assert names(run.checkpoint.parent) == {"last.ckpt"}
    assert run.checkpoint.read_bytes() == b"earlier"


def test_a_writer_that_fails_leaves_the_earlier_file(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"earlier")

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("not serialisable")

    with pytest.raises(RuntimeError, match="not serialisable"):
        replace_atomically(target, fail)
    assert names(tmp_path) == {"a"}
    assert target.read_bytes() == b"earlier"


FULL_DISK = """
import resource, sys
import numpy as np
from pathlib import Path
from repro.errors import DataError
from repro.runs import Run

run = Run(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # no file may grow past this
noise = np.random.default_rng(0).normal(size=2000)
writes = [
    lambda: run.append_metrics({"step": 3, "text": "x" * 5000}),
    lambda: run.write_json("final", {"text": "x" * 5000}),
    lambda: run.write_arrays("val_losses", loss_sum=noise),
    lambda: run.append_snapshot("depth_weights", 2, mean=noise),
]
for write in writes:
    try:
        write()
    except DataError as error:
        assert len(str(error).splitlines()) == 1
        print("refused", Path(str(error).split(":")[0]).name)
run.set_status("failed", message="disk full")
"""


def test_every_record_survives_a_file_system_that_refuses(run: Run) -> None:
    run.append_metrics({"step": 1, "text": "y" * 3000})
    run.append_metrics({"step": 2})
    run.write_json("final", {"val_loss": 2.5})
    run.write_arrays("val_losses", loss_sum=[1.0])
    run.append_snapshot("depth_weights", 1, mean=np.zeros(2000))
    before = {path.name: path.read_bytes() for path in run.directory.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(run.directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "refused metrics.jsonl",
        "refused final.json",
        "refused val_losses.npz",
        "refused depth_weights.npz",
    ]
    assert run.status.state == "failed"
    run.status_path.unlink()
    assert {path.name: path.read_bytes() for path in run.directory.iterdir()} == before
