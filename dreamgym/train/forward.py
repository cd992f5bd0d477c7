"""The learner's forward pass: log-probabilities of given tokens, computed only where they are needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dreamgym.llm import _llama
from dreamgym.train.batch import Batch


def token_logprobs(
    model: nn.Module, batch: Batch, *, temperature: float = 1.0, bf16: bool = False, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs [N], entropies [N]) of the N tokens whose weight is not 0, in row-major order.

    Logits are divided by the sampling temperature, so that these are the log-probs the sampler reported. Plain Llamas take the packed
    path, which computes no padding; for other models rows are right-padded, attention is causal, and padding is never seen.
    """
    chosen = batch.weights[:, 1:] != 0
    logits = _logits(model, batch, chosen, torch.bfloat16 if bf16 else None).float() / (temperature or 1.0)
    everything = torch.log_softmax(logits, dim=-1)  # [N, V]
    picked = everything.gather(1, batch.ids[:, 1:][chosen][:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):  # it costs a pass over [N, V] only where it is trained on
        entropies = -(everything.exp() * everything).sum(-1)
    return picked, entropies


def _logits(model: Any, batch: Batch, chosen: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Logits [N, V] that predict the chosen tokens; the last token of a row predicts nothing and is not computed."""
    if _llama.supports(model):
        real = torch.arange(batch.ids.shape[1] - 1)[None] < (batch.lengths - 1)[:, None]  # [B, T-1]
        hidden = _llama.forward(model, batch.ids[:, :-1][real], (batch.lengths - 1).tolist(), dtype=dtype)
        return nn.functional.linear(hidden[chosen[real]], model.lm_head.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is not None):
        states = model.model(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state  # [B, T-1, D]
        return model.lm_head(states[chosen])
