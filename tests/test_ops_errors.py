"""What a bad call of an operation says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from repro import ops

X = torch.zeros(2, 4)
Q = torch.zeros(4)
L = torch.zeros(2, 1, 1)
PRIOR = ops.History(X, torch.zeros(2, 1), torch.zeros(2, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.depth_mix([], Q), "non-empty list"),
        (lambda: ops.depth_mix(X, Q), "non-empty list"),
        (lambda: ops.depth_mix([torch.tensor(1.0)], Q), r"\[..., D\]"),
        (lambda: ops.depth_mix([X, torch.zeros(3, 4)], Q), "one shape"),
        (lambda: ops.depth_mix([X, X.double()], Q), "one dtype"),
        (lambda: ops.depth_mix([X.int()], Q), "floating point"),
        (lambda: ops.depth_mix([X, X.to("meta")], Q), "one device"),
        (lambda: ops.depth_mix([X], Q.to("meta")), "query is on meta"),
        (lambda: ops.depth_mix([X], torch.zeros(5)), "query must have shape"),
        (lambda: ops.depth_mix([X], Q.int()), "query must be floating point"),
        (lambda: ops.depth_mix([X], Q, key_weight=torch.zeros(2, 4)), "key_weight must have shape"),
        (lambda: ops.depth_mix([X], Q, heads=3), "heads must divide the width 4"),
        (lambda: ops.depth_mix([X], Q, heads=0), "heads must divide the width 4"),
        (lambda: ops.depth_mix([X], Q, act="relu"), "'relu' is not one of softmax"),
        (lambda: ops.depth_mix([X], Q, eps=-1.0), "eps must be at least 0"),
        (
            lambda: ops.depth_mix([X], Q, backend="cuda"),
            "backend 'cuda' is not one of auto, reference, eager, native, triton, fla, liger",
        ),
        (lambda: ops.attend_with_stats([X], Q), "queries must have shape"),
        (lambda: ops.attend_with_stats([X], Q[None], key_weight=Q), "key_weight must have shape"),
        (lambda: ops.score(X, torch.zeros(2, 3)), "queries must have shape"),
        (lambda: ops.mix([X], []), "as many logits as sources"),
        (lambda: ops.mix([X], [torch.zeros(3, 1, 1)]), "equal leading axes"),
        (lambda: ops.mix([X], [torch.zeros(2, 1, 3)]), "heads must divide"),
        (
            lambda: ops.mix([X], [torch.zeros(2, 1, 1)], act="relu"),
            "not one of softmax, sigmoid, linear",
        ),
        (lambda: ops.mix([], []), "non-empty list"),
        (lambda: ops.mix([X.int()], [L]), "floating point"),
        (lambda: ops.mix([X], [L.int()]), "logits must be floating point"),
        (lambda: ops.mix([X], [L], continued=[True, False]), "yes or no for each of 1 reads"),
        (lambda: ops.mix([X], [L], [PRIOR, PRIOR]), "one per read"),
        (lambda: ops.mix([X], [L], [PRIOR._replace(message=None)]), "with True for its read"),
        (lambda: ops.mix([X], [L], [PRIOR._replace(mixed=X[:1])]), "prior.mixed must have shape"),
        (lambda: ops.mix([X], [L], [PRIOR._replace(lse=L)]), "prior.lse must have shape"),
        (lambda: ops.merge(PRIOR, None, X, torch.zeros(3)), "query must have shape"),
        (lambda: ops.merge(PRIOR, X[:1], X, Q), "one shape"),
        (lambda: ops.merge(PRIOR, None, X, Q, act="linear"), "not one of softmax, sigmoid"),
        (lambda: ops.score(X, Q[None], ops.Norm(heads=4, groups=2)), "groups must be 0, 1 or the 4 heads"),
        (
            lambda: ops.merge_stats(
                ops.attend_with_stats([X], Q[None]), ops.attend_with_stats([X], torch.zeros(2, 4))
            ),
            "statistics differ in the shape of o",
        ),
    ],
)
def test_a_bad_call_says_why_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_inference_mode_cannot_give_a_gradient() -> None:
    source = X.clone().requires_grad_()
    with torch.inference_mode():
        for call in (lambda: ops.depth_mix([X, source], Q), lambda: ops.score(source, Q[None])):
            with pytest.raises(ValueError, match=r"source \d requires a gradient, which inference mode"):
                call()
        ops.depth_mix([X, X], Q)
