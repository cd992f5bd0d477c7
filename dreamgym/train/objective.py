"""What the policy-gradient algorithms share: settings, and pure functions over the trained tokens of a micro-batch.

    objective   the clipped surrogate, with PPO's clip and optionally the dual clip
    kl          estimates of the divergence from the reference policy, each with the gradient that it really has
    importance  truncated weights for a sampler that computes other probabilities than the learner
    weights     how tokens are averaged: over tokens, over trajectories, or over a constant

Every tensor is [N], one entry per trained token. Sums are divided by the normaliser of the whole mini-batch, never of a micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator

from dreamgym.config import Config
from dreamgym.errors import ConfigError
from dreamgym.returns import idle, unprecedented
from dreamgym.train.batch import Row
from dreamgym.types import Transition

Estimator = Literal["k1", "k2", "k3"]


class ObjectiveConfig(Config):
    """The switches that every policy-gradient algorithm has."""

    aggregate: Literal["token", "sequence", "constant"] = "token"
    """The mean over trained tokens (DAPO), over trajectories of each one's token mean (the first GRPO: short ones weigh as much as long
    ones), or the sum divided by trajectories times `max_tokens` (Dr. GRPO). A trajectory counts once, however many rows it takes."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The constant of `aggregate = "constant"`: the most tokens that a trajectory can sample."""
    kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the policy as it was at the start; 0 needs no reference."""
    kl: Estimator = "k3"
    """Which estimate, with x = log pi - log ref: k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Differentiated as part of the loss (k2 follows KL(pi||ref), k3 KL(ref||pi)), or charged to each token's own advantage (k1 follows
    KL(pi||ref)). k1 in the loss follows nothing, and is refused."""
    entropy_coef: float = 0.0
    """eta: the weight of the policy's entropy. A policy that is sure of itself has no mixed groups, and then nothing to learn from."""
    importance_cap: float = Field(default=0.0, ge=0.0)
    """Truncated importance sampling: a token weighs min(p_learner / p_sampler, cap), both at the weights that sampled it. For engines whose
    probabilities are not the learner's; 2 is usual, 0 is off."""
    invalid_penalty: float = Field(default=0.0, ge=0.0)
    """Taken from the reward of a turn that changed nothing or was answered by a rule."""
    unprecedented_penalty: float = Field(default=0.0, ge=0.0)
    """Taken from the reward of a dreamed turn whose action no real memory shows: what followed it was a guess (`experience.precedents`)."""

    def penalty(self, transition: Transition) -> float:
        """What a turn is charged."""
        return self.invalid_penalty * idle(transition) + self.unprecedented_penalty * unprecedented(transition)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kl_coef and self.kl == "k1" and self.kl_in == "loss":
            raise ConfigError("kl = 'k1' in the loss has an expected gradient of zero. Use kl_in = 'reward', or kl = 'k2' or 'k3'.")
        if (self.aggregate == "constant") != (self.max_tokens is not None):
            raise ConfigError("aggregate = 'constant' and max_tokens belong together: give both, or neither.")
        return self


class ClippedConfig(ObjectiveConfig):
    """The switches of a clipped surrogate."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = Field(default=0.0, ge=0.0)
    """A bad token's objective never falls below this many times its advantage, however far its ratio rose (arXiv:1912.09729); 3 is
    usual, 0 is off."""

    @model_validator(mode="after")
    def _clips_what_is_far(self) -> Self:
        if 0 < self.dual_clip <= 1 + self.clip_high:
            raise ConfigError(f"dual_clip = {self.dual_clip} must lie above 1 + clip_high = {1 + self.clip_high:g}, or be 0 (off).")
        return self


def clipped_loss(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    config: ClippedConfig,
    *,
    normaliser: float,
    reference: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    sampled: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """-sum w * min(rho * A, clip(rho) * A) / Z with the KL and entropy terms of `config`, and sums of diagnostics.

    `old` are the log-probs of the policy that sampled, as the learner computes them, and `sampled` as the sampler did.
    """
    advantages = charged(advantages, old, reference, config)
    ratio = torch.exp((logprobs - old).clamp(-20, 20))
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    if config.dual_clip:
        objective = torch.where(advantages < 0, torch.maximum(objective, config.dual_clip * advantages), objective)
    loss, sums = regularised(
        objective, logprobs, old, config, normaliser=normaliser, reference=reference, entropy=entropy, weights=weights, sampled=sampled
    )
    return loss, {"clipped": float(((ratio * advantages) > (clipped * advantages)).sum()), **sums}


def regularised(
    objective: torch.Tensor,
    logprobs: torch.Tensor,
    old: torch.Tensor,
    config: ObjectiveConfig,
    *,
    normaliser: float,
    reference: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    sampled: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """(-sum w * objective + beta * sum w * KL - eta * sum w * H) / Z, and sums of diagnostics; w is 1 without `weights`."""
    w = torch.ones_like(objective) if weights is None else weights
    gap = (logprobs - old).detach()
    sums = {"approx_kl": float((torch.exp(gap.clamp(-20, 20)) - 1 - gap).sum())}
    if config.importance_cap and sampled is not None:
        trust = importance(old, sampled, config.importance_cap)
        objective = objective * trust
        sums["importance"] = float(trust.sum())
    loss = -(objective * w).sum() / normaliser
    if reference is not None and config.kl_coef:
        kl = kl_estimate(logprobs, reference, config.kl)
        sums["kl"] = float(kl.detach().sum())
        if config.kl_in == "loss":
            loss = loss + config.kl_coef * (kl * w).sum() / normaliser
    if entropy is not None and config.entropy_coef:
        loss = loss - config.entropy_coef * (entropy * w).sum() / normaliser
    return loss, sums


def charged(advantages: torch.Tensor, old: torch.Tensor, reference: torch.Tensor | None, config: ObjectiveConfig) -> torch.Tensor:
    """Advantages with each token's KL estimate taken off where `kl_in` is "reward". A token pays for itself, not for those after it."""
    if reference is None or not config.kl_coef or config.kl_in != "reward":
        return advantages
    return advantages - config.kl_coef * kl_estimate(old, reference, config.kl).detach()


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """One-sample estimates of KL(pi||ref) at tokens sampled from pi (http://joschu.net/blog/kl-approx.html), clamped against overflow."""
    gap = (reference - logprobs).clamp(-10, 10)
    if estimator == "k1":
        return -gap
    return gap.square() / 2 if estimator == "k2" else torch.exp(gap) - 1 - gap


def importance(old: torch.Tensor, sampled: torch.Tensor, cap: float) -> torch.Tensor:
    """min(exp(old - sampled), cap), without a gradient."""
    return torch.exp((old - sampled).detach().clamp(-20, 20)).clamp(max=cap)


def token_weights(rows: Sequence[Row], chosen: Sequence[int], config: ObjectiveConfig) -> tuple[list[list[float]], float]:
    """(weight of every token of every row, the normaliser Z of the chosen rows). Rows of one trajectory are chosen together."""
    if config.aggregate == "token":
        return [row.mask for row in rows], sum(sum(rows[i].mask) for i in chosen)
    tokens: Counter[int] = Counter()
    for i in chosen:
        tokens[rows[i].trajectory] += int(sum(rows[i].mask))
    if config.aggregate == "constant":
        return [row.mask for row in rows], float(len(tokens) * (config.max_tokens or 1))
    return [[m / max(1, tokens[row.trajectory]) for m in row.mask] for row in rows], float(len(tokens))
