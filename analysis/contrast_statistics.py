"""What stands beside the interval of each contrast of a table: p-values, seeds needed, equivalence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.ablation import Contrast
from analysis.equivalence import equivalence_p
from analysis.multiplicity import holm
from analysis.paired_t import p_value, standard_deviation
from analysis.power import SeedsNeeded, seeds_needed_with_range, smallest_visible
from analysis.stats import MIN_SEEDS, PAPER_ROUNDING


@dataclass(frozen=True)
class ContrastStatistics:
    """Of one contrast with three or more paired seeds.

    sd: of the paired differences, nats per token; p: paired t test, two-sided; p_holm: among the contrasts of
    the family; needed: seeds for 80 % power at the paper's difference, None where that is within its
    rounding; visible: the difference that our seeds show with 80 % power, nats; equal_p and paper_size_p: two
    one-sided tests that the difference is within the margin of zero, and of the paper's.
    """

    sd: float
    p: float
    p_holm: float
    needed: SeedsNeeded | None
    visible: float
    equal_p: float
    paper_size_p: float


def family_statistics(contrasts: Sequence[Contrast | None]) -> list[ContrastStatistics | None]:
    """One entry per contrast of one family, None under ``MIN_SEEDS`` paired seeds; Holm over the others."""
    tested = [c for c in contrasts if c and len(c.differences) >= MIN_SEEDS]
    adjusted = holm([p_value(c.differences) for c in tested])
    by_contrast = {id(c): _statistics(c, float(p)) for c, p in zip(tested, adjusted, strict=True)}
    return [by_contrast.get(id(c)) for c in contrasts]


def _statistics(contrast: Contrast, p_holm: float) -> ContrastStatistics:
    d, sd = contrast.differences, standard_deviation(contrast.differences)
    has_side = abs(contrast.paper) > PAPER_ROUNDING + 1e-9
    return ContrastStatistics(
        sd=sd,
        p=p_value(d),
        p_holm=p_holm,
        needed=seeds_needed_with_range(contrast.paper, sd, len(d)) if has_side else None,
        visible=smallest_visible(sd, len(d)) if sd > 0 else 0.0,
        equal_p=equivalence_p(d),
        paper_size_p=equivalence_p(d, contrast.paper),
    )
