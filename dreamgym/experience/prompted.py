"""The experience model without training: an instruct model behind a server, told in words what Eq. 4 asks for.

It shares with the trained one (`model`) the replay buffer, the guard and the order of things (`dreaming`); the layout is JSON instead of
markers (`json_chat`, `chat_prompts`). A reply that cannot be read is asked for once more with the error named, and then is a failed
verdict. What does not fit into the context is left out in this order: the oldest steps of the history, then memories; each is counted. A
state is never cut: one that does not fit is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field

from dreamgym.config import Config
from dreamgym.errors import UsageError
from dreamgym.experience import chat_prompts as prompts
from dreamgym.experience.asking import AskConfig, Reply, ask
from dreamgym.experience.dreaming import guarded, rows_of, unreadable
from dreamgym.experience.guard import Guard
from dreamgym.experience.json_chat import Format, Message, about_tokens, messages, read_object, text_in
from dreamgym.experience.parse import Answer
from dreamgym.experience.recall import Recall
from dreamgym.protocols import Chat, ReplayBuffer
from dreamgym.types import Neighbour, Observation, Prediction, Query, Task, Verdict

EXAMPLES = 4  # first states, or tasks, shown to whoever invents one


class PromptedConfig(Config):
    """How an instruct model is asked to dream."""

    k: int = Field(default=3, ge=0)
    """Retrieved memories per step; 0 is the ablation without replay. An untrained model knows the environment from them alone."""
    things: bool = True
    """Where an action shows a list, let its first memory be that list, remembered or put together (`ExperienceConfig.things`)."""
    reasoning: bool = True
    """False is the ablation: no reasoning is asked for, and none is shown in history and memories."""
    history: int = Field(default=16, ge=0)
    """Steps of history that are shown; 0 is the ablation without history."""
    max_context: int = Field(default=16384, ge=256)
    """Tokens of prompt and answer together that the server takes."""
    max_answer_tokens: int = Field(default=1024, ge=16)
    temperature: float = Field(default=0.0, ge=0)
    vary_temperature: float = Field(default=1.0, ge=0)
    format: Format = "json_schema"
    max_cost: float | None = Field(default=None, gt=0)
    """Of all that the model is used for in a process, in the currency of its prices; beyond it the asking ends with an error."""

    def asking(self, temperature: float) -> AskConfig:
        """The same settings as `ask` wants them."""
        return AskConfig(max_tokens=self.max_answer_tokens, temperature=temperature, format=self.format, max_cost=self.max_cost)


class PromptedExperienceModel:
    """Implements `protocols.ExperienceModel`. `counts` says how often it could not be read, and what did not fit.

    `about` describes the environment in a few sentences of ours. `openings` gives first states of known tasks by instruction; without any
    the model has to guess what one looks like. `count_tokens` is the model's tokenizer where it is at hand; else three bytes are a token.
    """

    version = 1  # an instruct model as it comes: there is only one

    def __init__(
        self,
        chat: Chat,
        replay: ReplayBuffer,
        guard: Guard,
        config: PromptedConfig | None = None,
        *,
        about: str = "",
        openings: Mapping[str, str] | None = None,
        count_tokens: Callable[[str], int] | None = None,
        seed: int = 0,
    ) -> None:
        self.chat, self.guard, self.config, self.about = chat, guard, config or PromptedConfig(), about
        self.openings, self.seed = dict(openings or {}), seed
        self.recall = Recall(replay, guard.domain, k=self.config.k, things=self.config.things)
        self.count_tokens = count_tokens or (lambda text: about_tokens(text, bytes_per_token=3.0))
        self.counts: Counter[str] = Counter()

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """The first observation of each task, dreamed in the manner of the most similar `openings`. Empty where none could be read."""
        known = {task.instruction: task for task in tasks}
        talks = [self._opening(task) for task in known.values()]
        states = self._texts(talks, "state", self.config.temperature, [(self.seed, seed, i) for i in range(len(talks))])
        by_instruction = dict(zip(known, states, strict=True))
        return [Observation(by_instruction[task.instruction]) for task in tasks]

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """One guarded prediction per query, in order. An unreadable answer is a failed verdict and leaves the state as it was.

        UsageError when a state does not fit into the context; ServerError when the server fails for every query, or for good.
        """
        predictions, _ = guarded(self.guard, self.recall, queries, self._ask)
        return predictions

    def vary(self, seeds: Sequence[Task], *, seed: int) -> list[str]:
        """A new instruction per seed task (Eq. 6). May be malformed; empty where none could be read."""
        talks = [self._variation(task) for task in seeds]
        return self._texts(talks, "task", self.config.vary_temperature, [(self.seed, seed, i) for i in range(len(seeds))])

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        """Nothing is kept of episodes: every question holds its history."""

    def _ask(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Prediction]:
        if not queries:
            return []
        reasoning = self.config.reasoning
        replies = ask(
            self.chat,
            [self._question(query, found) for query, found in zip(queries, memories, strict=True)],
            lambda _, text: prompts.read_answer(text, reasoning=reasoning),
            self.config.asking(self.config.temperature),
            prompts.properties(reasoning=reasoning),
            name="transition",
            seeds=[(self.seed, *query.key) for query in queries],
        )
        return [self._prediction(*each) for each in zip(queries, replies, map(rows_of, memories), strict=True)]

    def _prediction(self, query: Query, reply: Reply[Answer], rows: tuple[int, ...]) -> Prediction:
        self._count(reply)
        said = reply.value
        if said is None:
            return unreadable(query, rows, reply.raw or reply.problem)
        return Prediction(
            said.reasoning,
            Observation(said.state),
            said.reward,
            said.terminated,
            Verdict(True),
            rows,
            raw_reward=said.reward,
            raw_terminated=said.terminated,
        )

    def _question(self, query: Query, found: Sequence[Neighbour]) -> list[Message]:
        """The chat of one query, without what does not fit."""
        reasoning, size = self.config.reasoning, self.config.history
        past = [prompts.past_step(step, reasoning=reasoning) for step in query.history[max(0, len(query.history) - size) :]]
        shown = [prompts.memory_step(neighbour.memory, reasoning=reasoning) for neighbour in found] if self.config.k else None
        system = prompts.predict(query.task.env, self.about, reasoning=reasoning)
        while True:
            talk = messages(system, prompts.step(query.task.instruction, past, shown, query.state.text, query.action))
            if self._fits(talk):
                return talk
            if past:
                past = past[1:]
                self.counts["history_left_out"] += 1
            elif shown:
                shown = shown[:-1]  # the least similar
                self.counts["memories_left_out"] += 1
            else:
                raise UsageError(self._too_long(talk, f"the state and action of task '{query.task.id}'"))

    def _opening(self, task: Task) -> list[Message]:
        examples = [{"task": other, "state": self.openings[other]} for other in self._alike(task) if self.config.k]
        return self._with_examples(prompts.start(task.env, self.about), task, "examples", examples)

    def _variation(self, task: Task) -> list[Message]:
        more = [other for other in self._alike(task) if other != task.instruction]
        return self._with_examples(prompts.vary(task.env, self.about), task, "more tasks", more)

    def _alike(self, task: Task) -> list[str]:
        """The instructions that share most words with this one."""
        return sorted(self.openings, key=lambda other: (-_likeness(task.instruction, other), other))[:EXAMPLES]

    def _with_examples(self, system: str, task: Task, name: str, examples: Sequence[Any]) -> list[Message]:
        """A question about a task, with as many examples as fit."""
        for n in range(len(examples), -1, -1):
            talk = messages(system, {name: list(examples[:n]), "task": task.instruction})
            if self._fits(talk):
                self.counts.update({"examples_left_out": len(examples) - n} if n < len(examples) else {})
                return talk
        raise UsageError(self._too_long(talk, f"the instruction of task '{task.id}'"))

    def _texts(self, talks: Sequence[list[Message]], key: str, temperature: float, seeds: Sequence[tuple[int, ...]]) -> list[str]:
        """The one text that each reply consists of; "" where it could not be read."""
        replies = ask(
            self.chat,
            talks,
            lambda _, text: text_in(read_object(text, [key]), key),
            self.config.asking(temperature),
            {key: prompts.TEXT},
            name=key,
            seeds=seeds,
        )
        for reply in replies:
            self._count(reply, f"{key}_")
        return [reply.value or "" for reply in replies]

    def _count(self, reply: Reply[Any], what: str = "") -> None:
        """Tell kinds of replies apart. UsageError once money is the reason: a dream without answers would teach nothing."""
        self.counts[f"{what}{reply.kind}"] += 1
        if reply.kind == "unaffordable":
            raise UsageError(f"The dreamer may cost no more: {reply.problem}. Raise max_cost and go on.")

    def _fits(self, talk: Sequence[Message]) -> bool:
        return self._tokens(talk) + self.config.max_answer_tokens <= self.config.max_context

    def _tokens(self, talk: Sequence[Message]) -> int:
        return sum(self.count_tokens(message["content"]) + 8 for message in talk)  # 8: what a template puts around a message

    def _too_long(self, talk: Sequence[Message], what: str) -> str:
        return (
            f"The prompt for {what} alone takes about {self._tokens(talk)} tokens: with max_answer_tokens={self.config.max_answer_tokens} "
            f"that is more than max_context={self.config.max_context}. Raise max_context if the server takes more, or shorten the states."
        )


def _likeness(one: str, other: str) -> float:
    """The share of words that two instructions have in common."""
    a, b = set(one.split()), set(other.split())
    return len(a & b) / max(1, len(a | b))
