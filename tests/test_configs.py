"""The configuration tree: everything composes, arms differ in `arm.` alone, run ids follow the meaning."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from repro.model.build import build_decoder
from repro.runs import SEMANTICS, run_id
from repro.train import settings
from repro.train.__main__ import main
from repro.train.schedule import build_schedule
from repro.train.sweep import PlannedSweeper, register
from tests.tiny import ARMS, ROOT, with_arm

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
SCALES = sorted(path.stem for path in (ROOT / "conf" / "scale").glob("*.yaml"))
TABLE_4 = [
    row["arm"]
    for row in csv.DictReader((ROOT / "experiments/published/table4_ablations.csv").read_text().splitlines())
]


def composed(*overrides: str, hydra: bool = False) -> DictConfig:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=list(overrides), return_hydra_config=hydra)


def plain(config: DictConfig) -> dict[str, Any]:
    value = OmegaConf.to_container(config, resolve=True)
    assert isinstance(value, dict)
    return {str(key): item for key, item in value.items()}


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def differing(a: DictConfig, b: DictConfig) -> set[str]:
    """Keys under which two resolved configurations differ."""
    left, right = dict(flat(plain(a))), dict(flat(plain(b)))
    missing = object()
    return {key for key in left | right if left.get(key, missing) != right.get(key, missing)}


def jobs(experiment: str, *overrides: str) -> list[list[str]]:
    """The override lists that the sweeper makes of an experiment."""
    config = composed(f"experiment={experiment}", *overrides, hydra=True)
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser

    path = ConfigSearchPathImpl()
    path.append("test", f"file://{ROOT / 'conf'}")
    parser = OverridesParser.create(config_loader=ConfigLoaderImpl(path))
    listed = [f"{key}={value}" for key, value in config.hydra.sweeper.params.items()]
    (batch,) = PlannedSweeper.split_arguments(parser.parse_overrides(listed), None)
    return batch


@pytest.fixture(scope="module")
def quick() -> DictConfig:
    """The default command."""
    return composed()


# Composition


def test_the_defaults_are_those_of_the_documents(quick: DictConfig) -> None:
    assert (quick.scale, quick.arm.name, quick.data.name) == ("quick", "block_s4", "prose")
    assert quick.optim.name == "adamw"
    assert quick.model.norm_eps == 1e-8
    assert quick.seed == quick.init_seed == quick.data_seed == 1
    assert quick.semantics == SEMANTICS
    assert quick.logger.mode == "offline"


@pytest.mark.parametrize("scale", SCALES)
def test_scales_compose(scale: str) -> None:
    overrides = ["data.dataset=x"] if scale == "gpu" else []
    config = composed(f"scale={scale}", *overrides)
    settings.check(config)
    assert config.scale == scale
    assert config.model.width % config.model.num_heads == 0
    # Every arm of Table 4 keeps its meaning: eight blocks of four sublayers or more, 16 depth heads.
    assert config.model.num_transformer_blocks >= 16
    assert config.model.width % 16 == 0


@pytest.mark.parametrize("arm", ARMS)
def test_arms_compose_and_build(arm: str, quick: DictConfig) -> None:
    config = composed(f"arm={arm}")
    settings.check(config)
    assert config.arm.name == arm
    decoder = build_decoder(config, device="meta")
    assert decoder.num_sublayers == 32
    assert all(key.startswith("arm.") for key in differing(config, quick))


@pytest.mark.parametrize(
    "choice",
    [
        *(f"optim={name}" for name in ("adamw", "muon")),
        *(f"schedule={name}" for name in ("cosine", "wsd")),
        *(f"model/init={name}" for name in ("width_scaled", "depth_scaled", "gpt2")),
        *(f"trainer={name}" for name in ("cpu", "ddp_sim")),
        *(f"data={name}" for name in ("prose", "tech", "bytes", "files", "hf", "synthetic")),
        *(f"logger={name}" for name in ("none", "wandb")),
        "data=files data.tokenizer.kind=byte data.tokenizer.vocab_size=257",
    ],
)
def test_every_choice_composes(choice: str) -> None:
    config = composed(*choice.split())
    settings.check(config)
    build_schedule(plain(config)["schedule"])
    assert build_decoder(config, device="meta").embedding.shape[0] == config.data.tokenizer.vocab_size


def test_gpu_trainers_compose() -> None:
    for name, devices in (("gpu", 1), ("ddp", "auto")):
        config = composed(f"trainer={name}")
        settings.check(config)
        assert (config.trainer.accelerator, config.trainer.devices) == ("gpu", devices)


# Experiments


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_between_arms_of_an_experiment_only_the_arm_differs(experiment: str) -> None:
    """But for what an experiment says it sweeps: learning rates, initialisations, sizes, budgets."""
    size = ("model.", "budget.tokens", "budget.batch_size", "optim.lr")
    swept = {
        "lr": ("optim.lr",),
        "lr_fairness": ("optim.lr",),
        "init": ("model.init",),
        "eps": ("model.norm_eps",),
        "fig7": ("model.", "budget.tokens"),
        "table2": size,
        "fig4": size,
        "multiplier": ("budget.tokens",),
    }.get(experiment, ())
    batch = jobs(experiment)
    configs = [composed(f"experiment={experiment}", *overrides) for overrides in batch]
    assert len({run_id(config) for config in configs}) == len(configs) >= 2
    found: set[str] = set()
    for config in configs:
        settings.check(config)
        found |= differing(config, configs[0])
    others = {key for key in found if not key.startswith("arm.")}
    assert bool(others) == bool(swept)
    assert all(key.startswith(swept) for key in others)


def test_table_4_lists_the_papers_rows_in_its_order() -> None:
    assert len(TABLE_4) == 12
    assert jobs("table4") == [[f"arm={name}"] for name in TABLE_4]


def test_all_arms_lists_all_arms() -> None:
    assert sorted(jobs("all_arms")) == [[f"arm={name}"] for name in ARMS]


def test_figure_6_lists_all_block_sizes() -> None:
    names = ["prenorm", "full", "block_s2", "block_s4", "block_s8", "block_s16", "block_s32"]
    assert jobs("fig6") == [[f"arm={name}"] for name in names]


def test_fairness_sweeps_the_rate_of_each_arm() -> None:
    arms, rates = (sorted({job[i] for job in jobs("lr_fairness")}) for i in (0, 1))
    assert "arm=prenorm" in arms
    assert len(jobs("lr_fairness")) == len(arms) * len(rates)
    assert [job[0] for job in jobs("lr")] == ["arm=prenorm"] * len(jobs("lr"))


# Run ids


def test_ids_of_all_arms_are_distinct(quick: DictConfig) -> None:
    ids = {arm: run_id(with_arm(quick, arm)) for arm in ARMS}
    assert len(set(ids.values())) == len(ARMS) > 12


@pytest.mark.parametrize(
    "overrides",
    [
        "runtime.depth_execution=per_read",
        "runtime.backend=reference",
        "runtime.compile=true",
        "runtime.threads=1",
        "runtime.accumulate=2",
        "runtime.checkpoint_seconds=0",
        "runtime.force=true",
        "runtime.progress_seconds=null",
        "trainer=gpu",
        "trainer=ddp_sim",
        "logger=none",
        "logger.project=x",
        "paths.root=/x",
        "paths.runs=y",
        "paths.data=z",
        "init_seed=1 data_seed=1",
    ],
)
def test_ids_ignore_how_the_numbers_are_computed(quick: DictConfig, overrides: str) -> None:
    assert run_id(composed(*overrides.split())) == run_id(quick)


CHANGES = [
    "optim.lr=1e-3",
    "optim.weight_decay=0.0",
    "optim=muon",
    "schedule=wsd",
    "schedule.warmup=0.1",
    "seed=2",
    "init_seed=2",
    "data_seed=2",
    "budget.tokens=655361",
    "budget.batch_size=8",
    "budget.context=64",
    "budget.grad_clip=0",
    "model.width=128",
    "model.num_transformer_blocks=8",
    "model.norm_eps=1e-5",
    "model.rope_base=500000",
    "model/init=gpt2",
    "data=tech",
    "data=bytes",
    "vocab_size=4096",
    "precision=bf16-mixed",
    "semantics=99",
    "arm.mixer.block_size=5",
    "arm=full",
    "evaluation.num_snapshots=3",
]


def test_ids_follow_what_decides_the_numbers(quick: DictConfig) -> None:
    ids = {overrides: run_id(composed(overrides)) for overrides in CHANGES}
    ids["nothing"] = run_id(quick)
    for (a, first), (b, second) in itertools.combinations(ids.items(), 2):
        assert first != second, f"{a} and {b} share a run"


def test_the_ids_of_the_data_follow_the_fingerprint(quick: DictConfig) -> None:
    config = quick.copy()
    config.data.fingerprint = "0123"
    assert run_id(config) != run_id(quick)


# The command line's own answers


def test_help_names_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for group in (path.name for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "hydra"):
        assert f"{group}: " in out, group
    assert all(name in out for name in (*TABLE_4, *EXPERIMENTS, *SCALES))
    assert "python -m repro.train arm=block_s4 scale=quick seed=1" in out
    assert "norm_eps" in out


def test_cfg_shows_the_configuration_and_trains_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--cfg", "job", "arm=full", f"paths.root={tmp_path}", "seed=7"]) == 0
    shown = OmegaConf.create(capsys.readouterr().out)
    assert shown.arm.name == "full"
    assert shown.init_seed == 7
    assert not list(tmp_path.iterdir())
