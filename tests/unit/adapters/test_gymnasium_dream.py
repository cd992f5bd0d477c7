"""A dream as Gymnasium knows environments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from dreams import SUITE, TASKS, corridor_dream
from gymnasium.utils.env_checker import check_env

from dreamgym.adapters.gymnasium_dream import DreamTextEnv, DreamVectorEnv
from dreamgym.errors import UsageError
from dreamgym.serve.sessions import FIRST_STATES, DreamSessions, Limits, SessionError
from dreamgym.types import Observation


@pytest.fixture
def dream() -> Iterator[DreamSessions]:
    with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps, limits=Limits(sessions=8)) as sessions:
        yield sessions


@pytest.mark.filterwarnings("ignore:.*(charset|spec).*:UserWarning")
def test_gymnasium_itself_finds_nothing_wrong(dream: DreamSessions):
    check_env(DreamTextEnv(dream, render_mode="ansi"))


def test_one_episode_tells_who_decided_and_must_begin_before_it_goes_on(dream: DreamSessions):
    env = DreamTextEnv(dream)
    with pytest.raises(UsageError, match="reset"):
        env.step("right")
    first, info = env.reset(seed=1, options={"task": TASKS[0].id})
    assert first.startswith(TASKS[0].instruction) and info["simulation"]
    assert env.step("dance")[4]["decided_by"] == "rule"
    with pytest.raises(UsageError, match="Did you mean 'task'"):
        env.reset(options={"tsk": "x"})


def test_no_task_among_the_options_is_one_that_the_seed_draws(dream: DreamSessions):
    drawn = DreamTextEnv(dream).reset(seed=1)
    assert DreamTextEnv(dream).reset(seed=1, options={"task": None}) == drawn and drawn[1]["task"] in {task.id for task in TASKS}
    assert DreamVectorEnv(dream, 2).reset(seed=1, options={"task": None})[0] == DreamVectorEnv(dream, 2).reset(seed=1)[0]
    with pytest.raises(SessionError, match="The task is 3"):
        DreamTextEnv(dream).reset(options={"task": 3})


def test_what_is_closed_after_its_dream_is_closed_all_the_same():
    with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as dream:
        one, several = DreamTextEnv(dream), DreamVectorEnv(dream, 2)
        one.reset(seed=1)
        several.reset(seed=1)
    one.close()
    several.close()


def test_episodes_side_by_side_are_those_of_one_environment_each(dream: DreamSessions):
    env, alone = DreamVectorEnv(dream, 4), DreamTextEnv(dream)
    shown, infos = env.reset(seed=3, options={"task": TASKS[0].id})
    assert env.observation_space.contains(shown) and list(infos["task"]) == [TASKS[0].id] * 4
    states, rewards, ended, cut, infos = env.step(("right", "left", "open", "dance"))
    expected = []
    for action in ("right", "left", "open", "dance"):
        alone.reset(options={"task": TASKS[0].id})
        expected.append(alone.step(action))
    assert list(states) == [one[0] for one in expected] and rewards.tolist() == [one[1] for one in expected]
    assert list(zip(ended.tolist(), cut.tolist(), strict=True)) == [one[2:4] for one in expected]
    assert list(infos["decided_by"]) == [one[4]["decided_by"] for one in expected]


def test_an_episode_that_is_over_begins_anew_at_the_next_step(dream: DreamSessions):
    env = DreamVectorEnv(dream, 2)
    env.reset(seed=0, options={"task": TASKS[0].id})
    over = np.zeros(2, dtype=bool)
    for _ in range(SUITE.max_steps):
        _, _, ended, cut, _ = env.step(("dance", "dance"))
        over = ended | cut
    assert over.all()
    states, rewards, ended, cut, infos = env.step(("dance", "dance"))
    assert not rewards.any() and not (ended | cut).any() and all("door" in state for state in states) and len(infos["task"]) == 2
    env.close()
    assert len(dream) == 0


def test_a_first_state_that_cannot_be_read_is_tried_again_and_loses_no_episode_where_none_can(dream: DreamSessions):
    start, calls, unreadable = dream.model.start, itertools.count(1), {3, *range(6, 6 + FIRST_STATES)}
    dream.model.start = lambda tasks, *, seed: [Observation("")] if next(calls) in unreadable else start(tasks, seed=seed)  # type: ignore[method-assign]
    env = DreamVectorEnv(dream, 4)
    shown, _ = env.reset(seed=0)
    assert len(shown) == len(dream) == 4
    with pytest.raises(SessionError, match="could not be read"):
        env.reset(seed=1)
    assert len(dream) == 3
    env.close()
    assert len(dream) == 0 and env.reset(seed=1)[0]


def test_a_wrong_number_of_actions_or_of_episodes_is_refused(dream: DreamSessions):
    env = DreamVectorEnv(dream, 2)
    with pytest.raises(UsageError, match="reset"):
        env.step(("left", "left"))
    env.reset(seed=0)
    with pytest.raises(UsageError, match="Expected 2 actions"):
        env.step(("left",))
    with pytest.raises(UsageError, match="from 1 to 8"):
        DreamVectorEnv(dream, 9)
