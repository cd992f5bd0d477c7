"""What every engine shares: tickets, the store of finished completions, and `generate` on top of `submit` and `poll`."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from dreamgym.types import Completion, Request


class RequestQueue(ABC):
    """The `protocols.LLM` side of an engine. Subclasses take requests in (`_enqueue`), work (`_advance`) and drop them (`_drop`).

    A request that can fail on its own, as on a server, fails through `_failed`: the error is raised to the caller that waits for it, and
    the others stay valid. Not for several threads: one caller at a time.
    """

    version = 0

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._finished: dict[int, Completion] = {}
        self._failed: dict[int, Exception] = {}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See `protocols.LLM`. Either all requests are taken or none."""
        for request in requests:
            self._check(request)
        tickets = [next(self._tickets) for _ in requests]
        self._enqueue(tickets, requests)
        return tickets

    def poll(self) -> list[tuple[int, Completion]]:
        """See `protocols.LLM`. Raises the error of a request that failed, one at a call; what has finished waits for the next call."""
        while not self._finished and not self._failed and self._advance():
            pass
        if self._failed:
            raise self._failed.pop(next(iter(self._failed)))
        finished, self._finished = self._finished, {}
        return list(finished.items())

    def cancel(self, tickets: Sequence[int]) -> None:
        """See `protocols.LLM`."""
        for ticket in tickets:
            self._finished.pop(ticket, None)
            self._failed.pop(ticket, None)
        self._drop(tickets)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `protocols.LLM`. Requests of others that finish or fail meanwhile wait for their `poll`."""
        tickets = self.submit(requests)
        try:
            while not all(ticket in self._finished for ticket in tickets):
                self._advance()
                for ticket in self._failed.keys() & set(tickets):
                    raise self._failed.pop(ticket)
        except BaseException:
            self.cancel(tickets)
            raise
        return [self._finished.pop(ticket) for ticket in tickets]

    def publish(self, version: int, save: Callable[[], Path]) -> None:
        """See `protocols.LLM`. An engine of this process samples from the weights themselves, so nothing is saved."""
        self.version = version

    @abstractmethod
    def _check(self, request: Request) -> None:
        """Raise UsageError for a request that can never be served."""

    @abstractmethod
    def _enqueue(self, tickets: Sequence[int], requests: Sequence[Request]) -> None:
        """Take requests in; return at once."""

    @abstractmethod
    def _advance(self) -> bool:
        """Work a little, and put what finishes into `_finished`. False when nothing is under way."""

    @abstractmethod
    def _drop(self, tickets: Sequence[int]) -> None:
        """Forget requests that are not finished."""
