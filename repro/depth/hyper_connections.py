"""Manifold-constrained hyper-connections (Table 4, "mHC"), mHC-lite (Table 2), mHC with A = I (section 6.2).

The stream is n parallel streams x [n, D]. From x' = RMSNorm(vec x) each sublayer computes
    H_pre = sigmoid(a_pre x' phi_pre + b_pre)           [n]      what the sublayer reads:  H_pre x
    H_post = 2 sigmoid(a_post x' phi_post + b_post)     [n]      where its output goes
    H_res = Sinkhorn(exp(a_res x' phi_res + b_res))     [n, n]   how the streams mix
    x <- H_res x + H_post^T f(H_pre x).
The embedding is repeated into all streams; what the final norm sees is their sum.

When is this PreNorm? If all streams equal h, any H_res with unit row sums leaves them equal; if moreover
H_post = 1 in every stream, all streams become h + f; and if H_pre sums to one, the sublayer read h. So with
phi = 0, b_post = 0 and sigmoid(b_pre) summing to one, every read is PreNorm's to rounding, for any b_res, and
the last step gives n h: the same function after a final RMSNorm at eps -> 0 (exactly: with eps n^2).
The published biases are not of this kind (H_pre sums to 1.54 at n = 4, and H_post is not constant).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from repro.depth.base import tagged
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.streams import StreamMixer, check_count
from repro.errors import ConfigError
from repro.ops.sinkhorn import sinkhorn
from repro.ops.streams import normed_projection

#: b_res of the published code: off the diagonal for mHC, all permutations but the identity for mHC-lite.
OFF_IDENTITY = -8.0
#: a_pre, a_post and a_res at the start.
DYNAMIC_SCALE = 0.01


class MHC(StreamMixer):
    """n streams mixed by Sinkhorn-normalised matrices.

    streams: n.  iterations: of Sinkhorn.  init: "published" (biases of the published code: -1, and +1 at
    stream l mod n, for both H_pre and H_post) or "prenorm" (the setting above, with H_pre = (n + 1) / 2n at
    stream l mod n and 1 / 2n elsewhere, so that the streams can drift apart). Dynamic weights phi start at
    zero. At the initial biases all row and column sums are equal, so H_res is doubly stochastic after one
    iteration; elsewhere rows are, and columns as far as `iterations` brings them: `mixing_residual` says how
    far, and `python -m repro.probe matrices` records it of a run.
    Errors: ConfigError for `arm.mixer.streams`, `.iterations`, `.init`.
    """

    FACTS = SchemeFacts(
        system="HC/mHC",
        weight=DYNAMIC,
        source="m streams",
        update="H[l] = H[l-1] A[l] + f(H[l-1] a[l-1]) b[l-1]^T",
        update_tex=r"H_l = H_{l-1} A_l + f_{l-1}(H_{l-1} \alpha_{l-1}) \beta_{l-1}^\top",
        links=("arXiv:2409.19606", "arXiv:2512.24880"),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        streams: int = 4,
        iterations: int = 20,
        init: str = "published",
        **common: Any,
    ) -> None:
        super().__init__(num_sublayers, width, streams=streams, **common)
        check_count("arm.mixer.iterations", iterations)
        if init not in ("published", "prenorm"):
            raise ConfigError("arm.mixer.init", init, "must be published or prenorm")
        self.iterations = iterations
        residual = self._residual_bias()
        sizes = [size for size in (streams, streams, len(residual)) if size]
        which_scale = torch.cat([torch.full((size,), i) for i, size in enumerate(sizes)])
        self.register_buffer("which_scale", which_scale, persistent=False)
        # One projection per sublayer for all three coefficients; rows in the order pre, post, res.
        self.projection, self.bias, self.scale = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        for l in range(num_sublayers):
            bias = torch.cat((*self._gate_biases(l, init), residual))
            self.projection.append(tagged(torch.zeros(sum(sizes), streams * width), "scalar"))
            self.bias.append(tagged(bias, "scalar"))
            self.scale.append(tagged(torch.full((len(sizes),), DYNAMIC_SCALE), "scalar"))

    def _gate_biases(self, l: int, init: str) -> tuple[Tensor, Tensor]:
        """b_pre and b_post of sublayer l, [n] each."""
        n = self.streams
        if init == "published":
            bias = torch.full((n,), -1.0)
            bias[l % n] = 1.0
            return bias, bias
        shares = torch.full((n,), 0.5 / n, dtype=torch.float64)
        shares[l % n] = 0.5 * (n + 1) / n
        # One stream is read whole: sigmoid reaches 1 only at infinity, 40 is 1 in every dtype.
        pre = torch.logit(shares) if n > 1 else torch.full((1,), 40.0)
        return pre.to(torch.get_default_dtype()), torch.zeros(n)

    def _residual_bias(self) -> Tensor:
        """b_res, [n * n], row by row."""
        return (OFF_IDENTITY * (1 - torch.eye(self.streams))).flatten()

    def _residual_matrix(self, logits: Tensor) -> Tensor | None:
        """H_res, [n, n, tokens], from its logits, [n * n, tokens]; None where it is the identity."""
        return sinkhorn(logits.view(self.streams, self.streams, -1), self.iterations)

    def coefficients(self, streams: Tensor, l: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """H_pre and H_post [n, tokens] and H_res [n, n, tokens] of sublayer l; streams [tokens, n, D]."""
        n, dtype = self.streams, streams.dtype
        dynamic = normed_projection(streams, self.projection[l].to(dtype), self.eps)
        scale = self.scale[l].to(dtype)[self.which_scale]
        logits = torch.addcmul(self.bias[l].to(dtype)[:, None], scale[:, None], dynamic)
        pre, post, residual = logits.split((n, n, logits.shape[0] - 2 * n))
        mixing = self._residual_matrix(residual)
        held = None if mixing is None else self.held(mixing)
        return self.held(pre.sigmoid()), self.held(2 * post.sigmoid()), held

    def flops_per_token(self) -> float:
        n, width = self.streams, self.width
        num_coefficients = self.bias[0].numel()
        per_element = n * (2 * num_coefficients + 2 + 2 + 2)  # project, norm, pre, post
        per_sublayer = width * (per_element + self._mixing_flops()) + self._residual_flops()
        return float(self.num_sublayers * per_sublayer + n * width)

    def _mixing_flops(self) -> int:
        """Per channel, H_res x."""
        return 2 * self.streams**2

    def _residual_flops(self) -> int:
        """Of making H_res."""
        return 2 * self.iterations * 2 * self.streams**2


class MHCLite(MHC):
    """mHC-lite: H_res is a convex combination of all n! permutation matrices P_k.

    H_res = sum_k a_k P_k with a = softmax(a_res x' phi_res + b_res) in R^{n!}: doubly stochastic to
    rounding, without Sinkhorn. Options as in `MHC`, without `iterations`; at most 5 streams (120 weights).
    """

    permutations: Tensor

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        eps: float = 1e-8,
        execution: str = "auto",
        backend: str = "auto",
        streams: int = 4,
        init: str = "published",
    ) -> None:
        check_count("arm.mixer.streams", streams, most=5)
        super().__init__(
            num_sublayers, width, eps=eps, execution=execution, backend=backend, streams=streams, init=init
        )
        permutations = torch.eye(streams)[torch.tensor(list(itertools.permutations(range(streams))))]
        self.register_buffer("permutations", permutations.flatten(1).T.contiguous(), persistent=False)

    def _residual_bias(self) -> Tensor:
        bias = torch.full((math.factorial(self.streams),), OFF_IDENTITY)
        bias[0] = 0.0  # itertools lists the identity first
        return bias

    def _residual_matrix(self, logits: Tensor) -> Tensor:
        mixed = self.permutations.to(logits.dtype) @ logits.softmax(0)
        return mixed.view(self.streams, self.streams, -1)

    def _residual_flops(self) -> int:
        return 2 * self.permutations.numel()


class MHCIdentity(MHC):
    """mHC with A = I: streams are never mixed, and differ only by what is written into them.

    Section 6.2 cites a report that this stays competitive. H_pre, H_post and the start are those of `MHC`;
    there is no b_res, phi_res or a_res. With one stream it is a gated PreNorm,
    x <- x + 2 sigmoid(.) f(sigmoid(.) x).
    """

    FACTS = SchemeFacts(
        system="mHC (A = I)",
        weight=DYNAMIC,
        source="m streams",
        update="H[l] = H[l-1] + f(H[l-1] a[l-1]) b[l-1]^T",
        update_tex=r"H_l = H_{l-1} + f_{l-1}(H_{l-1} \alpha_{l-1}) \beta_{l-1}^\top",
        links=("arXiv:2603.15031", "arXiv:2512.24880"),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        eps: float = 1e-8,
        execution: str = "auto",
        backend: str = "auto",
        streams: int = 4,
        init: str = "published",
    ) -> None:
        super().__init__(
            num_sublayers, width, eps=eps, execution=execution, backend=backend, streams=streams, init=init
        )

    def _residual_bias(self) -> Tensor:
        return torch.empty(0)

    def _residual_matrix(self, logits: Tensor) -> None:
        return None

    def _mixing_flops(self) -> int:
        return 0

    def _residual_flops(self) -> int:
        return 0
