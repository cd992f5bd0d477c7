"""Chats with a server in text: how long they are and may get, and what a completion says and used. None of it is tokens to train on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from dreamgym.engines.server.http_client import TryAgain
from dreamgym.errors import ServerError
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.usage import Tokens

T = TypeVar("T")
log = logging.getLogger(__name__)
LIMITS = frozenset({"maxLength", "maxItems"})
REFUSALS = (400, 422)
"""Statuses of a request that the server understands and does not take."""


class LengthLimits:
    """Owns whether JSON schemas go to a server with their limits of length (`maxLength`, `maxItems`), without which a model that rambles is
    cut at max_tokens. A server that refuses them from the first gets schemas without.

    They hold in vLLM and SGLang (xgrammar's pull request 254; they are not in what vLLM's `backend_xgrammar.py` refuses), and in llama.cpp
    (pull requests 5039 and 6555). OpenAI took them up in 2025, but not for fine-tuned models (as pydantic-ai's pull request 4490 reports).
    `transformers serve` ignores `response_format` (`UNUSED_CHAT_COMPLETION_FIELDS`).
    """

    def __init__(self, sent: bool) -> None:
        self.sent, self.taken = sent, False

    async def ask(self, form: Mapping[str, Any] | None, send: Callable[[dict[str, Any]], Awaitable[T]]) -> T:
        """The answer to a request that `send` makes with these fields in its payload. ServerError where it is refused without limits."""
        if form is None:
            return await send({})
        without = {"response_format": _without_limits(form)}
        if not self.sent or without["response_format"] == form:
            return await send(without)
        try:
            answer = await send({"response_format": dict(form)})
            self.taken = True
            return answer
        except ServerError as error:
            if error.status not in REFUSALS or self.taken:
                raise
            answer = await send(without)
            if self.sent:
                log.warning("JSON schemas are sent without maxLength and maxItems from now on, because the server refuses them: %s", error)
            self.sent = False
            return answer


def _without_limits(form: Any) -> Any:
    if isinstance(form, Mapping):
        return {key: _without_limits(value) for key, value in form.items() if key not in LIMITS or not isinstance(value, int)}
    return [_without_limits(one) for one in form] if isinstance(form, list) else form


def sendable(value: Any) -> Any:
    """The messages of a chat as JSON. Half characters become question marks, as they do before a tokenizer."""
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, Mapping):
        return {key: sendable(one) for key, one in value.items()}
    return [sendable(one) for one in value] if isinstance(value, list | tuple) else value


def about_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """A guess at the tokens of a chat, for the rate limit only: four characters are a token."""
    return sum(len(str(message.get("content", ""))) for message in messages) // 4


def most_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """An upper estimate of the tokens of a chat, charged where the server does not report them: two bytes are a token, and a message
    adds six, as in what the budget of `experience.chat_requests` reserves."""
    return sum((len(str(message.get("content", "")).encode(errors="replace")) + 1) // 2 + 6 for message in messages)


def reply_in(body: Any, max_tokens: int, allow_truncated: bool) -> tuple[str, Tokens | None]:
    """The text of a chat completion, and what it used."""
    try:
        choice = body["choices"][0]
        text, finish = choice["message"]["content"], choice.get("finish_reason")
    except (KeyError, IndexError, TypeError) as error:
        raise TryAgain(f"its answer is no chat completion: {body!r:.200}", status=200) from error
    if not isinstance(text, str):
        problem = f"The reply has no text: {choice['message']!r:.200} Expected content; a refusal or a tool call is no reply."
        raise ServerError(problem, status=200)
    if finish == "length" and not allow_truncated:
        raise ServerError(f"A reply was cut at max_tokens={max_tokens}. Raise it, or pass allow_truncated=True.")
    return text, _tokens_in(body.get("usage"))


def _tokens_in(usage: Any) -> Tokens | None:
    """What a chat completion says that it used. None where it does not say, or says that a chat had no tokens."""
    try:
        prompt, completion = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return None
    return Tokens(prompt, completion) if prompt > 0 and completion >= 0 else None
