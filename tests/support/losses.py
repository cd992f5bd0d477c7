"""`LossInputs` from the few tensors that a test of a loss is about."""

from __future__ import annotations

from typing import Any

import torch

from dreamgym.train.objective import LossInputs


def inputs(logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, *, normaliser: float = 1.0, **others: Any) -> LossInputs:
    """One row of one turn, every token of weight 1, where nothing else is given."""
    number = torch.zeros(len(logprobs), dtype=torch.long)
    facts: dict[str, Any] = {"token_weights": torch.ones_like(logprobs), "sequence_ids": number, "turn_ids": number}
    return LossInputs(logprobs, old, advantages, normaliser=normaliser, **(facts | others))
