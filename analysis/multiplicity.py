"""Several contrasts in one table: Holm's step-down correction.

Among ten true null hypotheses one is rejected at 5 % in two tables of five. Holm's adjusted p-values hold the
chance of any false rejection in the table at the level, under any dependence (the rows share PreNorm's runs),
and reject whatever Bonferroni's reject and more. The rows of one table against one kind of reference
(PreNorm, or the arm each is a variant of) are one family.

Adjusted p-values stand beside the unadjusted intervals and verdicts; the verdicts are not adjusted. A verdict
answers whether one sentence of the paper, stated before our runs, repeats here; each row has its own
sentence, and a reader who picks the best row out of a table is the one who needs the correction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def holm(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Adjusted p-values, in the order given: running maximum of (m - rank + 1) p, at most 1 (Holm 1979)."""
    p = np.asarray(p_values, np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values must be a list of numbers from 0 to 1, got {p_values!r}")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate((p.size - np.arange(p.size)) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
