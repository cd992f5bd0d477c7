"""A dream says which of its steps rest on nothing real, and an algorithm may charge for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dreamgym.envs import corridor
from dreamgym.experience.action_support import ActionSupport
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.replay.buffer import ReplayBuffer, ReplayBufferConfig
from dreamgym.replay.encoders import lexical
from dreamgym.train.algos import grpo, ppo, reinforce
from dreamgym.types import REAL_STEP, Completion, Observation, Prediction, Query, StepInfo, Task, Trajectory, Transition, Turn, Verdict

SUITE = corridor.make(length=6)
EPISODE = SUITE.demonstrate(SUITE.tasks("train", 1)[0], "expert", seed=0)
TASK = EPISODE.task


def buffer(*episodes: Trajectory) -> ReplayBuffer:
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(episodes)
    return replay


def dreamed(action: str) -> Trajectory:
    step = Transition(Observation("a"), action, Observation("b"), 0.0, False, StepInfo(verdict=Verdict("passed")))
    return Trajectory("dream/0", TASK, "dream", (Turn(step),), success=False)


def test_what_was_really_done_is_a_precedent_and_what_was_dreamed_is_none():
    replay = buffer(EPISODE, dreamed("jump"))
    support = ActionSupport(replay)
    assert all((TASK.env, t.action) in support for t in EPISODE.transitions)
    assert (TASK.env, "jump") not in support
    assert ("elsewhere", EPISODE.transitions[0].action) not in support
    replay.add([replace(dreamed("jump"), id="probe/0", source="real")])
    assert (TASK.env, "jump") in support  # as soon as somebody has tried


def test_a_full_buffer_that_evicts_a_dream_for_a_real_step_has_a_new_precedent():
    replay = ReplayBuffer.open(None, lexical.make(), ReplayBufferConfig(max_rows=len(EPISODE.turns) + 1))
    replay.add([EPISODE, dreamed("jump")])
    support, before = ActionSupport(replay), len(replay)
    assert (TASK.env, "sing") not in support
    replay.add([replace(dreamed("sing"), id="probe/0", source="real")])
    assert len(replay) == before and (TASK.env, "sing") in support


class Stillness(ExperienceModel):
    """An experience model in which nothing happens, by rule where the action is `by rule`."""

    def __init__(self) -> None:
        super().__init__(Guard(SUITE.rules), Retriever(buffer(EPISODE), SUITE.rules, RetrievalConfig(k=0, recall=False)))

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return [EPISODE.transitions[0].state for _ in tasks]

    def submit(self, queries: Sequence[Query]) -> list[int]:
        self.queries = list(queries)
        return list(range(len(queries)))

    def poll(self) -> list[tuple[int, Prediction]]:
        infos = [StepInfo(decided_by="rule" if q.action == "by rule" else self.answers_by) for q in self.queries]
        return [(i, Prediction(q.state, 0.0, False, info)) for i, (q, info) in enumerate(zip(self.queries, infos, strict=True))]

    def generate(self, queries: Sequence[Query], memories: Any) -> list[Any]:
        raise AssertionError("nothing is generated")


def steps(support: ActionSupport | None, *actions: str) -> list[bool]:
    env = DreamBatch(Stillness(), SUITE.rules, horizon=9, support=support)
    env.start([TASK], seed=0)
    return [env.step([0], [action])[0].info.out_of_support for action in actions]


def test_a_dream_marks_the_steps_that_the_model_guessed_without_precedent():
    known = EPISODE.transitions[0].action
    assert steps(ActionSupport(buffer(EPISODE)), known, "sing", "by rule") == [False, True, False]
    assert steps(None, "sing") == [False]


def test_the_steps_of_a_control_without_a_model_are_marked_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Stillness, "answers_by", "composed")
    assert steps(ActionSupport(buffer(EPISODE)), EPISODE.transitions[0].action, "sing", "by rule") == [False, True, False]


SAID = Completion((2,), (3,), (0.0,), "", "stop")


def rollouts(*rewards: float) -> list[Trajectory]:
    """The second of two turns is without precedent."""
    made = []
    for reward in rewards:
        first = Transition(Observation("a"), "go", Observation("b"), 0.0, False)
        last = Transition(Observation("b"), "sing", Observation("c"), reward, True, StepInfo(out_of_support=True))
        made.append(Trajectory("x", TASK, "dream", (Turn(first, SAID), Turn(last, SAID)), success=reward == 1.0))
    return made


def test_a_guess_costs_its_own_turn_the_penalty_and_changes_no_success():
    charged = grpo.make(ood_penalty=0.2, scale_by_std=False)
    assert charged.compute_advantages([rollouts(1.0, 0.0)])[0] == [pytest.approx([0.5, 0.3]), pytest.approx([-0.5, -0.7])]
    assert (
        charged.compute_advantages([rollouts(1.0, 1.0)])[0] == [pytest.approx([0.0, -0.2])] * 2
    )  # where all succeed, what is known is preferred
    assert grpo.make(scale_by_std=False).compute_advantages([rollouts(1.0, 0.0)])[0] == [[0.5, 0.5], [-0.5, -0.5]]


def test_every_algorithm_charges_the_same():
    guess = rollouts(1.0)[0].transitions[-1]
    for made in (grpo.make, ppo.make, reinforce.make):
        config = made(ood_penalty=0.2, invalid_penalty=0.1).config
        assert config.penalty(guess) == pytest.approx(0.2)
        assert config.penalty(replace(guess, info=StepInfo(decided_by="rule"))) == pytest.approx(0.1)
        assert config.penalty(replace(guess, info=REAL_STEP)) == 0.0
