"""GRPO: advantages relative to the other rollouts of the same task (arXiv:2402.03300; DreamGym Eq. 3).

    A_i = (R_i - mean_g R) / (std_g R + eps)
    L   = -sum m * min(rho * A, clip(rho, 1 - low, 1 + high) * A) / Z  +  beta * sum m * KL / Z  -  eta * sum m * H / Z

Z is the number of trained tokens in the whole mini-batch (token-mean, DAPO), given by the caller, so that micro-batches do not matter.
A group without variance, or of one rollout, has advantage 0, less the penalties of its turns where the configuration has any. Rollouts of
advantage 0 are left out, and their tokens do not count in Z.
`negative_weight` scales negative advantages; at 0 only rollouts above their group's mean are trained on, which is more stable for small
policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dreamgym.config import build
from dreamgym.returns import GroupStatistics, group_statistics
from dreamgym.train.objective import ClippedConfig, LossInputs, LossOutputs, clipped_loss
from dreamgym.types import Trajectory

EPS = 1e-6


class GRPOConfig(ClippedConfig):
    """The switches of GRPO."""

    scale_by_std: bool = True
    """Divide by the group's standard deviation (the paper) or not (Dr. GRPO, arXiv:2503.20783)."""
    mean_std_over: Literal["trajectory", "turn"] = "trajectory"
    """Mean and deviation over the group's rollouts (the paper), or over all their turns, so that long rollouts count more (verl-agent)."""
    negative_weight: float = 1.0
    """Scales negative advantages; at 0 only rollouts above their group's mean are trained on."""


class GRPO:
    """The functions of the algorithm with their settings (`protocols.Algorithm`)."""

    grouped = True

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config

    def compute_advantages(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[list[float]]]:
        """[group][rollout without error][turn] the rollout's advantage, 0.0 in a group that is not mixed, less the turn's `penalty`.

        The penalty is subtracted before the division. In a group that is not mixed it is not divided: by its own deviation, one
        invalid action in an otherwise even group would count like a failure.
        """
        return [self._group(group) for group in groups]

    def _group(self, group: Sequence[Trajectory]) -> list[list[float]]:
        returns = group_statistics(group)
        rollouts = [t for t in group if t.error is None]
        scores = [[t.total_reward - self.config.penalty(turn.transition) for turn in t.turns] for t in rollouts]
        if returns.kind != "mixed":
            lost = [[score - t.total_reward for score in sequence] for sequence, t in zip(scores, rollouts, strict=True)]
            return [[self._weakened(a) for a in sequence] for sequence in lost]
        by_turn = self.config.mean_std_over == "turn"
        base = GroupStatistics(tuple(score for sequence in scores for score in sequence)) if by_turn else returns
        return [[self._weakened(a) for a in group_relative(sequence, base, self.config.scale_by_std)] for sequence in scores]

    def _weakened(self, advantage: float) -> float:
        return advantage if advantage > 0 else advantage * self.config.negative_weight

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """The clipped loss of a micro-batch; see `objective.clipped_loss`."""
        return clipped_loss(inputs, self.config)


def group_relative(scores: Sequence[float], base: GroupStatistics, scale_by_std: bool) -> list[float]:
    """(score - mean) / (std + eps), with mean and std of `base`; without `scale_by_std` undivided. All 0.0 when `base` is not mixed."""
    if base.kind != "mixed":
        return [0.0] * len(scores)
    scale = base.variance**0.5 + EPS if scale_by_std else 1.0
    return [(score - base.mean) / scale for score in scores]


def make(**config: Any) -> GRPO:
    """GRPO by configuration (see GRPOConfig)."""
    return GRPO(build(GRPOConfig, config, where="algorithm grpo"))
