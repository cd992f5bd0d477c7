"""DPO on whole trajectories: prefer a success to a failure of the same task, from logs alone (arXiv:2305.18290).

    D(tau) = sum of (log pi - log ref) over the action tokens of tau
    L      = -log sigmoid(beta * (D_success - D_failure))

The reference is the model as it is given; its log-probs are computed once, before the first step.
States, instructions and whatever else has weight 0 count in neither sum. An offline baseline for agents, beside `train.sft`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import logsigmoid

from dreamgym.errors import InvariantError, UsageError
from dreamgym.train import parallel
from dreamgym.train.batch import Batch, cut, micro_batches, pad
from dreamgym.train.fitting import FitCheckpoint, optimiser_of, set_lr
from dreamgym.train.forward import device_of, supervised_logprobs
from dreamgym.train.optimisers import Optimiser
from dreamgym.train.settings import DPOConfig
from dreamgym.types import Trajectory

TokenSequence = tuple[Sequence[int], Sequence[float]]
"""Token ids and their weights, as `agent.demonstrations` makes them: not 0 on actions and their ends."""


def dpo_pairs(trajectories: Sequence[Trajectory], seed: int) -> list[tuple[Trajectory, Trajectory]]:
    """(success, failure) of the same task, drawn at random. No trajectory is in two pairs; those with an error, or without a known
    outcome, are in none.

    A task that was always solved, or never, gives no pair.
    """
    by_task: dict[str, tuple[list[Trajectory], list[Trajectory]]] = defaultdict(lambda: ([], []))
    for trajectory in trajectories:
        if trajectory.error is None and trajectory.turns and trajectory.scored:
            by_task[trajectory.task.id][0 if trajectory.success else 1].append(trajectory)
    rng = random.Random(f"dpo/{seed}")
    pairs = []
    for successes, failures in by_task.values():
        rng.shuffle(successes)
        rng.shuffle(failures)
        pairs += list(zip(successes, failures, strict=False))
    return pairs


def train(
    model: nn.Module,
    chosen: Sequence[TokenSequence],
    rejected: Sequence[TokenSequence],
    config: DPOConfig,
    *,
    seed: int = 0,
    on_step: Callable[[int, float, dict[str, float]], bool | None] | None = None,
    checkpoint: Path | None = None,
) -> dict[str, float]:
    """Fit the pairs (chosen[i], rejected[i]) in an order that `seed` draws; returns the last step's loss, accuracy (share of pairs in the
    right order) and margin (mean of beta * (D_success - D_failure)).

    `on_step(step, share done, metrics)` may return True to stop early. With `checkpoint`, an interrupted training goes on from that file;
    give the model as it was at the start, which is the reference. InvariantError on a loss that is not a number.
    """
    if not chosen or len(chosen) != len(rejected):
        raise UsageError(f"DPO needs as many chosen as rejected sequences, and at least one pair: got {len(chosen)} and {len(rejected)}.")
    if parallel.sharded(model):
        raise UsageError("DPO trains in one process. Do not shard this model.")
    sequences = [*chosen, *rejected]
    model.eval()
    reference = _sums(model, sequences, config)
    optimiser = optimiser_of(model, config)
    total = max(1, math.ceil(config.epochs * math.ceil(len(chosen) / config.pairs)))
    fit = FitCheckpoint(checkpoint, model, optimiser)
    model.train()
    for pairs in _endless(len(chosen), config, seed=seed, skip=fit.step):
        done = fit.step / total
        if done >= 1.0:
            break
        set_lr(optimiser, config, done, 1 / total)
        fit.losses = _step(model, optimiser, sequences, reference, pairs, config)
        fit.step += 1
        if on_step and on_step(fit.step, done, fit.losses):
            break
        fit.save_if_due()
    model.eval()
    return {**fit.losses, "optimiser_steps": float(fit.step), "seconds": fit.seconds}


def dpo_loss(differences: torch.Tensor, *, beta: float) -> torch.Tensor:
    """The summed loss of D_success - D_failure [P]."""
    return -logsigmoid(beta * differences).sum()


def _step(
    model: nn.Module,
    optimiser: Optimiser,
    sequences: Sequence[TokenSequence],
    reference: torch.Tensor,
    pairs: Sequence[int],
    config: DPOConfig,
) -> dict[str, float]:
    """One optimiser step on the named pairs. Both sequences of a pair share a micro-batch, since the loss does not part them."""
    n = len(sequences) // 2
    longest = [max(len(sequences[i][0]), len(sequences[n + i][0])) for i in range(n)]
    loss, right, margin = 0.0, 0.0, 0.0
    optimiser.zero_grad(set_to_none=True)
    for lot in cut(longest, pairs, tokens=config.micro_tokens // 2):
        both = [*lot, *(n + i for i in lot)]
        batch = pad([ids for ids, _ in sequences], [weights for _, weights in sequences], both).to(device_of(model))
        ratios = _sequence_sums(model, batch, config) - reference[both].to(batch.ids.device)
        differences = ratios[: len(lot)] - ratios[len(lot) :]
        part = dpo_loss(differences, beta=config.beta) / len(pairs)
        part.backward()
        loss += part.item()
        right += float((differences > 0).sum()) / len(pairs)
        margin += config.beta * float(differences.detach().sum()) / len(pairs)
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip))
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise InvariantError(
            f"The DPO loss is {loss}, its gradient {norm}. Lower the learning rate ({config.lr}) or look at the sequences."
        )
    optimiser.step()
    return {"loss": loss, "accuracy": right, "margin": margin}


@torch.no_grad()
def _sums(model: nn.Module, sequences: Sequence[TokenSequence], config: DPOConfig) -> torch.Tensor:
    """[len(sequences)] sums of the log-probs of every sequence's weighted tokens."""
    sums = torch.zeros(len(sequences))
    for batch in micro_batches([ids for ids, _ in sequences], [w for _, w in sequences], range(len(sequences)), tokens=config.micro_tokens):
        sums[list(batch.sequences)] = _sequence_sums(model, batch.to(device_of(model)), config).cpu()
    return sums


def _sequence_sums(model: nn.Module, batch: Batch, config: DPOConfig) -> torch.Tensor:
    """[B] sums of the log-probs of each sequence's tokens whose weight is not 0."""
    logprobs = supervised_logprobs(model, batch, bf16=config.bf16)
    where = (batch.weights[:, 1:] != 0).nonzero()[:, 0]  # [N] the sequence of each token
    return torch.zeros(len(batch.sequences), device=logprobs.device).index_add(0, where, logprobs)


def _endless(n: int, config: DPOConfig, *, seed: int, skip: int) -> Iterator[list[int]]:
    """Epoch after epoch of shuffled pairs, as many as a step takes, without the first `skip` steps."""
    for epoch in itertools.count():
        order = np.random.default_rng((seed, epoch)).permutation(n).tolist()
        for i in range(0, n, config.pairs):
            skip -= 1
            if skip < 0:
                yield order[i : i + config.pairs]
