"""GRPO: advantages relative to the other rollouts of the same task (arXiv:2402.03300; DreamGym Eq. 3).

    A_i = (R_i - mean_g R) / (std_g R + eps)
    L   = -sum m * min(rho * A, clip(rho, 1 - low, 1 + high) * A) / Z  +  beta * sum m * KL / Z  -  eta * sum m * H / Z

Z is the number of trained tokens in the whole batch (token-mean, DAPO), given by the caller, so that micro-batches do not matter.
A group without variance, or of one, teaches nothing: advantage 0. Rollouts of advantage 0 are left out, and their tokens do not count in Z.
`negative_weight` scales negative advantages. Small policies are pushed apart by long failing episodes; 0 learns from successes alone.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from dreamgym.config import Config, build
from dreamgym.returns import GroupStatistics

EPS = 1e-6


class GRPOConfig(Config):
    """The switches of GRPO."""

    normalise: Literal["std", "mean"] = "std"
    """Divide by the group's standard deviation (the paper) or not (Dr. GRPO, arXiv:2503.20783)."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL to the reference policy; 0 needs no reference."""
    negative_weight: float = 1.0
    entropy_coef: float = 0.0
    """eta: the weight of the policy's entropy. A policy that is sure of itself has no mixed groups, and then nothing to learn from."""


class GRPO:
    """The two functions of the algorithm with their settings."""

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config

    def advantages(self, group: GroupStatistics) -> list[float]:
        """One per scorable rollout; all 0.0 for a group that is not mixed."""
        if group.kind != "mixed":
            return [0.0] * len(group.returns)
        scale = group.variance**0.5 + EPS if self.config.normalise == "std" else 1.0
        raw = [(value - group.mean) / scale for value in group.returns]
        return [a if a > 0 else a * self.config.negative_weight for a in raw]

    def loss(
        self,
        logprobs: torch.Tensor,
        old: torch.Tensor,
        advantages: torch.Tensor,
        *,
        normaliser: float,
        reference: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Summed clipped objective over the N trained tokens of a micro-batch, divided by the whole batch's `normaliser`.

        All tensors are [N]. Returns the loss and sums of diagnostics (divide by the number of tokens).
        """
        ratio = torch.exp((logprobs - old).clamp(-20, 20))
        clipped = ratio.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        objective = torch.minimum(ratio * advantages, clipped * advantages)
        loss = -objective.sum() / normaliser
        sums = {
            "clipped": float(((ratio * advantages) > (clipped * advantages)).sum()),
            "approx_kl": float((ratio - 1 - (logprobs - old)).detach().sum()),
        }
        if reference is not None and self.config.kl_coef:
            gap = (reference - logprobs).clamp(-10, 10)
            kl = torch.exp(gap) - 1 - gap  # k3, http://joschu.net/blog/kl-approx.html
            loss = loss + self.config.kl_coef * kl.sum() / normaliser
            sums["kl"] = float(kl.detach().sum())
        if entropy is not None and self.config.entropy_coef:
            loss = loss - self.config.entropy_coef * entropy.sum() / normaliser
        return loss, sums


def make(**config: Any) -> GRPO:
    """GRPO by configuration (see GRPOConfig)."""
    return GRPO(build(GRPOConfig, config, where="algorithm grpo"))
