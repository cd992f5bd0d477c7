"""Returns of trajectories and statistics of their groups: one place for what the algorithms and the curriculum both need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dreamgym.types import Trajectory, Transition


@dataclass(frozen=True)
class GroupStatistics:
    """Returns of a group's scorable rollouts. `variance` is V_tau of DreamGym Eq. 7, (1/n) sum (r - mean)^2."""

    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns)) if self.returns else 0.0

    @property
    def variance(self) -> float:
        return float(np.var(self.returns)) if self.returns else 0.0

    @property
    def kind(self) -> str:
        """ "mixed" carries a signal; "unsolved", "solved", "even" (equal rewards in between) and "single" carry none."""
        if len(self.returns) < 2:
            return "single"
        if self.variance > 1e-12:
            return "mixed"
        return "unsolved" if self.mean <= 0 else "solved" if self.mean >= 1 else "even"


def group_statistics(group: Sequence[Trajectory]) -> GroupStatistics:
    """Over the rollouts without an error: a failed rollout does not count as return 0."""
    return GroupStatistics(tuple(t.total_reward for t in group if t.error is None))


def rewards(trajectory: Trajectory, penalty: Callable[[Transition], float]) -> list[float]:
    """The reward of every turn, less its penalty."""
    return [turn.transition.reward - penalty(turn.transition) for turn in trajectory.turns]


def discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    """Returns from each step on: D_t = r_t + gamma * D_(t+1)."""
    found, after = [], 0.0
    for reward in reversed(rewards):
        after = reward + gamma * after
        found.append(after)
    return found[::-1]
