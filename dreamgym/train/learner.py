"""The learner: owns the policy's weights and optimiser, and turns groups of trajectories into gradient steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from dreamgym.config import Config
from dreamgym.errors import InvariantError, UsageError
from dreamgym.returns import statistics
from dreamgym.train import parallel
from dreamgym.train.algos.grpo import GRPO
from dreamgym.train.batch import Batch, Row, micro_batches, padded, rows_of
from dreamgym.train.forward import device_of, token_logprobs
from dreamgym.train.sft import adamw
from dreamgym.train.weights import Reference, restore, state_of
from dreamgym.types import Trajectory


class LearnerConfig(Config):
    """How gradients become steps."""

    lr: float = 5e-4
    schedule: Literal["constant", "linear"] = "linear"
    """`linear` falls to a tenth of `lr` over the updates that the learner is made for."""
    weight_decay: float = 0.0
    grad_clip: float = 0.5
    minibatches: int = Field(default=4, ge=1)
    """Optimiser steps per epoch, each on whole trajectories; fewer when less than `min_trajectories` would share one."""
    min_trajectories: int = Field(default=24, ge=1)
    """Adam's step does not shrink with its evidence: late in training few groups are mixed, and a step on five episodes is mostly noise."""
    epochs: int = 1
    micro_tokens: int = 16_384
    temperature: float = Field(default=1.0, gt=0.0)
    """The sampling temperature of the rollouts; the learner's log-probs are taken at it."""
    bf16: bool = True
    """Matrix products in bfloat16; the log-probs of the behaviour policy are then recomputed at the same precision."""
    seed: int = 0


class Learner:
    """Policy gradient on groups of rollouts of the same task. `version` counts published weights."""

    def __init__(
        self,
        model: nn.Module,
        algorithm: GRPO,
        config: LearnerConfig,
        *,
        total_updates: int | None = None,
        on_publish: Callable[[int], None] | None = None,
    ) -> None:
        """`total_updates`: the calls of `update` that a linear schedule spans; without it the learning rate stays as it is."""
        if parallel.sharded(model):
            raise UsageError("RL samples from the model that it trains, so all weights must be in one process. Do not shard this one.")
        self.model, self.algorithm, self.config, self.total_updates = model, algorithm, config, total_updates
        self.optimiser = adamw(model, lr=config.lr, weight_decay=config.weight_decay)
        self.version, self.updates, self._on_publish = 0, 0, on_publish
        self.reference = Reference(model) if algorithm.config.kl_coef else None

    def update(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
        """One iteration: advantages, then `epochs` x `minibatches` steps, then publish. Groups without a signal are only counted."""
        rows, kinds = self._rows(groups)
        metrics = {f"groups_{kind}": float(count) for kind, count in sorted(kinds.items())}
        metrics |= {"rows": float(len(rows)), "tokens": float(sum(sum(row.mask) for row in rows))}
        if rows:
            metrics |= self._optimise(rows)
        self.updates += 1
        self.publish()
        return metrics | {"version": float(self.version)}

    def publish(self) -> int:
        """Make the weights the ones that act; every later completion carries the returned version."""
        self.version += 1
        if self._on_publish:
            self._on_publish(self.version)
        return self.version

    def state_dict(self) -> dict[str, Any]:
        """Everything `load_state_dict` needs to go on as if never stopped; of a model with adapters, the adapters alone."""
        return {
            "model": state_of(self.model),
            "optimiser": self.optimiser.state_dict(),
            "version": self.version,
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self.model, state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.version, self.updates = state["version"], state["updates"]
        if self._on_publish:
            self._on_publish(self.version)

    def _rows(self, groups: Sequence[Sequence[Trajectory]]) -> tuple[list[Row], Counter[str]]:
        """Rows of the groups that carry a signal, with their advantages on every sampled token."""
        if any(len(group) < 2 for group in groups):
            raise UsageError("GRPO compares rollouts of the same task, so it needs group_size >= 2.")
        rows: list[Row] = []
        kinds: Counter[str] = Counter()
        trajectory = 0
        for group in groups:
            scored = [t for t in group if t.error is None]
            found = statistics(group)
            kinds[found.kind] += 1
            for episode, advantage in zip(scored, self.algorithm.advantages(found), strict=True):
                if advantage != 0.0:
                    for row in rows_of(episode, trajectory):
                        row.advantages = [advantage * m for m in row.mask]
                        rows.append(row)
                    trajectory += 1
        return rows, kinds

    def _optimise(self, rows: list[Row]) -> dict[str, float]:
        rng = np.random.default_rng((self.config.seed, self.updates))
        sums: dict[str, float] = defaultdict(float)
        rough = self.config.bf16 or next(self.model.parameters()).dtype != torch.float32
        measured = {"mismatch": self._recompute(rows)} if rough else {}
        steps = 0
        self._set_lr()
        trajectories = len({row.trajectory for row in rows})
        parts = min(self.config.minibatches, max(1, trajectories // self.config.min_trajectories))
        self.model.train()
        for _ in range(self.config.epochs):
            for chosen in _split_trajectories(rows, parts, rng):
                norm = self._step(rows, chosen, sums)
                sums["grad_norm"] += norm
                steps += 1
        self.model.eval()
        per_token = max(1.0, sums.pop("trained"))
        grad_norm = sums.pop("grad_norm") / max(1, steps)
        found = {name: value / per_token for name, value in sums.items()}
        return found | {"grad_norm": grad_norm, "steps": float(steps)} | measured

    def _set_lr(self) -> None:
        lr = self.config.lr
        if self.config.schedule == "linear" and self.total_updates:
            lr *= max(0.1, 1 - self.updates / self.total_updates)
        for group in self.optimiser.param_groups:
            group["lr"] = lr

    @torch.no_grad()
    def _recompute(self, rows: list[Row]) -> float:
        """Replace the sampler's log-probs by the learner's own, so that the ratio starts at 1 when the two compute at different precision.

        Returns the mean absolute difference between the two, in nats.
        """
        difference, tokens = 0.0, 0
        ids, masks = [row.ids for row in rows], [row.mask for row in rows]
        for batch in self._batches(ids, masks, range(len(rows))):
            chosen = batch.weights[:, 1:] != 0
            fresh, _ = token_logprobs(self.model, batch, temperature=self.config.temperature, bf16=self.config.bf16)
            sampled = padded([row.logprobs for row in rows], batch)[:, 1:]
            difference += float((fresh - sampled[chosen]).abs().sum())
            tokens += len(fresh)
            sampled[chosen] = fresh
            for i, values, length in zip(batch.rows, sampled.tolist(), batch.lengths.tolist(), strict=True):
                rows[i].logprobs = [0.0, *values[: length - 1]]
        return difference / max(1, tokens)

    def _step(self, rows: list[Row], chosen: Sequence[int], sums: dict[str, float]) -> float:
        """One optimiser step on the chosen rows; returns the gradient's norm before clipping."""
        normaliser = sum(sum(rows[i].mask) for i in chosen)
        ids, masks = [row.ids for row in rows], [row.mask for row in rows]
        self.optimiser.zero_grad(set_to_none=True)
        for batch in self._batches(ids, masks, chosen):
            picked = batch.weights[:, 1:] != 0
            reference = self._reference(batch)
            logprobs, entropy = token_logprobs(
                self.model,
                batch,
                temperature=self.config.temperature,
                bf16=self.config.bf16,
                entropy_gradient=bool(self.algorithm.config.entropy_coef),
            )
            old = padded([row.logprobs for row in rows], batch)[:, 1:][picked]
            advantages = padded([row.advantages for row in rows], batch)[:, 1:][picked]
            loss, found = self.algorithm.loss(logprobs, old, advantages, normaliser=normaliser, reference=reference, entropy=entropy)
            loss.backward()
            for name, value in (found | {"entropy": float(entropy.detach().sum()), "trained": float(picked.sum())}).items():
                sums[name] += value
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip))
        if not math.isfinite(norm):
            raise InvariantError(
                f"The policy's gradient is {norm}. Lower the learning rate ({self.config.lr}) or look at the last rollouts."
            )
        self.optimiser.step()
        return norm

    def _batches(self, ids: Sequence[Sequence[int]], masks: Sequence[Sequence[float]], chosen: Sequence[int]) -> Iterator[Batch]:
        """Micro-batches of the chosen rows, where the model is."""
        device = device_of(self.model)
        return (batch.to(device) for batch in micro_batches(ids, masks, chosen, tokens=self.config.micro_tokens))

    def _reference(self, batch: Batch) -> torch.Tensor | None:
        """Log-probs of the batch's tokens under the reference policy; None when there is none."""
        if self.reference is None:
            return None
        with self.reference.acting() as model:
            return token_logprobs(model, batch, temperature=self.config.temperature, bf16=self.config.bf16)[0]


def _split_trajectories(rows: Sequence[Row], parts: int, rng: np.random.Generator) -> list[list[int]]:
    """Row indices in `parts` random lots, rows of one trajectory always together."""
    trajectories = sorted({row.trajectory for row in rows})
    order = rng.permutation(trajectories)
    lots = [set(lot.tolist()) for lot in np.array_split(order, min(parts, len(order)))]
    return [[i for i, row in enumerate(rows) if row.trajectory in lot] for lot in lots]
