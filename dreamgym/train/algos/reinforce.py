"""REINFORCE with a baseline: the smallest algorithm here, and the one to copy (Williams 1992; leave-one-out: arXiv:2402.14740).

    L = -sum m * (R_i - b_i) * log p / Z        b_i: the mean return of the task's other rollouts, or a running mean of all returns

No ratio and no clip: one mini-batch and one epoch make it on-policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dreamgym.config import build
from dreamgym.returns import group_statistics
from dreamgym.train.objective import LossInputs, LossOutputs, ObjectiveConfig, kl_penalised_advantages, regularised
from dreamgym.types import Trajectory


class ReinforceConfig(ObjectiveConfig):
    """The switches of REINFORCE."""

    baseline: Literal["leave_one_out", "running"] = "leave_one_out"
    """`running` needs no group: it is the mean return so far, the present iteration not in it."""
    rate: float = Field(default=0.1, gt=0.0, le=1.0)
    """How far one iteration moves the running mean."""


class Reinforce:
    """The functions of the algorithm, its settings, and the running mean (`protocols.Algorithm`)."""

    def __init__(self, config: ReinforceConfig) -> None:
        self.config, self.mean = config, 0.0
        self.grouped = config.baseline == "leave_one_out"

    def compute_advantages(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[list[float]]]:
        """[group][rollout without error][turn] the return less baseline and the turn's penalty. Moves the running mean."""
        sound = [[t for t in group if t.error is None] for group in groups]
        advantages = [[self._turns(t, a) for t, a in zip(group, self._of_rollouts(group), strict=True)] for group in sound]
        returns = [t.total_reward for group in sound for t in group]
        self.mean += self.config.rate * (float(np.mean(returns)) - self.mean) if returns else 0.0
        return advantages

    def _turns(self, rollout: Trajectory, advantage: float) -> list[float]:
        return [advantage - self.config.penalty(turn.transition) for turn in rollout.turns]

    def _of_rollouts(self, group: Sequence[Trajectory]) -> list[float]:
        """R - b of each rollout without error; without another rollout to compare with, or without variance, 0.0."""
        own = group_statistics(group)
        if self.config.baseline == "running":
            return [r - self.mean for r in own.returns]
        if own.kind != "mixed":
            return [0.0] * len(own.returns)
        n = len(own.returns)
        return [(r - own.mean) * n / (n - 1) for r in own.returns]  # = r - mean of the others

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """-sum A * log p / Z with the terms of `objective.regularised`."""
        return regularised(kl_penalised_advantages(inputs, self.config) * inputs.logprobs, inputs, self.config)

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mean = state["mean"]


def make(**config: Any) -> Reinforce:
    """REINFORCE by configuration (see ReinforceConfig)."""
    return Reinforce(build(ReinforceConfig, config, where="algorithm reinforce"))
