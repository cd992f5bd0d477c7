"""Time-outs, retries, call limits and scores of connected environments, the same for every scheme."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dreamgym.envs.connect import Connection, ConnectionConfig, function_at
from dreamgym.envs.tools.conversation import Exchange
from dreamgym.errors import ConfigError, EnvironmentFailure, UsageError, counted
from dreamgym.protocols import RealEnv
from dreamgym.tool_calls import calls_of
from dreamgym.types import Action, Observation, StepResult, Task, Transition


class ConnectedEnv:
    """Implements `protocols.Env` over a connection. Raises EnvironmentFailure for whatever goes wrong in it.

    A connection lives in a thread of its own. One that does not answer in time is left to itself with its thread, which only the end of the
    process ends: with `env.workers`, that is a worker's. The next episode gets a new connection.
    """

    def __init__(self, name: str, connect: Callable[[], Connection], config: ConnectionConfig) -> None:
        self.name, self.connect, self.config = name, connect, config
        self.score = function_at(config.score, "env.connection.score") if config.score else None
        self.truncated = False
        self._held: _Held | None = None
        self._task: Task | None = None
        self._steps: list[tuple[Action, dict[str, Any]]] = []
        self._calls = 0

    def accepts(self, task: Task) -> bool:
        """Real tasks only: nothing says how a synthetic one begins."""
        return task.source == "real"

    def reset(self, task: Task) -> dict[str, Any]:
        for attempt in range(self.config.retries + 1):
            try:
                self._held = self._held or _Held(self.connect, self.config.timeout_s)
                raw = self._sized(self._held.do(lambda connection: connection.reset(task)))
                break
            except EnvironmentFailure:
                self._drop()
                if attempt == self.config.retries:
                    raise
            except BaseException:  # interrupted: its answer is still to come, and would be taken for that of the next request
                self._drop()
                raise
        self._task, self._steps, self._calls, self.truncated = task, [], 0, False
        return raw

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        if self._held is None or self._task is None:
            raise EnvironmentFailure("The episode's connection is gone.")
        try:
            raw, reward, terminated, truncated = self._held.do(lambda connection: connection.step(action))
            raw = self._sized(raw)
            self._steps.append((action, raw))
            self._calls += calls_in(action)
            limit = self.config.max_calls_per_episode
            self.truncated = not terminated and (truncated or (limit is not None and self._calls >= limit))
            rewarded_by = "The environment"
            if self.score and (terminated or self.truncated):
                rewarded_by = f"The score '{self.config.score}'"
                reward = _called(partial(_number, self.score, self._task, list(self._steps)), rewarded_by)
            if not math.isfinite(reward):
                raise EnvironmentFailure(f"{rewarded_by} returned the reward {reward}. Expected a finite number.")
            return raw, reward, terminated
        except BaseException:  # also where it is interrupted: its answer would be taken for that of the next request
            self._drop()
            raise

    def close(self) -> None:
        """End the connection, and wait until it is closed, for as long as an answer may take: the process may end after this."""
        if self._held is not None:
            self._held.end(wait=True)
        self._held = self._task = None

    def _sized(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The state, if what is new in it is not too long: the results of the latest exchange in a conversation, else each value."""
        values, exchanges = list(raw.values()), raw.get("exchanges")
        if isinstance(exchanges, tuple) and exchanges and isinstance(exchanges[-1], Exchange):
            values = list(exchanges[-1].results)
        longest = max((len(str(value)) for value in values), default=0)
        if longest > self.config.max_result_chars:
            raise EnvironmentFailure(
                f"A result of {longest:,} characters is longer than env.connection.max_result_chars = {self.config.max_result_chars:,}."
            )
        return raw

    def _drop(self) -> None:
        if self._held is not None:
            self._held.end()
        self._held = self._task = None


class _Held:
    """A connection in its thread."""

    def __init__(self, connect: Callable[[], Connection], timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.asked: queue.SimpleQueue[Callable[[Connection], Any] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lost = False
        self._thread = threading.Thread(target=self._serve, args=(connect,), daemon=True)
        self._thread.start()

    def do(self, work: Callable[[Connection], Any]) -> Any:
        """The answer of the connection; EnvironmentFailure for an error, or for none in time."""
        self.asked.put(work)
        try:
            answer = self.answers.get(timeout=self.timeout_s)
        except queue.Empty:
            self.lost = True
            raise EnvironmentFailure(f"No answer in {self.timeout_s:g} s (env.connection.timeout_s).") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self, *, wait: bool = False) -> None:
        self.asked.put(None)
        if wait and not self.lost:
            self._thread.join(self.timeout_s)

    def _serve(self, connect: Callable[[], Connection]) -> None:
        connection: Connection | None = None
        while (work := self.asked.get()) is not None:
            try:
                connection = connection or _called(connect, "The connection", BaseException)  # sys.exit ends nobody's process here
                self.answers.put(_called(partial(work, connection), "The environment", BaseException))
            except (EnvironmentFailure, ConfigError) as error:
                self.answers.put(error)
        if connection is not None:
            with suppress(Exception):  # nobody waits for it any more
                connection.close()


def _number(score: Callable[..., Any], task: Task, steps: Sequence[tuple[Action, dict[str, Any]]]) -> float:
    return float(score(task, steps))


def _called(work: Callable[[], Any], what: str, caught: type[BaseException] = Exception) -> Any:
    """What a function of somebody else's returns; EnvironmentFailure for whatever it raises. A ConfigError passes: no episode mends it.
    `caught`: BaseException in a thread of its own, where no Ctrl-C arrives."""
    try:
        return work()
    except (EnvironmentFailure, ConfigError):
        raise
    except caught as error:  # a boundary: environments raise what they like
        text = (str(error).strip().splitlines() or [""])[0]
        raise EnvironmentFailure(f"{what} failed: {type(error).__name__}: {text:.200}") from error


def calls_in(action: Action) -> int:
    """How many calls an action makes; 1 for one that is no tool call."""
    try:
        return len(calls_of(action))
    except UsageError:
        return 1


class CallBudget:
    """Real environments with a limit of calls in all (the `RealEnv` protocol). UsageError, before any of them, for calls beyond it."""

    def __init__(self, inner: RealEnv, limit: int, used: list[int]) -> None:
        """`used` has one number, which all that share the budget count up."""
        self.inner, self.limit, self.used = inner, limit, used
        self.source = inner.source

    @property
    def version(self) -> int:
        return self.inner.version

    @property
    def concurrent(self) -> bool:
        return self.inner.concurrent

    @property
    def steps(self) -> int:
        return self.inner.steps

    @steps.setter
    def steps(self, value: int) -> None:
        self.inner.steps = value

    @property
    def seconds(self) -> float:
        return self.inner.seconds

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return self.inner.start(tasks, seed=seed)

    def submit(self, slots: Sequence[int], actions: Sequence[Action]) -> None:
        self.used[0] += self._affordable(actions)
        self.inner.submit(slots, actions)

    def poll(self) -> list[tuple[int, StepResult]]:
        return self.inner.poll()

    def end(self) -> None:
        self.inner.end()

    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        self.used[0] += self._affordable(actions)
        return self.inner.step(slots, actions)

    def repeat(self, walks: Sequence[tuple[Task, Sequence[Action]]]) -> list[tuple[Transition, ...] | None]:
        """As many walks at once as the calls left are enough for, were all their actions taken; each is charged with those that were. One
        that failed somewhere is charged in full, and a synthetic task, which no connection accepts, with none."""
        found = list[tuple[Transition, ...] | None]()
        while len(found) < len(walks):
            together, calls = list[tuple[Task, Sequence[Action]]](), 0
            for task, actions in walks[len(found) :]:
                calls += sum(map(calls_in, actions)) if task.source == "real" else 0
                if together and self.used[0] + calls > self.limit:
                    break
                together.append((task, actions))
            self._affordable([action for task, actions in together if task.source == "real" for action in actions])
            for (task, actions), walk in zip(together, self.inner.repeat(together), strict=True):
                taken = actions if walk is None else [step.action for step in walk]
                self.used[0] += sum(map(calls_in, taken)) if task.source == "real" else 0
                found.append(walk)
        return found

    def _affordable(self, actions: Sequence[Action]) -> int:
        """The calls of these actions; UsageError where the limit leaves no room for them."""
        wanted = sum(map(calls_in, actions))
        if self.used[0] + wanted > self.limit:
            raise UsageError(
                f"The limit of {counted(self.limit, 'call')} to the real environment (env.connection.max_calls) leaves no room for "
                f"{wanted:,} more. Raise it and give the same command again: it resumes."
            )
        return wanted
