"""Relatives of AttnRes whose weights are sparse over depth: top-k, sparsemax and 1.5-entmax.

All start as AttnRes does: at zero queries the logits tie, and every source has the same weight. Each token
has weights of its own, zeros included, so a read computes all of its products. What that costs beside
AttnRes is the selection (a sort over few sources per token) and no mixing ahead.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from repro.depth.boundaries import is_whole
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.logit_reads import WeighedReads
from repro.errors import ConfigError
from repro.ops.sparse import entmax15, sparsemax

SOURCE = "[h[1]..h[l-1]]"


class TopK(WeighedReads):
    """Softmax over the top_k largest logits of each token (and head); the other sources have weight zero.

    Sources that tie with the last one chosen are kept, so that no order among sources matters and zero
    queries give the mean of all of them. Reads with fewer sources keep all; a top_k that no read reaches
    would be AttnRes under another name, and is an error, as is 1, under which no query has a gradient.
    """

    FACTS = SchemeFacts(
        system="AttnRes, top-k",
        weight=DYNAMIC,
        source=SOURCE,
        update="h[l] ~ sum_(i in top-k) phi(w[l],k[i]) v[i]",
        update_tex=r"h_l \propto \sum_{i \in \mathrm{top}\,k} \phi(w_l, k_i) v_i",
    )

    def __init__(self, num_sublayers: int, width: int, *, top_k: int, **options: Any) -> None:
        super().__init__(num_sublayers, width, **options)
        self._require_logits()
        most = max(self.num_sources(l) for l in range(num_sublayers + 1))
        if not is_whole(top_k, 2, most):
            allowed = f"a whole number from 2 to {most}, the most sources that a read sees"
            raise ConfigError("arm.mixer.top_k", top_k, allowed)
        self.top_k = top_k

    def weigh(self, logits: Tensor) -> Tensor:
        if len(logits) > self.top_k:
            last = logits.detach().topk(self.top_k, 0).values[-1:]
            logits = logits.masked_fill(logits < last, float("-inf"))
        return logits.softmax(0)


class Sparsemax(WeighedReads):
    """Weights are the Euclidean projection of the logits onto the simplex; many are exactly zero.

    At zero queries a query's gradient is n times that of AttnRes (n sources of the read): the Jacobian at
    equal logits is I - 11^T/n, that of the softmax 1/n of it.
    """

    FACTS = SchemeFacts(
        system="AttnRes, sparsemax",
        weight=DYNAMIC,
        source=SOURCE,
        update="h[l] = sum_i a[i,l] v[i], a[.,l] = sparsemax_i(w[l] . k[i])",
        update_tex=r"h_l = \sum_{i<l} \mathrm{sparsemax}_i(w_l^\top k_i) v_i",
        links=("arXiv:1602.02068",),
    )

    def __init__(self, num_sublayers: int, width: int, **options: Any) -> None:
        super().__init__(num_sublayers, width, **options)
        self._require_logits()

    def weigh(self, logits: Tensor) -> Tensor:
        return sparsemax(logits)


class Entmax(WeighedReads):
    """Weights are the 1.5-entmax of the logits, between softmax and sparsemax; some are exactly zero.

    At zero queries a query's gradient is sqrt(n) times that of AttnRes (n sources of the read).
    """

    FACTS = SchemeFacts(
        system="AttnRes, entmax",
        weight=DYNAMIC,
        source=SOURCE,
        update="h[l] = sum_i a[i,l] v[i], a[.,l] = entmax15_i(w[l] . k[i])",
        update_tex=r"h_l = \sum_{i<l} \mathrm{entmax}_{1.5,i}(w_l^\top k_i) v_i",
        links=("arXiv:1905.05702",),
    )

    def __init__(self, num_sublayers: int, width: int, **options: Any) -> None:
        super().__init__(num_sublayers, width, **options)
        self._require_logits()

    def weigh(self, logits: Tensor) -> Tensor:
        return entmax15(logits)
