"""Chats over an engine that samples tokens: the model's own chat template around what it samples. An instruct model in this process."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from dreamgym.errors import ServerError, UsageError
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.protocols import LLM
from dreamgym.types import Completion, Request, Sampling
from dreamgym.usage import Usage


class TokenChat:
    """Implements `protocols.Chat`. A reply holds text alone: special tokens that are sampled leave none."""

    def __init__(self, llm: LLM, chat_format: ChatFormat, *, name: str = "", at_once: int | None = None, structured: bool = False) -> None:
        """`name` is the model's; `at_once` conversations are taken together, all by default. `structured`: a grammar holds replies to the
        form that `response_format` names; the engine must take one (`Sampling.grammar`)."""
        self.llm, self.format, self.model, self.usage = llm, chat_format, name or chat_format.name, Usage()
        self.at_once, self.structured = at_once, structured

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
        """Replies in order. A prompt that does not fit the context fails alone, as on a server that refuses it (status 413)."""
        grammar = _grammar(response_format) if self.structured and response_format else ""
        sampling = Sampling(max_tokens, self.format.stop, temperature, grammar=grammar)
        waiting, begun = iter(conversations), 0
        while first := list(islice(waiting, 1)):
            taken = [self.prompt(one) for one in chain(first, islice(waiting, self.at_once - 1) if self.at_once else waiting)]
            keys = seeds[begun : begun + len(taken)] if seeds else None
            for i, reply in self._sampled(taken, sampling, keys, allow_truncated):
                yield begun + i, reply
            begun += len(taken)

    def close(self) -> None:
        """Nothing is held but memory."""

    def _sampled(
        self, prompts: Sequence[list[int]], sampling: Sampling, seeds: Sequence[tuple[int, ...]] | None, allow_truncated: bool
    ) -> Generator[tuple[int, str | Exception], None, None]:
        """The replies to some prompts, in order. A request that a server fails for good is an error of its own."""
        max_tokens, limit = sampling.max_tokens, getattr(self.llm, "max_context", None) or math.inf
        fit = [i for i, ids in enumerate(prompts) if len(ids) + max_tokens <= limit]
        requests = [Request(prompts[i], sampling, seeds[i] if seeds else None) for i in fit]
        completions = dict(zip(fit, self._completions(requests), strict=True))
        for i, ids in enumerate(prompts):
            completion = completions.get(i)
            if isinstance(completion, ServerError):
                yield i, completion
                continue
            if completion is None:
                problem = (
                    f"A prompt of {len(ids)} tokens does not fit: the context of {limit} leaves {limit - max_tokens} beside the reply."
                )
                yield i, ServerError(f"{problem} Shorten it, lower max_tokens, or raise max_context.", status=413)
                continue
            self.usage.requests += 1
            self.usage.prompt_tokens += len(completion.prompt_ids)
            self.usage.completion_tokens += len(completion.ids)
            cut = completion.finish_reason != "stop" and not allow_truncated
            yield i, ServerError(f"A reply was cut at max_tokens={max_tokens}. Raise it.") if cut else completion.text

    def _completions(self, requests: Sequence[Request]) -> list[Completion | ServerError]:
        """What became of each request, in order."""
        tickets = self.llm.submit(requests) if requests else []
        done = dict[int, Completion | ServerError]()
        try:
            while len(done) < len(tickets):
                try:
                    done |= dict(self.llm.poll(tickets))
                except ServerError as error:
                    if error.ticket not in tickets:
                        raise
                    done[error.ticket] = error
        except BaseException:
            self.llm.cancel(tickets)
            raise
        return [done[ticket] for ticket in tickets]


def _grammar(response_format: Mapping[str, Any]) -> str:
    """What `response_format` of an OpenAI-compatible host asks for. No free whitespace is allowed: small models get lost in it."""
    schema = response_format["json_schema"]["schema"] if response_format["type"] == "json_schema" else {"type": "object"}
    return f"start: %json {json.dumps({'x-guidance': {'whitespace_flexible': False}, **schema})}"
