"""Each negative control fails the literals of Eq. 6, or the start as PreNorm, or both; here is which.

| control                     | literals                       | start as PreNorm |
|-----------------------------|--------------------------------|------------------|
| cumulative states           | fail from the second read on   | fails            |
| no output read, sum         | fail at the output read        | holds            |
| no output read, partial sum | fail at the output read        | fails            |
| zero partial sum            | fail where a block starts      | holds            |
| random queries              | hold (they set the queries)    | fails            |
| scaled logits               | fail from the second read on   | holds            |
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from repro.depth.attnres import AttnRes
from repro.depth.controls import Cumulative, NoOutputRead, RandomQuery, ScaledLogits, ZeroPartial
from repro.depth.prenorm import PreNorm
from repro.errors import ConfigError
from tests.gold import WALKS, error, set_read, walk
from tests.toy import Toy, default_dtype, normal
from tests.toy import error as relative_error

Control = Callable[..., AttnRes]
L6_S1, L6_S4 = WALKS[4], WALKS[2]


def of(control: type[AttnRes], **more: object) -> Control:
    """The control with options of its own."""
    return lambda num_sublayers, width, **options: control(num_sublayers, width, **options, **more)


#: name, control, walk, reads that miss its literals, whether the start as PreNorm holds
CONTROLS: list[tuple[str, Control, dict, list[int], bool]] = [
    ("attnres itself", of(AttnRes), L6_S1, [], True),
    ("attnres itself, blocks", of(AttnRes), L6_S4, [], True),
    ("cumulative states", of(Cumulative), L6_S1, [1, 2, 3, 4, 5, 6], False),
    ("no output read, sum", of(NoOutputRead), L6_S1, [6], True),
    ("no output read, sum, blocks", of(NoOutputRead), L6_S4, [6], True),
    ("no output read, partial sum", of(NoOutputRead, output="partial"), L6_S4, [6], False),
    ("zero partial sum", of(ZeroPartial), L6_S4, [0, 4], True),
    ("random queries", of(RandomQuery), L6_S4, [], False),
    ("scaled logits", of(ScaledLogits), L6_S4, [1, 2, 3, 4, 5, 6], True),
]
IDS = [name for name, *_ in CONTROLS]


@pytest.mark.parametrize(
    ("control", "case", "missed"),
    [(control, case, missed) for _, control, case, missed, _ in CONTROLS],
    ids=IDS,
)
@pytest.mark.parametrize("execution", ["per_read", "score_on_write", "two_phase"])
def test_which_literals_a_control_misses(
    control: Control, case: dict, missed: list[int], execution: str
) -> None:
    """By more than one per cent where it misses, to 1e-12 where it does not."""
    embedding, *outputs = (
        torch.tensor(x, dtype=torch.float64) for x in (case["embedding"], *case["sublayer_outputs"])
    )
    with default_dtype(torch.float64):
        mixer = control(6, 4, block_size=case["block_size"], eps=case["eps"], execution=execution)
    for l in range(len(mixer.queries)):
        values = (torch.tensor(case[key][l], dtype=torch.float64) for key in ("queries", "key_weights"))
        set_read(mixer, l, *values)
    errors = [
        error(read, literal)
        for read, literal in zip(
            walk(mixer, embedding, outputs), [*case["reads"], case["output_read"]], strict=True
        )
    ]
    assert [l for l, e in enumerate(errors) if e > 1e-2] == missed, errors
    assert all(e < 1e-12 for l, e in enumerate(errors) if l not in missed), errors


@pytest.mark.parametrize(
    ("control", "case", "holds"), [(control, case, holds) for _, control, case, _, holds in CONTROLS], ids=IDS
)
def test_which_controls_start_as_prenorm(control: Control, case: dict, holds: bool) -> None:
    """As functions, at eps -> 0: equal to rounding, or off by more than a thousandth of the output."""
    toy = Toy(6, 16)
    with default_dtype(torch.float64):
        mixer = control(6, 16, block_size=case["block_size"], eps=1e-30)
        prenorm = PreNorm(6, 16)
    with torch.no_grad():
        for key, std in mixer.normal_init.items():  # as the model draws them
            parameter = mixer.get_parameter(key)
            parameter.copy_(std * normal(key, *parameter.shape))
    deviation = relative_error(toy.run(mixer), toy.run(prenorm))
    assert deviation < 1e-12 if holds else deviation > 1e-3, deviation


def test_random_queries_are_drawn_by_the_model() -> None:
    """Zero from the constructor, with the standard deviation 0.02 under their name."""
    mixer = RandomQuery(4, 8)
    assert mixer.normal_init == {"queries": 0.02}
    assert AttnRes(4, 8).normal_init == {}


def test_a_control_without_output_read_has_one_query_less_and_records_nothing_there() -> None:
    mixer = NoOutputRead(5, 4, block_size=2)
    assert mixer.queries.shape == mixer.key_gains.shape == (5, 4)
    assert mixer.num_sources(5) == 0
    recorded: list[int] = []
    mixer.tap = lambda l, weights: recorded.append(l)
    walk(mixer, normal("embedding", 2, 4).float(), [normal(f"output {l}", 2, 4).float() for l in range(5)])
    assert recorded == [0, 1, 2, 3, 4]


def test_the_zero_placeholder_takes_weight() -> None:
    """At zero queries the first read is half the embedding, since the placeholder counts as a source."""
    mixer = ZeroPartial(4, 4, block_size=2)
    assert [mixer.source_labels(l) for l in range(3)] == [
        ["b0", "zero"],
        ["b0", "partial(1)"],
        ["b0", "b1", "zero"],
    ]
    embedding = torch.tensor([[2.0, 4.0, 6.0, 8.0]])
    reads = walk(mixer, embedding, [torch.zeros_like(embedding)] * 4)
    assert reads[0].tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_running_states_need_full() -> None:
    with pytest.raises(ConfigError, match=r"arm\.mixer\.block_size"):
        Cumulative(4, 4, block_size=2)
    with pytest.raises(ConfigError, match=r"arm\.mixer\.output"):
        NoOutputRead(4, 4, output="mean")
