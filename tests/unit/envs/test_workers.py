"""Real episodes in worker processes: the same as in one process, whatever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fragile.processes import vanish

from dreamgym import plugins
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.errors import EnvironmentFailure, InvariantError, PluginError, UsageError
from dreamgym.logs.demonstrations import collect
from dreamgym.protocols import BatchEnv
from dreamgym.types import StepResult, Task

LENGTH = {"length": 9}
CORRIDOR = plugins.make("envs", "corridor", **LENGTH)
TASKS = CORRIDOR.tasks("train", 5, seed=0)
ACTIONS = ["right", "take", "left", "jump", "right", "right"]
HOUSE = "fragile.house"
INVENTED = Task("invented", "open the door", "corridor", source="synthetic")


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


ALONE = played(EnvPool(CORRIDOR.env, CORRIDOR.rules))


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("corridor", LENGTH, workers=2) as made:
        yield made


def pid(pool: WorkerPool, worker: int = 0) -> int:
    """The process of a worker that has begun."""
    found = pool.workers[worker]
    assert found is not None and found.process.pid
    return found.process.pid


# The same results


def test_worker_processes_give_what_one_process_gives_and_charge_the_same(pool: WorkerPool):
    alone = EnvPool(CORRIDOR.env, CORRIDOR.rules)
    before = pool.steps, pool.restarts
    assert played(pool) == played(alone)
    assert (pool.steps, pool.restarts) == (before[0] + alone.steps, before[1])


@pytest.mark.parametrize(("name", "options"), [("corridor", LENGTH), ("webshop", {})])
def test_scripted_episodes_and_repeated_ones_are_the_same_in_the_same_order(name: str, options: dict[str, int]):
    suite = plugins.make("envs", name, **options)
    logs = collect(suite, 40, seed=2)
    walks = [(one.task, [t.action for t in one.transitions]) for one in logs] + [(INVENTED, ["open"])]
    alone = EnvPool(suite.env, suite.rules)
    with WorkerPool(name, options, workers=3) as pool:
        assert collect(suite, 40, seed=2, play=pool.demonstrate) == logs
        assert pool.repeat(walks) == alone.repeat(walks)
        assert pool.repeat([]) == [] and pool.demonstrate([]) == []
        assert pool.start([log.task for log in logs], seed=0) == [log.transitions[0].state for log in logs]
        first = pool.step(range(40), [log.transitions[0].action for log in logs])
        assert [result.observation for result in first] == [log.transitions[0].next_state for log in logs]
    assert alone.repeat(walks)[-1] is None and pool.steps == alone.steps // 2 + 40


def test_more_workers_than_episodes_and_no_episode_at_all(pool: WorkerPool):
    assert pool.start([], seed=0) == []
    assert len(pool.start(TASKS[:1], seed=0)) == 1
    assert len(pool.step([0], ["right"])) == 1
    with pytest.raises(UsageError, match="at least 1"):
        WorkerPool("corridor", workers=0)


def test_an_error_of_the_environment_is_raised_here_and_the_worker_lives_on(pool: WorkerPool):
    before = pool.restarts
    with pytest.raises(UsageError, match="invented"):
        pool.start([INVENTED], seed=0)
    assert played(pool) == ALONE
    assert pool.restarts == before


# Deaths


def test_a_killed_worker_is_replaced_and_nobody_notices_but_the_count(pool: WorkerPool):
    before = pool.restarts

    def kill(step: int) -> None:
        if step == 3:
            os.kill(pid(pool), signal.SIGKILL)

    assert played(pool, kill) == ALONE
    assert pool.restarts == before + 1


def test_a_worker_killed_in_the_midst_of_scripted_or_repeated_episodes_is_replaced_and_they_are_redone(tmp_path: Path):
    logs = collect(CORRIDOR, 12, seed=2)
    walks = [(one.task, [t.action for t in one.transitions]) for one in logs]
    trap = tmp_path / "trap"
    with WorkerPool(HOUSE, {**LENGTH, "trap": str(trap)}, workers=2) as pool:
        trap.touch()
        assert collect(CORRIDOR, 12, seed=2, play=pool.demonstrate) == logs
        assert pool.restarts == 1 and not trap.exists()
        trap.touch()
        assert pool.repeat(walks) == EnvPool(CORRIDOR.env, CORRIDOR.rules).repeat(walks)
        assert pool.restarts == 2


def test_an_action_that_always_kills_its_worker_fails_its_episode_and_no_other():
    with WorkerPool(HOUSE, LENGTH, workers=1) as pool:
        pool.start(TASKS[:3], seed=0)
        pool.step([0, 1, 2], ["right"] * 3)
        before, dead, after = pool.step([0, 1, 2], ["left", "die", "left"])
        assert not dead.terminated and "exit code 7" in dead.info.error
        assert all(said in dead.info.error for said in (HOUSE, TASKS[1].id, "env.workers = 0"))
        assert pool.restarts == 3  # it was tried three times
        alone = EnvPool(CORRIDOR.env, CORRIDOR.rules)
        alone.start(TASKS[:3], seed=0)
        alone.step([0, 2], ["right", "right"])
        assert [before, after] == alone.step([0, 2], ["left", "left"])


def test_a_task_that_kills_every_worker_is_named_with_its_environment_and_what_to_do():
    with WorkerPool(HOUSE, {**LENGTH, "cursed": TASKS[1].id}, workers=2) as pool:
        for ask in (lambda: pool.start(TASKS, seed=0), lambda: pool.demonstrate([(TASKS[1], "expert", 4)])):
            with pytest.raises(InvariantError) as caught:
                ask()
            assert all(said in str(caught.value) for said in (HOUSE, TASKS[1].id, "3 workers in a row", "exit code 7", "env.workers = 0"))
        assert pool.repeat([(TASKS[1], ["right"]), (TASKS[2], ["right"])])[0] is None
        assert len(pool.start(TASKS[2:], seed=0)) == 3, "the pool can be used on"


def test_a_scripted_episode_that_the_environment_fails_in_costs_no_other_and_no_worker(caplog: pytest.LogCaptureFixture):
    whole = collect(CORRIDOR, 12, seed=2)
    lost = {whole[0].task.id: 0, whole[5].task.id: 1}
    with WorkerPool(HOUSE, {**LENGTH, "failing": lost}, workers=2) as pool:
        assert collect(CORRIDOR, 12, seed=2, play=pool.demonstrate) == [one for one in whole if one.task.id not in lost]
        assert pool.restarts == 0 and "failed in 2 of 12 scripted episodes" in caplog.text
        played(pool)
        with pytest.raises(EnvironmentFailure, match="failed in 2 of 2 .*The house is locked"):
            collect(CORRIDOR, 2, seed=2, play=lambda jobs: pool.demonstrate([(whole[i].task, "expert", 0) for i in (0, 5)]))


def test_repeated_steps_are_counted_in_workers_too_when_the_environment_fails_in_the_midst():
    options, walks = {**LENGTH, "failing": {TASKS[0].id: 3}}, [(task, ["right"] * 5) for task in TASKS[:2]]
    alone = EnvPool(plugins.make("envs", HOUSE, **options).env, CORRIDOR.rules)
    with WorkerPool(HOUSE, options, workers=2) as pool:
        assert pool.repeat(walks) == alone.repeat(walks) and pool.repeat(walks)[0] is None
        assert pool.steps == 2 * alone.steps > 2 * 5


def test_an_episode_that_does_not_repeat_is_a_failed_rollout_when_its_worker_dies():
    with WorkerPool(HOUSE, {**LENGTH, "moody": True}, workers=1) as pool:
        pool.start(TASKS[:1], seed=0)
        pool.step([0], ["right"])
        os.kill(pid(pool), signal.SIGKILL)
        (result,) = pool.step([0], ["right"])
        assert TASKS[0].id in result.info.error and "led elsewhere" in result.info.error


@pytest.mark.slow
def test_a_worker_that_does_not_answer_in_time_counts_as_dead():
    with WorkerPool(HOUSE, LENGTH, workers=1, timeout_s=2.0) as pool:
        pool.start(TASKS[:1], seed=0)
        (result,) = pool.step([0], ["hang"])
        assert "no answer in 2 s" in result.info.error


# What cannot live in another process


def test_a_family_that_cannot_be_made_says_why_here():
    with WorkerPool("corridor", {"lenght": 9}, workers=1) as pool, pytest.raises(UsageError, match="length"):
        pool.start(TASKS, seed=0)


def test_a_family_that_only_this_process_knows_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "made.here", plugins.load("envs", "corridor"))
    with WorkerPool("made.here", LENGTH, workers=1) as pool, pytest.raises(PluginError, match="made.here"):
        pool.start(TASKS, seed=0)


def test_options_and_tasks_and_results_that_cannot_be_sent_are_named_with_what_to_do():
    with pytest.raises(UsageError, match=r"options of environment 'corridor' cannot be sent.*env\.workers = 0"):
        WorkerPool("corridor", {"length": lambda: 9})
    odd = Task("odd", "go", "corridor", goal={"start": lambda: 1})
    with WorkerPool(HOUSE, {**LENGTH, "mute": True}, workers=1) as pool:
        with pytest.raises(UsageError, match=r"task of environment 'fragile\.house' cannot be sent.*env\.workers = 0"):
            pool.start([odd], seed=0)
        pool.start(TASKS[:1], seed=0)
        with pytest.raises(InvariantError, match=r"'fragile\.house' cannot send.*env\.workers = 0"):
            pool.step([0], ["right"])


def test_workers_that_die_before_their_environment_is_made_say_what_it_takes():
    with WorkerPool(HOUSE, {**LENGTH, "stillborn": True}, workers=1) as pool:
        with pytest.raises(UsageError, match=r"'fragile\.house' die before it is made \(exit code 7\).*__main__"):
            pool.start(TASKS, seed=0)


# The end


def test_a_closed_pool_leaves_no_process_behind_neither_its_own_nor_what_they_started(tmp_path: Path):
    diary = tmp_path / "diary"
    with pytest.raises(KeyError), WorkerPool(HOUSE, {**LENGTH, "diary": str(diary)}, workers=2) as pool:
        pool.start(TASKS, seed=0)
        raise KeyError
    numbers = [int(line) for line in diary.read_text().split()]
    assert len(numbers) == 4 and os.getpid() not in numbers
    assert vanish(numbers)


def test_an_interrupted_request_ends_its_workers_so_that_no_answer_is_taken_for_a_later_one():
    def ring(*_: object) -> None:
        raise KeyboardInterrupt

    with WorkerPool(HOUSE, LENGTH, workers=2) as pool:
        pool.start(TASKS, seed=0)
        number, before = pid(pool), signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            with pytest.raises(KeyboardInterrupt):
                pool.step([0, 4], ["hang", "right"])
        finally:
            signal.signal(signal.SIGALRM, before)
        assert vanish([number])
        assert played(pool) == ALONE


@pytest.mark.parametrize("doing", ["pool.step([0, 1], ['hang', 'hang'])", "time.sleep(600)"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_busy_or_idle_end_with_their_caller_however_it_ends(tmp_path: Path, number: int, doing: str):
    diary = tmp_path / "diary"
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from dreamgym.envs.worker_pool import WorkerPool
        from dreamgym.envs.corridor import make

        if __name__ == "__main__":
            with WorkerPool("{HOUSE}", {{"length": 9, "diary": {str(diary)!r}}}, workers=2) as pool:
                pool.start(make(length=9).tasks("train", 2), seed=0)
                print("ready", flush=True)
                {doing}
    """)
    )
    here = Path(__file__)
    environment = {**os.environ, "PYTHONPATH": f"{here.parents[3]}:{here.parents[2] / 'support'}"}
    caller = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert caller.stdout and caller.stdout.readline() == "ready\n"
    time.sleep(0.2)  # into the step
    caller.send_signal(number)
    caller.wait(timeout=300)
    numbers = [int(line) for line in diary.read_text().split()]
    assert len(numbers) == 4 and vanish(numbers)
