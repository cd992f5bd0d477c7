"""Who decided: shares of dreamed next states and rewards by what determined them, and how often each was exactly right.

A rule, an exact precedent, a composition of memories, or the experience model. What a rule or a memory decides is not the model's merit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from dreamgym.statistics import Rate, wilson
from dreamgym.types import DecidedBy, StepInfo

DECIDERS: tuple[DecidedBy, ...] = get_args(DecidedBy)


@dataclass
class Attribution:
    """Counts of dreamed steps by what decided their next state and their reward."""

    states: Counter[str] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)

    def add(self, infos: Iterable[StepInfo]) -> None:
        """Count steps; those of a real environment, which nothing decided, are left out."""
        for info in infos:
            if info.decided_by:
                self.states[info.decided_by] += 1
            if info.reward_by:
                self.rewards[info.reward_by] += 1

    def to_json(self) -> dict[str, dict[str, float]]:
        """Counts as plain values: `{"states": {"rule": 12, ...}, "rewards": {...}}`."""
        return {"states": {by: self.states[by] for by in DECIDERS}, "rewards": {by: self.rewards[by] for by in DECIDERS}}


def shares(counts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The counts of `Attribution.to_json` as shares; all 0 where nothing was counted."""
    return {part: {by: n / max(1, sum(by_kind.values())) for by, n in by_kind.items()} for part, by_kind in counts.items()}


def exactness(steps: Iterable[tuple[StepInfo, bool]]) -> dict[str, Rate]:
    """Of (how a step came about, whether its next state was right): the share that is right, by what decided the state."""
    right: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for info, exact in steps:
        if info.decided_by:
            counted[info.decided_by] += 1
            right[info.decided_by] += exact
    return {by: wilson(right[by], counted[by]) for by in DECIDERS}


def decided_json(infos: Iterable[StepInfo], exact: Mapping[str, Rate]) -> dict[str, Any]:
    """Shares of states and rewards, and the exactness of states, as plain values."""
    found = Attribution()
    found.add(infos)
    counts = found.to_json()
    return {**shares(counts), "steps": sum(counts["states"].values()), "exact": {by: vars(rate) for by, rate in exact.items()}}
