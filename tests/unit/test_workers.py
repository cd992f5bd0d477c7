"""Real episodes in worker processes: the same as in one process, whatever dies in between."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from dreamgym import plugins
from dreamgym.envs._pool import EnvPool
from dreamgym.envs._workers import WorkerPool
from dreamgym.errors import UsageError
from dreamgym.protocols import BatchEnv
from dreamgym.types import StepResult, Task

LENGTH = {"length": 9}
CORRIDOR = plugins.make("envs", "corridor", **LENGTH)
TASKS = CORRIDOR.tasks("train", 5, seed=0)
ACTIONS = ["right", "take", "left", "jump", "right", "right"]


def played(env: BatchEnv, before: Callable[[int], None] = lambda step: None) -> list[list[StepResult]]:
    """Every task's results; before some steps something may happen."""
    env.start(TASKS, seed=3)
    results: list[list[StepResult]] = [[] for _ in TASKS]
    for step, action in enumerate(ACTIONS):
        before(step)
        slots = [slot for slot in range(len(TASKS)) if (slot + step) % 4]  # not everybody acts at every step
        for slot, result in zip(slots, env.step(slots, [action] * len(slots)), strict=True):
            results[slot].append(result)
    return results


ALONE = played(EnvPool(CORRIDOR.env, CORRIDOR.domain))


@pytest.fixture(scope="module")
def pool():
    with WorkerPool("corridor", LENGTH, workers=2) as made:
        yield made


def test_worker_processes_give_what_one_process_gives_and_charge_the_same(pool: WorkerPool):
    alone = EnvPool(CORRIDOR.env, CORRIDOR.domain)
    assert played(pool) == played(alone)
    assert (pool.steps, pool.restarts, pool.redone_steps) == (alone.steps, 0, 0)


def test_a_killed_worker_is_replaced_and_nobody_notices_but_the_count(pool: WorkerPool):
    before = pool.restarts

    def kill(step: int) -> None:
        if step == 3:
            os.kill(pool.workers[0].process.pid, signal.SIGKILL)

    assert played(pool, kill) == ALONE
    assert pool.restarts == before + 1
    assert pool.redone_steps > 0


def test_an_error_of_the_environment_is_raised_here_and_the_worker_lives_on(pool: WorkerPool):
    before = pool.restarts
    with pytest.raises(UsageError, match="invented"):
        pool.start([Task("invented", "open the door", "corridor", source="synthetic")], seed=0)
    assert played(pool) == ALONE
    assert pool.restarts == before


def test_more_workers_than_episodes_and_no_episode_at_all(pool: WorkerPool):
    assert pool.start([], seed=0) == []
    assert len(pool.start(TASKS[:1], seed=0)) == 1
    assert len(pool.step([0], ["right"])) == 1
    with pytest.raises(UsageError, match="at least 1"):
        WorkerPool("corridor", workers=0)


def test_a_family_that_cannot_be_made_says_why_here():
    with WorkerPool("corridor", {"lenght": 9}, workers=1) as pool, pytest.raises(UsageError, match="length"):
        pool.start(TASKS, seed=0)


FRAGILE = """
    import os, time
    from dreamgym.envs import corridor

    class Fragile(corridor.Corridor):
        def step(self, action):
            if action == "die":
                os._exit(7)
            if action == "hang":
                time.sleep(60)
            return super().step(action)

    class Family(corridor.CorridorFamily):
        def env(self):
            return Fragile(self.config)

    def make(**config):
        return Family(corridor.CorridorConfig(**config))
"""


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The dotted name of a corridor in which one action kills the process and another takes a minute."""
    (tmp_path / "fragile_house").mkdir()
    (tmp_path / "fragile_house" / "house.py").write_text(textwrap.dedent(FRAGILE))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return "fragile_house.house"


def test_an_action_that_always_kills_its_worker_fails_its_episode_and_no_other(fragile: str):
    with WorkerPool(fragile, LENGTH, workers=1) as pool:
        pool.start(TASKS[:2], seed=0)
        pool.step([0, 1], ["right", "right"])
        (result,) = pool.step([0], ["die"])
        assert "exit code 7" in result.info["error"] and not result.terminated
        assert pool.restarts == 3  # it was tried three times
        alone = EnvPool(CORRIDOR.env, CORRIDOR.domain)
        alone.start(TASKS[1:2], seed=0)
        alone.step([0], ["right"])
        assert pool.step([1], ["left"]) == alone.step([0], ["left"])


@pytest.mark.slow
def test_a_worker_that_does_not_answer_in_time_counts_as_dead(fragile: str):
    with WorkerPool(fragile, LENGTH, workers=1, timeout_s=2.0) as pool:
        pool.start(TASKS[:1], seed=0)
        (result,) = pool.step([0], ["hang"])
        assert "no answer in 2 s" in result.info["error"]
