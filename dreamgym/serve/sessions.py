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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dreamgym.envs.base import TextRules
from dreamgym.envs.tools.schemas import MESSAGE
from dreamgym.errors import DreamGymError, ServerError, UsageError
from dreamgym.experience.action_support import ActionSupport
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.types import Action, Observation, Query, StepResult, Task, Transition

SIMULATION = "This is a simulation: a language model dreams the answers. Nothing that is done here happens."
"""What every server says of itself."""
LONGEST_ACTION = 1 << 16  # characters
LARGEST_BODY = 1 << 20  # bytes of a request, or of a message of a WebSocket
LARGEST_SEED = 2**63 - 1
DRAWN_SEEDS = 2**31  # where a client gives none
FIRST_STATES = 4  # that are asked for, with one seed after the other, before an episode cannot begin
TICK_S = 1.0

Job = Callable[[Future[Any]], None]


class SessionError(DreamGymError):
    """What a client asked for cannot be done; the message says why. Other sessions are not concerned."""


@dataclass(frozen=True)
class Limits:
    """How much clients may take."""

    sessions: int = 256
    """Episodes that are open at the same time. One that is over keeps its place until another needs it."""
    idle_s: float = 1800.0
    """After how long without a call an episode is closed."""


@dataclass(frozen=True)
class SessionStart:
    """The beginning of an episode."""

    session: str
    task: Task
    observation: Observation
    seed: int


@dataclass
class _Session:
    task: Task
    seed: int
    episode: tuple[int, ...]  # names the episode among those of the experience model
    state: Observation
    history: list[Transition] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    under_way: bool = False
    used_s: float = 0.0  # when it was used last

    @property
    def over(self) -> bool:
        last = self.results[-1] if self.results else None
        return last is not None and (last.terminated or last.truncated or last.info.error is not None)


class DreamSessions:
    """Sessions of one experience model. `close` ends them all; use it in a `with` block."""

    def __init__(
        self,
        model: ExperienceModel,
        rules: TextRules,
        tasks: Sequence[Task],
        *,
        horizon: int,
        support: ActionSupport | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`tasks` are those that may be opened by their id or at random; any other instruction is a synthetic task. `support` is that of
        a `DreamBatch`."""
        if not tasks:
            raise UsageError("There is no task to serve: the run has no training task.")
        self.model, self.rules, self.tasks, self.horizon, self.limits = model, rules, list(tasks), horizon, limits or Limits()
        self._results = DreamBatch(model, rules, horizon=horizon, support=support)  # what a prediction is as a result
        self._sessions: dict[str, _Session] = {}
        self._serial = itertools.count()
        self._inbox: queue.SimpleQueue[tuple[Job, Future[Any]] | None] = queue.SimpleQueue()
        self._openings: deque[tuple[Job, Future[Any]]] = deque()  # episodes that have not begun
        self._asked: dict[int, tuple[str, Query, Future[StepResult]]] = {}
        self._ended = ""  # why nothing new is taken
        self._taking = threading.Lock()  # nothing is put into the inbox after the end
        self._thread = threading.Thread(target=self._work, name="dream", daemon=True)
        self._thread.start()

    def open(self, task: str | None = None, *, seed: int | None = None) -> Future[SessionStart]:
        """Begin an episode: of the task with this id or instruction, or, when it is empty or None, of one that the seed draws. Without a
        seed one is drawn. Where all places are taken, the episode that is over and was used longest ago loses its place. SessionError for
        a task that is no text."""
        chosen = secrets.randbelow(DRAWN_SEEDS) if seed is None else seed
        return self._do(lambda opened: self._openings.append((partial(self._open, task, chosen), opened)))

    def step(self, session: str, action: Action) -> Future[StepResult]:
        """Act. SessionError for an unknown session, one that is over, and one whose last step is still under way."""
        return self._do(lambda found: self._step(session, action, found))

    def outcome_so_far(self, session: str) -> dict[str, Any]:
        """`outcome` of the last step, with the `reward` and the number of `steps` of the whole episode; the reward is None where the guard
        masked it or it failed. SessionError for an unknown session."""
        found = self._of(session)
        found.used_s = time.monotonic()
        results = list(found.results)
        last = outcome(results[-1] if results else StepResult(found.state, 0.0, terminated=False))
        reward = None if last["error"] is not None else sum((one.reward for one in results), 0.0)
        return last | {"reward": reward, "steps": len(results)}

    def end(self, session: str) -> Future[None]:
        """Free a session; one that is unknown is ignored."""
        return self._do(lambda found: self._end(session, found))

    def __len__(self) -> int:
        return len(self._sessions)

    def close(self) -> None:
        """Finish the steps under way, and end. Episodes that have not begun are refused."""
        self._take_nothing_new("The server is closing. Ask another one.")
        self._thread.join()

    def __enter__(self) -> DreamSessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, job: Job) -> Future[Any]:
        """Have the owner of the model do something; a failure is the future's."""
        found: Future[Any] = Future()
        with self._taking:
            if not self._ended:
                self._inbox.put((job, found))
                return found
        _answer(found, error=SessionError(self._ended))
        return found

    def _take_nothing_new(self, reason: str) -> None:
        with self._taking:
            self._ended = self._ended or reason
            self._inbox.put(None)

    def _work(self) -> None:
        try:
            while not (self._ended and self._inbox.empty() and not self._asked and not self._openings):
                with suppress(queue.Empty):
                    waited = self._inbox.get_nowait() if self._asked or self._openings else self._inbox.get(timeout=TICK_S)
                    while True:
                        if waited is not None:
                            _carry_out(*waited)
                        waited = self._inbox.get_nowait()
                self._begin_one()
                self._deliver()
                self._end_idle()
        except BaseException as error:  # nobody else would answer those who wait
            self._take_nothing_new(f"The dream has broken ({error!r:.200}). Start the server again.")
            waiting = [*(found for *_, found in self._asked.values()), *(future for _, future in self._openings)]
            while not self._inbox.empty():
                if (one := self._inbox.get_nowait()) is not None:
                    waiting.append(one[1])
            for found in waiting:
                _answer(found, error=SessionError(self._ended))
            raise

    def _begin_one(self) -> None:
        """Begin the episode that was asked for first: a step waits for one first state that the model writes, and not for all of them."""
        while self._openings:
            job, opened = self._openings.popleft()
            if self._ended:
                _answer(opened, error=SessionError(self._ended))
            elif not opened.done():  # its client has not gone
                return _carry_out(job, opened)

    def _deliver(self) -> None:
        """Hand over the predictions that have come."""
        if not self._asked:
            return
        try:
            predictions = self.model.poll()
        except Exception as error:  # a boundary: whoever waits hears it, and the others go on
            self._fail(error)
            return
        for ticket, prediction in predictions:
            name, query, found = self._asked[ticket]
            session = self._sessions[name]
            session.state = prediction.next_state
            session.history.append(query.transition(prediction))
            session.results.append(self._results.result(query, prediction, len(session.history) >= self.horizon))
            session.under_way, session.used_s = False, time.monotonic()  # a slow answer is no idleness
            del self._asked[ticket]
            _answer(found, session.results[-1])

    def _fail(self, error: Exception) -> None:
        """End the episode whose query failed; all that wait for an answer where the error is of none alone."""
        ticket = error.ticket if isinstance(error, ServerError) else None
        for name, _, waiting in [asked for key, asked in self._asked.items() if ticket in (None, key)]:
            _answer(waiting, error=SessionError(f"The experience model failed: {error}"))
            self._drop(name)

    def _open(self, task: object, seed: int, found: Future[SessionStart]) -> None:
        if not 0 <= seed <= LARGEST_SEED:
            raise SessionError(f"A seed is a whole number from 0 to {LARGEST_SEED}.")
        if len(self._sessions) >= self.limits.sessions:
            self._make_room()
        chosen = self._task(task, seed)
        state = self._first_state(chosen, seed)
        name = secrets.token_hex(16)
        self._sessions[name] = _Session(chosen, seed, (-1, next(self._serial)), state, used_s=time.monotonic())
        if not _answer(found, SessionStart(name, chosen, state, seed)):
            self._drop(name)  # nobody knows its name

    def _make_room(self) -> None:
        over = [(session.used_s, name) for name, session in self._sessions.items() if session.over]
        if not over:
            raise SessionError(
                f"All {self.limits.sessions} sessions are taken by episodes under way. Play one to its end, or try again later."
            )
        self._drop(min(over)[1])

    def _first_state(self, task: Task, seed: int) -> Observation:
        for drawn in range(seed, seed + FIRST_STATES):
            (state,) = self.model.start([task], seed=drawn % (LARGEST_SEED + 1))
            if state.text:
                return state
        raise SessionError(f"The experience model's first state could not be read in {FIRST_STATES} tries. Take another seed or task.")

    def _task(self, task: object, seed: int) -> Task:
        if task is None or task == "":
            return self.tasks[seed % len(self.tasks)]
        if not isinstance(task, str):  # options of other libraries are of any type
            raise SessionError(
                f"The task is {task!r:.64}. Expected the id or the instruction of one, as text; leave it out, and the seed draws a task."
            )
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
        stream = (session.seed, 0, len(session.history))
        query = Query(session.task, tuple(session.history), session.state, self.rules.canonical(action), stream, session.episode)
        (ticket,) = self.model.submit([query])
        self._asked[ticket] = (name, query, found)
        session.under_way, session.used_s = True, time.monotonic()

    def _end(self, name: str, found: Future[None]) -> None:
        self._drop(name)
        _answer(found, None)

    def _drop(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self.model.forget([session.episode])
        for ticket, (_, _, waiting) in [one for one in self._asked.items() if one[1][0] == name]:
            del self._asked[ticket]
            _answer(waiting, error=SessionError(f"The session '{name:.64}' was closed."))

    def _end_idle(self) -> None:
        last = time.monotonic() - self.limits.idle_s
        for name in [name for name, session in self._sessions.items() if session.used_s < last and not session.under_way]:
            self._drop(name)

    def _of(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            raise SessionError(
                f"There is no session '{name:.64}'. It was closed, idle for too long, or over when its place was needed: open a new one."
            )
        return session


def _carry_out(job: Job, found: Future[Any]) -> None:
    try:
        job(found)
    except Exception as error:  # a boundary: it is raised to the client that asked
        _answer(found, error=error)


def _answer(found: Future[Any], result: Any = None, *, error: Exception | None = None) -> bool:
    """False where nobody waits: the client has given up, or has an answer."""
    try:
        if error is None:
            found.set_result(result)
        else:
            found.set_exception(error)
    except InvalidStateError:
        return False
    return True


def outcome(result: StepResult) -> dict[str, Any]:
    """What a client must know of a step beside its text, as plain values. A `masked` episode is no failure: leave it out of training."""
    info = result.info
    return {
        "reward": result.reward,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "masked": info.has_verdict("masked"),
        "error": info.error,
        "verdict": info.verdict.kind if info.verdict else None,
        "reasons": list(info.verdict.reasons) if info.verdict else [],
        "decided_by": info.decided_by,
        "reward_by": info.reward_by,
        "out_of_support": info.out_of_support,
        "simulation": True,
    }


def tools_served(rules: TextRules) -> list[Mapping[str, Any]]:
    """The schemas of what clients may call: the recorded tools, and the message to the user with which an agent speaks. Empty where actions
    are no tool calls."""
    recorded = list(rules.tools)
    if not recorded or any(one["name"] == MESSAGE.name for one in recorded):
        return recorded
    return [*recorded, {"name": MESSAGE.name, "description": MESSAGE.description, "parameters": MESSAGE.parameters}]


def text_of(rules: TextRules, observation: Observation) -> str:
    """What a client reads of a state: what its calls returned, or the whole state where actions are no tool calls."""
    if not rules.tools:
        return observation.text
    results, user = rules.tool_results(observation)
    return "\n".join([*results, *([f"(the user says) {user}"] if user else [])])
