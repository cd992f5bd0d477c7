"""Revisit consistency: what a place shows when it is visited again is determined by what it showed before.

The experience model may generate the first sight of a place freely, but not the second. Agreement with the real environment does not
measure this under partial observability: a dream may differ from the real house at the first place and still be consistent.
"""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.envs.base import TextRules
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Trajectory


def revisit_rate(trajectories: Sequence[Trajectory], rules: TextRules) -> Rate:
    """Of returns to a place, the share that showed what had to be there; over all episodes that did not fail technically. Real ones give
    1.0, unless the text rules misread them."""
    agreements = [agrees for t in trajectories if t.error is None for agrees in rules.revisit_consistency(t.transitions)]
    return wilson(sum(agreements), len(agreements))
