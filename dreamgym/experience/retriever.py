"""Retrieval of the memories d_1 to d_k of Eq. 4, in training as at inference.

The top-k rows of the replay buffer by phi(s, a). Where the rules compose an answer from several memories (`TextRules.composer`), such as
the results of a search from remembered items, the composed memory comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from dreamgym.config import Config
from dreamgym.envs.base import TextRules
from dreamgym.experience.recall import ExactRecall
from dreamgym.protocols import ReplayBuffer
from dreamgym.replay.random_retrieval import RandomRetrieval
from dreamgym.types import Neighbour, Query


class RetrievalConfig(Config):
    """Which memories an experience model reads."""

    k: int = Field(default=1, ge=0)
    """Retrieved memories per step; 0 is the ablation without replay."""
    retrieval: Literal["similar", "random"] = "similar"
    """`random` is the control: as many memories of the same buffer, drawn at random."""
    compose: bool = True
    """Where the rules compose answers from several memories (`TextRules.composer`), such as a search, the composed one is the first."""
    recall: bool = False
    """Answer with the precedent, without generation, where real memory holds the same situation and all precedents agree
    (`experience.recall`)."""


class Retriever:
    """Finds the memories of queries in a replay buffer, which it follows."""

    def __init__(self, replay: ReplayBuffer, rules: TextRules, config: RetrievalConfig, *, seed: int = 0) -> None:
        self.replay = RandomRetrieval(replay, seed=seed) if config.retrieval == "random" else replay
        self.rules, self.k = rules, config.k
        self.exact_recall = ExactRecall(replay) if config.recall else None
        self._composer = rules.composer(replay) if config.compose and config.retrieval == "similar" and config.k else None

    def retrieve(self, queries: Sequence[Query], hidden: Sequence[str] | None = None) -> list[list[Neighbour]]:
        """At most k memories per query, the most similar first; `hidden[i]` is a trajectory that query i may not see."""
        if not queries or not self.k:
            return [[] for _ in queries]
        states, actions = [query.state.text for query in queries], [query.action for query in queries]
        similar = self.replay.search(states, actions, k=self.k, env=queries[0].task.env, exclude=hidden)
        return [
            self._composed_first(query, found, hidden[i] if hidden else "")
            for i, (query, found) in enumerate(zip(queries, similar, strict=True))
        ]

    def _composed_first(self, query: Query, similar: Sequence[Neighbour], hidden: str) -> list[Neighbour]:
        composed = self._composer.compose(query, hidden) if self._composer else None
        if composed is None:
            return list(similar)
        first = Neighbour(composed, 1.0)
        return [first, *(one for one in similar if not _equal(one, first))][: self.k]


def _equal(one: Neighbour, other: Neighbour) -> bool:
    """Whether two memories are one row, or have the same action and next state."""
    a, b = one.memory, other.memory
    return a.row == b.row or (a.action, a.next_state) == (b.action, b.next_state)
