"""Many real episodes side by side in worker processes: for environments that are slow, leak or crash.

Each worker builds the family by its name and options and keeps an `EnvPool` of its share of the episodes. A worker that dies or does
not answer in time is replaced, and its episodes are redone: reset, and the actions so far repeated. Environments are
deterministic given a task and its actions (the contract tests see to it), so nobody notices, except by `restarts`.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from dreamgym import plugins
from dreamgym.envs._pool import EnvPool
from dreamgym.errors import InvariantError, UsageError
from dreamgym.types import Action, Observation, StepResult, Task

TRIES = 3
"""How often a request may kill its worker before its episodes are given up."""
log = logging.getLogger(__name__)


@dataclass
class Episode:
    """What it takes to bring an episode back: its task, what was done, and the state to find again."""

    task: Task
    observation: Observation
    actions: list[Action] = field(default_factory=list)
    over: bool = False


class WorkerPool:
    """`EnvPool` in processes (the `BatchEnv` of a real environment). Close it, or use it in a `with` block.

    `steps` is what the real world was charged for results, `redone_steps` what replaced workers repeated, `restarts` how many were
    replaced. A script that makes one needs the usual `if __name__ == "__main__":`, since workers are spawned.
    """

    source = "real"
    version = 0

    def __init__(self, family: str, options: Mapping[str, Any] | None = None, *, workers: int = 2, timeout_s: float | None = None) -> None:
        if workers < 1:
            raise UsageError(f"workers={workers} must be at least 1.")
        self.family, self.options, self.timeout_s = family, dict(options or {}), timeout_s
        self.workers = [_Worker(family, self.options) for _ in range(workers)]
        self.episodes: list[Episode] = []
        self.steps = self.redone_steps = self.restarts = 0
        self._seed = 0
        self._places: list[tuple[int, int]] = []  # slot -> (worker, slot in the worker)

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """One episode per task. Neighbours share a worker, so that rollouts of one task do."""
        self._seed = seed
        share = -(-len(tasks) // len(self.workers)) or 1
        self._places = [(slot // share, slot % share) for slot in range(len(tasks))]
        self.episodes = []
        requests = {w: ("start", tasks[w * share : (w + 1) * share], seed) for w in range(len(self.workers)) if tasks[w * share :]}
        answers = self._ask(requests)
        for worker in requests:
            if isinstance(answers[worker], _Dead):
                raise InvariantError(f"A worker of '{self.family}' died {TRIES} times while it began its episodes: {answers[worker]}.")
            mine = tasks[worker * share : (worker + 1) * share]
            self.episodes += [Episode(task, observation) for task, observation in zip(mine, answers[worker], strict=True)]
        return [episode.observation for episode in self.episodes]

    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        """Act in the episodes named by `slots`. One whose worker dies of it again and again gets a result with an "error" in its info."""
        asked: dict[int, list[int]] = {}  # worker -> places in `slots`
        for place, slot in enumerate(slots):
            asked.setdefault(self._places[slot][0], []).append(place)
        requests = {
            worker: ("step", [self._places[slots[place]][1] for place in places], [actions[place] for place in places])
            for worker, places in asked.items()
        }
        answers = self._ask(requests)
        results: dict[int, StepResult] = {}
        for worker, places in asked.items():
            answer = answers[worker]
            for order, place in enumerate(places):
                episode = self.episodes[slots[place]]
                if isinstance(answer, _Dead):
                    episode.over = True
                    info = {"action": actions[place], "error": f"its worker died {TRIES} times: {answer}"}
                    results[place] = StepResult(episode.observation, 0.0, False, info=info)
                else:
                    results[place] = answer[order]
                    episode.observation, episode.over = answer[order].observation, answer[order].terminated
                    episode.actions.append(actions[place])
        self.steps += len(slots)
        return [results[place] for place in range(len(slots))]

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.end()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, requests: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """An answer per worker; all work at once. Where a worker dies, a new one takes over and is asked again, `TRIES` times in all."""
        for worker, request in requests.items():
            self.workers[worker].send(request)
        answers = {}
        for worker, request in requests.items():
            answer = self.workers[worker].receive(self.timeout_s)
            for _ in range(TRIES - 1):
                if not isinstance(answer, _Dead):
                    break
                self._replace(worker, answer)
                answer = self.workers[worker].ask(request, self.timeout_s)
            if isinstance(answer, _Dead):
                self._replace(worker, answer, leave_out=request)
            answers[worker] = answer
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(answer, _Dead):
                raise answer
        return answers

    def _replace(self, worker: int, death: _Dead, leave_out: tuple[Any, ...] = ()) -> None:
        """A new process in place of a dead one, with the episodes that are still going brought back to where they were.

        Those that a fatal request was about are left out.
        """
        log.warning("a worker of '%s' died (%s) and is replaced", self.family, death)
        self.restarts += 1
        self.workers[worker].end()
        self.workers[worker] = _Worker(self.family, self.options)
        mine = [slot for slot, (owner, _) in enumerate(self._places) if owner == worker and slot < len(self.episodes)]
        dropped = {slot for slot in mine if leave_out[:1] == ("step",) and self._places[slot][1] in leave_out[1]}
        if not mine:
            return
        episodes = [self.episodes[slot] for slot in mine]
        self._redo(worker, ("start", [episode.task for episode in episodes], self._seed))
        for slot, episode in zip(mine, episodes, strict=True):
            if episode.over or slot in dropped:
                continue
            for action in episode.actions:
                self.redone_steps += 1
                (result,) = self._redo(worker, ("step", [self._places[slot][1]], [action]))
            if episode.actions and result.observation != episode.observation:
                raise InvariantError(
                    f"'{self.family}' is not deterministic: the same actions in task '{episode.task.id}' led elsewhere. "
                    "Worker processes want environments that can be repeated."
                )

    def _redo(self, worker: int, request: tuple[Any, ...]) -> Any:
        answer = self.workers[worker].ask(request, self.timeout_s)
        if isinstance(answer, Exception):
            raise InvariantError(f"A replaced worker of '{self.family}' cannot bring its episodes back: {answer}.") from answer
        return answer


class _Dead(Exception):
    """What is received from a worker that is no more."""


class _Worker:
    """One process, and the line to it."""

    def __init__(self, family: str, options: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, family, dict(options)), daemon=True)
        self.process.start()
        there.close()
        self.greeted = False

    def ask(self, request: tuple[Any, ...], timeout_s: float | None) -> Any:
        self.send(request)
        return self.receive(timeout_s)

    def send(self, request: tuple[Any, ...]) -> None:
        with suppress(OSError):  # it is dead, as `receive` will find
            self.line.send(request)

    def receive(self, timeout_s: float | None) -> Any:
        """The answer; an exception that the environment raised; or a `_Dead`. Making the family may take longer than an answer."""
        try:
            if not self.greeted:
                problem = self.line.recv()
                if problem is not None:
                    return problem
                self.greeted = True
            if not self.line.poll(timeout_s):
                return _Dead(f"no answer in {timeout_s:g} s")
            return self.line.recv()
        except (EOFError, OSError):
            self.process.join(1.0)
            return _Dead(f"exit code {self.process.exitcode}")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.line.close()


def _serve(line: Connection, family: str, options: dict[str, Any]) -> None:
    """A worker's life: make the family, say so, then answer requests until the line is cut."""
    try:
        made = plugins.make("envs", family, **options)
    except Exception as error:  # the boundary of the process: whatever it is, it is the caller's to hear
        line.send(_sendable(error))
        return
    line.send(None)
    pool = EnvPool(made.env, made.domain)
    while True:
        try:
            kind, *arguments = line.recv()
        except (EOFError, KeyboardInterrupt):
            return
        answer: Any
        try:
            answer = pool.start(arguments[0], seed=arguments[1]) if kind == "start" else pool.step(*arguments)
        except Exception as error:  # the same boundary
            answer = error
        line.send(_sendable(answer))


def _sendable(answer: Any) -> Any:
    """The answer, or an error that says why it cannot travel."""
    try:
        pickle.loads(pickle.dumps(answer))
    except Exception as error:
        return InvariantError(f"A worker cannot send {answer!r:.200}: {error}.")
    return answer
