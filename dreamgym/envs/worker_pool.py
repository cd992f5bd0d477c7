"""Real episodes in worker processes: for environments that are slow, leak or crash.

Each worker builds the suite by its name and options and keeps an `EnvPool` of its share of the episodes. It answers one thing at a
time (a reset, a step, a whole scripted episode), so that whoever is silent or dead is known to have failed at the next one. It is
replaced; what it had not answered is asked again, and an episode that it held is redone when it is acted in: reset, and the actions so
far repeated. Environments are deterministic given a task and its actions (the contract tests see to it), so nobody notices, except by
`restarts`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from dreamgym.envs.batch import AsyncBatchEnv, timed
from dreamgym.envs.worker_process import GRACE_S, Lost, serve
from dreamgym.errors import InvariantError, UsageError
from dreamgym.runs.progress import Advance, progress
from dreamgym.types import Action, Observation, StepInfo, StepResult, Task, Trajectory, Transition

TRIES = 3
"""Workers that may die of the same reset, step or scripted episode before it is given up."""
SILENT_S = 900.0
"""After how long a silent worker counts as dead in a run."""
TICK_S = 1.0
"""How often silent workers are looked after."""
Request = tuple[Any, ...]
"""What a worker is asked: the name of a method of `_Worker`, and its arguments."""
log = logging.getLogger(__name__)


@contextmanager
def start_workers(suite: str, options: Mapping[str, Any], workers: int, *, repeats: bool = True) -> Iterator[WorkerPool | None]:
    """The workers of a run, started when they are needed and ended with the block; None when there are to be 0 of them."""
    if not workers:
        yield None
        return
    with WorkerPool(suite, options, workers=workers, timeout_s=SILENT_S, repeats=repeats) as pool:
        yield pool


class WorkerPool(AsyncBatchEnv):
    """`EnvPool` in processes (the `RealEnv` protocol), and scripted episodes too. Close it, or use it in a `with` block.

    `steps` is what the real world was charged for results, without what replaced workers repeated; `seconds` is how long callers have
    waited for results, however many workers worked; `restarts` is how many were replaced. Workers start when they are first needed. One
    that is silent for `timeout_s` seconds about a reset, a step or a whole episode counts as dead; None waits for ever. A script that makes
    a pool needs the usual `if __name__ == "__main__":`, since workers are spawned. UsageError for options that cannot be sent to another
    process.
    """

    source = "real"
    version = 0

    def __init__(
        self,
        suite: str,
        options: Mapping[str, Any] | None = None,
        *,
        workers: int = 2,
        timeout_s: float | None = None,
        repeats: bool = True,
    ) -> None:
        """`repeats`: whether the same actions lead to the same states, so that a lost episode is redone. Else it is a failed rollout."""
        if workers < 1:
            raise UsageError(f"workers={workers} must be at least 1.")
        self.suite, self.options, self.timeout_s, self.repeats = suite, dict(options or {}), timeout_s, repeats
        _packed(self.options, f"The options of environment '{suite}'")
        self.workers: list[_Worker | None] = [None] * workers
        self.episodes: list[Episode] = []
        self.steps, self.seconds, self.restarts = 0, 0.0, 0
        self._share = 1  # episodes of a worker; neighbours share one, so that rollouts of one task do
        self._actions: dict[int, Action] = {}  # by slot, of the steps under way
        self._results: list[tuple[int, StepResult]] = []
        self._acting = _Asking(self, self._act, self._acted)

    @property
    def concurrent(self) -> bool:
        """Whether results are handed out as they come: see `poll`."""
        return not self.repeats

    @timed
    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """One episode per task. InvariantError for a task that workers die of."""
        self._share = share = self._spread(len(tasks))
        begun: dict[int, Episode] = {}

        def on_answer(slot: int, answer: Any) -> None:
            if isinstance(answer, Lost) and self.repeats:
                raise InvariantError(self._blame(tasks[slot], "its reset", answer))
            if isinstance(answer, Lost):
                answer = Observation("")  # with no worker that holds it, the episode fails at its first step
                begun[slot] = Episode(tasks[slot], answer, None)
                return
            begun[slot] = Episode(tasks[slot], answer, self.workers[slot // share])

        owners = [slot // share for slot in range(len(tasks))]
        self._ask(owners, lambda slot: ("begin", slot % share, tasks[slot]), on_answer)
        self.episodes = [begun[slot] for slot in range(len(tasks))]
        return [episode.observation for episode in self.episodes]

    @timed
    def submit(self, slots: Sequence[int], actions: Sequence[Action]) -> None:
        """Act in the episodes named by `slots`. One that workers die of, or that does not repeat, gets a result with an `error`
        in its info: a failed rollout."""
        self._actions |= zip(slots, actions, strict=True)
        self.steps += len(slots)
        self._acting.ask((slot // self._share, slot) for slot in slots)

    @timed
    def poll(self) -> list[tuple[int, StepResult]]:
        """See `protocols.BatchEnv`. An exception of the environment is raised when nothing else is under way.

        Where episodes repeat exactly, all steps under way are waited for: which worker is faster must not change the policy's batches,
        whose composition changes log-probabilities in the last bits, or a seed would no longer name a run.
        """
        while self._acting.waiting and (self.repeats or not self._results):
            self._acting.advance()
        if not self._results:
            self._acting.check()
        results, self._results = self._results, []
        return results

    def _act(self, slot: int) -> Request:
        """What the worker of an episode is asked for its next step."""
        episode, action = self.episodes[slot], self._actions[slot]
        past = None if episode.holder is self.workers[slot // self._share] else (episode.task, tuple(episode.actions), episode.observation)
        if past is not None and not self.repeats:
            return ("lose", "its worker died, and this environment is not acted in twice.")
        return ("act", slot % self._share, action, past)

    def _acted(self, slot: int, answer: Any) -> None:
        episode, holder, action = self.episodes[slot], self.workers[slot // self._share], self._actions.pop(slot)
        if isinstance(answer, Lost):
            lost = StepInfo(error=self._blame(episode.task, f"'{action:.80}'", answer))
            self._results.append((slot, StepResult(episode.observation, 0.0, False, info=lost, action=action)))
            return
        episode.holder, episode.observation = holder, answer.observation
        episode.actions.append(action)
        self._results.append((slot, answer))

    @timed
    def repeat(self, walks: Sequence[tuple[Task, Sequence[Action]]]) -> list[tuple[Transition, ...] | None]:
        """What really follows each task's actions, until they or the episode end; None for a task that the environment does not accept,
        and for a walk that workers die of, which is logged."""

        def lost(place: int, answer: Lost) -> None:
            log.error(self._blame(walks[place][0], f"{len(walks[place][1])} actions repeated", answer))

        answers = self._each([("repeat", task, tuple(actions)) for task, actions in walks], lost)
        self.steps += sum(answer[1] for answer in answers if answer)
        return [answer[0] if answer else None for answer in answers]

    def demonstrate(self, jobs: Sequence[tuple[Task, str, int]]) -> list[Trajectory]:
        """An episode by a scripted behaviour for every (task, behaviour, seed), in order; one that the environment fails in carries the
        `error` (`envs.base.attempt`). InvariantError for one that workers die of."""

        def lost(place: int, answer: Lost) -> None:
            task, behaviour, seed = jobs[place]
            raise InvariantError(self._blame(task, f"behaviour '{behaviour}', seed {seed}", answer))

        with progress(len(jobs), "scripted episodes") as advance:
            return self._each([("demonstrate", *job) for job in jobs], lost, advance)

    def close(self) -> None:
        """End the workers, and whatever they have started. A pool that is used again starts new ones."""
        self._acting, self._actions, self._results = _Asking(self, self._act, self._acted), {}, []
        started = [worker for worker in self.workers if worker]
        self.workers = [None] * len(self.workers)
        for worker in started:
            worker.line.close()  # who has nothing to do leaves by itself
        until = time.monotonic() + GRACE_S
        for worker in started:
            worker.end(until - time.monotonic())

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spread(self, n: int) -> int:
        """How many of `n` things each worker gets."""
        return -(-n // len(self.workers)) or 1

    def _each(self, requests: Sequence[Request], lost: Callable[[int, Lost], None], advance: Advance | None = None) -> list[Any]:
        """The answers, in order, of requests that any worker may serve; None where `lost` was called and returned. `advance` follows
        each."""
        share, found = self._spread(len(requests)), dict[int, Any]()

        def on_answer(place: int, answer: Any) -> None:
            if isinstance(answer, Lost):
                lost(place, answer)
            found[place] = None if isinstance(answer, Lost) else answer
            if advance:
                advance()

        self._ask([place // share for place in range(len(requests))], requests.__getitem__, on_answer)
        return [found[place] for place in range(len(requests))]

    def _ask(self, owners: Sequence[int], request: Callable[[int], Request], on_answer: Callable[[int, Any], None]) -> None:
        """Have worker `owners[place]` answer `request(place)` for every place, all workers at once, and pass each answer to `on_answer`.
        An exception of the environment is raised when all is answered."""
        if self._acting.waiting:  # steps that nobody polls any more: their answers must not be taken for these
            self.close()
        asking = _Asking(self, request, on_answer)
        asking.ask((owner, place) for place, owner in enumerate(owners))
        while asking.waiting:
            asking.advance()
        asking.check()

    def _send(self, waiting: Mapping[int, Iterable[int]], request: Callable[[int], Request]) -> None:
        """Give workers their requests; they all begin before the first is given any."""
        for worker in waiting:
            self.workers[worker] = self.workers[worker] or _Worker(self.suite, self.options)
        for worker, places in waiting.items():
            self._at(worker).send([request(place) for place in places])

    def _answers(self, waiting: Iterable[int]) -> list[tuple[int, Any]]:
        """What the workers have to say by now, at most one answer each. Waits for a moment when they have nothing."""
        wait([self._at(worker).line for worker in waiting], TICK_S)
        return [(worker, answer) for worker in waiting for answer in self._at(worker).receive(self.timeout_s)]

    def _at(self, worker: int) -> _Worker:
        found = self.workers[worker]
        assert found is not None
        return found

    def _bury(self, worker: int, death: _Dead, nth: int) -> None:
        """See to it that a new worker takes the place of a dead one, the `nth` that died of the same request."""
        log.warning("a worker of '%s' died (%s) and is replaced", self.suite, death)
        self.restarts += 1
        self._at(worker).end()
        self.workers[worker] = None
        if nth == TRIES and not death.made:
            raise UsageError(
                f"Worker processes of environment '{self.suite}' die before it is made ({death}). It has to be made from its name and "
                'options in a fresh process, so a script that starts them needs `if __name__ == "__main__":`; or set env.workers = 0.'
            )

    def _blame(self, task: Task, doing: str, death: Lost) -> str:
        if not isinstance(death, _Dead):
            return f"Environment '{self.suite}', task '{task.id}': {death}"
        return (
            f"Environment '{self.suite}', task '{task.id}': {TRIES} workers in a row died of {doing}, the last by {death}. Play that task "
            "with env.workers = 0 to see why; if memory ran out, use fewer workers."
        )


class _Asking:
    """Requests to the workers of a pool, by place, that are not answered yet.

    When a worker dies, a new one gets the requests that were not answered, made anew. The one of which `TRIES` workers died has a Lost
    for an answer.
    """

    def __init__(self, pool: WorkerPool, request: Callable[[int], Request], on_answer: Callable[[int, Any], None]) -> None:
        self.pool, self.request, self.on_answer = pool, request, on_answer
        self.waiting: dict[int, deque[int]] = {}  # places by worker
        self._deaths = Counter[int]()  # of workers, by place
        self._problem: Exception | None = None

    def ask(self, places: Iterable[tuple[int, int]]) -> None:
        """Have workers answer: pairs of a worker and a place."""
        fresh: dict[int, list[int]] = {}
        for worker, place in places:
            fresh.setdefault(worker, []).append(place)
            self.waiting.setdefault(worker, deque()).append(place)
        with self._undisturbed():
            self.pool._send(fresh, self.request)

    def advance(self) -> None:
        """Take what the workers have answered by now."""
        with self._undisturbed():
            for worker, answer in self.pool._answers(self.waiting):
                self._take(worker, answer)
            self.waiting = {worker: places for worker, places in self.waiting.items() if places}

    def check(self) -> None:
        """Raise the first exception of the environment."""
        problem, self._problem = self._problem, None
        if problem:
            raise problem

    def _take(self, worker: int, answer: Any) -> None:
        places = self.waiting[worker]
        if isinstance(answer, _Dead):
            self._deaths[places[0]] += 1
            self.pool._bury(worker, answer, self._deaths[places[0]])
        if not isinstance(answer, _Dead) or self._deaths[places[0]] == TRIES:
            place = places.popleft()
            self._deaths.pop(place, None)
            if isinstance(answer, Exception) and not isinstance(answer, Lost):
                self._problem = self._problem or answer
            else:
                self.on_answer(place, answer)
        if isinstance(answer, _Dead) and places:
            self.pool._send({worker: places}, self.request)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # an answer that nobody hears must not be taken for a later one
            self.pool.close()
            raise


@dataclass
class Episode:
    """What it takes to bring an episode back: its task, what was done, the state to find again, and who holds it."""

    task: Task
    observation: Observation
    holder: _Worker | None
    actions: list[Action] = field(default_factory=list)


class _Dead(Lost):
    """What is received from a worker that is no more. `made`: it had made its environment."""

    def __init__(self, reason: str, *, made: bool) -> None:
        super().__init__(reason)
        self.made = made


class _Worker:
    """One process, the line to it, and whether it has made its environment."""

    def __init__(self, suite: str, options: Mapping[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.suite = suite
        self.line, there = context.Pipe()
        self.process = context.Process(target=serve, args=(there, suite, dict(options)), daemon=True)
        self.process.start()
        there.close()
        self.made = False
        self.heard_s = time.monotonic()

    def send(self, requests: Sequence[Request]) -> None:
        """Have the requests answered one by one."""
        packed = _packed(requests, f"A task of environment '{self.suite}'")
        self.heard_s = time.monotonic()
        with suppress(OSError):  # it is dead, as `receive` will find
            self.line.send_bytes(packed)

    def receive(self, timeout_s: float | None) -> list[Any]:
        """One answer, an exception that the environment raised, or a `_Dead`; nothing as long as there is none.

        Raises why the environment cannot be made. Making it may take longer than an answer.
        """
        alive, message = self.process.is_alive(), b""
        try:
            if self.line.poll():
                message = self.line.recv_bytes()
        except (EOFError, OSError):
            alive = False
        if message:
            return self._read(pickle.loads(message))
        if not alive:
            self.process.join(GRACE_S)
            return [_Dead(_cause(self.process.exitcode), made=self.made)]
        if self.made and timeout_s is not None and time.monotonic() - self.heard_s > timeout_s:
            return [_Dead(f"no answer in {timeout_s:g} s", made=True)]
        return []

    def _read(self, answer: Any) -> list[Any]:
        self.heard_s = time.monotonic()
        if self.made:
            return [answer]
        if answer is not None:
            raise answer
        self.made = True
        return []

    def end(self, wait_s: float = 0.0) -> None:
        """Let it leave within that time, then end it and what it has started."""
        assert self.process.pid
        self.line.close()
        wait([self.process.sentinel], max(0.0, wait_s))
        with suppress(ProcessLookupError, PermissionError):  # it has no group yet, or no more
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def _packed(value: Any, what: str) -> bytes:
    """The value as bytes; UsageError for one that cannot leave its process."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(f"{what} cannot be sent to another process: {error}. Use plain values, or set env.workers = 0.") from error


def _cause(exit_code: int | None) -> str:
    """What a process died of."""
    if exit_code is None:
        return "a line that it closed"
    return f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
