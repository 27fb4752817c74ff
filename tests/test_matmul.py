"""Matrix products by oneDNN where it is the faster library, held to torch's own."""

from __future__ import annotations

import pytest
import torch

from repro.ops import matmul
from tests.toy import close, normal


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(matmul, "matmul_library", lambda: "onednn")


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("shape", [(6, 5, 3), (1, 1, 1), (7, 2, 64), (33, 300, 17)])
def test_values_and_gradients_are_those_of_torch(shape: tuple[int, int, int]) -> None:
    tokens, inner, out = shape
    x, weight = normal("x", tokens, inner), normal("w", out, inner)
    upstream = normal("g", tokens, out)
    wide = [t.clone().requires_grad_() for t in (x, weight)]
    expected = torch.autograd.grad(torch.nn.functional.linear(*wide), wide, upstream)
    narrow = [t.float().requires_grad_() for t in (x.view(1, tokens, inner), weight)]
    found = matmul.linear(*narrow)
    assert found.shape == (1, tokens, out)
    assert "_Linear" in type(found.grad_fn).__name__
    assert close(found.double()[0], x @ weight.T, 1e-5)
    grads = torch.autograd.grad(found, narrow, upstream.float()[None])
    assert close(grads[0].double()[0], expected[0], 1e-5)
    assert close(grads[1].double(), expected[1], 1e-5)
    assert grads[1].shape == weight.shape


@pytest.mark.usefixtures("onednn")
def test_products_of_strided_matrices() -> None:
    a, b = normal("a", 12, 9), normal("b", 10, 18)[:, ::2]
    assert close(matmul.product(a.float(), b.float()).double(), a @ b.T, 1e-5)
    assert close(
        matmul.product(a.T.float(), normal("c", 5, 12).float()).double(), a.T @ normal("c", 5, 12).T, 1e-5
    )
    for x, y in ((a, normal("d", 12, 4)), (normal("d", 12, 4), a)):
        assert close(matmul.transposed_product(x.float(), y.float()).double(), x.T @ y, 1e-5)


@pytest.mark.usefixtures("onednn")
def test_what_is_not_float32_on_a_cpu_goes_to_torch() -> None:
    x, weight = normal("x", 4, 3).requires_grad_(), normal("w", 2, 3)
    assert "_Linear" not in type(matmul.linear(x, weight).grad_fn).__name__  # float64
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul.linear(x.float(), weight.float()).dtype == torch.bfloat16
    empty = matmul.linear(torch.zeros(0, 3), torch.zeros(2, 3))
    assert empty.shape == (0, 2)


def test_the_library_depends_on_the_processor_alone() -> None:
    assert matmul.matmul_library() in ("onednn", "torch")
    assert matmul.matmul_library() == matmul.matmul_library.__wrapped__()
