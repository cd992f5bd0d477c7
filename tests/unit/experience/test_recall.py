"""Exact recall: precedents answer where they agree, and only where the logs show that such precedents can be relied on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite
from dreamgym.experience.guard import Guard
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ExperienceModel, Unreadable
from dreamgym.experience.recall import ExactRecall, account, measure_agreement
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.factory import open_replay
from dreamgym.types import Neighbour, Observation, Query, Task, Trajectory, Turn


def corridor(**options: float) -> EnvSuite:
    return plugins.make("envs", "corridor", length=4, keys=False, **options)


def queries(episodes: Sequence[Trajectory]) -> list[Query]:
    return [Query(e.task, e.transitions[:i], s.state, s.action) for e in episodes for i, s in enumerate(e.transitions)]


def recalled(recall: ExactRecall, episodes: Sequence[Trajectory]) -> tuple[int, int, int]:
    """(steps, those recalled, those recalled exactly)"""
    steps = [step for episode in episodes for step in episode.transitions]
    found = [(recall.recall(query), step) for query, step in zip(queries(episodes), steps, strict=True)]
    exact = sum(m is not None and (m.next_state, m.reward, m.terminated) == (s.next_state.text, s.reward, s.terminated) for m, s in found)
    return len(steps), sum(memory is not None for memory, _ in found), exact


@pytest.mark.parametrize(("name", "options", "share"), [("corridor", {"length": 4, "keys": False}, 0.5), ("webshop", {}, 0.15)])
def test_held_out_steps_are_recalled_exactly_in_a_deterministic_environment(name: str, options: dict, share: float):
    suite = plugins.make("envs", name, **options)
    recall = ExactRecall(open_replay(None, collect(suite, 800, seed=0)))
    steps, found, exact = recalled(recall, collect(suite, 60, seed=5, split="dev"))
    assert found > share * steps and exact >= 0.99 * found


def test_a_reward_that_depends_on_the_instruction_is_recalled_for_the_same_instruction_only():
    """Logged agents leave where their own task is done, so that almost every logged end in a state pays. Another task's does not."""
    suite = plugins.make("envs", "examples.lamps")
    logs = collect(suite, 1000, seed=0)
    recall = ExactRecall(open_replay(None, logs))
    (task, other), state = suite.tasks("train", 2, seed=0), {}
    for lamps in (task, other):
        state[lamps.id] = Observation("lit: " + " ".join(lamps.id))
    assert (own := recall.recall(Query(task, (), state[task.id], "leave"))) and (own.reward, own.terminated) == (1.0, True)
    wrong = [recall.recall(Query(task, (), e.transitions[-1].state, "leave")) for e in logs if e.success and e.task.id != task.id]
    assert len(wrong) > 500 and not any(memory and memory.reward for memory in wrong)
    across = next(a for a in recall.agreements() if (a.situation, a.outcome_class) == ("state", "pays_or_ends"))
    assert across.right < 0.3 * across.predicted, "of other instructions; with those of the same one it would be 98 %"


@pytest.mark.parametrize("slip", [0.0, 0.3])
def test_in_a_stochastic_environment_no_step_that_varies_is_recalled(slip: float):
    suite = corridor(slip=slip)
    recall = ExactRecall(open_replay(None, collect(suite, 300, seed=0)))
    episodes = collect(suite, 60, seed=5, split="dev")
    moves = [
        query for query in queries(episodes) if query.action in ("left", "right") and suite.rules.admissible(query.state, (), query.action)
    ]
    found = sum(recall.recall(query) is not None for query in moves)
    assert len(moves) > 50 and (found == 0 if slip else found > 0.5 * len(moves))


def test_precedents_that_contradict_each_other_are_no_answer():
    suite = corridor()
    logs = collect(suite, 200, seed=0)
    episode = next(e for e in logs if len(e.turns) > 1)
    query = queries([episode])[0]
    assert ExactRecall(open_replay(None, logs)).recall(query) is not None
    first = episode.turns[0].transition
    other = replace(first, next_state=replace(first.next_state, text="somewhere else"))
    liar = replace(episode, id="liar", turns=(Turn(other),), truncated=True, success=False)
    assert ExactRecall(open_replay(None, [*logs, liar])).recall(query) is None


def test_without_a_second_opinion_on_anything_nothing_is_recalled():
    """One episode repeats no situation of another, so nothing is known about how far its steps can be relied on."""
    suite = corridor()
    logs = collect(suite, 1, seed=0)
    recall = ExactRecall(open_replay(None, logs))
    assert recalled(recall, logs)[1] == 0
    assert all(found.predicted == 0 and not found.used for found in recall.agreements())


def test_dreams_are_no_precedents_and_new_real_rows_are():
    suite = corridor()
    logs, later = collect(suite, 100, seed=0), collect(suite, 100, seed=9)
    buffer = open_replay(None, logs)
    recall = ExactRecall(buffer)
    before = recalled(recall, later)[1]
    buffer.add([replace(episode, id=f"dream/{episode.id}", source="dream") for episode in later])
    assert recalled(recall, later)[1] == before
    buffer.add([replace(episode, id=f"real/{episode.id}", source="real") for episode in later])
    assert recalled(recall, later)[1] > before


class Asked(ExperienceModel):
    """Notes what it is asked and never gives a readable answer."""

    def __init__(self, suite: EnvSuite, logs: Sequence[Trajectory], *, recall: bool) -> None:
        super().__init__(Guard(suite.rules), Retriever(open_replay(None, logs), suite.rules, RetrievalConfig(recall=recall)))
        self.asked: list[Query] = []

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        raise NotImplementedError

    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        self.asked += queries
        return [Unreadable("nothing") for _ in queries]


def test_the_model_is_asked_only_what_neither_a_rule_nor_a_precedent_answers():
    suite = corridor()
    logs, held_out = collect(suite, 300, seed=0), collect(suite, 40, seed=5, split="dev")
    steps, with_recall, without = queries(held_out), Asked(suite, logs, recall=True), Asked(suite, logs, recall=False)
    found = [prediction.info.decided_by for prediction in with_recall.predict(steps)]
    without.predict(steps)
    assert found.count("recalled") == with_recall.counts["recalled"] > 0
    assert len(without.asked) - len(with_recall.asked) == found.count("recalled")
    assert [query for query, by in zip(steps, found, strict=True) if by == "generated"] == with_recall.asked


def test_what_is_not_recalled_is_told_with_the_number_of_predictions_that_it_takes():
    def agreement(right: int, predicted: int, *, used: bool = False) -> dict[str, Any]:
        return {"situation": "task", "outcome_class": "continues", "right": right, "predicted": predicted, "used": used}

    lines = account([agreement(76, 76), agreement(43, 49), agreement(126, 130), agreement(0, 0), agreement(400, 400, used=True)])
    used, few, wrong, some, none = lines
    assert used.startswith("recalled: precedents with the same task")
    assert "76 predictions are too few" in few and "it takes 189, all of them right" in few
    assert measure_agreement("task", "continues", [True] * 189).used and not measure_agreement("task", "continues", [True] * 188).used
    assert "6 of 49 predictions are wrong" in wrong
    assert "it takes 510, with 4 of them wrong" in some
    assert "0 predictions are too few" in none
    recording = agreement(0, 0, used=True) | {"situation": "recording"}
    recalled, nothing = account([agreement(0, 0), recording])
    assert "earlier actions that act, in the same order" in recalled and "no recorded step has a precedent" in nothing
