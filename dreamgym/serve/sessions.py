"""A dream for many clients: each session is one episode, and the steps of all sessions share the engine's running batch.

One thread owns the experience model. Calls return futures, so that threads and event loops can wait for them. Everything about a session
is named by its task and seed: the same seed gives the same episode as `experience.env.DreamEnv` does.
"""

from __future__ import annotations

import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dreamgym.envs.base import TextRules
from dreamgym.errors import DreamGymError, UsageError
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.types import Action, Observation, Query, StepResult, Task, Transition

SIMULATION = "This is a simulation: a language model dreams the answers. Nothing that is done here happens."
"""What every server says of itself."""
LONGEST_ACTION = 1 << 16  # characters
LARGEST_BODY = 1 << 20  # bytes of a request, or of a message of a WebSocket
LARGEST_SEED = 2**63 - 1
TICK_S = 1.0


class SessionError(DreamGymError):
    """What a client asked for cannot be done; the message says why. Other sessions are not concerned."""


@dataclass(frozen=True)
class Limits:
    """How much clients may take."""

    sessions: int = 256
    """Episodes that are open at the same time."""
    idle_s: float = 1800.0
    """After how long without a call an episode is closed."""


@dataclass(frozen=True)
class SessionStart:
    """The beginning of an episode."""

    session: str
    task: Task
    observation: Observation


@dataclass
class _Session:
    task: Task
    seed: int
    owner: tuple[int, ...]  # names the episode among those of the experience model
    state: Observation
    history: list[Transition] = field(default_factory=list)
    last: StepResult | None = None
    under_way: bool = False
    used_s: float = 0.0  # when it was used last

    @property
    def over(self) -> bool:
        return self.last is not None and (self.last.terminated or self.last.truncated or self.last.info.error is not None)


class DreamSessions:
    """Sessions of one experience model. `close` ends them all; use it in a `with` block."""

    def __init__(
        self, model: ExperienceModel, rules: TextRules, tasks: Sequence[Task], *, horizon: int, limits: Limits | None = None
    ) -> None:
        """`tasks` are those that may be opened by their id or at random; any other instruction is a synthetic task."""
        if not tasks:
            raise UsageError("There is no task to serve: the run has no training task.")
        self.model, self.rules, self.tasks, self.horizon, self.limits = model, rules, list(tasks), horizon, limits or Limits()
        self._results = DreamBatch(model, rules, horizon=horizon)  # what a prediction is as a result
        self._sessions: dict[str, _Session] = {}
        self._serial = itertools.count()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._asked: dict[int, tuple[str, Query, Future[StepResult]]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dream", daemon=True)
        self._thread.start()

    def open(self, task: str = "", *, seed: int = 0) -> Future[SessionStart]:
        """Begin an episode: of the task with this id or instruction, or, when it is empty, of one that the seed draws."""
        return self._do(lambda found: self._open(task, seed, found))

    def step(self, session: str, action: Action) -> Future[StepResult]:
        """Act. SessionError for an unknown session, one that is over, and one whose last step is still under way."""
        return self._do(lambda found: self._step(session, action, found))

    def last(self, session: str) -> StepResult | None:
        """The result of the session's last step; None before the first. SessionError for an unknown session."""
        return self._of(session).last

    def end(self, session: str) -> Future[None]:
        """Free a session; one that is unknown is ignored."""
        return self._do(lambda found: self._end(session, found))

    def __len__(self) -> int:
        return len(self._sessions)

    def close(self) -> None:
        """Finish the steps under way, and end."""
        self._closed.set()
        self._inbox.put(None)
        self._thread.join()

    def __enter__(self) -> DreamSessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Callable[[Future[Any]], None]) -> Future[Any]:
        """Have the owner of the model do something; a failure is the future's."""
        found: Future[Any] = Future()

        def guarded() -> None:
            try:
                work(found)
            except Exception as error:  # a boundary: it is raised to the client that asked
                found.set_exception(error)

        if self._closed.is_set():
            found.set_exception(SessionError("The server is closing. Ask another one."))
        else:
            self._inbox.put(guarded)
        return found

    def _work(self) -> None:
        while not (self._closed.is_set() and self._inbox.empty() and not self._asked):
            with suppress(queue.Empty):
                waited = self._inbox.get(timeout=TICK_S) if not self._asked else self._inbox.get_nowait()
                while True:
                    if waited is not None:
                        waited()
                    waited = self._inbox.get_nowait()
            self._deliver()
            self._end_idle()

    def _deliver(self) -> None:
        """Hand over the predictions that have come."""
        if not self._asked:
            return
        try:
            predictions = self.model.poll()
        except Exception as error:  # a boundary: whoever waits hears it, and the others go on
            asked, self._asked = self._asked, {}
            self.model.forget([self._sessions[name].owner for name, *_ in asked.values() if name in self._sessions])
            for name, _, found in asked.values():
                self._drop(name)
                found.set_exception(SessionError(f"The experience model failed: {error}"))
            return
        for ticket, prediction in predictions:
            name, query, found = self._asked.pop(ticket)
            session = self._sessions.get(name)
            if session is None:
                found.set_exception(SessionError(f"The session '{name:.64}' was closed."))
                continue
            session.state = prediction.next_state
            session.history.append(query.transition(prediction))
            session.last = self._results.result(query, prediction, len(session.history) >= self.horizon)
            session.under_way = False
            found.set_result(session.last)

    def _open(self, task: str, seed: int, found: Future[SessionStart]) -> None:
        if not 0 <= seed <= LARGEST_SEED:
            raise SessionError(f"A seed is a whole number from 0 to {LARGEST_SEED}.")
        if len(self._sessions) >= self.limits.sessions:
            raise SessionError(f"All {self.limits.sessions} sessions are taken. Close one, or try again later.")
        chosen = self._task(task, seed)
        (state,) = self.model.start([chosen], seed=seed)
        if not state.text:
            raise SessionError("The experience model's first state could not be read. Take another seed.")
        name = secrets.token_hex(16)
        self._sessions[name] = _Session(chosen, seed, (-1, next(self._serial)), state, used_s=time.monotonic())
        found.set_result(SessionStart(name, chosen, state))

    def _task(self, task: str, seed: int) -> Task:
        if not task:
            return self.tasks[seed % len(self.tasks)]
        if len(task) > LONGEST_ACTION:
            raise SessionError(f"A task has at most {LONGEST_ACTION:,} characters.")
        known = next((one for one in self.tasks if task in (one.id, one.instruction)), None)
        return known or Task("served", task, self.tasks[0].env, source="synthetic")

    def _step(self, name: str, action: Action, found: Future[StepResult]) -> None:
        session = self._of(name)
        if session.under_way:
            raise SessionError("The last step of this session is still under way. Wait for its answer.")
        if session.over:
            raise SessionError("This episode is over. Open a new session.")
        if len(action) > LONGEST_ACTION:
            raise SessionError(f"An action has at most {LONGEST_ACTION:,} characters.")
        key = (session.seed, 0, len(session.history))
        query = Query(session.task, tuple(session.history), session.state, self.rules.canonical(action), key, session.owner)
        (ticket,) = self.model.submit([query])
        self._asked[ticket] = (name, query, found)
        session.under_way, session.used_s = True, time.monotonic()

    def _end(self, name: str, found: Future[None]) -> None:
        self._drop(name)
        found.set_result(None)

    def _drop(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self.model.forget([session.owner])
        for ticket, (_, _, waiting) in [one for one in self._asked.items() if one[1][0] == name]:
            del self._asked[ticket]
            waiting.set_exception(SessionError(f"The session '{name:.64}' was closed."))

    def _end_idle(self) -> None:
        last = time.monotonic() - self.limits.idle_s
        for name in [name for name, session in self._sessions.items() if session.used_s < last and not session.under_way]:
            self._drop(name)

    def _of(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            raise SessionError(f"There is no session '{name:.64}'. It was closed, or idle for too long: open a new one.")
        return session


def outcome(result: StepResult) -> dict[str, Any]:
    """What a client must know of a step beside its text, as plain values. A `masked` episode is no failure: leave it out of training."""
    info = result.info
    return {
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "masked": info.judged("masked"),
        "error": info.error,
        "verdict": info.verdict.kind if info.verdict else None,
        "reasons": list(info.verdict.reasons) if info.verdict else [],
        "decided_by": info.decided_by,
        "reward_by": info.reward_by,
        "simulation": True,
    }


def text_of(rules: TextRules, observation: Observation) -> str:
    """What a client reads of a state: what its calls returned, or the whole state where actions are no tool calls."""
    if not rules.tools:
        return observation.text
    results, user = rules.tool_results(observation)
    return "\n".join([*results, *([f"(the user says) {user}"] if user else [])])
