"""A language model whose answers come from a Python function, for tests.

The tokenizer is UTF-8 bytes (ids 0-255) and the end token 256. It decodes the prompt, calls the function, and encodes the answer,
so that truncation at `max_tokens`, the stop token and log-probabilities look as they do with a real engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dreamgym.llm.request_queue import SyncLLM
from dreamgym.types import Completion, Request

END_ID = 256


class ScriptedLLM(SyncLLM):
    """`answer(prompt_text) -> text`. Every token has probability 1 (log-probability 0). `prompts` records what was asked."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__()
        self.answer = answer
        self.version = 0
        self.prompts: list[str] = []
        self.end_id = END_ID

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def special_id(self, name: str) -> int:
        """Every special token is the end token."""
        return END_ID

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._complete(request) for request in requests]

    def _complete(self, request: Request) -> Completion:
        text, sampling = self.decode(request.prompt), request.sampling
        self.prompts.append(text)
        sampled = [*self.encode(self.answer(text)), END_ID][: sampling.max_tokens]
        end = next((end for end in range(1, len(sampled) + 1) if sampling.ends(sampled[:end])), len(sampled))
        ids = sampled[:end]
        stop = sampling.ends(ids)
        shown = self.decode(ids[: len(ids) - stop])
        return Completion(tuple(request.prompt), tuple(ids), (0.0,) * len(ids), shown, "stop" if stop else "length", self.version)


def make(*, answer: Callable[[str], str]) -> ScriptedLLM:
    """`make(answer=lambda prompt: "click[buy now]")`."""
    return ScriptedLLM(answer)
