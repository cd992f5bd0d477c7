"""What the policy-gradient algorithms share: settings, and pure functions over the trained tokens of a micro-batch.

    objective   the clipped surrogate, with PPO's clip and optionally the dual clip
    kl          estimates of the divergence from the reference policy, each with the gradient that it really has
    importance  truncated weights for a sampler that computes other probabilities than the learner
    weights     how tokens are averaged: over tokens, over trajectories, or over a constant

Every tensor is [N], one entry per trained token. Sums are divided by the normaliser of the whole mini-batch, never of a micro-batch.
An algorithm is `loss(LossInputs) -> LossOutputs` (the interface of prime-rl), built from these functions or written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from dreamgym.config import Config
from dreamgym.errors import ConfigError
from dreamgym.types import Transition

if TYPE_CHECKING:
    import torch

    from dreamgym.train.batch import TokenSequence

Estimator = Literal["k1", "k2", "k3"]


class ObjectiveConfig(Config):
    """The switches that every policy-gradient algorithm has."""

    aggregate: Literal["token", "trajectory", "constant"] = "token"
    """The mean over trained tokens (DAPO), over trajectories of each one's token mean (the first GRPO: short ones weigh as much as long
    ones), or the sum divided by trajectories times `max_tokens` (Dr. GRPO). A trajectory counts once, however many sequences it takes;
    verl's `token-mean`, `seq-mean-token-mean` and `seq-mean-token-sum-norm`, of whole episodes."""
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
    ood_penalty: float = Field(default=0.0, ge=0.0)
    """Taken from the reward of a dreamed turn whose action no real memory shows: what follows is a guess (`experience.action_support`)."""

    def penalty(self, transition: Transition) -> float:
        """What a turn is charged: nothing where the environment failed or the dream could not be read, which no action causes."""
        if transition.info.error is not None:
            return 0.0
        invalid = transition.is_noop or transition.info.decided_by == "rule"
        return self.invalid_penalty * invalid + self.ood_penalty * transition.info.out_of_support

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kl_coef and self.kl == "k1" and self.kl_in == "loss":
            raise ConfigError("kl = 'k1' in the loss has an expected gradient of zero. Use kl_in = 'reward', or kl = 'k2' or 'k3'.")
        if (self.aggregate == "constant") != (self.max_tokens is not None):
            raise ConfigError("aggregate = 'constant' and max_tokens belong together: give both, or neither.")
        return self


class ClippedConfig(ObjectiveConfig):
    """The switches of a clipped surrogate."""

    clip_low: float = Field(default=0.2, ge=0.0)
    """The ratio of the policies is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, ge=0.0)
    """The ratio of the policies is clipped above at 1 + clip_high; DAPO sets it above clip_low."""
    dual_clip: float = Field(default=0.0, ge=0.0)
    """A bad token's objective never falls below this many times its advantage, however far its ratio rose (arXiv:1912.09729); 3 is
    usual, 0 is off."""

    @model_validator(mode="after")
    def _check_clip(self) -> Self:
        if 0 < self.dual_clip <= 1 + self.clip_high:
            raise ConfigError(f"dual_clip = {self.dual_clip} must lie above 1 + clip_high = {1 + self.clip_high:g}, or be 0 (off).")
        return self


@dataclass(frozen=True)
class LossInputs:
    """The N trained tokens of a micro-batch, sequence by sequence. Tensors are [N]; optional ones are given when the settings need them.

    All tokens of a `train.batch.TokenSequence` are in one micro-batch. Other sequences of the same trajectory may be in another one.
    """

    logprobs: torch.Tensor  # under the policy, with its gradient
    old_logprobs: torch.Tensor  # under the weights that sampled: the denominator of the ratio, see `LearnerConfig.old_logprobs`
    advantages: torch.Tensor
    token_weights: torch.Tensor  # of each token in the sum, see the function of that name
    normaliser: float  # Z, by which sums are divided
    sequence_ids: torch.Tensor  # int64: number of the token's sequence, ascending from 0
    turn_ids: torch.Tensor  # int64: number of the token's turn among all turns of these sequences, ascending from 0
    entropy: torch.Tensor | None = None
    ref_logprobs: torch.Tensor | None = None  # under the reference policy
    rollout_logprobs: torch.Tensor | None = None  # that the sampler reported


class LossOutputs(NamedTuple):
    """What the learner differentiates, and what it reports."""

    loss: torch.Tensor
    sums: dict[str, float]  # diagnostics summed over the tokens; the learner divides by their number


def clipped_loss(inputs: LossInputs, config: ClippedConfig, *, log_ratio: torch.Tensor | None = None) -> LossOutputs:
    """-sum w * min(rho * A, clip(rho) * A) / Z with the KL and entropy terms of `config`.

    rho is the exponential of `log_ratio`, by default each token's own: log pi - log pi_old.
    """
    log_ratio = inputs.logprobs - inputs.old_logprobs if log_ratio is None else log_ratio
    advantages = kl_penalised_advantages(inputs, config)
    ratio = log_ratio.clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    objective = (ratio * advantages).minimum(clipped * advantages)
    if config.dual_clip:
        objective = objective.maximum(config.dual_clip * advantages).where(advantages < 0, objective)
    loss, sums = regularised(objective, inputs, config)
    return LossOutputs(loss, {"clip_fraction": float(((ratio * advantages) > (clipped * advantages)).sum()), **sums})


def regularised(objective: torch.Tensor, inputs: LossInputs, config: ObjectiveConfig) -> LossOutputs:
    """(-sum w * objective + beta * sum w * KL - eta * sum w * H) / Z."""
    gap = (inputs.logprobs - inputs.old_logprobs).detach()
    sums = {"approx_kl": float((gap.clamp(-20, 20).exp() - 1 - gap).sum())}
    if config.importance_cap and inputs.rollout_logprobs is not None:
        trust = importance(inputs.old_logprobs, inputs.rollout_logprobs, config.importance_cap)
        objective = objective * trust
        sums["importance_weight"] = float(trust.sum())
    loss = -(objective * inputs.token_weights).sum() / inputs.normaliser
    if inputs.ref_logprobs is not None and config.kl_coef:
        kl = kl_estimate(inputs.logprobs, inputs.ref_logprobs, config.kl)
        sums["kl"] = float(kl.detach().sum())
        if config.kl_in == "loss":
            loss = loss + config.kl_coef * (kl * inputs.token_weights).sum() / inputs.normaliser
    if inputs.entropy is not None and config.entropy_coef:
        loss = loss - config.entropy_coef * (inputs.entropy * inputs.token_weights).sum() / inputs.normaliser
    return LossOutputs(loss, sums)


def mean_over(values: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """[N] each token's mean over the tokens of its group; `groups` are numbered from 0, as `LossInputs.sequence_ids` and `.turn_ids`."""
    sums = values.new_zeros(values.shape).index_add(0, groups, values)
    counts = values.new_zeros(values.shape).index_add(0, groups, values.new_ones(values.shape))
    return (sums / counts.clamp(min=1))[groups]


def kl_penalised_advantages(inputs: LossInputs, config: ObjectiveConfig) -> torch.Tensor:
    """Advantages with each token's KL estimate taken off where `kl_in` is "reward". A token pays for itself, not for those after it."""
    if inputs.ref_logprobs is None or not config.kl_coef or config.kl_in != "reward":
        return inputs.advantages
    return inputs.advantages - config.kl_coef * kl_estimate(inputs.old_logprobs, inputs.ref_logprobs, config.kl).detach()


def kl_estimate(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """One-sample estimates of KL(pi||ref) at tokens sampled from pi (http://joschu.net/blog/kl-approx.html), clamped against overflow."""
    gap = (ref_logprobs - logprobs).clamp(-10, 10)
    if estimator == "k1":
        return -gap
    return gap.square() / 2 if estimator == "k2" else gap.exp() - 1 - gap


def importance(old_logprobs: torch.Tensor, rollout_logprobs: torch.Tensor, cap: float) -> torch.Tensor:
    """[N] min(exp(old_logprobs - rollout_logprobs), cap), without a gradient."""
    return (old_logprobs - rollout_logprobs).detach().clamp(-20, 20).exp().clamp(max=cap)


def token_weights(sequences: Sequence[TokenSequence], chosen: Sequence[int], config: ObjectiveConfig) -> tuple[list[list[float]], float]:
    """(weight of every token of every sequence, the normaliser Z of the chosen ones). A trajectory's sequences are chosen together."""
    if config.aggregate == "token":
        return [sequence.mask for sequence in sequences], sum(sum(sequences[i].mask) for i in chosen)
    tokens: Counter[int] = Counter()
    for i in chosen:
        tokens[sequences[i].trajectory] += int(sum(sequences[i].mask))
    if config.aggregate == "constant":
        return [sequence.mask for sequence in sequences], float(len(tokens) * (config.max_tokens or 1))
    return [[m / max(1, tokens[sequence.trajectory]) for m in sequence.mask] for sequence in sequences], float(len(tokens))
