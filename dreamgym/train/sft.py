"""Supervised training on weighted tokens: the policy's warm start, the SFT baseline, and the experience model (Eq. 5).

One trainer for all three: what differs is the rows.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from dreamgym.config import Config
from dreamgym.errors import InvariantError, UsageError
from dreamgym.train.batch import Batch, micro_batches
from dreamgym.train.forward import token_logprobs


class SFTConfig(Config):
    """How to fit rows of weighted tokens."""

    epochs: float = 3.0
    lr: float = 2e-3
    min_lr: float = 1e-5
    warmup: float = 0.03
    """Share of the steps over which the learning rate rises."""
    weight_decay: float = 0.01
    batch_tokens: int = 16_384
    """Positions per optimiser step."""
    grad_clip: float = 1.0
    seconds: float | None = None
    """Stop after this many seconds whatever the epochs; the schedule follows the clock. None trains all epochs."""
    bf16: bool = True
    seed: int = 0


def train(
    model: nn.Module,
    ids: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]],
    config: SFTConfig,
    *,
    segments: Sequence[Sequence[str]] | None = None,
    on_step: Callable[[int, float, dict[str, float]], bool | None] | None = None,
) -> dict[str, float]:
    """Fit the rows; returns the last loss, and each segment's when `segments` names the segment of every token.

    Loss of a step: sum of weight * -log p over its tokens, divided by the sum of weights. `on_step(step, share done, losses)` may
    return True to stop early. InvariantError on a loss that is not a number.
    """
    if not ids:
        raise UsageError("Nothing to train on: no rows. Expected at least one trajectory that ended without an error.")
    optimiser = adamw(model, lr=config.lr, weight_decay=config.weight_decay)
    order = np.random.default_rng(config.seed)
    total = max(1, math.ceil(config.epochs * sum(len(row) for row in ids) / config.batch_tokens))
    start, step, losses = time.monotonic(), 0, {}
    model.train()
    done = 0.0
    while done < 1.0:
        for batch in _shuffled(ids, weights, config.batch_tokens, order):
            done = _progress(step, total, start, config.seconds)
            if done >= 1.0:
                break
            _set_lr(optimiser, config, done)
            losses = _step(model, optimiser, batch, segments, config)
            step += 1
            if on_step and on_step(step, done, losses):
                done = 1.0
                break
    model.eval()
    return {**losses, "steps": float(step), "seconds": time.monotonic() - start}


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves gains alone."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    gains = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def _shuffled(ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], tokens: int, rng: np.random.Generator) -> list[Batch]:
    """One epoch: rows in random order, cut into pools, batches alike in length within a pool, batches in random order."""
    order = rng.permutation(len(ids)).tolist()
    pool = max(1, 16 * tokens * len(ids) // max(1, sum(len(row) for row in ids)))
    batches = [batch for i in range(0, len(order), pool) for batch in micro_batches(ids, weights, order[i : i + pool], tokens=tokens)]
    return [batches[i] for i in rng.permutation(len(batches))]


def _step(
    model: nn.Module, optimiser: torch.optim.Optimizer, batch: Batch, segments: Sequence[Sequence[str]] | None, config: SFTConfig
) -> dict[str, float]:
    chosen = batch.weights[:, 1:] != 0
    weights = batch.weights[:, 1:][chosen]
    logprobs, _ = token_logprobs(model, batch, bf16=config.bf16)
    loss = -(logprobs * weights).sum() / weights.sum()
    if not torch.isfinite(loss):
        raise InvariantError(f"The supervised loss is {loss.item()}. Lower the learning rate ({config.lr}) or look at the rows.")
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
    optimiser.step()
    losses = {"loss": loss.item()}
    if segments is not None:
        losses |= _by_segment(-logprobs.detach(), [segments[i] for i in batch.rows], chosen)
    return losses


def _by_segment(nll: torch.Tensor, names: Sequence[Sequence[str]], chosen: torch.Tensor) -> dict[str, float]:
    rows, columns = chosen.nonzero(as_tuple=True)
    sums: dict[str, list[float]] = defaultdict(list)
    for row, column, value in zip(rows.tolist(), columns.tolist(), nll.tolist(), strict=True):
        sums[names[row][column + 1]].append(value)
    return {f"loss_{name}": float(np.mean(values)) for name, values in sums.items()}


def _progress(step: int, total: int, start: float, seconds: float | None) -> float:
    by_steps = step / total
    return max(by_steps, (time.monotonic() - start) / seconds) if seconds else by_steps


def _set_lr(optimiser: torch.optim.Optimizer, config: SFTConfig, done: float) -> None:
    """Linear warm-up, then a cosine to `min_lr`."""
    if done < config.warmup:
        lr = config.lr * (done + 1e-3) / config.warmup
    else:
        phase = (done - config.warmup) / (1 - config.warmup)
        lr = config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * phase))
    for group in optimiser.param_groups:
        group["lr"] = lr
