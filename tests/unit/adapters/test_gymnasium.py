"""Suites as Gymnasium environments."""

from __future__ import annotations

import pytest
from gymnasium.utils.env_checker import check_env

from dreamgym import plugins
from dreamgym.adapters.gymnasium import TextEnv
from dreamgym.errors import UsageError

CORRIDOR = plugins.make("envs", "corridor", length=5)


@pytest.mark.filterwarnings("ignore:.*(charset|spec).*:UserWarning")
@pytest.mark.parametrize("name", ["corridor", "webshop"])
def test_gymnasium_itself_finds_nothing_wrong(name: str):
    check_env(TextEnv(plugins.make("envs", name), render_mode="ansi"))


def test_a_seed_names_the_task_and_an_option_chooses_one():
    env = TextEnv(CORRIDOR)
    first, info = env.reset(seed=4)
    assert env.reset(seed=4) == (first, info)
    tasks = {env.reset()[1]["task"] for _ in range(20)}
    assert len(tasks) > 5
    chosen = CORRIDOR.tasks("train", 9, seed=1)[8]
    observation, info = env.reset(options={"task": chosen.id})
    assert info["task"] == chosen.id and observation.startswith(chosen.instruction)
    with pytest.raises(UsageError, match="Did you mean 'task'"):
        env.reset(options={"tsk": chosen.id})
    with pytest.raises(UsageError, match="No task 'nowhere' in split 'train'"):
        env.reset(options={"task": "nowhere"})


def test_an_episode_ends_with_the_task_or_is_cut_at_the_horizon():
    expert = CORRIDOR.demonstrate(CORRIDOR.tasks("train", 1, seed=0)[0], "expert", seed=0)
    env = TextEnv(CORRIDOR)
    env.reset(options={"task": expert.task.id})
    ends = [env.step(transition.action)[1:4] for transition in expert.transitions]
    assert ends == [(0.0, False, False)] * (len(ends) - 1) + [(1.0, True, False)]
    with pytest.raises(UsageError, match="reset"):
        env.step("left")
    env = TextEnv(CORRIDOR, max_steps=2)
    env.reset(seed=0)
    assert [env.step("jump")[2:4] for _ in range(2)] == [(False, False), (False, True)]
