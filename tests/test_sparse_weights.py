"""Sparsemax and 1.5-entmax against bisection for the threshold, closed forms and finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from repro.ops.sparse import entmax15, sparsemax
from tests.toy import normal

FUNCTIONS = pytest.mark.parametrize(("function", "alpha"), [(sparsemax, 2.0), (entmax15, 1.5)])
Weights = Callable[[Tensor], Tensor]


def by_bisection(z: Tensor, alpha: float) -> Tensor:
    """p_i = [(alpha - 1) z_i - tau]_+^(1 / (alpha - 1)) with tau halved in until the sum is one; no sort.

    The sum falls in tau; it is at least 1 at max - 1 (the largest entry alone gives 1) and 0 at max.
    """
    z = (alpha - 1) * z
    high = z.amax(0, keepdim=True)
    low = high - 1
    for _ in range(200):
        middle = (low + high) / 2
        too_much = (z - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(0, keepdim=True) >= 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return (z - low).clamp(min=0).pow(1 / (alpha - 1))


@FUNCTIONS
@pytest.mark.parametrize("size", [1, 2, 3, 9, 33])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_against_bisection(function: Weights, alpha: float, size: int, scale: float) -> None:
    z = scale * normal(f"z {size}", size, 40, 2) + 100.0  # a common shift changes nothing
    p = function(z)
    assert (p - by_bisection(z, alpha)).abs().max() < 1e-12
    assert (p.sum(0) - 1).abs().max() < 1e-12
    assert (p >= 0).all()


@FUNCTIONS
def test_exact_zeros(function: Weights, alpha: float) -> None:
    """What lies 1 / (alpha - 1) or more below the largest is at most the threshold whatever else there is."""
    z = 2 * normal("z", 20, 50)
    p = function(z)
    far = z <= z.amax(0) - 1 / (alpha - 1)
    assert far.any()
    assert (p[far] == 0).all()
    assert (p[z == z.amax(0)] > 0).all()
    assert (z.softmax(0) > 0).all()


def test_literals() -> None:
    """Three entries by hand: support of two with tau = 1/4, of one, and all three with tau = -1/3."""
    z = torch.tensor([[1.0, 0.5, -1.0], [2.0, 0.0, 1.0], [0.1, -0.1, 0.0]], dtype=torch.float64).T
    rows = [[0.75, 0.25, 0.0], [1.0, 0.0, 0.0], [13 / 30, 7 / 30, 1 / 3]]
    assert (sparsemax(z) - torch.tensor(rows, dtype=torch.float64).T).abs().max() < 1e-15
    # x - y = t / 2 and x^2 + y^2 = 1 for roots x, y of the weights: t = 1.2 gives x = (0.6 + sqrt(1.64)) / 2.
    x = (0.6 + 1.64**0.5) / 2
    found = entmax15(torch.tensor([1.2, 0.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([x**2, 1 - x**2], abs=1e-15)
    assert entmax15(torch.tensor([2.0, 0.0])).tolist() == [1.0, 0.0]  # the gap at which the second is lost


@pytest.mark.parametrize("t", [-3.0, -0.7, 0.0, 0.4, 1.0, 2.5])
def test_two_entries(t: float) -> None:
    z = torch.tensor([t, 0.0], dtype=torch.float64)
    assert sparsemax(z)[0].item() == pytest.approx(min(max((1 + t) / 2, 0.0), 1.0), abs=1e-15)
    d = min(max(t / 2, -1.0), 1.0)
    assert entmax15(z)[0].item() == pytest.approx(((d + (2 - d * d) ** 0.5) / 2) ** 2, abs=1e-15)


@FUNCTIONS
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_gradcheck(function: Weights, alpha: float, scale: float) -> None:
    z = (scale * normal("z", 7, 3, 2)).requires_grad_()
    assert torch.autograd.gradcheck(function, (z,))


@FUNCTIONS
def test_jacobian_at_equal_entries(function: Weights, alpha: float) -> None:
    """s_i = p_i^(2 - alpha) = n^(alpha - 2), so n^(alpha - 2) (I - 11^T / n); softmax has 1 / n in front."""
    n = 9
    z = torch.full((n,), 0.3, dtype=torch.float64)
    assert (function(z) - 1 / n).abs().max() < 1e-15
    found = torch.autograd.functional.jacobian(function, z)
    expected = n ** (alpha - 2) * (torch.eye(n).double() - 1 / n)
    assert (found - expected).abs().max() < 1e-14


@FUNCTIONS
def test_order_of_entries_does_not_matter(function: Weights, alpha: float) -> None:
    z = normal("z", 12, 8)
    order = normal("order", 12).argsort()
    assert (function(z[order]) - function(z)[order]).abs().max() < 1e-15


@FUNCTIONS
def test_float32(function: Weights, alpha: float) -> None:
    """As good as its inputs: the sum to 1e-6, entries to 1e-6, with logits far apart and close together."""
    for scale in (1e-3, 1.0, 1e3):
        z = scale * normal("z", 33, 100)
        p = function(z.float())
        assert p.dtype == torch.float32
        assert (p.sum(0) - 1).abs().max() < 2e-6
        assert (p - function(z.float().double())).abs().max() < 2e-6


@FUNCTIONS
def test_what_it_cannot_take_is_refused(function: Weights, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"\[S, \.\.\.\]"):
        function(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="floating point"):
        function(torch.zeros(3, dtype=torch.int64))
