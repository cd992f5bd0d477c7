"""The experience model without training: an instruct model that is prompted with Eq. 4 in words.

Its prompts are JSON (`chat_prompts`, `json_replies`). An unreadable reply is requested once more with the error named, and then counts as
unreadable. A prompt that does not fit loses its oldest steps of history first, then memories; both are counted. A state that alone does
not fit is an error when the step is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

from pydantic import Field

from dreamgym.config import build
from dreamgym.engines import build_engine
from dreamgym.experience import chat_prompts as prompts
from dreamgym.experience.chat_questions import ChatQuestions
from dreamgym.experience.chat_requests import AskConfig, ChatEngine, Reply, ask, require_budget
from dreamgym.experience.guard import Guard
from dreamgym.experience.json_replies import Format, Message, read_object, text_in
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ExperienceModel, ModelInputs, Unreadable
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.protocols import Chat, ReplayBuffer
from dreamgym.types import Neighbour, Observation, Query, Task
from dreamgym.usage import Usage


class PromptedConfig(RetrievalConfig):
    """Settings of the prompted experience model."""

    engine: ChatEngine
    """The engine that answers chats: `{base_url = "http://localhost:8000/v1", model = "dreamer"}`, or another by `name`."""
    about: str = ""
    """A description of the environment. Default: that of its rules."""
    k: int = Field(default=3, ge=0)
    """Retrieved memories per step; 0 is the ablation without replay. An untrained model knows the environment from them alone."""
    reasoning: bool = True
    """False is the ablation: replies, history and memories have no reasoning."""
    history: int = Field(default=16, ge=0)
    """Steps of history in a prompt; 0 is the ablation without history."""
    max_context: int = Field(default=16384, ge=256)
    """Tokens of prompt and reply together that the server takes."""
    max_answer_tokens: int = Field(default=1024, ge=16)
    temperature: float = Field(default=0.0, ge=0)
    vary_temperature: float = Field(default=1.0, ge=0)
    format: Format = "json_schema"
    max_cost: float | None = Field(default=None, gt=0)
    """Cost of all requests of a process, in the currency of the engine's prices; beyond it the run ends with an error."""

    def requests(self, temperature: float) -> AskConfig:
        """Settings of the requests to the engine."""
        return AskConfig(max_tokens=self.max_answer_tokens, temperature=temperature, format=self.format, max_cost=self.max_cost)


Config = PromptedConfig


def make(inputs: ModelInputs, **settings: Any) -> PromptedExperienceModel:
    """The experience model over an engine that answers chats."""
    config = build(Config, settings, prefix="experience.")
    chat = build_engine(config.engine)
    return PromptedExperienceModel(chat, inputs.replay, inputs.guard, config, openings=inputs.openings, seed=inputs.seed)


class PromptedExperienceModel(ExperienceModel):
    """Prompts an instruct model. `counts` also has the parts of prompts that did not fit.

    `openings` are first states of known tasks by instruction, which serve as examples. `count_tokens` is the model's tokenizer where there
    is one; the default counts three bytes a token.
    """

    def __init__(
        self,
        chat: Chat,
        replay: ReplayBuffer,
        guard: Guard,
        config: PromptedConfig,
        *,
        openings: Mapping[str, str] | None = None,
        count_tokens: Callable[[str], int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(guard, Retriever(replay, guard.rules, config, seed=seed))
        self.chat, self.config, self.seed = chat, config, seed
        self.questions = ChatQuestions(config, config.about or guard.rules.about, openings or {}, self.counts, count_tokens)
        self._talks: list[tuple[int, Query, list[Message]]] = []  # what waits for `finish_generation`, by ticket

    @property
    def usage(self) -> Usage:
        return self.chat.usage

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        distinct = {task.instruction: task for task in tasks}
        talks = [self.questions.opening(task) for task in distinct.values()]
        seeds = [(self.seed, seed, crc32(instruction.encode("utf-8", "surrogatepass"))) for instruction in distinct]
        states = self._texts(talks, "state", self.config.temperature, seeds)
        by_instruction = dict(zip(distinct, states, strict=True))
        return [Observation(by_instruction[task.instruction]) for task in tasks]

    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        """UsageError when a state does not fit into the context; ServerError when the server fails for every query, or for good."""
        return self._replies(queries, self._questions(queries, memories))

    def start_generation(self, tickets: Sequence[int], queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> None:
        """UsageError when a state does not fit into the context: here, before others wait for the same answers."""
        self._talks += zip(tickets, queries, self._questions(queries, memories), strict=True)

    def finish_generation(self) -> list[tuple[int, Answer | Unreadable]]:
        talks, self._talks = self._talks, []
        replies = self._replies([query for _, query, _ in talks], [talk for *_, talk in talks])
        return list(zip([ticket for ticket, *_ in talks], replies, strict=True))

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        super().forget(episodes)
        gone = set(episodes)
        self._talks = [item for item in self._talks if item[1].episode not in gone]

    def _questions(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[list[Message]]:
        return [
            self.questions.step(query, [neighbour.memory for neighbour in neighbours])
            for query, neighbours in zip(queries, memories, strict=True)
        ]

    def _replies(self, queries: Sequence[Query], talks: Sequence[list[Message]]) -> list[Answer | Unreadable]:
        """ServerError when the server fails for every query, or for good."""
        reasoning = self.config.reasoning
        replies = ask(
            self.chat,
            talks,
            lambda _, text: prompts.read_answer(text, reasoning=reasoning),
            self.config.requests(self.config.temperature),
            prompts.properties(reasoning=reasoning),
            name="transition",
            seeds=[(self.seed, *query.stream) for query in queries],
        )
        for reply in replies:
            self._count(reply)
        return [reply.value or Unreadable(reply.raw or reply.problem) for reply in replies]

    def vary(self, seeds: Sequence[Task], *, seed: int, level: int = 0) -> list[str]:
        talks = [self.questions.variation(task, level) for task in seeds]
        return self._texts(talks, "task", self.config.vary_temperature, [(self.seed, seed, i) for i in range(len(seeds))])

    def _texts(self, talks: Sequence[list[Message]], key: str, temperature: float, seeds: Sequence[tuple[int, ...]]) -> list[str]:
        """The text in each reply; "" for an unreadable one."""
        replies = ask(
            self.chat,
            talks,
            lambda _, text: text_in(read_object(text, [key]), key),
            self.config.requests(temperature),
            {key: prompts.TEXT},
            name=key,
            seeds=seeds,
        )
        for reply in replies:
            self._count(reply, f"{key}_")
        return [reply.value or "" for reply in replies]

    def _count(self, reply: Reply[Any], what: str = "") -> None:
        """Count replies by kind. UsageError when the budget is spent: a dream without answers would teach nothing."""
        self.counts[f"{what}{reply.kind}"] += 1
        require_budget([reply], "experience model")
