"""GiGPO: GRPO's advantage of the episode, plus one of the step among the steps taken from the same state (arXiv:2505.10978).

    A_it = A_E(i, t) + omega * A_S(i, t)
    A_E(i, t) = (R_i - penalty of turn t - mean_g R) / std_g R        as in GRPO, over the group's rollouts
    A_S(i, t) = (D_it - mean D) / std D                               over the anchor group of the state s_it
    D_it      = sum_k gamma^(k - t) r_ik                              the discounted return from there

An anchor group holds every turn of the group's rollouts whose observation is the same text, also two of one rollout that came back.
A state seen once has no group to be compared with: 0. The loss is GRPO's.

The published code takes a turn's penalty from D_it too, before the division. In an anchor group that is otherwise even that makes any
penalty worth a whole deviation, and nothing where all its turns pay it. Here penalties are in A_E alone, undivided in a group that is not
mixed, as in GRPO.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dreamgym.config import build
from dreamgym.returns import GroupStatistics, discounted, group_statistics
from dreamgym.train.algos.grpo import group_relative
from dreamgym.train.objective import ClippedConfig, LossInputs, LossOutputs, clipped_loss
from dreamgym.types import Trajectory


class GiGPOConfig(ClippedConfig):
    """The switches of GiGPO."""

    omega: float = Field(default=1.0, ge=0.0)
    """Weight of the step's advantage; 0 is GRPO."""
    gamma: float = Field(default=0.95, ge=0.0, le=1.0)
    scale_by_std: bool = True
    """Divide by standard deviations, or only subtract means. The authors divide in ALFWorld and not in WebShop."""


class GiGPO:
    """The functions of the algorithm with their settings (`protocols.Algorithm`)."""

    grouped = True

    def __init__(self, config: GiGPOConfig) -> None:
        self.config = config

    def compute_advantages(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[list[float]]]:
        """[group][rollout without error][turn] A_E + omega * A_S; A_E holds the turn's penalty."""
        return [self._group([t for t in group if t.error is None]) for group in groups]

    def _group(self, rollouts: Sequence[Trajectory]) -> list[list[float]]:
        returns = group_statistics(rollouts)
        advantages = []
        for rollout, steps in zip(rollouts, self.steps(rollouts), strict=True):
            charges = [self.config.penalty(turn.transition) for turn in rollout.turns]
            episode = [-charge for charge in charges]  # not divided, as in GRPO, in a group that is not mixed
            if returns.kind == "mixed":
                episode = group_relative([rollout.total_reward - charge for charge in charges], returns, self.config.scale_by_std)
            advantages.append([a + self.config.omega * s for a, s in zip(episode, steps, strict=True)])
        return advantages

    def steps(self, rollouts: Sequence[Trajectory]) -> list[list[float]]:
        """A_S of every turn of the sound rollouts of one task."""
        returns = [discounted([turn.transition.reward for turn in t.turns], self.config.gamma) for t in rollouts]
        anchors: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for i, rollout in enumerate(rollouts):
            for t, turn in enumerate(rollout.turns):
                anchors[turn.transition.state.text].append((i, t))
        advantages = [[0.0] * len(t.turns) for t in rollouts]
        for places in anchors.values():
            scores = [returns[i][t] for i, t in places]
            for (i, t), a in zip(places, group_relative(scores, GroupStatistics(tuple(scores)), self.config.scale_by_std), strict=True):
                advantages[i][t] = a
        return advantages

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """GRPO's clipped loss; see `objective.clipped_loss`."""
        return clipped_loss(inputs, self.config)


def make(**config: Any) -> GiGPO:
    """GiGPO by configuration (see GiGPOConfig)."""
    return GiGPO(build(GiGPOConfig, config, where="algorithm gigpo"))
