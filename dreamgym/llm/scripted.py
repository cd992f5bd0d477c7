"""A language model whose answers come from a Python function: an honest double for tests.

The tokenizer is UTF-8 bytes (ids 0-255) and the end token 256. `generate` decodes the prompt, asks the function, and encodes the answer,
so that truncation at `max_tokens`, the stop token and log-probabilities look as they do with a real engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dreamgym.types import Completion

END_ID = 256


class ScriptedLLM:
    """`answer(prompt_text) -> text`. Every token has probability 1 (log-probability 0). `prompts` records what was asked."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.version = 0
        self.prompts: list[str] = []
        self.end_id = END_ID

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def special_id(self, name: str) -> int:
        """The end token stands for every special token."""
        return END_ID

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        stop_id: int,
        temperature: float = 1.0,
        seeds: Sequence[Sequence[int]] | None = None,
        sessions: Sequence[str] | None = None,
    ) -> list[Completion]:
        completions = []
        for prompt in prompts:
            text = self.decode(prompt)
            self.prompts.append(text)
            ids = [*self.encode(self.answer(text)), stop_id]
            if stop_id in ids[:max_tokens]:
                ids = ids[: ids.index(stop_id) + 1]
            ids = ids[:max_tokens]
            stopped = bool(ids) and ids[-1] == stop_id
            shown = self.decode(ids[:-1] if stopped else ids)
            completions.append(
                Completion(tuple(prompt), tuple(ids), (0.0,) * len(ids), shown, "stop" if stopped else "length", self.version)
            )
        return completions

    def release(self, sessions: Sequence[str]) -> None:
        """Nothing is kept between calls."""


def make(*, answer: Callable[[str], str], **_: Any) -> ScriptedLLM:
    """`make(answer=lambda prompt: "click[buy now]")`."""
    return ScriptedLLM(answer)
