"""Many clients in one dream: each in an episode of its own, and none costs another anything."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from dreams import SUITE, TASKS, corridor_dream

from dreamgym.errors import ServerError, UsageError
from dreamgym.experience.env import DreamBatch, DreamEnv
from dreamgym.experience.models.no_model import NoModel
from dreamgym.serve.sessions import FIRST_STATES, LONGEST_ACTION, DreamSessions, Limits, SessionError, outcome
from dreamgym.types import Observation

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


def test_no_task_is_one_that_the_seed_draws_and_what_is_no_text_is_refused(dream: DreamSessions):
    assert dream.open(None, seed=1).result(10).task == dream.open("", seed=1).result(10).task == TASKS[1 % len(TASKS)]
    for wrong in (0, False, ["go"]):
        assert "Expected the id or the instruction of one, as text" in fails(dream.open(wrong))  # type: ignore[arg-type]
    assert len(dream) == 2


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


def test_an_episode_that_is_over_keeps_its_place_until_another_needs_it():
    with served(sessions=2) as dream:
        first, second = dream.open(TASKS[0].id).result(10).session, dream.open(TASKS[0].id).result(10).session
        for name in (second, first):
            while not dream.step(name, "left").result(10).truncated:
                pass
        third = dream.open(TASKS[1].id).result(10).session
        assert dream.outcome_so_far(first)["truncated"] and "was needed" in fails(dream.step(second, "left"))
        fourth = dream.open(TASKS[1].id).result(10).session
        assert "are taken by episodes under way" in fails(dream.open())
        assert dream.outcome_so_far(third)["steps"] == dream.outcome_so_far(fourth)["steps"] == 0


def test_a_seed_that_was_drawn_is_named_and_gives_the_same_episode_again(dream: DreamSessions):
    drawn = [dream.open().result(10) for _ in range(12)]
    assert len({one.seed for one in drawn}) == 12 and len({one.task.id for one in drawn}) > 1
    again = [dream.open(seed=one.seed).result(10) for one in drawn]
    assert [(one.task, one.observation) for one in again] == [(one.task, one.observation) for one in drawn]


def test_a_first_state_that_cannot_be_read_is_asked_for_with_the_next_seeds():
    class Unreadable(NoModel):
        def __init__(self, inner: NoModel) -> None:
            self.__dict__.update(inner.__dict__)
            self.seeds: list[int] = []

        def start(self, tasks: Any, *, seed: int) -> list[Observation]:
            self.seeds.append(seed)
            return super().start(tasks, seed=seed) if seed in (9, 17) else [Observation("") for _ in tasks]

    model = Unreadable(corridor_dream())
    with served(model) as dream:
        opened = dream.open(seed=7).result(10)
        assert model.seeds == [7, 8, 9] and opened.seed == 7 and opened.task == TASKS[7 % len(TASKS)] and opened.observation.text
        assert f"{FIRST_STATES} tries" in fails(dream.open(seed=11)) and len(dream) == 1


def test_the_outcome_so_far_is_that_of_the_whole_episode_and_asking_for_it_keeps_the_episode_open():
    class Paying(NoModel):
        def __init__(self, inner: NoModel) -> None:
            self.__dict__.update(inner.__dict__)

        def poll(self) -> Any:
            return [(ticket, replace(one, reward=0.25)) for ticket, one in super().poll()]

    with served(Paying(corridor_dream()), idle_s=1.0) as dream:
        name = dream.open(TASKS[0].id).result(10).session
        for n in (1, 2):
            last = dream.step(name, "left").result(10)
            assert dream.outcome_so_far(name) == outcome(last) | {"steps": n, "reward": 0.25 * n}
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert dream.outcome_so_far(name)["steps"] == 2
            time.sleep(0.1)


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


def test_an_answer_that_takes_longer_than_a_session_may_be_idle_does_not_close_it(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("dreamgym.serve.sessions.time", SimpleNamespace(monotonic=lambda: now[0]))
    model = Held(corridor_dream())
    with served(model, idle_s=60.0) as dream:
        opened, other = dream.open(TASKS[0].id).result(10), dream.open(TASKS[1].id).result(10)
        slow = dream.step(opened.session, "right")
        assert "still under way" in fails(dream.step(opened.session, "right")), "it has begun"
        now[0] = 100.0
        model.free.set()
        assert slow.result(10).observation.text
        deadline = time.monotonic() + 10
        while len(dream) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "no session" in fails(dream.step(other.session, "right"))
        assert dream.step(opened.session, "right").result(10).observation.text


def test_a_model_that_fails_costs_the_steps_under_way_and_nothing_else():
    model = Held(corridor_dream())
    with served(model) as dream:
        opened, other = dream.open(TASKS[0].id).result(10), dream.open(TASKS[1].id).result(10)
        model.broken = True
        assert "the context is too short" in fails(dream.step(opened.session, "right"))
        model.broken = False
        model.free.set()
        assert dream.step(other.session, "right").result(10).observation.text


def test_a_query_that_fails_on_its_own_ends_its_episode_and_no_other():
    """A request that the engine's server refuses, and a state that the model cannot take."""

    class Refusing(NoModel):
        def __init__(self, inner: NoModel) -> None:
            self.__dict__.update(inner.__dict__)
            self.free, self.refused = threading.Event(), list[int]()

        def submit(self, queries: Any) -> list[int]:
            if queries[0].action == "too long":
                raise UsageError("the context is too short")
            tickets = super().submit(queries)
            self.refused += tickets if queries[0].action == "refused" else []
            return tickets

        def poll(self) -> Any:
            self.free.wait(10)
            if self.refused:
                raise ServerError("status 500", ticket=self.refused.pop())
            return super().poll()

    model = Refusing(corridor_dream())
    with served(model) as dream:
        first, second, third = (dream.open(TASKS[0].id, seed=0).result(10).session for _ in range(3))
        steps = dream.step(first, "right"), dream.step(second, "refused"), dream.step(third, "too long")
        with pytest.raises(UsageError, match="too short"):
            steps[2].result(10)
        model.free.set()
        assert "status 500" in fails(steps[1]) and steps[0].result(10).observation.text
        assert dream.step(first, "right").result(10).observation.text and dream.step(third, "right").result(10).observation.text
        assert "no session" in fails(dream.step(second, "right"))


def test_a_server_that_closes_answers_what_is_under_way_and_takes_nothing_new():
    dream = served()
    opened = dream.open(TASKS[0].id).result(10)
    step = dream.step(opened.session, "right")
    dream.close()
    assert step.result(0).observation.text and "closing" in fails(dream.step(opened.session, "right"))


def test_a_client_that_gives_up_costs_no_other_client_anything():
    model = Held(corridor_dream())

    async def clients(dream: DreamSessions) -> None:
        opened = await asyncio.wrap_future(dream.open(TASKS[0].id))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(dream.step(opened.session, "right")), 0.1)
        model.free.set()
        other = await asyncio.wait_for(asyncio.wrap_future(dream.open(TASKS[1].id)), 10)
        assert (await asyncio.wait_for(asyncio.wrap_future(dream.step(other.session, "right")), 10)).observation.text
        assert dream.outcome_so_far(opened.session)["steps"] == 1, "its step was made all the same"

    with served(model) as dream:
        asyncio.run(clients(dream))


def test_a_step_waits_for_one_first_state_and_not_for_those_of_all_who_begin():
    model, asked, free = corridor_dream(), threading.Event(), threading.Event()
    start, begun = model.start, list[int]()

    def slow(tasks: Any, *, seed: int) -> list[Observation]:
        begun.append(seed)
        asked.set()
        return start(tasks, seed=seed) if free.wait(10) else []

    model.start = slow  # type: ignore[method-assign]
    with served(model) as dream:
        free.set()
        opened = dream.open(TASKS[0].id, seed=0).result(10)
        free.clear()
        asked.clear()
        first = dream.open(seed=1)
        assert asked.wait(10)
        others, seen = [dream.open(seed=seed) for seed in range(2, 9)], list[int]()
        step = dream.step(opened.session, "right")
        step.add_done_callback(lambda _: seen.extend(begun))
        free.set()
        assert step.result(10).observation.text and first.result(10).seed == 1
        assert [one.result(10).seed for one in others] == list(range(2, 9)) == begun[2:]
    assert seen in ([0, 1], [0, 1, 2]), "the step was answered before the rest began"


def test_an_episode_whose_client_has_gone_before_it_began_is_not_kept():
    model, free = corridor_dream(), threading.Event()
    start = model.start
    model.start = lambda tasks, *, seed: start(tasks, seed=seed) if free.wait(10) else []  # type: ignore[method-assign]
    with served(model) as dream:
        assert dream.open(TASKS[0].id).cancel()
        free.set()
        dream.end("another").result(10)
        assert len(dream) == 0


def test_no_first_state_is_written_for_clients_that_have_gone_or_when_the_server_closes():
    model, begun, free = corridor_dream(), list[int](), threading.Event()
    start = model.start

    def slow(tasks: Any, *, seed: int) -> list[Observation]:
        begun.append(seed)
        return start(tasks, seed=seed) if free.wait(10) else []

    model.start = slow  # type: ignore[method-assign]
    dream = served(model)
    first = dream.open(seed=0)
    gone, stayed, queued = [dream.open(seed=seed) for seed in (1, 2)], dream.open(seed=3), [dream.open(seed=seed) for seed in (4, 5)]
    assert all(one.cancel() for one in gone)
    stayed.add_done_callback(lambda _: dream._take_nothing_new("closing"))  # before the next one begins
    free.set()
    assert first.result(10).seed == 0 and stayed.result(10).seed == 3
    dream.close()
    assert begun == [0, 3]
    assert all("closing" in fails(one) for one in queued)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dream_that_breaks_answers_those_who_wait_and_whoever_comes_later():
    model = Held(corridor_dream())
    with served(model) as dream:
        opened, other = dream.open(TASKS[0].id).result(10), dream.open(TASKS[1].id).result(10)
        first, second = dream.step(opened.session, "right"), dream.step(other.session, "right")
        model.poll = lambda: [(-1, None)]  # type: ignore[method-assign]
        assert "The dream has broken (KeyError(-1))" in fails(first) and "Start the server again" in fails(second)
        assert "The dream has broken" in fails(dream.open())
