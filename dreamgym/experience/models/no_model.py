"""The control without a model: rules, memory and the episode's history answer, and nothing is trained or generated.

After rules, recall, conditions and composition, which every experience model has, an answer is a state of the history (`history_copy`), or
else the nearest precedent: the retrieved memory with the same action if there is one. What the precedent changed in its own state is
changed in the present one where that can be done (`state_delta`). It always answers. What a trained model does no better than this is not
learned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from dreamgym.config import build
from dreamgym.experience.guard import Guard
from dreamgym.experience.history_copy import HistoryCopy
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ExperienceModel, ModelInputs, Unreadable
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.experience.state_delta import decode, encode
from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Memory, Neighbour, Observation, Query, Task

VARIES_TASKS = False  # a curriculum over it draws real tasks only


class NoModelConfig(RetrievalConfig):
    """Settings of the control."""

    k: int = Field(default=8, ge=0)
    """Retrieved memories among which a precedent with the same action is looked for."""


Config = NoModelConfig


def make(inputs: ModelInputs, **settings: Any) -> NoModel:
    """The control over a run's replay buffer and the first states of its logs."""
    config = build(Config, settings, prefix="experience.")
    return NoModel(inputs.replay, inputs.guard, config, openings=inputs.openings, seed=inputs.seed)


class NoModel(ExperienceModel):
    """Answers from memory alone. `counts` has how often the history and how often a precedent answered."""

    answers_by = "composed"

    def __init__(
        self, replay: ReplayBuffer, guard: Guard, config: NoModelConfig, *, openings: Mapping[str, str] | None = None, seed: int = 0
    ) -> None:
        """`openings` are first states by instruction."""
        super().__init__(guard, Retriever(replay, guard.rules, config, seed=seed))
        self.history = HistoryCopy(replay)
        self.openings = dict(openings or {})
        self._words = {instruction: _words(instruction) for instruction in self.openings}

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """The first state of the logged instruction that shares the largest share of its words with the task's."""
        return [Observation(self._opening(task.instruction)) for task in tasks]

    def _opening(self, instruction: str) -> str:
        if instruction in self.openings or not self.openings:
            return self.openings.get(instruction, "")
        words = _words(instruction)
        nearest = max(self._words, key=lambda logged: len(words & self._words[logged]) / max(1, len(words | self._words[logged])))
        return self.openings[nearest]

    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        """One answer per query. Nothing is sampled."""
        return [*self._answers(queries, memories)]

    def from_memory(self, queries: Sequence[Query]) -> list[Answer]:
        """One answer per query, in order, from the memories of each."""
        return self._answers(queries, self.retriever.retrieve(queries))

    def _answers(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer]:
        return [
            self._answer(query, [neighbour.memory for neighbour in neighbours]) for query, neighbours in zip(queries, memories, strict=True)
        ]

    def _answer(self, query: Query, memories: Sequence[Memory]) -> Answer:
        copied = self.history.next_state(query)
        if copied is not None:
            self.counts["history"] += 1
            return Answer("", copied, 0.0, False)
        precedent = next((memory for memory in memories if memory.action == query.action), memories[0] if memories else None)
        if precedent is None:
            self.counts["no_precedent"] += 1
            return Answer("", query.state.text, 0.0, False)
        self.counts["precedent"] += 1
        change = encode((precedent.state,), precedent.next_state)
        changed = decode((query.state.text,), change) if change.is_delta else None
        after = precedent.next_state if changed is None else changed
        return Answer(precedent.reasoning, after, precedent.reward, precedent.terminated)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))
