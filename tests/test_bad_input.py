"""What cannot be is refused: one line that names the key and what it may be, exit code 2, nothing written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.ops import packages
from repro.train import step_time, throughput
from tests.tiny import TINY, only_run, records, runs, train

WHOLE = "a whole number of at least 1"
NUMBER = "a number of at least 0"

#: overrides, the key and value named, and what they may be
REFUSED = [
    # Arms and their options
    ("arm=nope", "arm='nope'", "block_n8, block_s16"),
    ("arm=block_s4 arm.mixer.block_size=0", "arm.mixer.block_size=0", "at least 1"),
    ("arm=block_s4 arm.mixer.block_size=-1", "arm.mixer.block_size=-1", "at least 1"),
    ("arm=block_s4 arm.mixer.block_size=2.5", "arm.mixer.block_size=2.5", "a whole number"),
    ("arm=block_s4 arm.mixer.block_size=x", "arm.mixer.block_size='x'", "a whole number"),
    ("arm=block_s4 arm.mixer.block_size=true", "arm.mixer.block_size=True", "a whole number"),
    ("arm=block_n8", "arm.mixer.num_blocks=8", "from 1 to the number of sublayers, 4"),
    ("arm=block_n8 arm.mixer.num_blocks=0", "arm.mixer.num_blocks=0", "from 1 to"),
    ("arm=block_s4_h16 arm.mixer.heads=3", "arm.mixer.heads=3", "a divisor of the width, 16"),
    ("arm=block_s4_h16 arm.mixer.heads=0", "arm.mixer.heads=0", "a divisor of the width, 16"),
    ("arm=window_1p8 arm.mixer.window=0", "arm.mixer.window=0", "at least 1"),
    ("arm=window_1p8 arm.mixer.window=1.5", "arm.mixer.window=1.5", "at least 1"),
    ("arm=full_sigmoid arm.mixer.act=relu", "arm.mixer.act='relu'", "one of softmax"),
    ("arm=full_input_query arm.mixer.query=x", "arm.mixer.query='x'", "one of learned"),
    ("arm=mhc arm.mixer.streams=0", "arm.mixer.streams=0", "1"),
    ("arm=full +arm.mixer.head=2", "arm.mixer.head=2", "which has block_size, num_blocks, window"),
    ("arm=full arm.mixer.head=2", "arm.mixer.head=2", "arm.mixer has _target_, block_size"),
    ("arm=full arm.mixer._target_=os.getcwd", "arm.mixer._target_='os.getcwd'", "a DepthMixer"),
    ("arm=full arm.mixer._target_=no.Such", "arm.mixer._target_='no.Such'", "a DepthMixer"),
    ("arm=full arm.mixer=null", "arm.mixer=None", "a mapping"),
    ("arm=full arm.name=a/b", "arm.name='a/b'", "a name of letters"),
    # The decoder
    ("model.width=15", "model.num_heads=2", "a divisor of model.width=15"),
    ("model.num_heads=16", "model.num_heads=16", "an even head size"),
    ("model.num_heads=0", "model.num_heads=0", WHOLE),
    ("model.num_transformer_blocks=0", "model.num_transformer_blocks=0", WHOLE),
    ("model.mlp_width=2.5", "model.mlp_width=2.5", WHOLE),
    ("model.norm_eps=-1", "model.norm_eps=-1", NUMBER),
    ("model.norm_eps=x", "model.norm_eps='x'", NUMBER),
    ("model.rope_base=0", "model.rope_base=0", "a positive number"),
    ("model/init=nope", "model/init='nope'", "one of depth_scaled, gpt2, width_scaled"),
    ("model.init.scheme=nope", "model.init.scheme='nope'", "one of width_scaled, depth_scaled, gpt2"),
    ("model.init.head_std=x", "model.init.head_std='x'", NUMBER),
    ("+model.depth=3", "model.depth=3", "which has width, num_transformer_blocks"),
    ("model.vocab_size=100", "model.vocab_size=100", "must equal data.tokenizer.vocab_size=64"),
    # How it is computed
    (
        "runtime.backend=cuda",
        "runtime.backend='cuda'",
        "one of auto, reference, eager, native, triton, fla, liger",
    ),
    ("arm=full_sigmoid runtime.backend=fla", "runtime.backend='fla'", "no act='sigmoid', only softmax"),
    ("arm=block_s4_h16 runtime.backend=liger", "runtime.backend='liger'", "no heads=16, only one"),
    ("arm=full_input_query runtime.backend=fla", "runtime.backend='fla'", "no query that depends on the"),
    ("arm=full_no_key_norm runtime.backend=fla", "runtime.backend='fla'", "no key_norm=False, only"),
    ("runtime.depth_execution=fast", "runtime.depth_execution='fast'", "one of auto, per_read"),
    ("runtime.accumulate=0", "runtime.accumulate=0", WHOLE),
    ("runtime.accumulate=3", "runtime.accumulate=3", "a divisor of budget.batch_size=4"),
    ("runtime.threads=0", "runtime.threads=0", WHOLE),
    ("runtime.threads=many", "runtime.threads='many'", f"auto, or {WHOLE}"),
    ("runtime.compile=maybe", "runtime.compile='maybe'", "true, false"),
    ("runtime.force=maybe", "runtime.force='maybe'", "true or false"),
    ("runtime.checkpoint_seconds=-1", "runtime.checkpoint_seconds=-1", NUMBER),
    ("runtime.progress_seconds=x", "runtime.progress_seconds='x'", NUMBER),
    ("precision=fp8", "precision='fp8'", "one of 32-true, bf16-mixed, 64-true"),
    ("trainer=tpu", "trainer='tpu'", "one of cpu, ddp, ddp_sim, gpu"),
    ("trainer.accelerator=tpu", "trainer.accelerator='tpu'", "one of cpu, gpu"),
    ("trainer.devices=0", "trainer.devices=0", WHOLE),
    ("trainer.devices=2", "trainer.devices=2", "trainer.strategy=ddp_spawn"),
    ("trainer=ddp_sim trainer.devices=3", "runtime.accumulate=1", "budget.batch_size=4 / trainer.devices=3"),
    ("trainer.strategy=fsdp", "trainer.strategy='fsdp'", "one of auto, ddp_spawn"),
    ("logger.mode=loud", "logger.mode='loud'", "one of offline, online, disabled"),
    ("paths.runs=null", "paths.runs=None", "not empty"),
    # What it is trained with
    ("optim.lr=-1", "optim.lr=-1", "a positive number"),
    ("optim.lr=0", "optim.lr=0", "a positive number"),
    ("optim.lr=nan", "optim.lr=nan", "a positive number"),
    ("optim.lr=fast", "optim.lr='fast'", "a positive number"),
    ("optim.lrr=1", "optim.lrr=1", "no such key; optim has name, lr, betas"),
    ("+optim.lrr=1", "optim.lrr=1", "no such setting; optim has name, lr, betas"),
    ("+optim.momentum=0.9", "optim.momentum=0.9", "optim has name, lr"),  # AdamW would ignore it
    ("~optim.lr", "optim.lr=None", "a positive number"),
    ("optim=sgd", "optim='sgd'", "one of adamw, muon"),
    ("optim.name=sgd", "optim.name='sgd'", "one of adamw, muon"),
    ("optim.betas=[0.9,1.0]", "optim.betas=[0.9, 1.0]", "two numbers from 0 to below 1"),
    ("optim.weight_decay=-1", "optim.weight_decay=-1", NUMBER),
    ("optim=muon optim.momentum=1", "optim.momentum=1", "from 0 to below 1"),
    ("schedule.warmup=2", "schedule.warmup=2", "from 0 to 1"),
    ("schedule.warmup=x", "schedule.warmup='x'", "from 0 to 1"),
    ("schedule=wsd schedule.decay=0.99", "schedule.decay=0.99", "at most 1 - schedule.warmup = 0.95"),
    ("+schedule.steps=3", "schedule.steps=3", "which has warmup, final"),
    ("schedule._target_=os.getcwd", "schedule._target_='os.getcwd'", "a Schedule"),
    ("budget.tokens=63", "budget.tokens=63", "at least budget.batch_size * budget.context"),
    ("budget.tokens=1e6", "budget.tokens=1000000.0", WHOLE),
    ("budget.batch_size=0", "budget.batch_size=0", WHOLE),
    ("budget.context=0", "budget.context=0", WHOLE),
    ("budget.context=5000 budget.tokens=50000", "budget.context=5000", "the training part of the corpus"),
    ("budget.grad_clip=-1", "budget.grad_clip=-1", NUMBER),
    ("evaluation.log_every=0", "evaluation.log_every=0", WHOLE),
    ("evaluation.num_snapshots=x", "evaluation.num_snapshots='x'", WHOLE),
    ("evaluation.subset_tokens=0", "evaluation.subset_tokens=0", WHOLE),
    ("seed=x", "seed='x'", "a whole number of at least 0"),
    ("seed=-1", "seed=-1", "a whole number of at least 0"),
    ("data_seed=1.5", "data_seed=1.5", "a whole number of at least 0"),
    ("semantics=99", "semantics=99", "the meaning that this code gives"),
    # The command itself
    ("foo=1", "foo=1", "no such key; the top level has seed"),
    ("scale=huge", "scale='huge'", "one of cpu, cpu_wide, gpu, quick, smoke"),
    ("experiment=table5", "experiment='table5'", "one of all_arms"),
    ("foo", "'foo'", "missing EQUAL"),
    ("scale=null", "Config group override", "must be a string"),
]


Capture = pytest.CaptureFixture[str]


def refusal(root: Path, overrides: list[str], capsys: Capture, **options: Any) -> str:
    """The line on stderr of a command that is refused."""
    capsys.readouterr()
    assert train(root, *overrides, **options) == 2
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in told.out
    assert not list((root / "runs").glob("[!.]*"))
    return line


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.mark.parametrize(("overrides", "named", "allowed"), REFUSED, ids=[row[0] for row in REFUSED])
def test_one_line_names_the_key_and_what_it_may_be(
    root: Path, capsys: Capture, overrides: str, named: str, allowed: str
) -> None:
    line = refusal(root, overrides.split(), capsys)
    assert named in line
    assert allowed in line.partition(named)[2]


def test_a_gpu_that_is_not_there(root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for trainer in ("gpu", "ddp"):
        assert "trainer.accelerator='gpu': cpu on this machine" in refusal(
            root, [f"trainer={trainer}"], capsys
        )
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    overrides = ["trainer=ddp", "trainer.devices=4"]
    assert "trainer.devices=4: at most 2" in refusal(root, overrides, capsys)


@pytest.mark.parametrize("backend", ["fla", "liger"])
def test_a_package_that_is_not_there(
    root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setitem(sys.modules, packages.PACKAGES[backend][2], None)
    packages.check.cache_clear()
    line = refusal(root, ["arm=block_s4", f"runtime.backend={backend}"], capsys)
    assert f"runtime.backend='{backend}': one that can run here" in line
    assert "or later" in line


# Text


def text(root: Path, capsys: Capture, path: Path | None) -> str:
    base = [override for override in TINY if not override.startswith("data.")]
    overrides = ["data=files", "data.tokenizer.vocab_size=300", *([f"data.path={path}"] if path else [])]
    return refusal(root, overrides, capsys, base=base)


def test_texts_that_cannot_be_read(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 100)
    assert "data.path=None: a .txt or .jsonl file, or a folder" in text(tmp_path, capsys, None)
    for name, reason in {
        "missing": "no such file or folder",
        "empty": "the folder holds no .txt or .jsonl file",
        "empty.txt": "there is no text",
        "pictures": "the folder holds no .txt or .jsonl file",
        "latin.txt": "not UTF-8",
    }.items():
        line = text(tmp_path, capsys, tmp_path / name)
        assert str(tmp_path / name) in line
        assert reason in line


def test_a_damaged_shard(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, "arm=prenorm") == 0
    (tokens,) = tmp_path.glob("data/shards/*/train.tokens")
    whole = tokens.read_bytes()
    before = records(only_run(tmp_path))
    tokens.write_bytes(whole[:-100])
    capsys.readouterr()
    assert train(tmp_path, "arm=full") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "train.tokens" in line
    assert len(runs(tmp_path)) == 1  # the one before, untouched
    assert records(only_run(tmp_path)) == before


# Nothing is overwritten


def test_a_refused_setting_leaves_an_earlier_run_alone(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, "arm=prenorm") == 0
    run = only_run(tmp_path)
    before = {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert train(tmp_path, "arm=prenorm", "runtime.force=true", "runtime.threads=0") == 2
    assert train(tmp_path, "arm=prenorm", "runtime.force=true", "trainer.devices=0") == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert {path: path.read_bytes() for path in run.directory.rglob("*") if path.is_file()} == before


def test_a_directory_that_holds_another_run(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, "arm=prenorm") == 0
    run = only_run(tmp_path)
    config = run.config_path.read_text()
    assert "lr: 0.003" in config
    run.config_path.write_text(config.replace("lr: 0.003", "lr: 0.004"))
    capsys.readouterr()
    assert train(tmp_path, "arm=prenorm") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds the run of another config" in line


def test_a_place_where_nothing_can_be_written(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "runs").write_text("a file where a folder must be")
    capsys.readouterr()
    assert train(tmp_path, "arm=prenorm") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written" in line


# Sweeps as a whole


@pytest.mark.parametrize(
    ("overrides", "named", "allowed"),
    [
        ("arm=glob(zz*)", "arm='(no match)'", "the sweep is empty"),
        ("arm=prenorm,nope", "arm='nope'", "block_n8, block_s16"),
        ("arm=prenorm,full optim.lrr=1", "optim.lrr=1", "optim has name, lr"),
        ("experiment=table5", "experiment='table5'", "one of all_arms"),
    ],
)
def test_a_sweep_that_cannot_be_composed(
    tmp_path: Path, capsys: Capture, overrides: str, named: str, allowed: str
) -> None:
    line = refusal(tmp_path, overrides.split(), capsys, multirun=True)
    assert named in line
    assert allowed in line.partition(named)[2]


def test_flags_that_do_not_exist(capsys: Capture, tmp_path: Path) -> None:
    assert train(tmp_path, "--fast") == 2
    assert "--fast" in capsys.readouterr().err


@pytest.mark.parametrize("measure", [step_time.main, throughput.main], ids=["step_time", "throughput"])
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("scale=huge", "scale='huge': one of cpu, cpu_wide, gpu, quick, smoke"),
        ("optim.lr=-1", "optim.lr=-1: a positive number"),
        ("optim.lrr=1", "optim.lrr=1: no such key; optim has name, lr"),
    ],
)
def test_measurements_refuse_in_one_line(
    capsys: Capture, measure: Callable[[list[str]], int], override: str, line: str
) -> None:
    assert measure(["scale=smoke", override]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"error: {line}")
