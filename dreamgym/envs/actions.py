"""Actions taken apart, whatever their spelling: tool calls, `verb[argument]`, or words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from dreamgym.bracket_actions import BRACKETS
from dreamgym.errors import UsageError
from dreamgym.tool_calls import calls_of
from dreamgym.types import Action


def parts(action: Action) -> Iterator[tuple[str, dict[str, str]]]:
    """(kind, arguments by key) of every call of an action: of tool calls, `verb[argument]`, or words as they stand."""
    if match := BRACKETS.fullmatch(action.strip()):
        yield match[1], {"": match[2]}
        return
    try:
        calls = calls_of(action)
    except UsageError:
        calls = []
    if not calls or not all("(" in line for line in action.split("\n") if line.strip()):
        yield (action.split() or [""])[0], {"": action.strip()}
        return
    for call in calls:
        arguments = {"": call.arguments} if isinstance(call.arguments, str) else call.arguments
        yield call.name, {key: value if isinstance(value, str) else _plain(value) for key, value in arguments.items()}


@lru_cache(maxsize=16_384)
def kinds_of(action: Action) -> tuple[str, ...]:
    """The kind of every call of an action."""
    return tuple(kind for kind, _ in parts(action))


@lru_cache(maxsize=16_384)
def kind_of(action: Action) -> str:
    """The kinds of an action's calls, as one word."""
    return "+".join(kinds_of(action))


def _plain(value: Any) -> str:
    return " ".join(map(_plain, value)) if isinstance(value, list) else str(value)
