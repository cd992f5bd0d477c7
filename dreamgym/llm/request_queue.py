"""What every engine shares: tickets, the store of finished completions, and `generate` on top of `submit` and `poll`."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from dreamgym.types import Completion, Request


class RequestQueue(ABC):
    """The `protocols.LLM` side of an engine. Subclasses take requests in (`_enqueue`), work (`_advance`) and drop them (`_drop`).

    A request that can fail on its own, as on a server, fails through `_failed`: the error is raised to the caller that waits for it, and
    the others stay valid. Not for several threads: one caller at a time.
    """

    version = 0
    concurrent = False

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

    def poll(self, tickets: Collection[int] | None = None) -> list[tuple[int, Completion]]:
        """See `protocols.LLM`. Raises the error of a request that failed, one at a call; what has finished waits for the next call."""
        waited = None if tickets is None else set(tickets)
        while not _those(self._finished, waited) and not _those(self._failed, waited) and self._advance():
            pass
        if failed := _those(self._failed, waited):
            raise self._failed.pop(failed[0])
        return [(ticket, self._finished.pop(ticket)) for ticket in _those(self._finished, waited)]

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


class SyncLLM(RequestQueue):
    """A language model that answers a batch at once: a subclass has `encode`, `decode` and `generate`, and the base what is left."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, Request] = {}

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `protocols.LLM`."""

    def release(self, sessions: Sequence[str]) -> None:
        """Nothing is kept between calls."""

    def _check(self, request: Request) -> None:
        """Any prompt will do."""

    def _enqueue(self, tickets: Sequence[int], requests: Sequence[Request]) -> None:
        self._waiting.update(zip(tickets, requests, strict=True))

    def _advance(self) -> bool:
        waiting, self._waiting = self._waiting, {}
        if waiting:
            self._finished.update(zip(waiting, self.generate(list(waiting.values())), strict=True))
        return bool(waiting)

    def _drop(self, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            self._waiting.pop(ticket, None)


def _those(tickets: Iterable[int], waited: Collection[int] | None) -> list[int]:
    """The tickets that are waited for, in their order; all where `waited` is None."""
    return [ticket for ticket in tickets if waited is None or ticket in waited]
