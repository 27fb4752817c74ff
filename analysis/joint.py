"""The interval of a loss difference over seeds and validation documents jointly: other seeds, other text.

The t interval over seeds speaks of the one validation set that all runs share. This one also asks how far the
difference would move on other documents. Seeds and documents are crossed: every seed is evaluated on the same
documents, so with a_s the effect of the seed, b_j that of the document and c_sj their interaction,

    variance of the mean = var(a) / n  +  var(b) / m  +  var(c) / (n m)

for n seeds and m equal documents. The spread of the seeds' pooled differences estimates the first and the
third term together, the jackknife over documents of the mean over seeds the second and the third; the third,
estimated from what is left without both effects, is taken off once. The documents have their effective number
less one as degrees of freedom, since a few long ones count for more than many short ones.

The critical value of a sum of two estimated variances has no closed form (Behrens and Fisher's problem). Two
approximations err on opposite sides where seeds are few and the documents' part is small but not nothing: at
3 seeds Welch and Satterthwaite's t covers 92.8 to 95 %, Cochran and Cox's weighted mean of both t values 95.3
to 97.1 %. Their mean is used; it covers 93 to 97 % at 3, 5 and 10 seeds (tests/test_calibration.py), which a
hierarchical bootstrap does not at few seeds (``analysis.bootstrap``). With one seed there is nothing to say
about seeds: a ``ValueError``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from analysis.bootstrap import LEVEL, effective_documents
from analysis.stats import Interval

KIND = "seeds and documents"


@dataclass(frozen=True)
class Components:
    """Variances of the mean difference (nats per token, squared): over seeds, over documents, and of both.

    seeds: var(a) / n + var(c) / (n m); documents: var(b) / m, at least zero; interaction: var(c) / (n m).
    """

    estimate: float
    seeds: float
    documents: float
    interaction: float
    seed_freedom: float
    document_freedom: float

    @property
    def variance(self) -> float:
        """Of the mean over seeds and documents."""
        return self.seeds + self.documents

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance (Welch and Satterthwaite)."""
        parts = self.seeds**2 / self.seed_freedom + self.documents**2 / self.document_freedom
        return self.variance**2 / parts

    def critical(self, level: float = LEVEL) -> float:
        """By how many standard errors the two-sided interval reaches: mean of Welch's and Cochran's value."""
        welch, of_seeds, of_documents = (
            float(stdtrit(freedom, 0.5 + level / 2))
            for freedom in (self.freedom, self.seed_freedom, self.document_freedom)
        )
        cochran = (self.seeds * of_seeds + self.documents * of_documents) / self.variance
        return 0.5 * (welch + cochran)


def components(differences: ArrayLike, tokens: ArrayLike) -> Components:
    """What the difference owes to seeds and to documents.

    differences: [seeds >= 2, documents >= 2], summed loss of the arm minus its reference's, in nats; tokens:
    [documents], the same for all.  A ``ValueError`` for other shapes, values that are not finite, and a
    document that holds every token.
    """
    d, t = np.asarray(differences, np.float64), np.asarray(tokens, np.float64)
    if d.ndim != 2 or min(d.shape) < 2 or d.shape[1:] != t.shape:
        raise ValueError(
            f"differences of shape {d.shape} and tokens of shape {t.shape}: "
            "must be [seeds >= 2, documents >= 2]"
        )
    total = float(t.sum())
    if not (np.isfinite(d).all() and np.isfinite(t).all() and (t >= 0).all() and 0 <= t.max() < total):
        raise ValueError("differences must be finite, tokens non-negative and in more than one document")
    num_seeds, num_documents = d.shape
    per_seed = d.sum(axis=1) / total
    estimate = float(per_seed.mean())
    mean = d.mean(axis=0)
    left = total - t  # tokens without the document: the jackknife's leverage
    shrink = (num_documents - 1) / num_documents
    by_document = shrink * float((((mean - estimate * t) / left) ** 2).sum())
    rest = (d - mean) - (per_seed - estimate)[:, None] * t
    freedom = num_seeds * (num_seeds - 1)
    interaction = shrink * float(((rest / left) ** 2).sum()) / freedom
    return Components(
        estimate,
        float(per_seed.var(ddof=1)) / num_seeds,
        max(by_document - interaction, 0.0),
        interaction,
        num_seeds - 1,
        effective_documents(t) - 1,
    )


def joint_interval(differences: ArrayLike, tokens: ArrayLike, level: float = LEVEL) -> Interval:
    """The mean difference over seeds with its interval over seeds and documents; n is the number of seeds."""
    found = components(differences, tokens)
    num_seeds = int(found.seed_freedom) + 1
    half = found.critical(level) * math.sqrt(found.variance) if found.variance > 0 else 0.0
    return Interval(found.estimate, found.estimate - half, found.estimate + half, KIND, num_seeds)
