"""The learner's forward pass: log-probabilities of given tokens, computed only where they are needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dreamgym.engines.local import attention, causal_lm, llama
from dreamgym.train import parallel
from dreamgym.train.batch import Batch

LOGITS = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Entries of [N, V] that are held at once; beyond it they are computed in parts, and again in the backward pass. On a GPU, a large
vocabulary's are held once, in the dtype of the head; elsewhere float32 copies are made of them."""
COMPILE_FROM = 8192  # words in a vocabulary, on a GPU
BLOCKS_FROM = 8192  # words in a vocabulary, on a CPU: from there on logits are never held at once, but computed again in the backward pass


def device_of(model: nn.Module) -> torch.device:
    """Where the model's weights are."""
    return next(model.parameters()).device


def token_logprobs(
    model: nn.Module,
    batch: Batch,
    *,
    temperature: float = 1.0,
    bf16: bool = False,
    entropy_gradient: bool = False,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs [N], entropies [N]) of the N tokens whose weight is not 0, in row-major order, on the model's device.

    Logits are divided by the sampling temperature, so that these are the log-probs the sampler reported. Plain Llamas take the packed
    path, which computes no padding, with LoRA adapters or without; for other models rows are right-padded, attention is causal, and padding
    is never seen. Entropies carry a gradient only with `entropy_gradient`. `states` are what `token_states` found, where it was asked.
    """
    batch = batch.to(device_of(model))
    chosen = batch.weights[:, 1:] != 0
    dtype = _half(batch.ids.device, bf16)
    if parallel.sharded(model):  # its layers are gathered by its own forward, which computes the logits of every token
        with _autocast(batch.ids.device, dtype):
            everywhere = model(input_ids=batch.ids[:, :-1], use_cache=False).logits
        return _chosen(everywhere[chosen], batch.ids[:, 1:][chosen], temperature, entropy_gradient)
    states = token_states(model, batch, bf16=bf16) if states is None else states
    targets = batch.ids[:, 1:][chosen]
    vocabulary = causal_lm.plain(model).config.get_text_config().vocab_size
    if states.device.type == "cpu" and vocabulary >= BLOCKS_FROM and llama.supports(model):
        logprobs, entropies = attention.token_logprobs_and_entropies(states, llama.head(model), targets, temperature or 1.0)
        return logprobs, entropies if entropy_gradient else entropies.detach()
    rows = max(1, LOGITS.get(states.device.type, LOGITS["cpu"]) // vocabulary)
    if len(targets) <= rows:
        return _score(model, states, targets, temperature, dtype, entropy_gradient)
    parts = [
        checkpoint(_score, model, x, y, temperature, dtype, entropy_gradient, use_reentrant=False)
        for x, y in zip(states.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat([picked for picked, _ in parts]), torch.cat([entropies for _, entropies in parts])


def supervised_logprobs(model: nn.Module, batch: Batch, *, bf16: bool = False) -> torch.Tensor:
    """Log-probs [N] as `token_logprobs` returns them at temperature 1, without entropies: for losses that need nothing else.

    On a CPU a plain Llama's logits are computed in blocks that fit the cache and once more in the backward pass, which takes about a fifth
    off a training step of the small models.
    """
    batch = batch.to(device_of(model))
    if batch.ids.device.type != "cpu" or parallel.sharded(model) or not llama.supports(model):
        return token_logprobs(model, batch, bf16=bf16)[0]
    chosen = batch.weights[:, 1:] != 0
    return attention.token_logprobs(token_states(model, batch, bf16=bf16), llama.head(model), batch.ids[:, 1:][chosen])


def token_states(model: Any, batch: Batch, *, bf16: bool = False) -> torch.Tensor:
    """Hidden states [N, W] before the N tokens whose weight is not 0: those that predict them, in row-major order.

    The last token of a row predicts nothing and is not computed. Not for sharded models.
    """
    chosen = batch.weights[:, 1:] != 0
    dtype = _half(batch.ids.device, bf16)
    if llama.supports(model):
        real = torch.arange(batch.ids.shape[1] - 1, device=batch.ids.device)[None] < (batch.lengths - 1)[:, None]  # [B, T-1]
        hidden = llama.forward(model, batch.ids[:, :-1][real], (batch.lengths - 1).tolist(), dtype=dtype)
        return hidden[chosen[real]]
    with _autocast(batch.ids.device, dtype):
        states: torch.Tensor = causal_lm.body(model)(input_ids=batch.ids[:, :-1], use_cache=False).last_hidden_state  # [B, T-1, W]
        return states[chosen]


def _score(
    model: Any, states: torch.Tensor, targets: torch.Tensor, temperature: float, dtype: torch.dtype | None, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs, entropies) [N] of `targets` [N] under the logits of `states` [N, W]."""
    if llama.supports(model):
        logits = nn.functional.linear(states, llama.head(model))
    else:
        with _autocast(states.device, dtype):
            logits = causal_lm.logits(model, states)
    if logits.is_cuda and logits.shape[-1] >= COMPILE_FROM:
        llama.any_length(logits, targets)
        return llama.compiled(_chosen)(logits, targets, temperature, entropy_gradient)
    return _chosen(logits, targets, temperature, entropy_gradient)


def _chosen(logits: torch.Tensor, targets: torch.Tensor, temperature: float, entropy_gradient: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs of `targets` [N], entropies [N]) of `logits` [N, V]."""
    scaled = logits.float() if temperature in (0, 1) else logits.float() / temperature
    everything = torch.log_softmax(scaled, dim=-1)  # [N, V]
    picked = everything.gather(1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):  # it costs a pass over [N, V] only where it is trained on
        entropies = -(everything.exp() * everything).sum(-1)
    return picked, entropies


def _half(device: torch.device, bf16: bool) -> torch.dtype | None:
    """bfloat16 where it is wanted and faster than the parameters' own dtype."""
    return torch.bfloat16 if bf16 and llama.computes_in_bfloat16(device) else None


def _autocast(device: torch.device, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype is not None)
