"""Revisit consistency: what a place shows when it is visited again is determined by what it showed before.

The experience model may generate the first sight of a place freely, but not the second. Agreement with the real environment does not
measure this under partial observability: a dream may differ from the real house at the first place and still be consistent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.envs.base import TextRules
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Trajectory


@dataclass(frozen=True)
class Revisits:
    """How faithful places were to what had been seen of them."""

    faithful: Rate  # of returns to a place, the share that showed what had to be there
    sound_episodes: Rate  # of episodes with a return, the share in which every one did
    by_half: tuple[Rate, Rate]  # `faithful` of the first and of the last half of each episode's returns: does it wear off?


def revisit_rates(trajectories: Sequence[Trajectory], rules: TextRules) -> Revisits:
    """Over all episodes that did not fail technically. Real ones give 1.0, unless the text rules misread them."""
    found = [rules.revisit_consistency(t.transitions) for t in trajectories if t.error is None]
    found = [each for each in found if each]
    every = [one for each in found for one in each]
    early = [one for each in found for one in each[: len(each) // 2]]
    late = [one for each in found for one in each[len(each) - len(each) // 2 :]]
    return Revisits(_rate(every), _rate([all(each) for each in found]), (_rate(early), _rate(late)))


def _rate(facts: Sequence[bool]) -> Rate:
    return wilson(sum(facts), len(facts))
