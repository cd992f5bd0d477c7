"""A language model whose answers come from a Python function, for tests.

The tokenizer is UTF-8 bytes (ids 0-255) and the end token 256. It decodes the prompt, calls the function, and encodes the answer,
so that truncation at `max_tokens`, the stop token and log-probabilities look as they do with a real engine. `ScriptedChat` is the
double of an instruct model behind a server (`protocols.Chat`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from dreamgym.llm.request_queue import SyncLLM
from dreamgym.types import Completion, Request
from dreamgym.usage import Usage

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


class ScriptedChat:
    """`answer(messages) -> text`, or an exception to hand over as a failed request. Four bytes are a token. `asked` records the chats."""

    def __init__(
        self, answer: Callable[[Sequence[Mapping[str, Any]]], str | Exception], *, price_in: float = 0.0, price_out: float = 0.0
    ) -> None:
        self.answer, self.model = answer, "scripted"
        self.usage = Usage(price_per_million_input=price_in, price_per_million_output=price_out)
        self.asked: list[Sequence[Mapping[str, Any]]] = []

    def replies(
        self,
        conversations: Iterable[Sequence[Mapping[str, Any]]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seeds: Sequence[tuple[int, ...]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        allow_truncated: bool = False,
    ) -> Generator[tuple[int, str | Exception], None, None]:
        """One after the other, in order."""
        for i, messages in enumerate(conversations):
            self.asked.append(messages)
            reply = self.answer(messages)
            if isinstance(reply, str):
                self.usage.requests += 1
                self.usage.prompt_tokens += sum(len(str(message["content"]).encode()) for message in messages) // 4
                self.usage.completion_tokens += len(reply.encode(errors="replace")) // 4
            yield i, reply


def make(*, answer: Callable[[str], str]) -> ScriptedLLM:
    """`make(answer=lambda prompt: "click[buy now]")`."""
    return ScriptedLLM(answer)
