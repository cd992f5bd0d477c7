"""Who decided: shares of dreamed next states and rewards by what determined them, and how often each was exactly right.

A rule, an exact precedent, a mined condition, a composition of memories, or the experience model. What a rule or a memory decides is not
the model's merit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from dreamgym.statistics import Rate, wilson
from dreamgym.types import DecidedBy, RewardBy, StepInfo

DECIDERS: tuple[DecidedBy, ...] = get_args(DecidedBy)
OF_REWARDS: tuple[RewardBy, ...] = get_args(RewardBy)


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
        return {"states": {by: self.states[by] for by in DECIDERS}, "rewards": {by: self.rewards[by] for by in OF_REWARDS}}


def shares(counts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The counts of `Attribution.to_json` as shares; all 0 where nothing was counted."""
    return {part: {by: n / max(1, sum(by_kind.values())) for by, n in by_kind.items()} for part, by_kind in counts.items()}


@dataclass(frozen=True)
class JudgedStep:
    """A predicted step beside the real one."""

    info: StepInfo
    state_exact: bool
    reward_exact: bool  # reward and end


def exactness(judged: Iterable[tuple[RewardBy | None, bool]], deciders: Sequence[RewardBy]) -> dict[str, Rate]:
    """Of (what decided, whether it was right): the share that is right, by each of the `deciders`."""
    right: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for by, exact in judged:
        if by:
            counted[by] += 1
            right[by] += exact
    return {by: wilson(right[by], counted[by]) for by in deciders}


def decided_json(infos: Iterable[StepInfo], judged: Sequence[JudgedStep]) -> dict[str, Any]:
    """Shares of what decided the states and the rewards of all steps, and the exactness of each on the judged ones, as plain values."""
    found = Attribution()
    found.add(infos)
    counts = found.to_json()
    states = exactness(((one.info.decided_by, one.state_exact) for one in judged), DECIDERS)
    rewards = exactness(((one.info.reward_by, one.reward_exact) for one in judged), OF_REWARDS)
    return {
        **shares(counts),
        "steps": sum(counts["states"].values()),
        "exact": {by: vars(rate) for by, rate in states.items()},
        "rewards_exact": {by: vars(rate) for by, rate in rewards.items()},
    }
