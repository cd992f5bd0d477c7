"""Chats with a server in text: how long they are, and what a completion says and used. None of it is tokens to train on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.engines.server.http_client import TryAgain
from dreamgym.errors import ServerError
from dreamgym.usage import Tokens


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
