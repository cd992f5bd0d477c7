"""Retrieval of the memories d_1 to d_k of Eq. 4, in training as at inference: the top-k rows of the replay buffer by phi(s, a).

Where memory answers a query by itself, nothing is generated: by an exact precedent or a composition of several memories
(`RetrievalConfig.recall`), or by a condition that was mined from it (`RetrievalConfig.conditions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from dreamgym.config import Config
from dreamgym.envs.base import TextRules
from dreamgym.experience.conditions import Conditions, MinedAnswer
from dreamgym.experience.recall import Agreement, ExactRecall
from dreamgym.experience.task_recall import TaskRecall
from dreamgym.protocols import ReplayBuffer
from dreamgym.replay.random_retrieval import RandomRetrieval
from dreamgym.types import DecidedBy, Memory, Neighbour, Observation, Query


class RetrievalConfig(Config):
    """Which memories an experience model reads."""

    k: int = Field(default=1, ge=0)
    """Retrieved memories per step; 0 is the ablation without replay."""
    retrieval: Literal["similar", "random"] = "similar"
    """`random` is the ablation of similarity: as many memories of the same buffer, drawn at random."""
    recall: bool = True
    """Answer from memory, without generation, where real memory holds the same situation and all precedents agree (`experience.recall`),
    where it holds the action in the same task and nothing changed the answer since (`experience.task_recall`), or where the rules compose
    the answer from several memories (`TextRules.composer`)."""
    conditions: bool = True
    """Answer without generation when a mined condition holds under which every real transition had this answer (`experience.conditions`).
    Goes with `recall`, which says what the task hides."""


class Retriever:
    """Finds the memories of queries in a replay buffer, which it follows."""

    def __init__(self, replay: ReplayBuffer, rules: TextRules, config: RetrievalConfig, *, seed: int = 0) -> None:
        self.replay = RandomRetrieval(replay, seed=seed) if config.retrieval == "random" else replay
        self.rules, self.k = rules, config.k
        self.exact_recall = ExactRecall(replay) if config.recall else None
        self.task_recall = TaskRecall(replay, rules) if config.recall else None
        self.conditions = Conditions(replay, rules, self.task_recall) if self.task_recall and config.conditions else None
        composer = rules.composer(replay) if config.recall else None
        self._sources: list[tuple[DecidedBy, Callable[[Query], Memory | None]]] = []
        if self.exact_recall and self.task_recall:
            self._sources += [("recalled", self.exact_recall.recall), ("recalled", self.task_recall.recall)]
        if self.conditions:
            self._sources.append(("inferred", self.conditions.infer))
        if composer:
            self._sources.append(("composed", composer.compose))

    def answer(self, query: Query) -> tuple[DecidedBy, Memory] | None:
        """What answers a query without generation, and what decided it: its precedent, the answer whose condition holds, or one that the
        rules put together from several memories. None where memory says nothing, or recall is off."""
        return next(((by, memory) for by, find in self._sources if (memory := find(query)) is not None), None)

    def correct_first_line(self, query: Query, after: Observation) -> Observation:
        """A state that a model wrote, with what conditions say of it; as it is where they are off."""
        return self.conditions.correct_first_line(query, after) if self.conditions else after

    def agreements(self) -> list[Agreement]:
        """List how well precedents of every kind agree in the real rows; empty where recall is off."""
        return [agreement for recall in (self.exact_recall, self.task_recall) if recall for agreement in recall.agreements()]

    def mined_answers(self) -> list[MinedAnswer]:
        """The answers that follow from conditions; empty where conditions are off."""
        return self.conditions.mined_answers() if self.conditions else []

    def retrieve(self, queries: Sequence[Query], exclude: Sequence[str] | None = None) -> list[list[Neighbour]]:
        """At most k memories per query, the most similar first; `exclude[i]` is a trajectory that query i may not see."""
        if not queries or not self.k:
            return [[] for _ in queries]
        states, actions = [query.state.text for query in queries], [query.action for query in queries]
        return self.replay.search(states, actions, k=self.k, env=queries[0].task.env, exclude=exclude)
