"""Settings of the trainers, apart from them so that a configuration is checked before torch is imported."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from dreamgym.config import Config

ROUNDING = 0.01
"""The narrowest clip that is wide beside the thousandths of a nat by which a sampler at half precision differs from the learner."""


class FitConfig(Config):
    """How sequences are fitted, whatever the loss."""

    epochs: float = Field(default=3.0, gt=0, le=1e6)
    """Passes over the sequences, each of which is in one batch of a pass; the last one may be a part."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    """`muon` moves the matrices inside layers by orthogonal steps (https://kellerjordan.github.io/posts/muon/) of the size that AdamW's
    have, so that `lr` means much the same for both. For models trained from scratch."""
    lr: float = Field(default=2e-3, gt=0)
    """The highest learning rate."""
    min_lr: ClassVar[float] = 1e-5  # where the schedule ends; never above `lr`
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    """Share of the steps over which the learning rate rises."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay, decoupled as in AdamW."""
    grad_clip: float = Field(default=1.0, gt=0)
    """The largest norm of a step's gradient."""
    bf16: bool = True
    """Matrix products in bfloat16."""


class SFTConfig(FitConfig):
    """How to fit sequences of weighted tokens."""

    batch_tokens: int = Field(default=16_384, ge=1)
    """Positions per optimiser step, padding included."""
    micro_tokens: int | None = Field(default=None, ge=1)
    """Positions of one backward pass, a limit of memory: gradients of the parts of a step are summed. Not set: a step is one backward
    pass."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Stop after this many seconds whatever the epochs; the schedule follows the clock. Not set: as `epochs` says."""


class DPOConfig(FitConfig):
    """How to fit preferences between trajectories."""

    lr: float = Field(default=2e-4, gt=0)
    min_lr: ClassVar[float] = 1e-6
    beta: float = Field(default=0.1, gt=0.0)
    """Strength of the pull to the reference: the larger, the smaller the log-ratios that satisfy a pair."""
    pairs: int = Field(default=16, ge=1)
    """Pairs per optimiser step."""
    micro_tokens: int = Field(default=16_384, ge=1)


class LearnerConfig(Config):
    """How gradients become steps."""

    lr: float = Field(default=5e-4, gt=0.0)
    """The learning rate of the policy's AdamW."""
    schedule: Literal["constant", "linear"] = "linear"
    """`linear` falls to a tenth of `lr` over the updates that the learner is made for."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises to `lr`: each of Adam's first steps moves every weight by about all of it."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Weight decay, decoupled as in AdamW."""
    grad_clip: float = Field(default=0.5, gt=0.0)
    """The largest norm of a step's gradient."""
    minibatches: int = Field(default=4, ge=1, le=10_000)
    """Optimiser steps per epoch, each on whole trajectories; fewer when less than `min_trajectories` would share one."""
    min_trajectories: int = Field(default=24, ge=1)
    """Fewest trajectories of one optimiser step; with fewer, an iteration gets fewer minibatches. The size of Adam's step does not depend
    on the number of episodes, and late in training few groups are mixed: a step on five episodes is mostly noise."""
    epochs: int = Field(default=1, ge=1, le=10_000)
    """Passes over an iteration's trajectories."""
    micro_tokens: int = Field(default=16_384, ge=1)
    """Tokens of one backward pass, a limit of memory; the step is that of the whole minibatch."""
    temperature: float = Field(default=1.0, gt=0.0)
    """The sampling temperature of the rollouts; the learner's log-probs are taken at it."""
    bf16: bool = True
    """Matrix products in bfloat16."""
    old_logprobs: Literal["learner", "sampler"] = "learner"
    """The log-probs in the denominator of the ratio, since learner and sampler may round differently: the learner's own, computed by one
    more forward pass before the first step, or the sampler's. The local engine differs by a few thousandths of a nat: far inside a clip
    such as GRPO's, and beyond GSPO's, for which it is refused. `logprob_mismatch` says by how much, without that pass from the first
    step."""

    def conflict(self, algorithm: Config) -> str:
        """Why the sampler's log-probs do not do for an algorithm of these settings; empty where they do."""
        if self.old_logprobs == "learner":
            return ""
        if getattr(algorithm, "importance_cap", 0.0):
            return "'sampler' leaves nothing for the algorithm's importance_cap to weigh; set learner.old_logprobs = 'learner'"
        narrow = min((clip for name in ("clip_low", "clip_high") if (clip := getattr(algorithm, name, None)) is not None), default=1.0)
        if narrow < ROUNDING:
            return (
                "'sampler' would clip by how the sampler rounds, which is thousandths of a nat: the algorithm's ratio is clipped at "
                f"{narrow:g}; set learner.old_logprobs = 'learner', or clip_low and clip_high to {ROUNDING:g} or more"
            )
        return ""


class CriticConfig(Config):
    """What the value function is and how it is fitted."""

    kind: Literal["detached", "shared", "separate"] = "detached"
    """A head that leaves the policy's weights alone, a head whose loss moves them too, or a second model that starts as a copy."""
    lr: float = Field(default=5e-3, gt=0.0)
    """Of head and second model; it follows the policy's schedule."""
    coef: float = Field(default=0.5, gt=0.0)
    """Weight of the value loss, which matters beside the policy's only where weights are shared."""
    clip: float = Field(default=0.2, ge=0.0)
    """How far one update may move a value from what it was; 0 does not bound it."""
