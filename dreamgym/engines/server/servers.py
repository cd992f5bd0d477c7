"""Several servers of one model behind one engine: which of them a request goes to, and which no longer answer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.errors import ServerError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """What the servers sample from since the last publication: all that an engine in another process needs to ask for the same."""

    model: str  # what requests ask for: an adapter's name, or the model's
    version: int
    apis: tuple[str, ...]  # the servers that hold these weights


class Servers:
    """Owns which of the addresses `apis` are in use. One event loop calls `take`, `done` and `drop`; `rejoin` is for when it has no work.

    All requests of a session go to the server that had the first of them, whose prefix cache holds the episode so far. Others go to the
    server with the fewest under way.
    """

    def __init__(self, apis: Sequence[str]) -> None:
        self.apis = tuple(apis)
        self.live = list(apis)
        self._under_way: Counter[str] = Counter()
        self._of: dict[str, str] = {}  # session -> server

    def take(self, session: str | None = None) -> str:
        """The server for a request, which counts as under way there until `done`."""
        api = self._of.get(session) if session is not None else None
        if api not in self.live:
            sessions = Counter(self._of.values())
            api = min(self.live, key=lambda one: (self._under_way[one], sessions[one]))
            if session is not None:
                self._of[session] = api
        assert api is not None
        self._under_way[api] += 1
        return api

    def done(self, api: str) -> None:
        """A request is no longer under way."""
        self._under_way[api] -= 1

    def drop(self, api: str, error: ServerError) -> None:
        """Use a server no more that is gone; its requests go to the others. The error itself when no other is left."""
        if self.live == [api]:
            raise error
        if api in self.live:
            self.live.remove(api)
            log.warning("%s is left out, and its requests are sent again to %s. %s", api, ", ".join(self.live), error)

    def rejoin(self, apis: Sequence[str]) -> None:
        """Use exactly these from now on: the ones that hold the current weights."""
        self.live = [api for api in self.apis if api in apis]

    def release(self, sessions: Sequence[str]) -> None:
        """Forget sessions; unknown ones are ignored."""
        for session in sessions:
            self._of.pop(session, None)
