"""Tool calls as actions, in one spelling.

The action of a tool-calling agent is its calls in order, one a line. Arguments are JSON values by name, sorted:

    get_details_by_id(id="L1002")
    respond(content="Your line is active again.")

`respond` is a message to the user. Arguments that were no JSON object stand as one JSON string: `search("half an obj`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.errors import UsageError, reason_of
from dreamgym.types import Action

RESPOND = "respond"
"""The name under which a message to the user is an action; its one argument is `content`."""
NAME = re.compile(r"[^\s()\"'=,]+")
_DECODER = json.JSONDecoder(parse_constant=lambda name: _no_constant(name))


@dataclass(frozen=True)
class ToolCall:
    """One call. `arguments` are JSON values by name, or the text that the agent wrote where it was no JSON object."""

    name: str
    arguments: Mapping[str, Any] | str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"A tool's name has no spaces, quotes, brackets, commas or equals signs, and {self.name!r:.100} does.")

    def __str__(self) -> str:
        if isinstance(self.arguments, str):
            return f"{self.name}({_json(self.arguments)})"
        values = (f"{key if NAME.fullmatch(key) else _json(key)}={_json(value)}" for key, value in sorted(self.arguments.items()))
        return f"{self.name}({', '.join(values)})"


def respond(content: str) -> ToolCall:
    """A message to the user."""
    return ToolCall(RESPOND, {"content": content})


def action_of(calls: Sequence[ToolCall]) -> Action:
    """The action of a turn with these calls; UsageError for none."""
    if not calls:
        raise UsageError("An action needs at least one tool call. A message to the user is a call of `respond`.")
    return "\n".join(map(str, calls))


def calls_of(action: Action) -> list[ToolCall]:
    """The calls of an action, the inverse of `action_of`. UsageError for a text that is none."""
    lines = [line for line in action.split("\n") if line.strip()]
    if not lines:
        raise UsageError('An action is tool calls, one a line, such as get_user(id="u1"), and this one is empty.')
    return [_call(line.strip()) for line in lines]


def _call(line: str) -> ToolCall:
    name = NAME.match(line)
    if not name or line[name.end() : name.end() + 1] != "(" or not line.endswith(")"):
        raise UsageError(f'{line!r:.200} is no tool call. Expected a name and arguments, such as get_user(id="u1").')
    rest, at, arguments = line[:-1], name.end() + 1, dict[str, Any]()
    if rest[at : at + 1] == '"' and (whole := _value(rest, at))[1] == len(rest):
        return ToolCall(name.group(), str(whole[0]))
    while at < len(rest):
        key, at = _value(rest, at) if rest[at] == '"' else _bare_name(rest, at)
        if rest[at : at + 1] != "=" or key in arguments:
            raise UsageError(f"Cannot read the arguments of {line!r:.200} at position {at}: expected name=value, each name once.")
        arguments[key], at = _value(rest, at + 1)
        if at < len(rest):
            if rest[at] != ",":
                raise UsageError(f"Cannot read the arguments of {line!r:.200} at position {at}: expected a comma between arguments.")
            at += 1
            while rest[at : at + 1] == " ":
                at += 1
    return ToolCall(name.group(), arguments)


def _bare_name(text: str, at: int) -> tuple[str, int]:
    found = NAME.match(text, at)
    if not found:
        raise UsageError(f"Cannot read the arguments of {text!r:.200} at position {at}: expected the name of an argument.")
    return found.group(), found.end()


def _value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at a position, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"Cannot read the arguments of {text!r:.200} at position {at}: expected a JSON value ({reason_of(error)})."
        ) from error
    return value, end


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"An argument of a tool call is a JSON value, and {value!r:.100} is none ({reason_of(error)}).") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
