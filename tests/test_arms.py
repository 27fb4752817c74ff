"""Every arm of conf/arm: its YAML, the promises that the protocol asks of a scheme, and that arms differ."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

import repro.depth
from repro.depth.base import PARAMETER_GROUPS, DepthMixer
from repro.depth.inputs import value_input
from repro.depth.logit_reads import WeighedReads
from tests.toy import Toy, default_dtype, error, normal, randomise

ROOT = Path(__file__).parents[1]
ARMS = sorted(path.stem for path in (ROOT / "conf" / "arm").glob("*.yaml"))
#: name -> row text, in the paper's order
TABLE_4 = {
    row["arm"]: row["row"]
    for row in csv.DictReader((ROOT / "experiments/published/table4_ablations.csv").read_text().splitlines())
}
#: The arm that each changes in one respect: Full and Block are ablated, the rest stands beside the baseline.
PARENTS_OF_TABLE_4 = {
    "prenorm": None,
    "denseformer": "prenorm",
    "mhc": "prenorm",
    "full": "prenorm",
    "full_input_query": "full",
    "full_static": "full",
    "full_sigmoid": "full",
    "full_no_key_norm": "full",
    "window_1p8": "full",
    "block_s4": "prenorm",
    "block_s4_h16": "block_s4",
    "block_s4_no_key_norm": "block_s4",
}
NUM_SUBLAYERS, WIDTH = 32, 64


def load(name: str) -> DictConfig:
    config = OmegaConf.load(ROOT / "conf" / "arm" / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    return config


def build(name: str, *, device: str = "cpu", **options: object) -> DepthMixer:
    """The scheme of an arm in float64 at L = 32 and width 64."""
    with default_dtype(torch.float64), torch.device(device):
        return instantiate(load(name).mixer, num_sublayers=NUM_SUBLAYERS, width=WIDTH, **options)


@pytest.fixture(scope="module")
def toy() -> Toy:
    return Toy(NUM_SUBLAYERS, WIDTH, embedding_std=1.0, output_std=1.0, tokens=(2, 3))


# The files


def test_the_rows_of_table_4_are_arms_under_their_label() -> None:
    assert len(TABLE_4) == 12
    assert {name: load(name).label for name in TABLE_4} == TABLE_4


def test_the_block_sizes_of_figure_6_are_arms() -> None:
    for size in (2, 4, 8, 16, 32):
        assert load(f"block_s{size}").mixer.block_size == size
    assert load("full").mixer.block_size == 1


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_is_a_short_file_with_a_parent(name: str) -> None:
    config = load(name)
    assert config.name == name
    assert len((ROOT / "conf" / "arm" / f"{name}.yaml").read_text().splitlines()) <= 10
    assert set(config) == {"name", "label", "parent", "mixer"}
    assert config.parent in ARMS if name != "prenorm" else config.parent is None
    assert config.parent != name


def test_the_parents_of_table_4() -> None:
    assert {name: load(name).parent for name in TABLE_4} == PARENTS_OF_TABLE_4


def test_labels_are_distinct() -> None:
    labels = [load(name).label for name in ARMS]
    assert len(set(labels)) == len(labels)


def test_every_scheme_has_an_arm() -> None:
    """A class that no YAML reaches is dead code."""
    targets = {load(name).mixer["_target_"] for name in ARMS}
    modules = {target.rsplit(".", 1)[0] for target in targets}
    schemes = set()
    for module in modules:
        for scheme in vars(__import__(module, fromlist=["_"])).values():
            if isinstance(scheme, type) and issubclass(scheme, DepthMixer) and scheme.__module__ == module:
                schemes.add(f"{module}.{scheme.__name__}")
    assert schemes == targets
    assert repro.depth.__name__ == "repro.depth"


# What the protocol asks of every scheme


@pytest.mark.parametrize("name", ARMS)
def test_parameters_are_tagged_and_never_matrices(name: str) -> None:
    mixer = build(name)
    for parameter in mixer.parameters():
        assert parameter.group in PARAMETER_GROUPS
        assert parameter.group != "matrix"  # a scheme's parameters are not decayed and never go to Muon
    assert set(mixer.normal_init) <= {key for key, _ in mixer.named_parameters()}


@pytest.mark.parametrize("name", ARMS)
def test_shapes_can_be_built_without_memory(name: str) -> None:
    shapes = {key: p.shape for key, p in build(name).named_parameters()}
    meta = build(name, device="meta")
    assert {key: p.shape for key, p in meta.named_parameters()} == shapes
    assert all(p.is_meta for p in meta.parameters())
    assert meta.flops_per_token() == build(name).flops_per_token() > 0


def rows_without_gradient(mixer: DepthMixer, toy: Toy) -> set[str]:
    """Rows whose gradient is exactly zero at random parameters, under a random loss."""
    out = toy.run(randomise(mixer), eps=1e-8)
    (out * normal("loss", *out.shape)).sum().backward()
    dead = set()
    for key, parameter in mixer.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert grad.isfinite().all()
        dead |= {f"{key}[{i}]" for i, row in enumerate(grad) if not row.any()}
    return dead


@pytest.mark.parametrize("name", ARMS)
def test_every_row_of_a_parameter_gets_a_gradient_unless_listed(name: str, toy: Toy) -> None:
    """With sparse weights also where no token reads the sublayer, or every token one source alone."""
    mixer = build(name)
    found, listed = rows_without_gradient(mixer, toy), mixer.parameters_without_gradient()
    assert found == listed or (isinstance(mixer, WeighedReads) and listed < found)


@pytest.mark.parametrize("execution", ["per_read", "score_on_write", "two_phase"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("full", {"queries[0]", "key_gains[0]"}),
        ("block_s4", {"queries[0]", "key_gains[0]"}),
        ("window_1p8", {"queries[0]", "key_gains[0]"}),
        ("full_no_key_norm", {"queries[0]"}),
        ("full_sigmoid_normalized", {"queries[0]", "key_gains[0]"}),
        ("full_sigmoid", set()),  # a weight of its own, not one
        ("control_zero_partial", set()),  # two sources at the first read
        ("full_input_query", {"query_projections[0]", "key_gains[0]"}),
        ("mhc", set()),
        ("denseformer", set()),
    ],
)
def test_which_rows_get_no_gradient(name: str, expected: set[str], execution: str, toy: Toy) -> None:
    """The first sublayer reads the embedding alone: its query and gain learn nothing, all others do."""
    mixer = build(name, execution=execution)
    assert mixer.parameters_without_gradient() == expected
    assert rows_without_gradient(mixer, toy) == expected


@pytest.mark.parametrize("name", ARMS)
def test_recorded_weights_match_the_stated_sources(name: str, toy: Toy) -> None:
    mixer = randomise(build(name))
    plain = toy.walk(mixer, eps=1e-8)
    recorded: dict[int, Tensor] = {}
    mixer.tap = recorded.__setitem__
    for a, b in zip(toy.walk(mixer, eps=1e-8), plain, strict=True):
        assert error(a, b) < 1e-12  # the tap only looks
    assert set(recorded) == {l for l in range(NUM_SUBLAYERS + 1) if mixer.source_columns(l)}
    for l, weights in recorded.items():
        columns = mixer.source_columns(l)
        assert weights.shape == (mixer.num_sources(l), mixer.depth_heads, 2, 3)
        assert not weights.requires_grad
        assert columns == sorted(set(columns))
        assert columns[-1] <= l or mixer.source_labels(l)[-1] == "zero"  # the placeholder of a control
        assert len(mixer.source_labels(l)) == len(columns)
        assert weights.isfinite().all()


@pytest.mark.parametrize("name", ARMS)
def test_states_are_immutable(name: str, toy: Toy) -> None:
    """A state kept from the middle of a pass still gives the same read after the pass went on."""
    mixer = randomise(build(name))
    state, kept = mixer.begin(toy.embedding), []
    for l in range(NUM_SUBLAYERS):
        before = state
        read, state = mixer.read(state, l)
        x = value_input(read)
        kept.append((before, x.clone(), l))
        state = mixer.write(state, l, normal(f"output {l}", *x.shape))
    mixer.finish(state)
    for before, x, l in kept:
        assert torch.equal(value_input(mixer.read(before, l)[0]), x)


@pytest.mark.parametrize("name", ARMS)
def test_a_read_depends_on_everything_before_it_and_nothing_else(name: str) -> None:
    """In depth: later outputs cannot matter (read l sees l of them); in time: only the token itself."""
    mixer = randomise(build(name))
    shape = (1, 3, WIDTH)
    outputs = [normal(f"output {l}", *shape).requires_grad_() for l in range(NUM_SUBLAYERS)]
    embedding = normal("embedding", *shape).requires_grad_()
    state = mixer.begin(embedding)
    for l, output in enumerate(outputs):
        _, state = mixer.read(state, l)
        state = mixer.write(state, l, output)
    grads = torch.autograd.grad(mixer.finish(state)[:, 1].square().sum(), [embedding, *outputs])
    for grad in grads:
        assert grad[:, 1].any() or isinstance(mixer, WeighedReads)  # sparse: a source may have no weight
        assert not grad[:, [0, 2]].any()


# Arms are different functions


def outputs_of(names: list[str], toy: Toy, std: float) -> dict[str, Tensor]:
    """Outputs, parameters of one name being equal; gains stay at one: they alone could tell arms apart."""
    results = {}
    for name in names:
        mixer = build(name)
        gains = {key: p.detach().clone() for key, p in mixer.named_parameters() if p.group == "gain"}
        randomise(mixer, std)
        mixer.load_state_dict(gains, strict=False)
        with torch.no_grad():
            results[name] = toy.run(mixer, eps=1e-8)
    return results


def test_no_two_arms_of_table_4_are_the_same_function(toy: Toy) -> None:
    outputs = outputs_of(list(TABLE_4), toy, std=0.3)
    for a, b in itertools.combinations(outputs, 2):
        assert error(outputs[a], outputs[b]) > 1e-3, f"{a} and {b} are the same function"


def test_which_arms_of_table_4_start_as_the_same_function(toy: Toy) -> None:
    """All but mHC (published biases), the window (drops sources) and what is not normalised by scale."""
    outputs = outputs_of(list(TABLE_4), toy, std=0.0)
    same = {name for name in outputs if error(outputs[name], outputs["prenorm"]) < 1e-5}
    print("equal to PreNorm at initialisation:", ", ".join(sorted(same)))
    assert set(TABLE_4) - same == {"mhc", "window_1p8"}
