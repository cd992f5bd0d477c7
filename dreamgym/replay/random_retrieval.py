"""The ablation of retrieval: memories drawn at random. What they teach, any memory teaches; the rest of the gain is similarity."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Memory, Neighbour


class RandomRetrieval:
    """Searches a replay buffer by drawing memories at random, as many as the nearest would be, each
    (action, next state) once. The same query draws the same memories as long as the buffer does not change. Similarities are 0.
    """

    def __init__(self, replay: ReplayBuffer, *, seed: int) -> None:
        self.replay, self.seed = replay, seed
        self._memories: list[Memory] = []
        self._version = (0, -1)  # rollbacks and last row of the buffer when `_memories` was read

    def search(
        self, states: Sequence[str], actions: Sequence[str], *, k: int, env: str | None = None, exclude: Sequence[str] | None = None
    ) -> list[list[Neighbour]]:
        """k random memories of `env` per query, none of the trajectory `exclude[i]`; fewer when there are not as many contents."""
        version = (self.replay.rollbacks, self.replay.last_row)
        if self._version != version:
            self._memories, self._version = list(self.replay.memories()), version
        pool = [memory for memory in self._memories if env is None or memory.env == env]
        queries = zip(states, actions, exclude or [""] * len(states), strict=True)
        return [self._draw(f"{state}/{action}", pool, k, own) for state, action, own in queries]

    def _draw(self, query: str, pool: Sequence[Memory], k: int, own: str) -> list[Neighbour]:
        found: dict[tuple[str, str], Neighbour] = {}  # by content
        for place in _permutation(random.Random(f"shuffled/{self.seed}/{query}"), len(pool)):
            if len(found) == k:
                break
            memory = pool[place]
            if memory.trajectory != own:
                found.setdefault((memory.action, memory.next_state), Neighbour(memory, 0.0))
        return list(found.values())


def _permutation(rng: random.Random, n: int) -> Iterator[int]:
    """0 to n - 1 in random order, lazily (Fisher and Yates)."""
    moved: dict[int, int] = {}  # places that no longer hold their own number
    for i in range(n):
        j = rng.randrange(i, n)
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)
