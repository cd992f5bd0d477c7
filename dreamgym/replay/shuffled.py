"""The control of retrieval: memories drawn at random. What they teach, any memory teaches; the rest of the gain is similarity."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Memory, Neighbour, Trajectory


class Shuffled:
    """A replay buffer whose search ignores what is asked (the `ReplayBuffer` protocol). The same question finds the same memories, as long
    as the buffer does not grow. Similarities are 0: nothing was compared."""

    def __init__(self, replay: ReplayBuffer, *, seed: int) -> None:
        self.replay, self.seed = replay, seed
        self._memories: list[Memory] = []
        self._sequence = -1

    def __len__(self) -> int:
        return len(self.replay)

    def add(self, trajectories: Sequence[Trajectory]) -> int:
        return self.replay.add(trajectories)

    def memories(self) -> Iterator[Memory]:
        return self.replay.memories()

    def search(
        self, states: Sequence[str], actions: Sequence[str], *, k: int, env: str | None = None, exclude: Sequence[str] | None = None
    ) -> list[list[Neighbour]]:
        """Any k memories of `env`, none of the trajectory that a query may not see."""
        if self._sequence != self.replay.sequence:
            self._memories, self._sequence = list(self.replay.memories()), self.replay.sequence
        pool = [memory for memory in self._memories if env is None or memory.env == env]
        hidden = exclude or [""] * len(states)
        return [self._draw(f"{state}/{action}", pool, k, own) for state, action, own in zip(states, actions, hidden, strict=True)]

    def _draw(self, question: str, pool: Sequence[Memory], k: int, own: str) -> list[Neighbour]:
        rng = random.Random(f"shuffled/{self.seed}/{question}")
        found: dict[int, Neighbour] = {}
        for place in rng.sample(range(len(pool)), len(pool)) if len(pool) < 8 * k else (rng.randrange(len(pool)) for _ in range(64 * k)):
            if len(found) == k:
                break
            if pool[place].trajectory != own:
                found[pool[place].row] = Neighbour(pool[place], 0.0)
        return list(found.values())
