"""Suites as Gymnasium environments."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

from dreamgym import plugins
from dreamgym.adapters.gymnasium import TextEnv
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import UsageError
from dreamgym.protocols import Env
from dreamgym.types import Action, Task

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


class Cut:
    """An environment that cuts its episodes after two steps."""

    def __init__(self, inner: Env) -> None:
        self.inner, self.steps, self.closed = inner, 0, 0

    @property
    def truncated(self) -> bool:
        return self.steps >= 2

    def accepts(self, task: Task) -> bool:
        return self.inner.accepts(task)

    def reset(self, task: Task) -> dict[str, Any]:
        self.steps = 0
        return self.inner.reset(task)

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        self.steps += 1
        return self.inner.step(action)

    def close(self) -> None:
        self.closed += 1


def test_an_episode_that_the_environment_itself_cuts_is_truncated_as_it_is_in_a_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = plugins.make("envs", "corridor", length=5)
    make_env = suite.require_env
    monkeypatch.setattr(suite, "require_env", lambda: Cut(make_env()))
    pool, env = EnvPool(suite.require_env, suite.rules), TextEnv(suite)
    pool.start(suite.tasks("train", 1), seed=0)
    assert [pool.step([0], ["jump"])[0].truncated for _ in range(2)] == [False, True]
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step("jump")[2:4] for _ in range(2)] == [(False, False), (False, True)]
        with pytest.raises(UsageError, match="reset"):
            env.step("jump")


def test_closing_closes_the_environment_inside_and_ends_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = plugins.make("envs", "corridor", length=5)
    made = [Cut(suite.require_env()), Cut(suite.require_env())]
    monkeypatch.setattr(suite, "require_env", iter(made).__next__)
    env = TextEnv(suite)
    env.close()
    env.reset(seed=0)
    env.close()
    env.close()
    assert [inner.closed for inner in made] == [1, 0]
    with pytest.raises(UsageError, match="reset"):
        env.step("left")
    env.reset(seed=0)
    env.close()
    assert [inner.closed for inner in made] == [1, 1]
    bare = TextEnv(CORRIDOR)  # its environment has no close
    bare.reset(seed=0)
    bare.close()


def test_a_split_without_tasks_is_named() -> None:
    with pytest.raises(UsageError, match="Split 'dev' of 'corridor' has no tasks"):
        TextEnv(plugins.make("envs", "corridor", length=3, keys=False), split="dev", tasks=0).reset(seed=0)
