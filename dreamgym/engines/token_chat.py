"""Chats over an engine that samples tokens: the model's own chat template around what it samples. An instruct model in this process."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from dreamgym.errors import ServerError, UsageError
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.protocols import LLM
from dreamgym.types import Request, Sampling
from dreamgym.usage import Usage


class TokenChat:
    """Implements `protocols.Chat`. A reply holds text alone: special tokens that are sampled leave none."""

    def __init__(self, llm: LLM, chat_format: ChatFormat) -> None:
        self.llm, self.format, self.model, self.usage = llm, chat_format, chat_format.name, Usage()

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of a conversation up to the next reply. Its messages take turns: system or not, user, assistant, user, ..."""
        talk = list(messages)
        system = str(talk.pop(0)["content"]) if talk and talk[0]["role"] == "system" else None
        if [message["role"] for message in talk] != [("user", "assistant")[i % 2] for i in range(len(talk))] or len(talk) % 2 == 0:
            raise UsageError(f"A chat ends with the user, who takes turns with the assistant; not {[one['role'] for one in messages]}.")
        ids = self.format.opening(system, str(talk[0]["content"]))
        for reply, following in zip(talk[1::2], talk[2::2], strict=True):
            ids += self.format.encode(str(reply["content"]))
            ids += self.format.follow([], str(following["content"]))
        return ids

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
        """Replies in order, sampled together. No form is enforced: `response_format` says what the prompt asks for anyway.

        A prompt that does not fit the context fails alone, as on a server that refuses it (status 413).
        """
        sampling = Sampling(max_tokens, self.format.stop, temperature)
        prompts = [self.prompt(conversation) for conversation in conversations]
        limit = getattr(self.llm, "max_context", None) or math.inf
        fit = [i for i, ids in enumerate(prompts) if len(ids) + max_tokens <= limit]
        sampled = self.llm.generate([Request(prompts[i], sampling, seeds[i] if seeds else None) for i in fit]) if fit else []
        completions = dict(zip(fit, sampled, strict=True))
        for i, ids in enumerate(prompts):
            completion = completions.get(i)
            if completion is None:
                problem = (
                    f"A prompt of {len(ids)} tokens does not fit: the context of {limit} leaves {limit - max_tokens} beside the reply."
                )
                yield i, ServerError(f"{problem} Shorten it, lower max_tokens, or raise max_context.", status=413)
                continue
            self.usage.requests += 1
            self.usage.prompt_tokens += len(completion.prompt_ids)
            self.usage.completion_tokens += len(completion.ids)
            cut = completion.finish != "stop" and not allow_truncated
            yield i, ServerError(f"A reply was cut at max_tokens={max_tokens}. Raise it.") if cut else completion.text
