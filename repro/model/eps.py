"""The eps of each norm divided by the squared number of sources of its read (`model.eps_by_sources`).

The mean of n sources through RMSNorm with eps / n^2 is their sum through RMSNorm with eps: both equal
sum / sqrt(mean(sum^2) + eps). With this option an AttnRes of zero queries is PreNorm as a function, whatever
eps is; `repro.convert` starts one from trained weights with it. The key norm keeps its eps, since no weight
depends on it at zero queries.
"""

from __future__ import annotations

from repro.model.decoder import Decoder
from repro.model.norm import RMSNorm


def divide_by_sources(decoder: Decoder) -> None:
    """Set the eps of all sublayer norms and of the final norm, in place; read L is the final norm's."""
    norms = [sublayer.norm for sublayer in decoder.sublayers]
    for l, norm in enumerate([*norms, decoder.final_norm]):
        if isinstance(norm, RMSNorm):
            norm.eps /= num_sources(decoder, l) ** 2


def num_sources(decoder: Decoder, l: int) -> int:
    """Sources that read l averages; 1 for a scheme without depth weights, which reads a sum."""
    return max(1, decoder.mixer.num_sources(l))


def norm_eps(decoder: Decoder) -> list[float]:
    """eps of the norm behind each read, the final norm last; those of one that is no RMSNorm left out."""
    norms = [*(sublayer.norm for sublayer in decoder.sublayers), decoder.final_norm]
    return [norm.eps for norm in norms if isinstance(norm, RMSNorm)]
