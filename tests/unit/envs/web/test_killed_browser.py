"""A browser that is killed at any moment: every episode ends as what it is, redone or failed, and the pool goes on."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from web_pages import browser, page_env, page_task

from dreamgym import plugins
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.web.rules import WebRules
from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.types import Action, Observation, Task

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="browsers are found in /proc")]
Script = tuple[Task, Sequence[Action]]
Seen = tuple[Observation, float, bool]
"""What a step shows, its reward, and whether it ends the episode."""
ROUNDS = 25
"""How often a test plays its scripts, at most, until it has seen enough."""
COUNTER = """<title>Counter</title><button onclick="n.textContent = Number(n.textContent) + 1;
if (n.textContent == 3) window.solved = true">Add</button><p id=n>0</p>"""
FIRST = "<title>First</title><a href='second.html'>Next</a>"
SECOND = "<title>Second</title><label>Name <input oninput=\"if (this.value == 'ann') window.solved = true\"></label>"


def browsers() -> list[int]:
    """The main processes of all browsers that this process has started, those too that are only starting."""
    parents, found = dict[int, int](), list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"--remote-debugging-p" in (line := (folder / "cmdline").read_bytes()) and b"--type=" not in line:
                found.append(int(folder.name))

    def ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    return [process for process in found if ours(process)]


class Killer:
    """Kills the browsers of this process after pauses that a seed draws, up to so many seconds. `doing` is what is under way, `kills`
    counts by it."""

    def __init__(self, seed: int, longest_s: float) -> None:
        self.doing, self.kills, self.longest_s = "reset", Counter[str](), longest_s
        self._rng, self._ended = random.Random(seed), threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _work(self) -> None:
        while not self._ended.wait(self._rng.uniform(0.1, self.longest_s)):
            for process in browsers():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    self.kills[self.doing] += 1


def undisturbed(pool: EnvPool, scripts: Sequence[Script]) -> list[tuple[Observation, list[Seen]]]:
    """The first state of every script and what its steps show."""
    found = []
    for task, actions in scripts:
        first, seen = pool.begin(0, task), list[Seen]()
        for action in actions:
            (result,) = pool.step([0], [action])
            assert result.info.error is None
            seen.append((result.observation, result.reward, result.terminated))
        found.append((first, seen))
    return found


def disturbed(pool: EnvPool, scripts: Sequence[Script], truth: Sequence[tuple[Observation, list[Seen]]], killer: Killer) -> Counter[str]:
    """How the episodes of the scripts end side by side while browsers die. Whatever is shown without an error is what is true."""
    killer.doing, ended = "reset", Counter[str]()
    first = pool.start([task for task, _ in scripts], seed=0)
    killer.doing, failed = "step", set[int]()
    for step in range(max(len(actions) for _, actions in scripts)):
        slots = [slot for slot, (_, actions) in enumerate(scripts) if slot not in failed and step < len(actions)]
        for slot, result in zip(slots, pool.step(slots, [scripts[slot][1][step] for slot in slots]), strict=True):
            if result.info.error is not None:
                assert (result.reward, result.terminated) == (0.0, False), "a failed rollout has no outcome"
                failed.add(slot)
                continue
            assert first[slot] == truth[slot][0]
            assert (result.observation, result.reward, result.terminated) == truth[slot][1][step], (slot, step, result)
            if result.terminated:
                ended["success" if result.reward else "no success"] += 1
    return ended + Counter(failed=len(failed))


def check(pool: EnvPool, scripts: Sequence[Script], *, seed: int, longest_s: float, kills: int) -> None:
    """Play rounds of the scripts while browsers die, until so many have in resets and in steps, and one more when none does."""
    truth, killer, ended, rounds = undisturbed(pool, scripts), Killer(seed, longest_s), Counter[str](), 0
    assert {seen[-1][1:] for _, seen in truth} == {(1.0, True), (0.0, True)}, "some of the scripts do their task, and some do not"

    def enough() -> bool:
        return min(killer.kills["reset"], killer.kills["step"]) >= kills and bool(ended["success"] and ended["no success"])

    with killer.at_work():
        while not enough() and rounds < ROUNDS:
            rounds += 1
            ended += disturbed(pool, scripts, truth, killer)
    assert enough(), (killer.kills, ended)
    assert ended.total() == rounds * len(scripts), "every episode has ended, as one of the three"
    assert disturbed(pool, scripts, truth, killer)["failed"] == 0, "nothing is left of it when no browser dies any more"


@pytest.mark.parametrize("seed", [0, 1])
def test_pages_in_a_browser_that_is_killed_at_random_are_redone_or_failed_and_none_is_a_false_success(seed: int, tmp_path: Path):
    browser()
    for name, text in {"counter": COUNTER, "first": FIRST, "second": SECOND}.items():
        (tmp_path / f"{name}.html").write_text(text)
    first = page_env(tmp_path, max_open=8)
    envs = [
        first,
        *(type(first)(first.benchmark, first.sessions, first.rules, timeout_s=3, quiet_s=0.05, step_limit_s=60) for _ in range(3)),
    ]
    pool = EnvPool(lambda: envs.pop(0), WebRules())
    add, name = "click [1]", "type [1] [ann] [0]"
    scripts = [
        (page_task("counter.html"), [add, add, add]),
        (page_task("counter.html"), [add, "click [7]", add, "press [Tab]", "stop []"]),
        (page_task("first.html"), ["click [1]", "type [1] [bob] [0]", name]),
        (page_task("first.html"), ["click [1]", "go_back", "click [1]", "type [1] [bob] [0]", "stop [ann]"]),
    ]
    check(pool, scripts, seed=seed, longest_s=2.5, kills=4)


def test_a_forum_in_a_browser_that_is_killed_at_random_is_redone_or_failed_and_none_is_a_false_success():
    if importlib.util.find_spec("spirit") is None:
        pytest.skip("django-spirit is not installed: pip install 'dreamgym[web]'")
    browser()
    suite = plugins.make("envs", "web", benchmark="forum")
    try:
        written = [task for task in suite.tasks("train", 200) if not suite.benchmark._task(task).answered][:1]
        scripts = list[Script]()
        for task in written:
            actions = [step.action for step in suite.demonstrate(task, "expert", seed=0).transitions]
            scripts += [(task, actions), (task, [*actions[:-2], "stop [done]"])]
        check(EnvPool(suite.require_env, suite.rules), scripts, seed=2, longest_s=8.0, kills=1)
    finally:
        suite.close()


@pytest.mark.parametrize("victim", ["worker", "browser"])
def test_episodes_in_worker_processes_are_redone_when_a_worker_or_its_browser_is_killed(victim: str):
    if importlib.util.find_spec("browsergym.miniwob") is None:
        pytest.skip("browsergym-miniwob is not installed: pip install 'dreamgym[web]'")
    browser()
    options = {"seeds": 2, "pages": ["enter-text", "click-option"]}
    suite = plugins.make("envs", "web", **options)
    tasks = suite.tasks("train", 4)
    scripts = [(task, [step.action for step in suite.demonstrate(task, "expert", seed=0).transitions]) for task in tasks]
    truth = undisturbed(EnvPool(suite.require_env, suite.rules), scripts)
    suite.close()
    with WorkerPool("web", options, workers=2) as pool:
        first = pool.start(tasks, seed=0)
        if victim == "worker":
            worker = pool.workers[0]
            assert worker is not None and worker.process.pid
            os.kill(worker.process.pid, signal.SIGKILL)
        else:
            os.kill(browsers()[0], signal.SIGKILL)
        for step in range(2):
            results = pool.step(range(4), [actions[step] for _, actions in scripts])
            assert [(r.observation, r.reward, r.terminated) for r in results] == [seen[step] for _, seen in truth]
        assert first == [state for state, _ in truth] and [r.reward for r in results] == [1.0] * 4
        assert pool.restarts == (victim == "worker")
