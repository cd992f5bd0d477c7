"""Many clients in one dream: each in an episode of its own, and none costs another anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from dreams import SUITE, TASKS, corridor_dream

from dreamgym.errors import UsageError
from dreamgym.experience.env import DreamBatch, DreamEnv
from dreamgym.experience.models.no_model import NoModel
from dreamgym.serve.sessions import LONGEST_ACTION, DreamSessions, Limits, SessionError, outcome

WALK = ("right", "right", "open")


def served(model: NoModel | None = None, **limits: Any) -> DreamSessions:
    return DreamSessions(model or corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps, limits=Limits(**limits))


@pytest.fixture
def dream() -> Iterator[DreamSessions]:
    with served() as sessions:
        yield sessions


def fails(future: Future[Any]) -> str:
    with pytest.raises(SessionError) as error:
        future.result(10)
    return str(error.value)


def played(dream: DreamSessions, task: str, seed: int) -> list[Any]:
    opened = dream.open(task, seed=seed).result(10)
    steps = []
    for action in WALK:
        steps.append(dream.step(opened.session, action).result(10))
        if steps[-1].terminated or steps[-1].truncated:
            break
    dream.end(opened.session).result(10)
    return [opened.observation, *steps]


def test_a_session_is_the_episode_that_python_plays(dream: DreamSessions):
    for task in TASKS:
        env = DreamEnv(DreamBatch(corridor_dream(), SUITE.rules, horizon=SUITE.max_steps))
        expected: list[Any] = [env.reset(task)]
        for action in WALK:
            expected.append(env.step(action))
            if expected[-1].terminated or expected[-1].truncated:
                break
        assert played(dream, task.id, seed=1) == expected


def test_a_hundred_clients_at_once_play_what_each_plays_alone(dream: DreamSessions):
    alone = {task.id: played(dream, task.id, 3) for task in TASKS}
    wanted = [TASKS[i % len(TASKS)].id for i in range(100)]
    with ThreadPoolExecutor(100) as clients:
        found = list(clients.map(lambda task: played(dream, task, 3), wanted))
    assert found == [alone[task] for task in wanted] and len(dream) == 0


def test_a_seed_draws_the_task_and_an_unknown_instruction_is_a_synthetic_one(dream: DreamSessions):
    drawn = [dream.open(seed=seed).result(10).task.id for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
    free = dream.open("start in room 2, go to room 1 and open the door").result(10)
    assert free.task.source == "synthetic" or free.task in TASKS


def test_what_a_session_cannot_do_is_told_and_leaves_the_others_alone(dream: DreamSessions):
    opened = dream.open(TASKS[0].id).result(10)
    assert "no session" in fails(dream.step("0" * 32, "right"))
    assert "characters" in fails(dream.step(opened.session, "x" * (LONGEST_ACTION + 1)))
    assert "seed" in fails(dream.open(seed=-1)) and "seed" in fails(dream.open(seed=2**63))
    while not (last := dream.step(opened.session, "left").result(10)).truncated:
        pass
    assert outcome(last)["truncated"] and "over" in fails(dream.step(opened.session, "left"))
    assert dream.step(dream.open(TASKS[0].id).result(10).session, "right").result(10).observation.text


def test_sessions_are_limited_and_idle_ones_are_closed():
    with served(sessions=2, idle_s=0.2) as dream:
        first, _ = dream.open().result(10), dream.open().result(10)
        assert "All 2 sessions are taken" in fails(dream.open())
        deadline = time.monotonic() + 10
        while len(dream) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "no session" in fails(dream.step(first.session, "right")) and dream.open().result(10).session


class Held(NoModel):
    """Answers when it is let, and fails where it is told to."""

    def __init__(self, inner: NoModel) -> None:
        self.__dict__.update(inner.__dict__)
        self.free, self.broken = threading.Event(), False

    def poll(self) -> Any:
        if self.broken:
            raise UsageError("the context is too short")
        return super().poll() if self.free.wait(0.01) else []


def test_a_second_step_before_the_first_has_its_answer_is_refused_and_closing_drops_the_first():
    model = Held(corridor_dream())
    with served(model) as dream:
        opened = dream.open(TASKS[0].id).result(10)
        first = dream.step(opened.session, "right")
        assert "still under way" in fails(dream.step(opened.session, "right"))
        dream.end(opened.session).result(10)
        assert "was closed" in fails(first)
        model.free.set()


def test_a_model_that_fails_costs_the_steps_under_way_and_nothing_else():
    model = Held(corridor_dream())
    with served(model) as dream:
        opened, other = dream.open(TASKS[0].id).result(10), dream.open(TASKS[1].id).result(10)
        model.broken = True
        assert "the context is too short" in fails(dream.step(opened.session, "right"))
        model.broken = False
        model.free.set()
        assert dream.step(other.session, "right").result(10).observation.text


def test_a_server_that_closes_answers_what_is_under_way_and_takes_nothing_new():
    dream = served()
    opened = dream.open(TASKS[0].id).result(10)
    step = dream.step(opened.session, "right")
    dream.close()
    assert step.result(0).observation.text and "closing" in fails(dream.step(opened.session, "right"))
