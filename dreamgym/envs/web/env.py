"""One web episode at a time: a benchmark's task in a context of its own, brought back when the browser dies."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from dreamgym.envs.web.actions import WebAction, parse
from dreamgym.envs.web.chromium import Browser, NotStarted, first_line, in_browser_thread
from dreamgym.envs.web.page_text import PageText, page_text
from dreamgym.envs.web.rules import WebRules
from dreamgym.envs.web.session import Refused, WebSession
from dreamgym.errors import DreamGymError, EnvironmentFailure, UsageError
from dreamgym.types import Action, Observation, Task

T = TypeVar("T")
TRIES = 3
"""Browsers that may die of one step before the episode is given up."""
log = logging.getLogger(__name__)


class Benchmark(Protocol):
    """A set of web tasks: where they are done, how they begin, and how they are scored."""

    repeats: bool
    """Whether a task begins the same each time, so that an episode that is lost with its browser is redone."""
    score_s: float
    """How long a score may take, beside the step limit: where it visits pages."""
    viewport: Mapping[str, int]
    max_steps: int
    scripted_policies: Mapping[str, float]

    def all_tasks(self) -> Iterable[Task]: ...
    def task_key(self, task: Task) -> str: ...

    def accepts(self, task: Task) -> bool:
        """Whether the task can be scored."""
        ...

    def check(self) -> None:
        """UsageError where no episode can begin, because an address or a package is missing."""
        ...

    def prepare(self, slot: int, task: Task) -> Mapping[str, Any]:
        """Bring the sites into the task's first state. Returns options of the Playwright context. `slot` names what it may write in."""
        ...

    def sites(self, task: Task) -> Sequence[str]:
        """What is reachable, as "host:port"."""
        ...

    def begin(self, session: WebSession, task: Task) -> None:
        """Open the first page."""
        ...

    def score(self, session: WebSession, slot: int, task: Task, answer: str | None) -> tuple[float, bool]:
        """(reward, whether the task has ended) after a step; `answer` where the agent has stopped. What it raises but UsageError fails
        the episode."""
        ...

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        """What one of `scripted_policies` does."""
        ...

    def close(self) -> None:
        """End what was started for the tasks."""
        ...


class OpenSessions:
    """The contexts of all episodes in one browser. The one used least recently is closed where there are more than `limit`.

    Every environment has a slot, a number of its own, which another gets once the environment is closed.
    """

    def __init__(self, browser: Browser, limit: int) -> None:
        self.browser, self.limit = browser, limit
        self.slots = 0
        self._open: OrderedDict[int, WebSession] = OrderedDict()
        self._free: list[int] = []

    def slot(self) -> int:
        """A number for a new environment: a free one, or else one more."""
        with suppress(IndexError):
            return self._free.pop()
        self.slots += 1
        return self.slots - 1

    def add(self, slot: int, session: WebSession) -> None:
        self._open[slot] = session
        while len(self._open) > self.limit:
            self._open.popitem(last=False)[1].close()

    def get(self, slot: int) -> WebSession | None:
        """The session of a slot, if it is open and its browser lives."""
        found = self._open.get(slot)
        if found is None or not found.alive:
            self._open.pop(slot, None)
            return None
        self._open.move_to_end(slot)
        return found

    @in_browser_thread
    def drop(self, slot: int) -> None:
        if found := self._open.pop(slot, None):
            found.close()

    @in_browser_thread
    def free(self, slot: int) -> None:
        """Close what is open in a slot, and let another environment have it."""
        self.drop(slot)
        self._free.append(slot)


class _BrowserDied(Exception):
    """The browser, or the page in it, is no more."""


class WebEnv:
    """Implements `protocols.Env`. An action that the state does not offer changes nothing, and no browser is asked.

    When the browser dies, or the context had to make room for others, the episode is redone: its task is begun anew and its actions are
    repeated. EnvironmentFailure where they lead elsewhere, where the task does not repeat, or where a step
    takes longer than `step_limit_s`, which ends the browser.
    """

    name = "web"

    def __init__(
        self,
        benchmark: Benchmark,
        sessions: OpenSessions,
        rules: WebRules,
        *,
        timeout_s: float,
        quiet_s: float,
        step_limit_s: float,
        horizon: int | None = None,
    ) -> None:
        """`horizon`: the step after which an episode that goes on is scored as if the agent had stopped without an answer."""
        self.benchmark, self.sessions, self.rules = benchmark, sessions, rules
        self.timeout_s, self.quiet_s, self.step_limit_s, self.horizon = timeout_s, quiet_s, step_limit_s, horizon
        self.slot = sessions.slot()
        self._closed = False
        self._task: Task | None = None
        self._steps = 0
        self._past: list[WebAction] = []
        self._raw: dict[str, Any] = {}
        self._shown = PageText("")

    def accepts(self, task: Task) -> bool:
        return self.benchmark.accepts(task)

    @in_browser_thread
    def reset(self, task: Task) -> dict[str, Any]:
        if self._closed:
            self.slot, self._closed = self.sessions.slot(), False
        self._task, self._past, self._steps = task, [], 0
        self._attempts(self._begin)
        return self._raw

    @in_browser_thread
    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        if self._task is None:
            raise EnvironmentFailure("No task has begun.")
        if self._raw.get("ended"):
            return self._raw, 0.0, False
        parsed = None if self.rules.admissible(Observation(self._shown.text), (), action) is False else parse(action)
        self._steps += 1
        last = self._steps == self.horizon
        if parsed is None and not last:
            return self._raw, 0.0, False
        return self._attempts(lambda: self._step(parsed, last))

    def close(self) -> None:
        """Give the context and the slot back. The episode is over: what is in the slot from now on is another environment's."""
        if not self._closed:
            self._closed, self._task = True, None
            self.sessions.free(self.slot)

    def _step(self, action: WebAction | None, last: bool) -> tuple[dict[str, Any], float, bool]:
        session = self.sessions.get(self.slot) or self._redo()
        answer = action.text if action and action.name == "stop" else None
        if action and answer is None:
            self._perform(session, action)
        if last and answer is None:
            session.observe()  # which waits for what the action began
            answer = ""
        if answer is not None:
            session.wait_for_requests(self.timeout_s)  # the score is of what they lead to
        reward, ended = self._score(session, answer)
        ended = ended or answer is not None
        self._show({"ended": True} if ended else session.observe())
        self._past += [action] if action else []
        if ended:
            self.sessions.drop(self.slot)
        return self._raw, reward, ended

    def _score(self, session: WebSession, answer: str | None) -> tuple[float, bool]:
        """The benchmark's score. EnvironmentFailure for a task that cannot be scored."""
        assert self._task
        try:
            return self.benchmark.score(session, self.slot, self._task, answer)
        except UsageError:
            raise
        except Exception as error:  # a page, a site, or a judge that somebody else wrote
            if self._died(error):
                raise
            cause = f"{type(error).__name__}: {first_line(error)}"
            raise EnvironmentFailure(f"Task '{self._task.id}' cannot be scored: {cause}") from error

    def _died(self, error: Exception) -> bool:
        """Whether an error is that of a browser or a page that is no more, or of a browser that ended while it started."""
        if isinstance(error, DreamGymError):  # it says its cause itself, such as a setting that is missing
            return isinstance(error, NotStarted)
        from playwright.sync_api import Error

        gone = isinstance(error, Error) and any(part in str(error) for part in ("crashed", "has been closed"))
        return gone or (self.sessions.browser.generation > 0 and not self.sessions.browser.alive)

    def _perform(self, session: WebSession, action: WebAction) -> None:
        with suppress(Refused):  # what a page refuses changes nothing
            session.perform(action, self._shown.bids.get(action.element or 0, ""))

    def _begin(self) -> WebSession:
        assert self._task
        self.sessions.drop(self.slot)
        options = self.benchmark.prepare(self.slot, self._task)
        session = WebSession(
            self.sessions.browser,
            self.benchmark.sites(self._task),
            timeout_s=self.timeout_s,
            quiet_s=self.quiet_s,
            viewport=self.benchmark.viewport,
            **options,
        )
        self.sessions.add(self.slot, session)
        self.benchmark.begin(session, self._task)
        self._show(session.observe(ready=True))
        return session

    def _redo(self) -> WebSession:
        """Begin the task anew and repeat what was done."""
        left, past = self._shown.text, self._past
        if not self.benchmark.repeats:
            raise EnvironmentFailure("The page of this episode is gone, and its task does not begin the same twice.")
        log.warning("the page of an episode is gone, with its browser or for want of room: its %d actions are repeated", len(past))
        session = self._begin()
        for action in past:
            self._perform(session, action)
            self._show(session.observe())
        if self._shown.text != left:
            raise EnvironmentFailure("The page of this episode is gone, and the same actions led elsewhere in another.")
        return session

    def _show(self, raw: dict[str, Any]) -> None:
        shown = page_text(raw, max_tokens=self.rules.max_tokens)
        self._raw, self._shown = {**raw, "text": shown.text}, shown

    def _attempts(self, work: Callable[[], T]) -> T:
        """The result of work in a browser; EnvironmentFailure for one that fails for good or hangs."""
        before = (self._raw, self._shown)
        for attempt in range(TRIES):
            try:
                return self._limited(work)
            except _BrowserDied as error:
                self.sessions.drop(self.slot)
                self._raw, self._shown = before
                if attempt == TRIES - 1:
                    raise EnvironmentFailure(f"{TRIES} browsers in a row died of one step: {error}") from error
        raise AssertionError("the last attempt returns or raises")

    def _limited(self, work: Callable[[], T]) -> T:
        from playwright.sync_api import Error

        with self.sessions.browser.time_limit(self.step_limit_s) as late:
            try:
                return work()
            except Exception as error:  # Playwright's, or what follows from a browser that ends in the middle of something
                if late.is_set():
                    self.sessions.drop(self.slot)
                    raise EnvironmentFailure(
                        f"No answer from the page within {self.step_limit_s:g} s (env.options.step_limit_s)."
                    ) from error
                if self._died(error):
                    raise _BrowserDied(first_line(error)) from error
                self.sessions.drop(self.slot)
                if not isinstance(error, Error):
                    raise
                raise EnvironmentFailure(f"The browser failed: {first_line(error)}") from error
