"""Supervised training on weighted tokens: the policy's warm start, the SFT baseline, and the experience model (Eq. 5).

One trainer for all three: what differs is the sequences.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dreamgym.errors import ConfigError, InvariantError, UsageError
from dreamgym.train import parallel
from dreamgym.train.batch import Batch, cut, pad
from dreamgym.train.fitting import FitCheckpoint, optimiser_of
from dreamgym.train.fitting import set_lr as _set_lr
from dreamgym.train.forward import device_of, supervised_logprobs
from dreamgym.train.optimisers import Optimiser
from dreamgym.train.settings import SFTConfig


def train(
    model: nn.Module,
    ids: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]],
    config: SFTConfig,
    *,
    seed: int = 0,
    segments: Sequence[Sequence[str]] | None = None,
    on_step: Callable[[int, float, dict[str, float]], bool | None] | None = None,
    checkpoint: Path | None = None,
) -> dict[str, float]:
    """Fit the sequences in an order that `seed` draws; returns the last losses, each segment's too when `segments` names the segment of
    every token.

    Loss of a step: sum of weight * -log p over its tokens, divided by the sum of weights, however many backward passes it takes
    (`micro_tokens`). `on_step(step, share done, losses)` may return True to stop early. Sequences without a weighted token that is
    predicted are left out. With `checkpoint`, an interrupted training goes on from that file; it stays for the caller to remove once the
    model is safe elsewhere. InvariantError on a loss that is not a number.
    """
    kept = [i for i, row in enumerate(weights) if any(row[1:])]  # the first token is never predicted
    ids, weights = [ids[i] for i in kept], [weights[i] for i in kept]
    segments = None if segments is None else [segments[i] for i in kept]
    if not ids:
        raise UsageError(
            "Nothing to train on: no sequence has a weighted token. Expected at least one trajectory that ended without an error."
        )
    if parallel.sharded(model) and (config.max_seconds or checkpoint):
        raise ConfigError(
            "A sharded model trains without a bound in seconds and without a checkpoint: processes would part. Leave both out."
        )
    optimiser = optimiser_of(model, config)
    fit = FitCheckpoint(checkpoint, model, optimiser)
    model.train()
    for chosen, passed, share in _endless(list(map(len, ids)), config, seed=seed, skip=fit.step):
        done = max(passed / config.epochs, fit.seconds / config.max_seconds if config.max_seconds else 0.0)
        if done >= 1.0:
            break
        _set_lr(optimiser, config, done, share / config.epochs)
        fit.losses = _step(model, optimiser, pad(ids, weights, chosen), segments, config)
        fit.step += 1
        if on_step and on_step(fit.step, done, fit.losses):
            break
        fit.save_if_due()  # after `on_step`, so that a step that was saved has been looked at
    model.eval()
    return {**fit.losses, "optimiser_steps": float(fit.step), "seconds": fit.seconds}


def one_pass(lengths: Sequence[int], config: SFTConfig, *, seed: int, epoch: int) -> list[list[int]]:
    """The batches of a pass, every sequence in one of them: shuffled, cut into pools, alike in length within a batch."""
    rng = np.random.default_rng((seed, epoch))
    pool = max(1, 16 * config.batch_tokens * len(lengths) // max(1, sum(lengths)))
    order = rng.permutation(len(lengths)).tolist()
    batches = [b for i in range(0, len(order), pool) for b in cut(lengths, order[i : i + pool], tokens=config.batch_tokens)]
    return [batches[i] for i in rng.permutation(len(batches))]


def _endless(lengths: Sequence[int], config: SFTConfig, *, seed: int, skip: int) -> Iterator[tuple[list[int], float, float]]:
    """Pass after pass of batches without the first `skip`: (sequences, passes done before, the share of a pass that the batch is)."""
    for epoch in itertools.count():
        batches = one_pass(lengths, config, seed=seed, epoch=epoch)
        for i in range(min(skip, len(batches)), len(batches)):
            yield batches[i], epoch + i / len(batches), 1 / len(batches)
        skip = max(0, skip - len(batches))


def _step(
    model: nn.Module, optimiser: Optimiser, batch: Batch, segments: Sequence[Sequence[str]] | None, config: SFTConfig
) -> dict[str, float]:
    """One optimiser step on a batch; its loss, and with `segments` the mean of each segment."""
    batch = batch.to(device_of(model))
    weighted = batch.weights[:, 1:]
    normaliser, total = weighted[weighted != 0].sum(), 0.0
    by_segment: dict[str, list[float]] = defaultdict(list)
    optimiser.zero_grad(set_to_none=True)
    for part in _parts(batch, config.micro_tokens):
        own = parallel.part(part) if parallel.sharded(model) else part
        chosen = own.weights[:, 1:] != 0
        weights = own.weights[:, 1:][chosen]
        logprobs = supervised_logprobs(model, own, bf16=config.bf16)
        if parallel.sharded(model):
            weights = weights * parallel.processes()  # whose gradients are averaged
        loss = -(logprobs * weights).sum() / normaliser
        if parallel.sharded(model):
            loss = parallel.mean(loss)
        if not torch.isfinite(loss):
            raise InvariantError(f"The supervised loss is {loss.item()}. Lower the learning rate ({config.lr}) or look at the sequences.")
        loss.backward()
        total += loss.item()
        if segments is not None:
            _collect(by_segment, -logprobs.detach(), [segments[i] for i in own.sequences], chosen)
    norm = parallel.number(nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip))
    if not math.isfinite(norm):
        raise InvariantError(f"The supervised gradient is {norm}. Lower the learning rate ({config.lr}) or look at the sequences.")
    optimiser.step()
    return {"loss": total, **{f"loss_{name}": float(np.mean(values)) for name, values in by_segment.items()}}


def _parts(batch: Batch, tokens: int | None) -> Iterator[Batch]:
    """The batch in parts of at most `tokens` positions, each padded to its own longest row. A sequence beyond that is a part of its own."""
    lengths = batch.lengths.tolist()
    lots = [list(range(len(lengths)))] if tokens is None else cut(lengths, range(len(lengths)), tokens=tokens)
    if len(lots) == 1:
        yield batch
        return
    for lot in lots:
        width = max(lengths[row] for row in lot)
        sequences = tuple(batch.sequences[row] for row in lot)
        yield Batch(batch.ids[lot, :width], batch.weights[lot, :width], batch.lengths[lot], sequences)


def _collect(values: dict[str, list[float]], nll: torch.Tensor, names: Sequence[Sequence[str]], chosen: torch.Tensor) -> None:
    """Add the losses of the `chosen` tokens to those of their segments."""
    sequences, columns = chosen.nonzero(as_tuple=True)
    for sequence, column, value in zip(sequences.tolist(), columns.tolist(), nll.tolist(), strict=True):
        values[names[sequence][column + 1]].append(value)
