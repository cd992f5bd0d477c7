"""Base classes of batch environments (`protocols.BatchEnv`): each supplies one way of acting from the other."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dreamgym.errors import InvariantError
from dreamgym.types import Action, StepResult

P = ParamSpec("P")
T = TypeVar("T")


def timed(method: Callable[P, T]) -> Callable[P, T]:
    """A method of a real environment that adds the wall-clock seconds it takes to `seconds`."""

    @wraps(method)
    def measured(*args: P.args, **kwargs: P.kwargs) -> T:
        real: Any = args[0]
        began = time.monotonic()
        try:
            return method(*args, **kwargs)
        finally:
            real.seconds += time.monotonic() - began

    return measured


class SyncBatchEnv(ABC):
    """A batch environment that answers at once: it has `step`, and what is submitted is answered by the next `poll`."""

    concurrent = False

    def __init__(self) -> None:
        self._answered: list[tuple[int, StepResult]] = []

    @abstractmethod
    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        """One result per slot, in order."""

    def submit(self, slots: Sequence[int], actions: Sequence[Action]) -> None:
        """See `protocols.BatchEnv`."""
        self._answered += zip(slots, self.step(slots, actions), strict=True)

    def poll(self) -> list[tuple[int, StepResult]]:
        """See `protocols.BatchEnv`."""
        answered, self._answered = self._answered, []
        return answered

    def end(self) -> None:
        """See `protocols.BatchEnv`. Default: nothing is kept for episodes that costs much."""
        return None


class AsyncBatchEnv(ABC):
    """A batch environment whose episodes do not wait for each other: it has `submit` and `poll`."""

    @abstractmethod
    def submit(self, slots: Sequence[int], actions: Sequence[Action]) -> None:
        """See `protocols.BatchEnv`."""

    @abstractmethod
    def poll(self) -> list[tuple[int, StepResult]]:
        """See `protocols.BatchEnv`."""

    def end(self) -> None:
        """See `protocols.BatchEnv`. Default: nothing is kept for episodes that costs much."""
        return None

    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        """One result per slot, in order. No other step may be under way."""
        self.submit(slots, actions)
        results = dict[int, StepResult]()
        while len(results) < len(slots):
            results |= dict(answered := self.poll())
            if not answered:
                raise InvariantError(f"{type(self).__name__}.poll() has nothing under way, and {len(slots) - len(results)} steps are open.")
        return [results[slot] for slot in slots]
