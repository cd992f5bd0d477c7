"""Several servers of one model behind one engine: which of them a request goes to, which no longer answer, and when to try those again."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from dreamgym.errors import ServerError

log = logging.getLogger(__name__)
FAILURES = 2  # requests in a row that a server fails and another one answers, before it is left out
PAUSE = 30.0  # seconds until a server that was left out is tried again; they double with every try in vain
LONGEST_PAUSE = 600.0


@dataclass(frozen=True)
class Served:
    """What the servers sample from since the last publication: all that an engine in another process needs to ask for the same."""

    model: str  # what requests ask for: an adapter's name, or the model's
    version: int
    apis: tuple[str, ...]  # the servers that hold these weights
    published: bool = True  # False: every server has held them since it started


class Servers:
    """Owns which of the addresses `apis` are in use. One event loop calls everything but `rejoin`, which is for when it has no work.

    All requests of a session go to the server that had the first of them, whose prefix cache holds the episode so far. Others go to the
    server with the fewest under way.

    A request that every server fails says nothing of the servers. One is left out when no connection to it comes about (`drop`), or when
    others answer what it fails (`blame`), and used again once it was found to answer (`due`, `back`), unless weights were published
    meanwhile: it may have started anew, without them.
    """

    def __init__(self, apis: Sequence[str], now: Callable[[], float] = time.monotonic) -> None:
        self.apis, self.now = tuple(apis), now
        self.live = list(apis)
        self._under_way: Counter[str] = Counter()
        self._of: dict[str, str] = {}  # session -> server
        self._blamed: Counter[str] = Counter()  # server -> its failures in a row
        self._retry = True  # whether a server that was left out holds the weights that are asked for, if it answers
        self._due: dict[str, float] = {}  # server that was left out -> when to try it
        self._pauses: dict[str, float] = {}  # server -> its last pause, until it answers a request
        self._back: set[str] = set()

    def take(self, session: str | None = None, tried: Collection[str] = ()) -> str | None:
        """The server for a request, which counts as under way there until `done`; None when it has tried all."""
        self._readmit()
        untried = [api for api in self.live if api not in tried]
        if not untried:
            return None
        api = self._of.get(session) if session is not None else None
        if api not in untried:
            sessions = Counter(self._of.values())
            api = min(untried, key=lambda one: (self._under_way[one], sessions[one]))
            if session is not None:
                self._of[session] = api
        assert api is not None
        self._under_way[api] += 1
        return api

    def done(self, api: str) -> None:
        """A request is no longer under way."""
        self._under_way[api] -= 1

    def answered(self, api: str) -> None:
        """A server has answered a request, if only by refusing it."""
        self._blamed.pop(api, None)
        if api in self.live:
            self._pauses.pop(api, None)

    def blame(self, api: str, error: ServerError) -> None:
        """A server has failed what another has answered."""
        if api not in self.live:
            return
        self._blamed[api] += 1
        if self._blamed[api] >= FAILURES:
            self.drop(api, error)

    def drop(self, api: str, error: ServerError) -> None:
        """Use a server no more that is gone; its requests go to the others. The last one stays, so that its error is everybody's."""
        if api not in self.live or self.live == [api]:
            return
        self.live.remove(api)
        self._blamed.pop(api, None)
        if self._retry:
            self._wait(api)
        log.warning("%s is left out, and its requests are sent again to %s. %s", api, ", ".join(self.live), error)

    def due(self) -> list[str]:
        """The servers to try again now: each is named once, and then again after its next pause."""
        found = [api for api, at in self._due.items() if at <= self.now()]
        for api in found:
            self._wait(api)
        return found

    def back(self, api: str) -> None:
        """A server that was tried again answers: it is used from the next `take` on."""
        self._back.add(api)

    def rejoin(self, apis: Collection[str], *, retry: bool = False) -> None:
        """Use exactly these from now on: the ones that hold the current weights. Without `retry`, one that is left out later stays so
        until the next call: it may have started anew, without them."""
        self.live = [api for api in self.apis if api in apis]
        self._retry = retry
        self._due.clear()
        self._pauses.clear()
        self._blamed.clear()

    def release(self, sessions: Sequence[str]) -> None:
        """Forget sessions; unknown ones are ignored."""
        for session in sessions:
            self._of.pop(session, None)

    def _wait(self, api: str) -> None:
        """Begin the next pause of a server."""
        self._pauses[api] = min(LONGEST_PAUSE, 2 * self._pauses[api]) if api in self._pauses else PAUSE
        self._due[api] = self.now() + self._pauses[api]

    def _readmit(self) -> None:
        """Use those that are back, if they are still waited for."""
        while self._back:
            api = self._back.pop()
            if self._due.pop(api, None) is not None:
                self.live = [one for one in self.apis if one in self.live or one == api]
                log.warning("%s answers again, and is used again.", api)
