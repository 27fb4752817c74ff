"""Which configs are the same run: the identity, the id and the directory."""

import hashlib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from repro.errors import ConfigError
from repro.runs import SEMANTICS, identity, run_directory, run_id
from repro.runs.identity import recorded

CONFIG: dict[str, Any] = {
    "arm": {
        "name": "block_s4",
        "label": "Block (S = 4)",
        "parent": "prenorm",
        "mixer": {"_target_": "repro.depth.attnres.AttnRes", "block_size": 4, "key_gain": True},
    },
    "model": {"width": 64, "norm_eps": 1e-8, "init": {"scheme": "scaled", "std": 0.5}},
    "data": {"name": "prose", "fingerprint": "f00d", "path": "/somewhere/a", "cache_dir": "/somewhere/b"},
    "optim": {"lr": 0.001, "betas": [0.9, 0.95]},
    "schedule": {"warmup": 10},
    "budget": {"tokens": 500000, "grad_clip": 1.0},
    "evaluation": {"documents": 100},
    "precision": "32-true",
    "seed": 3,
    "init_seed": 3,
    "data_seed": 3,
    "semantics": 1,
    "scale": "quick",
    "runtime": {"depth_execution": "auto", "threads": 1},
    "trainer": {"accelerator": "cpu"},
    "logger": {"entity": "someone"},
    "paths": {"runs": "/somewhere/runs"},
    "hydra": {"job": {"num": 0}},
}

# The identity of CONFIG as canonical JSON, written by hand.
TEXT = (
    '{"arm":{"mixer":{"_target_":"repro.depth.attnres.AttnRes","block_size":4,"key_gain":true},"name":"block_s4"},'
    '"budget":{"grad_clip":1,"tokens":500000},"data":{"fingerprint":"f00d","name":"prose"},"data_seed":3,'
    '"evaluation":{"documents":100},"init_seed":3,"model":{"init":{"scheme":"scaled","std":0.5},"norm_eps":1e-08,'
    '"width":64},"optim":{"betas":[0.9,0.95],"lr":0.001},"precision":"32-true","schedule":{"warmup":10},"seed":3,'
    '"semantics":1}'
)


def changed(key: str, value: Any) -> dict[str, Any]:
    config = deepcopy(CONFIG)
    *parents, last = key.split(".")
    node = config
    for name in parents:
        node = node[name]
    node[last] = value
    return config


def test_the_id_is_the_hash_of_the_canonical_text() -> None:
    assert run_id(CONFIG) == hashlib.sha256(TEXT.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("runtime.threads", 8),
        ("runtime.depth_execution", "two_phase"),
        ("trainer.accelerator", "gpu"),
        ("logger.entity", "another"),
        ("paths.runs", "/elsewhere"),
        ("hydra.job.num", 7),
        ("scale", "cpu"),
        ("arm.label", "another text"),
        ("arm.parent", None),
        ("data.path", "/elsewhere"),
        ("data.cache_dir", None),
        ("optim.lr", 1e-3),
        ("optim.betas", (0.9, 0.95)),
        ("budget.tokens", 5e5),
        ("budget.grad_clip", 1),
        ("init_seed", None),
        ("data_seed", None),
        ("semantics", None),
    ],
)
def test_the_id_ignores(key: str, value: Any) -> None:
    assert run_id(changed(key, value)) == run_id(CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("arm.name", "block_s8"),
        ("arm.mixer.block_size", 8),
        ("arm.mixer.key_gain", 1),
        ("arm.mixer.block_size", "4"),
        ("arm.mixer.extra", None),
        ("model.norm_eps", 1e-5),
        ("model.init.std", 0.5000000000000001),
        ("data.fingerprint", "beef"),
        ("optim.betas", [0.95, 0.9]),
        ("schedule.warmup", 11),
        ("budget.tokens", 500001),
        ("evaluation.documents", 101),
        ("precision", "bf16-mixed"),
        ("seed", 4),
        ("init_seed", 4),
        ("data_seed", 4),
        ("semantics", 2),
    ],
)
def test_the_id_changes_with(key: str, value: Any) -> None:
    assert run_id(changed(key, value)) != run_id(CONFIG)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.dataset", "/somewhere/books"),
        ("data.dataset", "~/books/"),
        ("data.dataset", "/"),
        ("data.subsets", ["/a/b", {"train": "~me/c"}, "d/e"]),
        ("data.sources_path", {"name": "a/b"}),
        ("model.init.scheme", "/abs/scheme"),
        ("data.path", "relative/books"),
        ("data.token", "secret"),
        ("semantics", None),
        ("init_seed", None),
    ],
)
def test_what_is_recorded_has_the_same_id(key: str, value: Any) -> None:
    config = changed(key, value)
    assert run_id(recorded(config)) == run_id(config)
    assert recorded(recorded(config)) == recorded(config)


def test_where_a_dataset_lies_is_no_identity_but_its_name_and_fingerprint_are() -> None:
    here = changed("data.dataset", "/somewhere/books")
    assert run_id(here) == run_id(changed("data.dataset", "~/elsewhere/books"))
    assert run_id(here) != run_id(changed("data.dataset", "/somewhere/talks"))
    assert identity(here)["data"] == {"name": "prose", "fingerprint": "f00d", "dataset": "books"}
    with pytest.raises(ConfigError, match=r"data\.dataset"):
        run_id(changed("data.dataset", "/${nowhere}/books"))


def test_key_order_and_omegaconf_make_no_difference() -> None:
    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(item) for key, item in reversed(value.items())}
        return value

    assert run_id(reversed_keys(CONFIG)) == run_id(CONFIG)
    assert run_id(OmegaConf.create(CONFIG)) == run_id(CONFIG)
    followed = OmegaConf.create({**CONFIG, "init_seed": "${seed}", "hydra": {"dir": "${hydra:runtime.cwd}"}})
    assert run_id(followed) == run_id(CONFIG)


def test_a_config_without_semantics_has_the_present_ones() -> None:
    config = {key: value for key, value in CONFIG.items() if key != "semantics"}
    assert identity(config)["semantics"] == SEMANTICS
    assert recorded(config)["semantics"] == SEMANTICS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", None),
        ("seed", None),
        ("optim.lr", "???"),
        ("optim.betas", [0.9, "${optim.beta2}"]),
    ],
)
def test_what_is_not_set_has_no_identity(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        run_id(changed(key, value))


def test_an_unresolvable_interpolation_names_its_key() -> None:
    config = OmegaConf.create(CONFIG)
    OmegaConf.update(config, "optim.lr", "${nowhere.lr}")
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        run_id(config)


def test_the_directory() -> None:
    digits = run_id(CONFIG)
    assert run_directory(CONFIG) == Path("/somewhere/runs/quick/block_s4") / digits
    assert run_directory(changed("scale", "paper/48b"), "r") == Path("r/paper/48b/block_s4") / digits


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scale", None),
        ("scale", "../quick"),
        ("scale", "/quick"),
        ("scale", ""),
        ("arm.name", "a/b"),
        ("arm.name", ".."),
        ("arm.name", 4),
        ("paths.runs", None),
    ],
)
def test_a_directory_needs_plain_names(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        run_directory(changed(key, value))


def test_the_recorded_config_does_not_say_who_and_where() -> None:
    kept = recorded(changed("arm.mixer.weights", "~/private/file"))
    assert not {"paths", "logger", "hydra"} & set(kept)
    assert kept["data"]["path"] == "a"
    assert kept["data"]["cache_dir"] == "b"
    assert kept["arm"]["mixer"]["weights"] == "file"
    assert kept["runtime"] == {"depth_execution": "auto", "threads": 1}
    assert run_id(recorded(CONFIG)) == run_id(CONFIG)
