"""The control of retrieval: memories drawn at random. What they teach, any memory teaches; the rest of the gain is similarity."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Memory, Neighbour, Trajectory


class Shuffled:
    """A replay buffer whose search ignores what is asked (the `ReplayBuffer` protocol), but not how much is found: a query gets as many
    memories as the buffer itself would find, which is asked for that number. As in a buffer with `distinct`, no two of them have the same
    action and next state; where it is switched off, that may leave fewer. The same question finds the same memories, as long as the
    buffer does not grow. Similarities are 0: nothing was compared.
    """

    def __init__(self, replay: ReplayBuffer, *, seed: int) -> None:
        self.replay, self.seed = replay, seed
        self._memories: list[Memory] = []
        self._read = (0, -1)  # rollbacks, and the buffer's last row, when it was read

    @property
    def sequence(self) -> int:
        return self.replay.sequence

    @property
    def rollbacks(self) -> int:
        return self.replay.rollbacks

    def __len__(self) -> int:
        return len(self.replay)

    def add(self, trajectories: Sequence[Trajectory]) -> int:
        return self.replay.add(trajectories)

    def memories(self) -> Iterator[Memory]:
        return self.replay.memories()

    def search(
        self, states: Sequence[str], actions: Sequence[str], *, k: int, env: str | None = None, exclude: Sequence[str] | None = None
    ) -> list[list[Neighbour]]:
        """Any memories of `env`, none of the trajectory that a query may not see."""
        now = (self.replay.rollbacks, self.replay.sequence)
        if self._read != now:
            self._memories, self._read = list(self.replay.memories()), now
        pool = [memory for memory in self._memories if env is None or memory.env == env]
        wanted = [len(found) for found in self.replay.search(states, actions, k=k, env=env, exclude=exclude)]
        hidden = exclude or [""] * len(states)
        asked = zip(states, actions, wanted, hidden, strict=True)
        return [self._draw(f"{state}/{action}", pool, n, own) for state, action, n, own in asked]

    def _draw(self, question: str, pool: Sequence[Memory], n: int, own: str) -> list[Neighbour]:
        found: dict[tuple[str, str], Neighbour] = {}  # by content
        for place in _disorder(random.Random(f"shuffled/{self.seed}/{question}"), len(pool)):
            if len(found) == n:
                break
            memory = pool[place]
            if memory.trajectory != own:
                found.setdefault((memory.action, memory.next_state), Neighbour(memory, 0.0))
        return list(found.values())


def _disorder(rng: random.Random, n: int) -> Iterator[int]:
    """0 to n - 1 in random order, drawn as they are asked for (Fisher and Yates)."""
    moved: dict[int, int] = {}  # places that no longer hold their own number
    for i in range(n):
        j = rng.randrange(i, n)
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)
