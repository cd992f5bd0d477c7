"""Recorded actions taken again in a dream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.evals.recorded_actions import repeat
from dreamgym.logs.demonstrations import collect
from dreamgym.types import StepInfo, StepResult

SUITE = corridor.make(length=5)
EPISODES = collect(SUITE, 60, seed=0)
WINS = sum(episode.success for episode in EPISODES)


class Stingy(EnvPool):
    """The corridor without its rewards."""

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult]:
        return [replace(result, reward=0.0) for result in super().step(slots, actions)]


class Masked(EnvPool):
    """A corridor whose every step is left out."""

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult]:
        return [replace(result, info=StepInfo(error="masked")) for result in super().step(slots, actions)]


def test_in_a_dream_as_true_as_the_real_environment_all_ends_as_recorded():
    found = repeat(EPISODES, EnvPool(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0)
    assert 0 < WINS < len(EPISODES) and found.left_out == 0
    assert (found.kept.value, found.kept.n) == (1.0, WINS)
    assert (found.accepted.value, found.accepted.n) == (0.0, len(EPISODES) - WINS)
    assert (found.same_answers.value, found.same_answers.n) == (1.0, sum(len(episode.turns) for episode in EPISODES))


def test_a_dream_that_never_pays_keeps_no_success():
    found = repeat(EPISODES, Stingy(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0)
    assert found.kept.value == 0.0 and found.kept.high < 0.5 and found.accepted.value == 0.0 and found.same_answers.value == 1.0


def test_episodes_that_are_left_out_are_counted_and_judged_by_nothing():
    found = repeat(EPISODES, Masked(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0)
    assert (
        found.left_out == len(EPISODES)
        and found.successes_left_out == WINS
        and found.kept.n == found.accepted.n == found.same_answers.n == 0
    )


def test_an_episode_without_an_outcome_tells_nothing():
    unknown = [replace(episode, scored=False) for episode in EPISODES]
    assert repeat(unknown, EnvPool(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0).kept.n == 0
