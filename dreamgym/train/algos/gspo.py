"""GSPO: GRPO's advantages with one importance ratio a sequence (arXiv:2507.18071).

    s_i = (pi(y_i | x_i) / pi_old(y_i | x_i))^(1 / |y_i|) = exp(1 / |y_i| * sum_t (log pi(y_it) - log pi_old(y_it)))
    L   = -1 / G * sum_i min(s_i * A_i, clip(s_i, 1 - low, 1 + high) * A_i)

A sequence y_i is a turn: what the policy sampled in answer to one prompt x_i. Every token has its turn's ratio, so a turn is clipped whole,
and its tokens have gradients of the same weight, A_i s_i / |y_i|. Results do not depend on how turns are laid out in training
sequences. An episode of several turns counts once: its term is the mean over its tokens (`aggregate = "trajectory"`). verl and TRL take all
turns of an episode as one sequence; for episodes of one turn the three are the same.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dreamgym.config import build
from dreamgym.train.algos.grpo import GRPO, GRPOConfig
from dreamgym.train.objective import LossInputs, LossOutputs, clipped_loss, mean_over


class GSPOConfig(GRPOConfig):
    """The switches of GSPO. Ratios of whole sequences stay close to 1, hence the narrow clip (section 5.1 of the paper)."""

    aggregate: Literal["token", "trajectory", "constant"] = "trajectory"
    clip_low: float = Field(default=3e-4, ge=0.0)
    clip_high: float = Field(default=4e-4, ge=0.0)


class GSPO(GRPO):
    """The functions of the algorithm with their settings (`protocols.Algorithm`)."""

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """The clipped loss at the ratios of turns; see `objective.clipped_loss`."""
        return clipped_loss(inputs, self.config, log_ratio=mean_over(inputs.logprobs - inputs.old_logprobs, inputs.turn_ids))


def make(**config: Any) -> GSPO:
    """GSPO by configuration (see GSPOConfig)."""
    return GSPO(build(GSPOConfig, config, where="algorithm gspo"))
