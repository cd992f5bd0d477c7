"""An algorithm outside the package, in one file: GRPO's advantages with one importance ratio a training row, as verl and TRL have it."""

from __future__ import annotations

from typing import Any

from dreamgym.config import build
from dreamgym.train.algos.grpo import GRPO, GRPOConfig
from dreamgym.train.objective import LossInputs, LossOutputs, clipped_loss, mean_over


class RowRatioConfig(GRPOConfig):
    """Its own setting: both bounds of the clip at once."""

    clip: float = 0.01


class RowRatio(GRPO):
    """`protocols.Algorithm`."""

    def loss(self, inputs: LossInputs) -> LossOutputs:
        clip = {"clip_low": self.config.clip, "clip_high": self.config.clip}
        return clipped_loss(
            inputs, self.config.model_copy(update=clip), log_ratio=mean_over(inputs.logprobs - inputs.old_logprobs, inputs.sequence_ids)
        )


def make(**config: Any) -> RowRatio:
    return RowRatio(build(RowRatioConfig, config, where="algorithm row_ratio"))
