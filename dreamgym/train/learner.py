"""The learner: owns the policy's weights and optimiser, and turns groups of trajectories into gradient steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from dreamgym.errors import ConfigError, InvariantError, UsageError
from dreamgym.protocols import ActorCritic, Algorithm, Stateful
from dreamgym.returns import group_statistics
from dreamgym.train import parallel
from dreamgym.train.batch import Batch, TokenSequence, assign_advantages, micro_batches, padded, sequences_of
from dreamgym.train.critic import Critic
from dreamgym.train.forward import device_of, token_logprobs, token_states
from dreamgym.train.objective import LossInputs, token_weights
from dreamgym.train.optimisers import adamw
from dreamgym.train.settings import LearnerConfig
from dreamgym.train.weights import Reference, restore, state_of
from dreamgym.types import Trajectory


class Learner:
    """Policy gradient on groups of rollouts of the same task. `version` counts published weights."""

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm | ActorCritic,
        config: LearnerConfig,
        *,
        seed: int = 0,
        total_updates: int | None = None,
        on_publish: Callable[[int], None] | None = None,
        next_prompt: Callable[[Trajectory], Sequence[int] | None] | None = None,
    ) -> None:
        """`seed`: of how trajectories are divided into minibatches.

        `total_updates`: the calls of `update` that a linear schedule spans; without it the learning rate stays as it is.

        `next_prompt`: the prompt that would have followed an episode's last turn (`Agent.next_prompt`). Algorithms that bootstrap episodes
        cut at the horizon read a value there. ConfigError for settings that exclude each other.
        """
        self.sharded = parallel.sharded(model)
        if conflict := config.conflict(algorithm.config):
            raise ConfigError(f"learner.old_logprobs: {conflict}.")
        if self.sharded and (isinstance(algorithm, ActorCritic) or algorithm.config.kl_coef):
            raise ConfigError(
                "A sharded policy trains without a critic and without a reference. Use GRPO, GiGPO or REINFORCE, kl_coef = 0."
            )
        self.model, self.algorithm, self.config = model, algorithm, config
        self.seed, self.total_updates = seed, total_updates
        self.optimiser = adamw(model, lr=config.lr, weight_decay=config.weight_decay)
        self.critic = Critic(model, algorithm.critic) if isinstance(algorithm, ActorCritic) else None
        self.version, self.updates, self._on_publish, self._next_prompt = 0, 0, on_publish, next_prompt
        self.iterations_without_reward = 0
        self.optimiser_steps = 0  # since the start
        self.reference = Reference(model) if algorithm.config.kl_coef else None

    def update(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
        """One iteration: advantages, then `epochs` x `minibatches` steps, then publish. Returns the metrics of docs/metrics.md.

        Rollouts whose advantages are all 0 are left out. UsageError for an algorithm that compares rollouts and a group of one;
        InvariantError for a gradient that is not finite.
        """
        if self.algorithm.grouped and any(len(group) < 2 for group in groups):
            name = type(self.algorithm).__name__
            raise UsageError(f"{name} compares rollouts of the same task, so it needs group_size >= 2.")
        kinds = Counter(group_statistics(group).kind for group in groups)
        earned = any(t.total_reward > 0 for group in groups for t in group if t.error is None)
        self.iterations_without_reward = 0 if earned else self.iterations_without_reward + 1
        metrics = {f"groups_{kind}": float(kinds[kind]) for kind in sorted({*kinds, "mixed"})}  # 0 mixed groups are named as well
        metrics["iterations_without_reward"] = float(self.iterations_without_reward)
        sequences, of_critic = self._critic_sequences(groups) if self.critic else (self._advantage_sequences(groups), {})
        metrics |= of_critic | {"sequences": float(len(sequences)), "tokens": float(sum(sum(sequence.mask) for sequence in sequences))}
        if sequences:
            metrics |= self._optimise(sequences)
        self.updates += 1
        self.publish()
        return metrics | {"policy_version": float(self.version)}

    def publish(self) -> int:
        """Give the weights to the sampler; later completions carry the returned version."""
        self.version += 1
        if self._on_publish:
            self._on_publish(self.version)
        return self.version

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact resume needs; of a model with adapters, the adapters alone."""
        if self.sharded:
            raise UsageError("No process holds all of a sharded learner. Save its policy: `parallel.whole(model)` has the weights.")
        return {
            "model": state_of(self.model),
            "optimiser": self.optimiser.state_dict(),
            "critic": self.critic.state_dict() if self.critic else {},
            "algorithm": self.algorithm.state_dict() if isinstance(self.algorithm, Stateful) else {},
            "version": self.version,
            "updates": self.updates,
            "iterations_without_reward": self.iterations_without_reward,
            "optimiser_steps": self.optimiser_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self.model, state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.critic:
            self.critic.load_state_dict(state["critic"])
        if isinstance(self.algorithm, Stateful):
            self.algorithm.load_state_dict(state["algorithm"])
        self.version, self.updates = state["version"], state["updates"]
        self.iterations_without_reward = state["iterations_without_reward"]
        self.optimiser_steps = state["optimiser_steps"]
        if self._on_publish:
            self._on_publish(self.version)

    def _advantage_sequences(self, groups: Sequence[Sequence[Trajectory]]) -> list[TokenSequence]:
        """Sequences of the rollouts that carry a signal, with each turn's advantage on its sampled tokens."""
        assert isinstance(self.algorithm, Algorithm)
        sequences: list[TokenSequence] = []
        trajectory = 0
        for group, advantages in zip(groups, self.algorithm.compute_advantages(groups), strict=True):
            for episode, by_turn in zip([t for t in group if t.error is None], advantages, strict=True):
                if any(a != 0.0 for a in by_turn):
                    sequences += assign_advantages(sequences_of(episode, trajectory), by_turn)
                    trajectory += 1
        return sequences

    def _critic_sequences(self, groups: Sequence[Sequence[Trajectory]]) -> tuple[list[TokenSequence], dict[str, float]]:
        """Sequences of all sound rollouts with advantages and value targets from the critic, and how much of the returns it explained."""
        assert isinstance(self.algorithm, ActorCritic) and self.critic is not None
        episodes = [t for group in groups for t in group if t.error is None]
        by_episode = [sequences_of(episode, i) for i, episode in enumerate(episodes)]
        sequences = [sequence for own in by_episode for sequence in own]
        self.algorithm.mark_valued(sequences)
        values = self._values([sequence.ids for sequence in sequences], [sequence.value_mask for sequence in sequences])
        for sequence, own_values in zip(sequences, values, strict=True):
            sequence.values = own_values
        after = self._bootstrap_values(episodes)
        for i, (episode, own) in enumerate(zip(episodes, by_episode, strict=True)):
            self.algorithm.set_advantages(episode, own, after.get(i, 0.0))
        self.algorithm.normalise(sequences)
        return sequences, _explained(sequences)

    def _bootstrap_values(self, episodes: Sequence[Trajectory]) -> dict[int, float]:
        """Of every episode cut at the horizon, the value of the state that would have come next; none of one that outgrew the context."""
        cut = [i for i, episode in enumerate(episodes) if episode.truncated and episode.turns]
        if not cut or not self.algorithm.config.bootstrap:
            return {}
        if self._next_prompt is None:
            raise UsageError(
                "Episodes cut at the horizon are valued at the prompt that would have followed. Give "
                "Learner(next_prompt=agent.next_prompt), or set bootstrap = false to count them as ended."
            )
        prompts = {i: prompt for i in cut if (prompt := self._next_prompt(episodes[i])) is not None}
        ids = [[*prompt, 0] for prompt in prompts.values()]  # a value is read before a token: which one does not matter
        marks = [[0.0] * (len(sequence) - 1) + [1.0] for sequence in ids]
        return {i: values[-1] for i, values in zip(prompts, self._values(ids, marks), strict=True)}

    @torch.no_grad()
    def _values(self, ids: Sequence[Sequence[int]], marks: Sequence[Sequence[float]]) -> list[list[float]]:
        """Along `ids`, the critic's value before every marked token and 0.0 elsewhere."""
        assert self.critic is not None
        by_sequence: list[list[float]] = [[] for _ in ids]
        for batch in self._batches(ids, marks, range(len(ids))):
            grid = torch.zeros_like(batch.weights[:, 1:])
            grid[batch.weights[:, 1:] != 0] = self.critic.values(batch, bf16=self.config.bf16)
            for i, values, length in zip(batch.sequences, grid.tolist(), batch.lengths.tolist(), strict=True):
                by_sequence[i] = [0.0, *values[: length - 1]]
        return by_sequence

    def _optimise(self, sequences: list[TokenSequence]) -> dict[str, float]:
        rng = np.random.default_rng((self.seed, self.updates))
        sums: dict[str, float] = defaultdict(float)
        measured = {"logprob_mismatch": self._recompute(sequences)} if self.config.old_logprobs == "learner" else {}
        steps = 0
        trajectories = len({sequence.trajectory for sequence in sequences})
        parts = min(self.config.minibatches, max(1, trajectories // self.config.min_trajectories))
        self._train_mode(True)
        for _ in range(self.config.epochs):
            for chosen in _split_trajectories(sequences, parts, rng):
                sums["grad_norm"] += self._step(sequences, chosen, sums)
                self.optimiser_steps += 1
                if "logprob_mismatch" not in measured:  # by the first step, which is taken at the weights that sampled
                    measured["logprob_mismatch"] = sums["logprob_gap"] / max(1.0, sums["trained"])
                steps += 1
        self._train_mode(False)
        per_token = max(1.0, sums.pop("trained"))
        sums.pop("logprob_gap")
        grad_norm = sums.pop("grad_norm") / max(1, steps)
        if self.critic:
            measured["value_loss"] = sums.pop("value_loss") / max(1.0, sums.pop("decisions"))
        means = {name: value / per_token for name, value in sums.items()}
        return means | {"grad_norm": grad_norm, "optimiser_steps": float(steps)} | measured

    def _set_lr(self) -> float:
        """The share of the learning rate at which the next optimiser step is taken."""
        scale = min(1.0, (self.optimiser_steps + 1) / max(1, self.config.warmup_steps))
        if self.config.schedule == "linear" and self.total_updates:
            scale *= max(0.1, 1 - self.updates / self.total_updates)
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.lr * scale
        return scale

    def _train_mode(self, mode: bool) -> None:
        self.model.train(mode)
        if self.critic:
            self.critic.train(mode)

    @torch.no_grad()
    def _recompute(self, sequences: list[TokenSequence]) -> float:
        """Make `old_logprobs` the learner's own, so that the ratio starts at 1 when sampler and learner compute at different precision.

        Returns the mean absolute difference between the two, in nats.
        """
        difference, tokens = 0.0, 0
        ids, masks = [sequence.ids for sequence in sequences], [sequence.mask for sequence in sequences]
        for batch in self._batches(ids, masks, range(len(sequences))):
            chosen = batch.weights[:, 1:] != 0
            fresh = self._logprobs(batch)
            grid = padded([sequence.rollout_logprobs for sequence in sequences], batch)[:, 1:]
            difference += float((fresh - grid[chosen]).abs().sum())
            tokens += len(fresh)
            grid[chosen] = fresh
            for i, values, length in zip(batch.sequences, grid.tolist(), batch.lengths.tolist(), strict=True):
                sequences[i].old_logprobs = [0.0, *values[: length - 1]]
        return difference / max(1, tokens)

    def _logprobs(self, batch: Batch) -> torch.Tensor:
        """Log-probs of the batch's tokens under the policy; of a sharded one every process computes a part and has all."""
        own = parallel.part(batch) if self.sharded else batch
        logprobs, _ = token_logprobs(self.model, own, temperature=self.config.temperature, bf16=self.config.bf16)
        return parallel.joined(logprobs, own, batch) if self.sharded else logprobs

    def _step(self, sequences: list[TokenSequence], chosen: Sequence[int], sums: dict[str, float]) -> float:
        """One optimiser step on the chosen sequences; returns the norm of the policy's gradient before clipping."""
        weights, normaliser = token_weights(sequences, chosen, self.algorithm.config)
        decisions = sum(sum(sequences[i].value_mask) for i in chosen)
        self.optimiser.zero_grad(set_to_none=True)
        if self.critic:
            self.critic.zero_grad()
        if self.sharded:
            normaliser /= parallel.processes()  # whose gradients are averaged
        for batch in self._batches([sequence.ids for sequence in sequences], weights, chosen):
            batch = parallel.part(batch) if self.sharded else batch
            picked = batch.weights[:, 1:] != 0
            ref_logprobs = self._ref_logprobs(batch)
            states = token_states(self.model, batch, bf16=self.config.bf16) if self.critic else None
            logprobs, entropy = token_logprobs(
                self.model,
                batch,
                temperature=self.config.temperature,
                bf16=self.config.bf16,
                entropy_gradient=bool(self.algorithm.config.entropy_coef),
                states=states,
            )
            inputs = self._loss_inputs(sequences, batch, picked, logprobs, entropy, normaliser=normaliser, ref_logprobs=ref_logprobs)
            loss, diagnostics = self.algorithm.loss(inputs)
            if self.critic and states is not None:
                value_loss = self._value_loss(sequences, batch, states)
                loss = loss + self.critic.config.coef * value_loss / max(1.0, decisions)
                sums["value_loss"] += float(value_loss.detach())
            loss.backward()
            diagnostics |= {"entropy": float(entropy.detach().sum()), "trained": float(picked.sum())}
            diagnostics["logprob_gap"] = float((logprobs.detach() - inputs.old_logprobs).abs().sum())
            for name, value in (parallel.total(diagnostics) if self.sharded else diagnostics).items():
                sums[name] += value
        norm = parallel.number(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip))
        if self.critic:
            sums["decisions"] += decisions
            self._require_finite(self.critic.clip(self.config.grad_clip), "critic", self.critic.config.lr)
        self._require_finite(norm, "policy", self.config.lr)
        scale = self._set_lr()
        self.optimiser.step()
        if self.critic:
            self.critic.step(scale)
        return norm

    def _loss_inputs(
        self,
        sequences: Sequence[TokenSequence],
        batch: Batch,
        picked: torch.Tensor,
        logprobs: torch.Tensor,
        entropy: torch.Tensor,
        *,
        normaliser: float,
        ref_logprobs: torch.Tensor | None,
    ) -> LossInputs:
        """The tokens `picked` [B, T-1] of a batch, as the algorithm's loss reads them."""

        def values(name: str) -> torch.Tensor:
            return padded([getattr(sequence, name) for sequence in sequences], batch)[:, 1:][picked]

        sequence, turn = picked.nonzero()[:, 0], values("turns").long()
        return LossInputs(
            logprobs=logprobs,
            old_logprobs=values("old_logprobs"),
            advantages=values("advantages"),
            token_weights=batch.weights[:, 1:][picked],
            normaliser=normaliser,
            sequence_ids=torch.unique_consecutive(sequence, return_inverse=True)[1],
            turn_ids=torch.unique_consecutive(torch.stack([sequence, turn]), return_inverse=True, dim=1)[1],
            entropy=entropy,
            ref_logprobs=ref_logprobs,
            rollout_logprobs=values("rollout_logprobs") if self.algorithm.config.importance_cap else None,
        )

    def _value_loss(self, sequences: Sequence[TokenSequence], batch: Batch, states: torch.Tensor) -> torch.Tensor:
        """The critic's summed loss at the values of a batch, whose policy states [N, W] are given."""
        assert self.critic is not None
        marks = padded([sequence.value_mask for sequence in sequences], batch)
        chosen = marks[:, 1:] != 0
        old_values = padded([sequence.values for sequence in sequences], batch)[:, 1:][chosen]
        returns = padded([sequence.returns for sequence in sequences], batch)[:, 1:][chosen]
        among = states[chosen[batch.weights[:, 1:] != 0]]
        values = self.critic.values(replace(batch, weights=marks), bf16=self.config.bf16, states=among)
        return self.critic.loss(values, old_values, returns)

    @staticmethod
    def _require_finite(norm: float, whose: str, lr: float) -> None:
        if not math.isfinite(norm):
            raise InvariantError(f"The {whose}'s gradient is {norm}. Lower the learning rate ({lr}) or look at the last rollouts.")

    def _batches(self, ids: Sequence[Sequence[int]], masks: Sequence[Sequence[float]], chosen: Sequence[int]) -> Iterator[Batch]:
        """Micro-batches of the chosen sequences, where the model is."""
        device = device_of(self.model)
        return (batch.to(device) for batch in micro_batches(ids, masks, chosen, tokens=self.config.micro_tokens))

    def _ref_logprobs(self, batch: Batch) -> torch.Tensor | None:
        """[N] log-probs of the batch's tokens under the reference policy; None when there is none."""
        if self.reference is None:
            return None
        with self.reference.acting() as model:
            return token_logprobs(model, batch, temperature=self.config.temperature, bf16=self.config.bf16)[0]


def _explained(sequences: Sequence[TokenSequence]) -> dict[str, float]:
    """1 - Var(target - value) / Var(target) over the values that were read; nothing where targets do not differ."""
    pairs = [(r, v) for sequence in sequences for r, v, m in zip(sequence.returns, sequence.values, sequence.value_mask, strict=True) if m]
    targets, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    if len(targets) < 2 or targets.var() < 1e-12:
        return {}
    return {"explained_variance": float(1 - (targets - values).var() / targets.var())}


def _split_trajectories(sequences: Sequence[TokenSequence], parts: int, rng: np.random.Generator) -> list[list[int]]:
    """Sequence indices in `parts` random lots; sequences of one trajectory are in the same lot."""
    trajectories = sorted({sequence.trajectory for sequence in sequences})
    order = rng.permutation(trajectories)
    lots = [set(lot.tolist()) for lot in np.array_split(order, min(parts, len(order)))]
    return [[i for i, sequence in enumerate(sequences) if sequence.trajectory in lot] for lot in lots]
