"""Values of logs that may be of any kind: each function takes whatever JSON holds and answers with the kind it promises."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dreamgym.envs.tools.schemas import Tool, tool_of
from dreamgym.logs.records import Account, Call
from dreamgym.tool_calls import NAME

TEXT_PARTS = ("text", "input_text", "output_text", "summary_text")
SILENT_PARTS = ("thinking", "redacted_thinking", "reasoning")
CALL_PARTS = ("tool_use", "tool_result", "tool_call", "tool_call_response")
MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "file", "document", "blob", "uri")


NO_OBJECTS = "messages that are no JSON object"


def table(value: Any) -> dict[str, Any]:
    """An object, also one that is written as a JSON string; {} for anything else."""
    value = parsed(value)
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, also of one that is written as a JSON string."""
    value = parsed(value)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def one_or_more_tables(value: Any) -> list[dict[str, Any]]:
    """The object, or the objects of a list; [] for anything else."""
    return [value] if isinstance(value, dict) else tables(value) if isinstance(value, list) else []


def no_objects(value: Any) -> int:
    """How many entries of a list `tables` leaves out."""
    value = parsed(value)
    return len(value) - len(tables(value)) if isinstance(value, list) else 0


def parsed(value: Any) -> Any:
    """What a JSON string of an object or a list holds; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def text(value: Any) -> str:
    """A value as text: strings as they are, nothing for null, JSON for the rest."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def content(value: Any, account: Account) -> str:
    """The text of a message or a result: a string, or parts of which text is joined. Images and files leave a marker and are counted; parts
    that are calls and results are for the format to read."""
    if not isinstance(value, list):
        return text(value)
    found = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            found.append(part)
        elif kind in TEXT_PARTS or (kind is None and isinstance(part, dict) and "text" in part):
            found.append(text(part.get("text", part.get("content"))))
        elif kind == "refusal":
            found.append(text(part.get("refusal")))
        elif kind in MEDIA:
            account.drop("images, audio and files", detail=str(kind))
            found.append(f"[{kind} left out]")
        elif kind in SILENT_PARTS:
            account.drop("thinking of the agent")
        elif kind not in CALL_PARTS:
            found.append(text(part))
    return "\n".join(one for one in found if one)


def call(name: Any, arguments: Any, call_id: Any, account: Account) -> Call:
    """A tool call; refused, with an account of it, where an action could not have its name, or a number of its arguments, such as 1e999."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        account.drop("calls without a usable tool name", detail=repr(name))
        return Call(text(call_id), "", {}, refused=True)
    given = arguments_of(arguments, account)
    if not _sound(given):
        account.drop("calls whose arguments no JSON can hold", detail=name)
        return Call(text(call_id), name, {}, refused=True)
    return Call(text(call_id), name, given)


def arguments_of(value: Any, account: Account) -> Mapping[str, Any] | str:
    """Arguments as a dict, or as the text that was no JSON object."""
    if isinstance(value, str):
        if not value.strip():
            return {}
        try:
            found = json.loads(value, parse_constant=_refuse)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        account.note("arguments that are no JSON object, kept as text", detail=value)
        return value
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    account.note("arguments that are no JSON object, kept as text", detail=str(value))
    return text(value)


def schemas(value: Any) -> tuple[Tool, ...]:
    """Tool definitions; what has no name that a call could have is none."""
    known = [tool for one in tables(value) if (tool := tool_of(one)) and NAME.fullmatch(tool.name)]
    return tuple(replace(tool, parameters=table(tool.parameters)) for tool in known)


def named(value: Any) -> dict[str, Any]:
    """Scores by name, from an object of values or from a list of objects with a name and a value."""
    value = parsed(value)
    if isinstance(value, dict):
        return {str(key): _score(one) for key, one in value.items()}
    return {text(one["name"]): _score(one) for one in tables(value) if "name" in one}


def first(values: Iterable[Any]) -> Any:
    """The first that is not None."""
    return next((value for value in values if value is not None), None)


def _score(value: Any) -> Any:
    return first(value.get(key) for key in ("value", "score", "label")) if isinstance(value, dict) else value


def _sound(value: Mapping[str, Any] | str) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def conversations(value: Any) -> Iterator[dict[str, Any]]:
    """The records with messages in a document: a list of messages, a list of records, or one record."""
    if isinstance(value, list) and any(isinstance(one, dict) and "role" in one for one in value):
        yield {"messages": value}
    elif isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))
    elif isinstance(value, dict):
        yield value


class Conversations:
    """What formats have in common whose records each hold a whole conversation."""

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        return conversations(value)

    def key(self, unit: dict[str, Any]) -> str | None:
        return None
