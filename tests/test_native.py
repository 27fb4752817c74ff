"""The C of `repro/ops/native`: values and gradients of any cut, what it leaves to eager, and its making."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from repro import ops
from repro.ops import eager_phases, native
from repro.ops.native import build
from tests.cuts import Cut, Node, by_definition, by_phases, cuts, with_gradients
from tests.toy import error, normal

needs_compiler = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))
#: A read that ends, two that merge, at two levels, all on partial sums.
MERGES = Cut(
    Node((0, 3), {0: "ends", 1: "merges", 2: "goes on"}, (Node((3, 9), {2: "merges"}),)),
    addends=frozenset({2}),
    partials=frozenset({1, 2}),
)


def wide(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}


def computed_here(cut: Cut, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """By C alone: what it leaves to eager fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("left to eager")

    names = [name for name in eager_phases.__all__ if name != "DELTA_FROM_READ"]
    with patch.multiple(eager_phases, **dict.fromkeys(names, refuse)):
        return with_gradients(cut, by_phases(cut, leaves, "native"), leaves)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        size = max(value.abs().max().item(), 1.0 if name == "gradient of queries" else 1e-3)
        assert (found[name] - value).abs().max().item() <= tolerance * size, name


@needs_compiler
@settings(max_examples=80, deadline=None)
@given(
    cut=cuts().filter(lambda cut: cut.heads == 1),
    leading=st.sampled_from([(), (3,), (2, 3), (600,)]),
    width=st.sampled_from([1, 2, 15, 16, 17, 33, 64, 79, 144]),
    sharpness=st.sampled_from([0.0, 0.3]),
)
def test_any_cut_is_the_whole_read(cut: Cut, leading: tuple[int, ...], width: int, sharpness: float) -> None:
    leaves = cut.leaves(width, leading, torch.float32, sharpness)
    exact = wide(leaves)
    assert_close(computed_here(cut, leaves), with_gradients(cut, by_definition(cut, exact), exact), 1e-5)


@needs_compiler
def test_threads_change_the_order_of_sums_only(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = MERGES.leaves(64, (7, 173), torch.float32, 0.3)  # more than one thread's worth, not a multiple
    exact = wide(leaves)
    expected = with_gradients(MERGES, by_definition(MERGES, exact), exact)
    before, found = torch.get_num_threads(), {}
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found[threads] = computed_here(MERGES, leaves)
            again = computed_here(MERGES, leaves)
            assert all(torch.equal(found[threads][name], again[name]) for name in again)
            assert_close(found[threads], expected, 1e-5)
    finally:
        torch.set_num_threads(before)
    per_token = [name for name in found[1] if name != "gradient of queries"]
    assert all(torch.equal(found[1][name], found[5][name]) for name in per_token)


@needs_compiler
def test_extreme_logits_have_exact_weights() -> None:
    a, b = normal("a", 5, 32, dtype=torch.float32), normal("b", 5, 32, dtype=torch.float32)
    logits = [torch.full((5, 3, 1), 0.0), torch.tensor([200.0, -200.0, 0.0]).view(1, 3, 1).expand(5, 3, 1)]
    (first, second, third), _ = ops.mix([a, b], logits, backend="native")
    assert torch.equal(first.mixed, b)
    assert torch.equal(second.mixed, a)
    assert torch.allclose(third.mixed, (a + b) / 2, rtol=1e-6, atol=0)
    assert first.lse.unique().item() == 200.0
    assert second.lse.unique().item() == 0.0
    assert third.lse.unique().item() == pytest.approx(0.6931472, rel=1e-7)
    for query, weight in ((1e4, 1.0), (-1e4, 0.0), (0.0, 0.5)):
        (prior,), _ = ops.mix([a], [logits[0][:, :1]], continued=[True], backend="native")
        ones = torch.ones(5, 32)
        read, _ = ops.merge(prior, None, ones, torch.full((32,), query / 32), backend="native")
        assert torch.allclose(read, a + weight * (ones - a), rtol=1e-6, atol=1e-7)


@needs_compiler
def test_a_number_that_is_not_one_stays_so() -> None:
    a, b = torch.ones(4, 16), torch.ones(4, 16)
    a[2, 3] = float("nan")
    (z, _), (w, _) = (ops.score(x, torch.ones(1, 16), backend="native") for x in (a, b))
    (history,), _ = ops.mix([a, b], [z, w], backend="native")
    assert history.mixed.isnan().any(-1).tolist() == [False, False, True, False]


@needs_compiler
def test_strides_do_not_matter() -> None:
    leaves = MERGES.leaves(48, (4, 6), torch.float32, 0.3)
    turned = {}
    for name, leaf in leaves.items():
        moved = (
            leaf.detach().transpose(0, 1).contiguous().transpose(0, 1) if leaf.dim() > 2 else leaf.detach()
        )
        turned[name] = moved.requires_grad_()
    assert any(not leaf.is_contiguous() for leaf in turned.values())
    plain, other = computed_here(MERGES, leaves), computed_here(MERGES, turned)
    assert all(torch.equal(plain[name], other[name]) for name in plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_are_left_to_eager(dtype: torch.dtype) -> None:
    leaves = MERGES.leaves(16, (3,), dtype, 0.3)
    one, other = (
        with_gradients(MERGES, by_phases(MERGES, leaves, backend), leaves) for backend in ("native", "eager")
    )
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_without_a_compiler_auto_is_eager(tmp_path: Path) -> None:
    """In a process of its own: whether there is a library is asked once."""
    code = (
        "from repro import ops; print(ops.pick('auto', 'cpu'));\n"
        "try: ops.pick('native', 'cpu')\n"
        "except ValueError as error: print(error)"
    )
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'x.c:1: error: no such processor' >&2; exit 1\n")
    broken.chmod(0o755)
    for compiler, reason in (
        ("not-a-compiler", "a C compiler (cc, or the one that CC names), and none was found"),
        (str(broken), "cannot compile it (x.c:1: error: no such processor)"),
    ):
        environment = {**os.environ, "CC": compiler, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        out = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert out[0] == "eager"
        assert out[1].startswith("backend 'native' cannot run here: ")
        assert reason in out[1]
    assert list((tmp_path / "cache" / "attnres-repro").iterdir()) == []


@needs_compiler
def test_a_library_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build._load()
    (made,) = (tmp_path / "attnres-repro").iterdir()
    stamp = made.stat().st_mtime_ns
    build._load()
    assert made.stat().st_mtime_ns == stamp
    damaged = tmp_path / "other" / "attnres-repro" / made.name
    damaged.parent.mkdir(mode=0o700, parents=True)
    damaged.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    build._load()
    assert damaged.stat().st_size > 1000
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    build._load()
    assert len(list(damaged.parent.iterdir())) == 2


@needs_compiler
def test_a_folder_that_others_may_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "attnres-repro").mkdir()
    (tmp_path / "attnres-repro").chmod(0o777)
    build._load()
    assert list((tmp_path / "attnres-repro").iterdir()) == []
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing/can/be/made/here")
    build._load()


@needs_compiler
def test_what_is_not_plain_memory_is_left_to_eager() -> None:
    source, query = normal("source", 6, 16, dtype=torch.float32), normal("q", 3, 16, dtype=torch.float32)

    def scored(source: Tensor, backend: str = "native") -> Tensor:
        return ops.score(source, query, backend=backend)[0]

    assert error(scored(torch._neg_view(source)), scored(-source, "eager")) < 1e-6
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert scored(torch.empty(6, 16)).shape == (6, 3, 1)
    replayed = make_fx(lambda x: scored(x))(source)
    other = normal("other", 6, 16, dtype=torch.float32)
    assert error(replayed(other), scored(other, "eager")) < 1e-6
    leaf = source.clone().requires_grad_()
    grads = torch.autograd.grad(scored(leaf), leaf, torch.eye(18).view(18, 6, 3, 1), is_grads_batched=True)
    assert grads[0].shape == (18, 6, 16)
    compiled = torch.compile(scored, backend="eager", fullgraph=True)
    assert error(compiled(source), scored(source, "eager")) < 1e-6


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_prior_of_other_heads_is_refused(backend: str) -> None:
    if backend == "native" and native.unavailable() is not None:
        pytest.skip(str(native.unavailable()))
    (prior,), _ = ops.mix([torch.zeros(3, 4)], [torch.zeros(3, 1, 2)], continued=[True], backend=backend)
    with pytest.raises(ValueError, match=r"prior.lse must have shape \(3, 1\), got \(3, 2\)"):
        ops.merge(prior, None, torch.ones(3, 4), torch.ones(4), backend=backend)


def test_native_is_for_cpus_and_not_for_compiled_steps() -> None:
    with pytest.raises(ValueError, match="backend 'native' computes on CPU, not on cuda"):
        ops.pick("native", "cuda")
    assert ops.pick("auto", "cpu", compiled=True) == "eager"
    assert ops.pick("auto", "cpu") == ("native" if native.unavailable() is None else "eager")


@needs_compiler
def test_gradients_flow_where_some_outputs_are_not_used() -> None:
    lost = Cut(MERGES.root, addends=MERGES.addends, partials=MERGES.partials, lost=frozenset({"read 1"}))
    leaves = lost.leaves(24, (5,), torch.float32, 0.3)
    exact = wide(leaves)
    assert_close(computed_here(lost, leaves), with_gradients(lost, by_definition(lost, exact), exact), 1e-5)
