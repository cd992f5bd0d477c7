"""An experience model without a language model: what followed the most similar remembered step follows again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dreamgym import config
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ExperienceModel, ModelInputs, Unreadable
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.types import Neighbour, Observation, Query, Task


class Config(config.Config):
    reasoning: str = "as before."


def make(inputs: ModelInputs, **settings: Any) -> NearestMemory:
    return NearestMemory(inputs, config.build(Config, settings))


class NearestMemory(ExperienceModel):
    def __init__(self, inputs: ModelInputs, settings: Config) -> None:
        super().__init__(inputs.guard, Retriever(inputs.replay, inputs.guard.rules, RetrievalConfig(k=1)))
        self.openings, self.settings = inputs.openings, settings

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return [Observation(self.openings.get(task.instruction, "")) for task in tasks]

    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        found = [shown[0].memory if shown else None for shown in memories]
        return [Answer(self.settings.reasoning, m.next_state, m.reward, m.terminated) if m else Unreadable("") for m in found]
