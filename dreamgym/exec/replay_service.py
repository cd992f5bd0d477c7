"""A replay buffer in a service: one process owns the log and the index, and every worker searches it.

The driver alone adds and rolls back, between rollouts, so during a rollout all workers see the same rows. Their clients are given the
state that the driver sees, and ask for rows and neighbours only.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dreamgym.errors import RunDirError
from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Memory, Neighbour, Source, Trajectory

LOT = 4096
"""Rows that are sent at a time."""
PATIENCE_S = 60.0
"""How long to wait for the service of a driver that has just died."""
Call = Callable[..., Any]
"""(method, *arguments, **options) -> the service's answer."""


@dataclass(frozen=True)
class State:
    """What tells one state of the buffer from another."""

    last_row: int
    rollbacks: int
    rows: int
    refused: int


class ReplayService:
    """The service's side: a buffer, and a lock on its log, which ends with the process. RunDirError where another process keeps it."""

    def __init__(self, build: Callable[[], ReplayBuffer], lock: Path) -> None:
        lock.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise RunDirError(f"Another process keeps the replay log of '{lock}'. Stop it, or choose another run.") from error
                time.sleep(0.2)
        self.buffer = build()

    def state(self) -> State:
        buffer = self.buffer
        return State(buffer.last_row, buffer.rollbacks, len(buffer), buffer.refused)

    def add(self, trajectories: Sequence[Trajectory]) -> tuple[int, State]:
        return self.buffer.add(trajectories), self.state()

    def rollback(self, row: int) -> State:
        self.buffer.rollback(row)
        return self.state()

    def refuse(self, refused: int) -> State:
        self.buffer.refused = refused
        return self.state()

    def memories(self, env: str | None, source: Source | None, after: int) -> list[Memory]:
        return list(itertools.islice(self.buffer.memories(env=env, source=source, after=after), LOT))

    def search(self, states: Sequence[str], actions: Sequence[str], **options: Any) -> list[list[Neighbour]]:
        return self.buffer.search(states, actions, **options)

    def stats(self) -> dict[str, float]:
        return self.buffer.stats()

    def close(self) -> None:
        self.buffer.close()
        os.close(self._lock)


class RemoteReplay:
    """A client of the service (`protocols.ReplayBuffer`). `state` is what it saw last, and may be set to what the driver saw last."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.state: State = call("state")

    @property
    def last_row(self) -> int:
        return self.state.last_row

    @property
    def rollbacks(self) -> int:
        return self.state.rollbacks

    @property
    def refused(self) -> int:
        return self.state.refused

    @refused.setter
    def refused(self, value: int) -> None:
        self.state = self._call("refuse", value)

    def __len__(self) -> int:
        return self.state.rows

    def add(self, trajectories: Sequence[Trajectory]) -> int:
        bare = [replace(one, turns=tuple(replace(turn, completion=None) for turn in one.turns)) for one in trajectories]
        admitted, self.state = self._call("add", bare)
        return int(admitted)

    def rollback(self, row: int) -> None:
        self.state = self._call("rollback", row)

    def memories(self, *, env: str | None = None, source: Source | None = None, after: int = 0) -> Iterator[Memory]:
        while found := self._call("memories", env, source, after):
            yield from found
            after = found[-1].row

    def search(
        self, states: Sequence[str], actions: Sequence[str], *, k: int, env: str | None = None, exclude: Sequence[str] | None = None
    ) -> list[list[Neighbour]]:
        if not len(self) or k <= 0 or not states:
            return [[] for _ in states]
        found: list[list[Neighbour]] = self._call("search", list(states), list(actions), k=k, env=env, exclude=exclude)
        return found

    def stats(self) -> dict[str, float]:
        found: dict[str, float] = self._call("stats")
        return found

    def close(self) -> None:
        self._call("close")
