"""The real rows of a replay buffer, followed as it grows: what recall, copies from the history, the support of actions and an environment's
own composer count."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from dreamgym.envs.base import TextRules
from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Memory, Transition


class RealRows(ABC):
    """Reads every real row of a replay buffer once, and all of them again after a rollback. Dreamed rows are no evidence. With `env` only
    rows of that environment are read."""

    def __init__(self, replay: ReplayBuffer, *, env: str | None = None) -> None:
        self.replay, self.env = replay, env
        self._read = (0, -1)  # rollbacks, and the buffer's last row, when it was read
        self._clear()

    @abstractmethod
    def _clear(self) -> None:
        """Forget all rows."""

    @abstractmethod
    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        """Count rows that came since the last call, the rows of an episode in order."""

    def _follow(self) -> None:
        """Count what came since the last call."""
        now = (self.replay.rollbacks, self.replay.last_row)
        if self._read == now:
            return
        if self._read[0] != now[0]:
            self._clear()
            self._read = (now[0], -1)
        fresh = (memory for memory in self.replay.memories(env=self.env, after=self._read[1]) if memory.source != "dream")
        self._add(rows for _, rows in groupby(fresh, key=lambda memory: memory.trajectory))
        self._read = now


@dataclass(frozen=True)
class RealStep:
    """A real row, and what the rules read from it: once, for mining looks at every row again whenever rows are added."""

    memory: Memory
    step: Transition
    delta: str
    """What the step showed (`TextRules.encode_delta`)."""
    acts: bool
    """Whether it may have changed later answers."""

    @classmethod
    def read(cls, memory: Memory, rules: TextRules) -> RealStep:
        step = memory.transition
        return cls(memory, step, rules.encode_delta(step), acts(step, rules))


def acts(step: Transition, rules: TextRules) -> bool:
    """Whether a step may have changed later answers: it was answered, and the action is not known to read only."""
    return step.is_answer and not rules.reads_only(step.action)
