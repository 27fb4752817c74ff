"""Hyper-Connections (Table 5, "HC"): n parallel streams whose connections are free, learned numbers.

The constrained kinds (mHC) are in `hyper_connections`.

With x [n, D] the streams of a token (rows), sublayer l has alpha_l [n], beta_l [n] and A_l [n, n] (all three
in the columns-as-streams letters of Table 5) and does
    reads  h = alpha_l^T x        x <- A_l^T x + beta_l f(h)^T.
Static: the three are parameters, beta = 1, alpha = e_{l mod n}, A = I at the start. Dynamic: to the same
numbers is added what each stream asks for,
    alpha + s_a tanh(x' w_a),   A + s_a tanh(x' W_A),   beta + s_b tanh(x' w_b),
x' = RMSNorm(x_m) of each stream, w [D] and W_A [D, n], zero at the start, s_a = s_b = 0.01. The published
norm has a gain; here it has none, since the projections that follow hold it.

At the start this is PreNorm: streams that are equal to h stay equal under A = I and become h + f(h) under
beta = 1, and e_{l mod n} reads one of them. So every read is PreNorm's exactly, and the last step gives n h:
the same function after a final RMSNorm at eps -> 0 (exactly: with eps n^2). The columns of A get different
gradients from the first step on, since one stream alone is read next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from repro.depth.base import tagged
from repro.depth.facts import DYNAMIC, STATIC, SchemeFacts
from repro.depth.streams import StreamMixer
from repro.errors import ConfigError
from repro.ops.streams import normed_projection

#: s_a and s_b at the start.
DYNAMIC_SCALE = 0.01


class HyperConnections(StreamMixer):
    """n streams with unconstrained connections.

    streams: n.  dynamic: whether connections also depend on the streams (else they are parameters alone).
    Parameters per sublayer: `static` [n + 2, n], rows alpha, beta and the n columns of A; if dynamic also
    `projection` [n + 2, D] in the same order, and `scale` (s_a, s_b).
    Errors: ConfigError for `arm.mixer.streams`, `.dynamic`.
    """

    FACTS = SchemeFacts(
        system="HC/mHC",
        weight=DYNAMIC,
        source="m streams",
        update="H[l] = H[l-1] A[l] + f(H[l-1] a[l-1]) b[l-1]^T",
        update_tex=r"H_l = H_{l-1} A_l + f_{l-1}(H_{l-1} \alpha_{l-1}) \beta_{l-1}^\top",
        links=("arXiv:2409.19606",),
    )
    which_scale: Tensor

    def __init__(
        self, num_sublayers: int, width: int, *, streams: int = 4, dynamic: bool = True, **common: Any
    ) -> None:
        super().__init__(num_sublayers, width, streams=streams, **common)
        if not isinstance(dynamic, bool):
            raise ConfigError("arm.mixer.dynamic", dynamic, "must be true or false")
        self.per_token = dynamic
        self.static = nn.ParameterList()
        for l in range(num_sublayers):
            read = torch.eye(streams)[l % streams]
            start = torch.cat((read[None], torch.ones(1, streams), torch.eye(streams)))
            self.static.append(tagged(start, "scalar"))
        if dynamic:
            which = torch.zeros(streams + 2, dtype=torch.long)
            which[1] = 1  # the row of beta
            self.register_buffer("which_scale", which, persistent=False)
            self.projection, self.scale = nn.ParameterList(), nn.ParameterList()
            for _ in range(num_sublayers):
                self.projection.append(tagged(torch.zeros(streams + 2, width), "scalar"))
                self.scale.append(tagged(torch.full((2,), DYNAMIC_SCALE), "scalar"))

    def coefficients(self, streams: Tensor, l: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens, n, _ = streams.shape
        connections = self.static[l].to(streams.dtype)[:, None]  # [n + 2, 1, n]
        if self.per_token:
            # One product for all streams: each is a row of its own.
            asked = normed_projection(
                streams.view(tokens * n, 1, -1), self.projection[l].to(streams.dtype), self.eps
            )
            scale = self.scale[l].to(streams.dtype)[self.which_scale]
            connections = torch.addcmul(
                connections, scale[:, None, None], asked.tanh().view(n + 2, tokens, n)
            )
            connections = self.held(connections)
        else:
            connections = connections.expand(-1, tokens, -1)
        alpha, beta, columns = connections.split((1, 1, n))
        return alpha[0].T, beta[0].T, columns.transpose(1, 2)

    def facts(self) -> SchemeFacts:
        return self.FACTS if self.per_token else replace(self.FACTS, system="HC (static)", weight=STATIC)

    def flops_per_token(self) -> float:
        n = self.streams
        per_channel = 2 * n + 2 * n**2 + 2 * n  # read, mix, write
        if self.per_token:
            per_channel += n * (2 * (n + 2) + 2)  # project, norm
        return float(self.width * (self.num_sublayers * per_channel + n))
