"""Recorded actions taken again in a dream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.evals.recorded_actions import RecordedReplay, repeat, sentence
from dreamgym.logs.demonstrations import collect
from dreamgym.statistics import wilson
from dreamgym.types import StepInfo, StepResult, Verdict

SUITE = corridor.make(length=5)
EPISODES = collect(SUITE, 60, seed=0)
WINS = sum(episode.success for episode in EPISODES)


class Stingy(EnvPool):
    """The corridor without its rewards."""

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult]:
        return [replace(result, reward=0.0) for result in super().step(slots, actions)]


def doubted(slot: int) -> StepInfo:
    """Masked with two reasons, the first of which is in the error; the second has a number of its own."""
    return StepInfo(error="masked: doubted", verdict=Verdict("masked", ("doubted", f"score -0.{slot} below 3")))


class Masked(EnvPool):
    """A corridor whose every step is left out, some for another reason than the others."""

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult]:
        return [
            replace(result, info=doubted(slot) if slot % 4 else StepInfo(error="unreadable"))
            for slot, result in zip(slots, super().step(slots, actions), strict=True)
        ]


def test_in_a_dream_as_true_as_the_real_environment_all_ends_as_recorded():
    found = repeat(EPISODES, EnvPool(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0)
    assert 0 < WINS < len(EPISODES) and found.left_out == 0
    assert (found.successes_reproduced.value, found.successes_reproduced.n) == (1.0, WINS)
    assert (found.failures_accepted.value, found.failures_accepted.n) == (0.0, len(EPISODES) - WINS)
    assert (found.same_answers.value, found.same_answers.n) == (1.0, sum(len(episode.turns) for episode in EPISODES))


def test_a_dream_that_never_pays_keeps_no_success():
    found = repeat(EPISODES, Stingy(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0)
    assert (
        found.successes_reproduced.value == 0.0
        and found.successes_reproduced.high < 0.5
        and found.failures_accepted.value == 0.0
        and found.same_answers.value == 1.0
    )


def test_episodes_that_are_left_out_are_counted_and_judged_by_nothing():
    found = repeat(EPISODES, Masked(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0)
    assert (
        found.left_out == len(EPISODES)
        and found.successes_left_out == WINS
        and found.successes_reproduced.n == found.failures_accepted.n == found.same_answers.n == 0
    )
    assert list(found.reasons.items()) == [("masked: doubted, score N below N", 45), ("unreadable", 15)]
    assert sentence(asdict(found)).endswith(": masked: doubted, score N below N (45); unreadable (15).")


def test_a_success_that_was_left_out_counts_in_the_number_of_those_that_could_succeed():
    found = RecordedReplay(wilson(48, 49), wilson(0, 32), wilson(9, 9), 16, 15, {"masked by the guard: score N": 16})
    assert sentence(asdict(found)) == (
        "Recorded actions taken again in the dream: 48 of 64 recorded successes succeed there too, and 0 of 33 recorded failures; 16 "
        "episodes were left out, 15 successes among them, and RL would not see them: masked by the guard: score N (16)."
    )


def test_an_episode_without_an_outcome_tells_nothing():
    unknown = [replace(episode, scored=False) for episode in EPISODES]
    assert repeat(unknown, EnvPool(SUITE.require_env, SUITE.rules), SUITE.rules, seed=0).successes_reproduced.n == 0
