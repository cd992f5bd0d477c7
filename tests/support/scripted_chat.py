"""An instruct model behind a server (`protocols.Chat`) whose answers come from a Python function."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from dreamgym.usage import Usage


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
