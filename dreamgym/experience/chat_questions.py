"""The questions to an experience model that answers chats, shortened to fit: of a step, a first state, a new task.

The prompted model is asked them, and the model that is fitted in a chat template is trained on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dreamgym.errors import UsageError
from dreamgym.experience import chat_prompts as prompts
from dreamgym.experience.json_replies import Message, about_tokens, messages
from dreamgym.statistics import jaccard
from dreamgym.types import Memory, Query, Task

EXAMPLES = 4  # first states or tasks in a prompt that asks for another one


class PromptSettings(Protocol):
    """The settings of prompts in a configuration."""

    @property
    def k(self) -> int: ...
    @property
    def reasoning(self) -> bool: ...
    @property
    def history(self) -> int: ...
    @property
    def max_context(self) -> int: ...
    @property
    def max_answer_tokens(self) -> int: ...


class ChatQuestions:
    """Builds chats. `counts` gets the numbers of parts of prompts that did not fit."""

    def __init__(
        self,
        config: PromptSettings,
        about: str,
        openings: Mapping[str, str],
        counts: Counter[str],
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        """`openings` are first states of known tasks by instruction, which serve as examples. `count_tokens` is the model's tokenizer where
        there is one; the default counts three bytes a token."""
        self.config, self.about, self.openings, self.counts = config, about, dict(openings), counts
        self.count_tokens = count_tokens or (lambda text: about_tokens(text, bytes_per_token=3.0))

    def step(self, query: Query, memories: Sequence[Memory]) -> list[Message]:
        """Build the question about one query, shortened to fit."""
        reasoning, size = self.config.reasoning, self.config.history
        past = [prompts.past_step(step, reasoning=reasoning) for step in query.history[max(0, len(query.history) - size) :]]
        memory_steps = [prompts.memory_step(memory, reasoning=reasoning) for memory in memories] if self.config.k else None
        system = prompts.predict(query.task.env, self.about, reasoning=reasoning)
        while True:
            talk = messages(system, prompts.step(query.task.instruction, past, memory_steps, query.state.text, query.action))
            if self._fits(talk):
                return talk
            if past:
                past = past[1:]
                self.counts["history_left_out"] += 1
            elif memory_steps:
                memory_steps = memory_steps[:-1]  # the least similar
                self.counts["memories_left_out"] += 1
            else:
                raise UsageError(self._too_long(talk, f"the state and action of task '{query.task.id}'"))

    def opening(self, task: Task, *, itself: bool = True) -> list[Message]:
        """Build the question about a first state. The task `itself` is one of the examples where it is known, or is not."""
        others = [other for other in self._alike(task) if itself or other != task.instruction]
        examples = [{"task": other, "state": self.openings[other]} for other in others if self.config.k]
        return self._with_examples(prompts.start(task.env, self.about), task, "examples", examples)

    def variation(self, task: Task, level: int, *, hidden: str | None = None) -> list[Message]:
        """Build the question about a new task. The instruction `hidden`, which the reply is to write, is none of the examples."""
        more = [other for other in self._alike(task, hidden) if other != task.instruction]
        return self._with_examples(prompts.vary(task.env, self.about, level), task, "more tasks", more)

    def _alike(self, task: Task, hidden: str | None = None) -> list[str]:
        """The instructions that share most words with this one; one that is `hidden` gives its place to the next."""
        candidates = (other for other in self.openings if other != hidden)
        return sorted(candidates, key=lambda other: (-jaccard(task.instruction, other), other))[:EXAMPLES]

    def _with_examples(self, system: str, task: Task, name: str, examples: Sequence[Any]) -> list[Message]:
        """A prompt about a task, with as many examples as fit."""
        for n in range(len(examples), -1, -1):
            talk = messages(system, {name: list(examples[:n]), "task": task.instruction})
            if self._fits(talk):
                self.counts.update({"examples_left_out": len(examples) - n} if n < len(examples) else {})
                return talk
        raise UsageError(self._too_long(talk, f"the instruction of task '{task.id}'"))

    def _fits(self, talk: Sequence[Message]) -> bool:
        return self._tokens(talk) + self.config.max_answer_tokens <= self.config.max_context

    def _tokens(self, talk: Sequence[Message]) -> int:
        return sum(self.count_tokens(message["content"]) + 8 for message in talk)  # 8: what a template puts around a message

    def _too_long(self, talk: Sequence[Message], what: str) -> str:
        return (
            f"The prompt for {what} alone takes about {self._tokens(talk)} tokens: with max_answer_tokens={self.config.max_answer_tokens} "
            f"that is more than max_context={self.config.max_context}. Raise max_context if the server takes more, or shorten the states."
        )
