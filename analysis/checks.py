"""What decides a sentence of the paper: a test of an ``AblationTable`` that gives (holds | None, evidence).

None means open: too few seeds, or an interval that is too wide. On the paper's own numbers, which have no
intervals, the differences are taken as printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from analysis.ablation import AblationTable, Contrast
from analysis.number_text import interval_text, signed
from analysis.stats import MARGIN, MIN_SEEDS, PAPER_ROUNDING

ContrastCheck = Callable[[AblationTable], tuple[bool | None, str]]


def better(arm: str, reference: str) -> ContrastCheck:
    """``arm`` has the lower loss: by our verdict, or by the sign of the paper's difference."""
    return _by_verdict(arm, reference, lambda paper: paper < 0, lambda d, same: d < 0 and not same)


def worse(arm: str, reference: str) -> ContrastCheck:
    """``arm`` has the higher loss, else as ``better``."""
    return _by_verdict(arm, reference, lambda paper: paper > 0, lambda d, same: d > 0 and not same)


def not_better(arm: str, reference: str) -> ContrastCheck:
    """``arm`` has a higher loss or makes no difference."""
    return _by_verdict(arm, reference, lambda paper: paper >= -PAPER_ROUNDING, lambda d, same: d > 0 or same)


def close(arms: Sequence[str], margin: float = MARGIN) -> ContrastCheck:
    """Any two of these arms differ by at most ``margin`` nats: each interval lies within it.

    Fails where an interval of a pair lies beyond the margin.  The evidence is the pair farthest apart.
    """

    def test(table: AblationTable) -> tuple[bool | None, str]:
        pairs = [(arm, table.contrast(arm, reference)) for arm, reference in combinations(arms, 2)]
        if table.scale == "published":
            farthest = max(abs(contrast.paper) for _, contrast in pairs)
            return farthest <= margin, f"at most {farthest:.3f} apart"
        found = [(arm, contrast, contrast.ours) for arm, contrast in pairs if contrast.ours]
        if len(found) < len(pairs):
            return None, "no finished pair of runs"
        arm, contrast, ours = max(found, key=lambda pair: abs(pair[2].estimate))
        evidence = f"{arm} minus {contrast.reference} {interval_text(ours)}"
        if any(i.kind != "seeds" or i.n < MIN_SEEDS for _, _, i in found):
            return None, f"{evidence}, no verdict under {MIN_SEEDS} seeds"
        if any(i.low > margin or i.high < -margin for _, _, i in found):
            return False, evidence
        if all(-margin <= i.low and i.high <= margin for _, _, i in found):
            return True, evidence
        return None, f"{evidence}, underpowered"

    return test


def _by_verdict(
    arm: str, reference: str, on_paper: Callable[[float], bool], on_ours: Callable[[float, bool], bool]
) -> ContrastCheck:
    def test(table: AblationTable) -> tuple[bool | None, str]:
        contrast: Contrast = table.contrast(arm, reference)
        if table.scale == "published":
            return on_paper(contrast.paper), signed(contrast.paper)
        if contrast.ours is None:
            return None, "no finished pair of runs"
        evidence = f"{interval_text(contrast.ours)}, paper {signed(contrast.paper)}"
        if contrast.verdict is None:
            return None, f"{evidence}, no verdict under {MIN_SEEDS} seeds"
        if contrast.verdict == "underpowered":
            return None, f"{evidence}, underpowered"
        holds = on_ours(contrast.ours.estimate, contrast.verdict == "no difference")
        return holds, f"{evidence}, {contrast.verdict}"

    return test
