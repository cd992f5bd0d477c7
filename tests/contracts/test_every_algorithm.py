"""What every algorithm promises (`protocols.Algorithm` or `protocols.ActorCritic`). They are discovered: a new one is tested as soon as it
exists. Broken ones show that each promise is tested.

Signs, invariances and resume of whole learners are tested in tests/math/test_algorithms.py, gradients against references beside it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from losses import inputs
from rollouts import trajectory

from dreamgym import plugins
from dreamgym.config import build, dump
from dreamgym.errors import ConfigError
from dreamgym.protocols import ActorCritic, Algorithm, Stateful
from dreamgym.recipes.blocks import AlgorithmConfig
from dreamgym.train.algos.grpo import GRPO, GRPOConfig
from dreamgym.train.batch import sequences_of
from dreamgym.train.objective import LossInputs, LossOutputs, ObjectiveConfig
from dreamgym.types import Completion, Trajectory

FURTHER: dict[str, list[dict[str, Any]]] = {
    "reinforce": [{"baseline": "running"}],
    "ppo": [{"level": "token"}],
    "grpo": [{"scale_by_std": False}],
}
"""Settings beside the defaults that take another path."""
CASES = [{"name": name, **settings} for name in plugins.known("train.algos") for settings in ({}, *FURTHER.get(name, []))]
Make = Callable[[], Any]
Groups = Sequence[Sequence[Trajectory]]


def rollout(reward: float, *, turns: int = 2, error: str | None = None) -> Trajectory:
    """An episode that is paid at its end, of turns of two sampled tokens in one conversation."""
    said = [Completion((2, *([3] * 3 * i)), (4 + i, 5), (-1.0, -0.5), "", "stop") for i in range(turns)]
    return trajectory([0.0] * (turns - 1) + [reward], said, error=error)


MIXED = [rollout(1.0), rollout(0.0), rollout(1.0, turns=3), rollout(0.0, turns=1)]
BROKEN = [rollout(1.0, error="unreadable"), rollout(0.0, error="unreadable")]
WITHOUT_SIGNAL: list[list[Trajectory]] = [
    [rollout(0.0), rollout(0.0)],
    [rollout(1.0), rollout(1.0)],
    [rollout(0.3), rollout(0.3), rollout(0.3)],
    [rollout(1.0)],
    [BROKEN[0], rollout(1.0)],
    BROKEN,
]


def advantages(algorithm: Any, groups: Groups) -> list[list[list[float]]]:
    """Of every turn of every sound rollout; of an actor-critic, on the first token of each turn, where the critic reads 0 everywhere."""
    if isinstance(algorithm, Algorithm):
        return algorithm.compute_advantages(groups)
    assert isinstance(algorithm, ActorCritic)
    sound = [[episode for episode in group if episode.error is None] for group in groups]
    rows = {id(episode): sequences_of(episode, i) for i, episode in enumerate(episode for group in sound for episode in group)}
    every = [row for own in rows.values() for row in own]
    algorithm.mark_valued(every)
    for row in every:
        assert len(row.value_mask) == len(row.ids) and all(value in (0.0, m) for value, m in zip(row.value_mask, row.mask, strict=True))
        row.values = [0.0] * len(row.ids)
    for episode in (episode for group in sound for episode in group):
        algorithm.set_advantages(episode, rows[id(episode)], 0.0)
    algorithm.normalise(every)
    for row in every:
        assert len(row.advantages) == len(row.returns) == len(row.ids) and all(map(math.isfinite, row.returns))

    def of_turns(episode: Trajectory) -> list[float]:
        tokens = [(turn, a) for row in rows[id(episode)] for turn, a in zip(row.turns, row.advantages, strict=True) if turn >= 0]
        return [next(a for turn, a in tokens if turn == number) for number in range(len(episode.turns))]

    return [[of_turns(episode) for episode in group] for group in sound]


def tokens_of(logprobs: torch.Tensor, old: torch.Tensor, given: Sequence[float]) -> LossInputs:
    """One turn a token, each in a sequence of its own."""
    number = torch.arange(len(given))
    entropy, other = torch.ones(len(given)), old + 0.1
    others: dict[str, Any] = {"entropy": entropy, "ref_logprobs": other, "rollout_logprobs": other}
    others |= {"sequence_ids": number, "turn_ids": number}
    return inputs(logprobs, old, torch.tensor(given), normaliser=float(len(given)), **others)


# The promises


def every_turn_of_a_sound_rollout_has_a_finite_advantage(make: Make) -> None:
    for groups in ([], [MIXED], WITHOUT_SIGNAL, [[*MIXED, *BROKEN], *WITHOUT_SIGNAL]):
        found = advantages(make(), groups)
        turns = [[len(episode.turns) for episode in group if episode.error is None] for group in groups]
        assert [[len(own) for own in group] for group in found] == turns
        assert all(math.isfinite(a) for group in found for own in group for a in own)


def failed_rollouts_change_nothing(make: Make) -> None:
    assert advantages(make(), [[BROKEN[0], *MIXED[:2], BROKEN[1], *MIXED[2:]]]) == advantages(make(), [MIXED])


def groups_without_a_signal_teach_nothing_where_rollouts_are_compared(make: Make) -> None:
    if make().grouped:
        assert not any(a for group in advantages(make(), WITHOUT_SIGNAL) for own in group for a in own)


def what_earned_more_has_the_larger_advantage(make: Make) -> None:
    ((better, worse),) = advantages(make(), [MIXED[:2]])
    assert min(better) > max(worse)


def the_loss_of_a_few_tokens_is_finite_and_moves_each_as_its_advantage_says(make: Make) -> None:
    algorithm = make()
    for gap in (0.0, -40.0, 40.0):  # a ratio of 1, and such as only a mistake makes
        logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
        loss, sums = algorithm.loss(tokens_of(logprobs, logprobs.detach() + gap, [1.0, -1.0, 0.0]))
        loss.backward()
        assert loss.shape == () and logprobs.grad is not None and torch.isfinite(logprobs.grad).all() and torch.isfinite(loss)
        assert all(isinstance(name, str) and math.isfinite(float(value)) for name, value in sums.items())
        if not gap:
            assert logprobs.grad[0] < 0 < logprobs.grad[1] and logprobs.grad[2] == 0


def what_it_remembers_is_in_its_state(make: Make) -> None:
    used, resumed = make(), make()
    advantages(used, [MIXED, *WITHOUT_SIGNAL])
    if isinstance(used, Stateful):
        file = io.BytesIO()
        torch.save(used.state_dict(), file)
        resumed.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for _ in range(2):
        assert advantages(used, [MIXED]) == advantages(resumed, [MIXED])


PROMISES = [
    every_turn_of_a_sound_rollout_has_a_finite_advantage,
    failed_rollouts_change_nothing,
    groups_without_a_signal_teach_nothing_where_rollouts_are_compared,
    what_earned_more_has_the_larger_advantage,
    the_loss_of_a_few_tokens_is_finite_and_moves_each_as_its_advantage_says,
    what_it_remembers_is_in_its_state,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("settings", CASES, ids=lambda settings: " ".join(map(str, settings.values())))
def test_an_algorithm_keeps_every_promise(settings: dict[str, Any], promise: Callable[[Make], None]) -> None:
    promise(lambda: plugins.make_named("train.algos", settings))


@pytest.mark.parametrize("name", plugins.known("train.algos"))
def test_a_configuration_completes_the_settings_reads_back_and_refuses_unknown_ones(name: str) -> None:
    block = AlgorithmConfig.model_validate({"name": name})
    config = plugins.make_named("train.algos", block.model_dump()).config
    assert isinstance(config, ObjectiveConfig) and config == plugins.make("train.algos", name).config and f'name = "{name}"' in dump(block)
    with pytest.raises(ConfigError, match=f"'entropy_cof' in algorithm {name}. Did you mean 'entropy_coef'"):
        build(AlgorithmConfig, {"name": name, "entropy_cof": 0.1})


# Algorithms that break a promise each


class OfAllRollouts(GRPO):
    def compute_advantages(self, groups: Groups) -> list[list[list[float]]]:
        return super().compute_advantages([[replace(episode, error=None) for episode in group] for group in groups])


class CountsFailures(GRPO):
    def compute_advantages(self, groups: Groups) -> list[list[list[float]]]:
        lost = [sum(episode.error is not None for episode in group) for group in groups]
        return [[[a - n for a in own] for own in group] for n, group in zip(lost, super().compute_advantages(groups), strict=True)]


class PlainReturn(GRPO):
    def compute_advantages(self, groups: Groups) -> list[list[list[float]]]:
        return [[[episode.total_reward] * len(episode.turns) for episode in group if episode.error is None] for group in groups]


class Negated(GRPO):
    def compute_advantages(self, groups: Groups) -> list[list[list[float]]]:
        return [[[-a for a in own] for own in group] for group in super().compute_advantages(groups)]


class Unclamped(GRPO):
    def loss(self, inputs: LossInputs) -> LossOutputs:
        return LossOutputs(-((inputs.logprobs - inputs.old_logprobs).exp().exp() * inputs.advantages).sum(), {})


class Forgets(GRPO):
    mean = 0.0

    def compute_advantages(self, groups: Groups) -> list[list[list[float]]]:
        self.mean += 0.1
        return [[[a + self.mean for a in own] for own in group] for group in super().compute_advantages(groups)]


@pytest.mark.parametrize(
    ("broken", "promise"), list(zip((OfAllRollouts, CountsFailures, PlainReturn, Negated, Unclamped, Forgets), PROMISES, strict=True))
)
def test_a_broken_algorithm_does_not_keep_its_promise(broken: type[GRPO], promise: Callable[[Make], None]) -> None:
    with pytest.raises(AssertionError):
        promise(lambda: broken(GRPOConfig()))
