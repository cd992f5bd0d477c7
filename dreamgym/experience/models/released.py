"""Released world models as experience models, prompted in their own formats (`experience.formats`).

They predict observations from the episode alone: they read no memories, write no first states and vary no tasks. First states come from
the logs. To fine-tune such a model instead, load its weights as a backbone (`llm.backbones`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym import config, plugins
from dreamgym.engines import build_engine
from dreamgym.errors import UsageError
from dreamgym.experience.chat_requests import AskConfig, ChatEngine, ask
from dreamgym.experience.formats import WorldModelFormat
from dreamgym.experience.guard import Guard
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ExperienceModel, ModelInputs, Unreadable
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.protocols import Chat, ReplayBuffer
from dreamgym.types import Neighbour, Observation, Query, Task
from dreamgym.usage import Usage

VARIES_TASKS = False  # a curriculum over it draws real tasks only


class ReleasedConfig(config.Config):
    """Settings of a released world model."""

    format: str
    """A plug-in of `experience/formats`: "word2world" or "qwen_agentworld"."""
    engine: ChatEngine
    """The engine that serves the model: `{base_url = "http://localhost:8000/v1", model = "world-model"}`."""


Config = ReleasedConfig


def make(inputs: ModelInputs, **settings: Any) -> ReleasedWorldModel:
    """The world model behind an engine that answers chats."""
    model_config = config.build(ReleasedConfig, settings, prefix="experience.")
    form = plugins.make("experience.formats", model_config.format, rules=inputs.guard.rules)
    chat = build_engine(model_config.engine)
    return ReleasedWorldModel(chat, form, inputs.replay, inputs.guard, openings=inputs.openings, seed=inputs.seed)


class ReleasedWorldModel(ExperienceModel):
    """Prompts a released world model. `openings` are first states by instruction."""

    def __init__(
        self, chat: Chat, form: WorldModelFormat, replay: ReplayBuffer, guard: Guard, *, openings: Mapping[str, str], seed: int = 0
    ) -> None:
        super().__init__(guard, Retriever(replay, guard.rules, RetrievalConfig(k=0)))
        self.chat, self.form, self.openings, self.seed = chat, form, dict(openings), seed

    @property
    def usage(self) -> Usage:
        return self.chat.usage

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """The given first states; UsageError names a task that has none."""
        for task in tasks:
            if task.instruction not in self.openings:
                raise UsageError(f"No log has a first state of '{task.instruction}', and a released world model writes none. Log the task.")
        return [Observation(self.openings[task.instruction]) for task in tasks]

    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        replies = ask(
            self.chat,
            [self.form.messages(query) for query in queries],
            lambda i, text: self.form.read(queries[i], text),
            AskConfig(max_tokens=self.form.max_tokens, temperature=self.form.temperature, format="none"),
            {},
            seeds=[(self.seed, *query.stream) for query in queries],
            again=False,  # the model would answer a correction as if it were an action
        )
        self.counts.update("repaired" if reply.value is not None and reply.value.repaired else reply.kind for reply in replies)
        return [reply.value or Unreadable(reply.raw or reply.problem) for reply in replies]
