"""A language model whose answers come from a Python function: an honest double for tests.

The tokenizer is UTF-8 bytes (ids 0-255) and the end token 256. It decodes the prompt, asks the function, and encodes the answer,
so that truncation at `max_tokens`, the stop token and log-probabilities look as they do with a real engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dreamgym.llm._queue import Queue
from dreamgym.types import Completion, Request

END_ID = 256


class ScriptedLLM(Queue):
    """`answer(prompt_text) -> text`. Every token has probability 1 (log-probability 0). `prompts` records what was asked."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__()
        self.answer = answer
        self.version = 0
        self.prompts: list[str] = []
        self.end_id = END_ID
        self._waiting: dict[int, Request] = {}

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def special_id(self, name: str) -> int:
        """The end token stands for every special token."""
        return END_ID

    def release(self, sessions: Sequence[str]) -> None:
        """Nothing is kept between calls."""

    def _check(self, request: Request) -> None:
        """Any prompt will do."""

    def _enter(self, tickets: Sequence[int], requests: Sequence[Request]) -> None:
        self._waiting.update(zip(tickets, requests, strict=True))

    def _advance(self) -> bool:
        for ticket, request in self._waiting.items():
            self._finished[ticket] = self._complete(request)
        worked, self._waiting = bool(self._waiting), {}
        return worked

    def _drop(self, tickets: Sequence[int]) -> None:
        for ticket in tickets:
            self._waiting.pop(ticket, None)

    def _complete(self, request: Request) -> Completion:
        text, sampling = self.decode(request.prompt), request.sampling
        self.prompts.append(text)
        said = [*self.encode(self.answer(text)), END_ID][: sampling.max_tokens]
        end = next((end for end in range(1, len(said) + 1) if sampling.ends(said[:end])), len(said))
        ids = said[:end]
        stop = sampling.ends(ids)
        shown = self.decode(ids[: len(ids) - stop])
        return Completion(tuple(request.prompt), tuple(ids), (0.0,) * len(ids), shown, "stop" if stop else "length", self.version)


def make(*, answer: Callable[[str], str], **_: Any) -> ScriptedLLM:
    """`make(answer=lambda prompt: "click[buy now]")`."""
    return ScriptedLLM(answer)
