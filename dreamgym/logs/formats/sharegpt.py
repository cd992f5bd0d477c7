"""ShareGPT conversations: `conversations` of `{"from", "value"}`, with calls as LLaMA-Factory writes them (`function_call` and
`observation`, `tools` and `system` beside them) or as Hermes function calling does (`<tool_call>` and `<tool_response>` in the texts).

Nothing has an id: results answer the calls of the agent's turn before them in their order, also those that are refused. Turns of the agent
that follow each other are one turn, whose calls were made together.

Sources: https://llamafactory.readthedocs.io/en/latest/getting_started/data_preparation.html and
https://huggingface.co/datasets/NousResearch/hermes-function-calling-v1
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.formats.openai import episode
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message, Result, Role

COLUMNS = ("conversations", "conversation", "messages")
ROLES: dict[str, Role] = {
    "system": "system", "human": "user", "user": "user", "gpt": "agent", "assistant": "agent", "model": "agent", "chatgpt": "agent",
}  # fmt: skip
CALLS = ("function_call", "tool_call")
RESULTS = ("observation", "tool", "function_response", "tool_response", "function")
CALLED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
ANSWERED = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)


class ShareGPTFormat(values.Conversations):
    name = "sharegpt"

    def recognises(self, value: Any) -> bool:
        return any(_turns(unit) for unit in self.units(value))

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            column, turns = _column(unit), _turns(unit)
            if column is None:
                account.drop("records without messages")
                continue
            account.drop(values.NO_OBJECTS, values.no_objects(unit[column]))
            system = values.content(unit.get("system"), account)
            yield episode(unit, [*([Message("system", system)] if system else []), *_messages(turns, account)])


def _turns(unit: dict[str, Any]) -> list[dict[str, Any]]:
    column = _column(unit)
    return values.tables(unit[column]) if column else []


def _column(unit: dict[str, Any]) -> str | None:
    """The column that the turns of a record are read from."""
    return next((one for one in COLUMNS if any({"from", "value"} <= turn.keys() for turn in values.tables(unit.get(one)))), None)


def _messages(turns: Sequence[dict[str, Any]], account: Account) -> list[Message]:
    messages, waiting = list[Message](), list[str]()  # ids of calls of the latest turn that have no result yet

    def finish() -> None:
        account.note("turns with fewer results than calls, paired in their order", int(bool(waiting) and messages[-1].role == "tool"))
        waiting.clear()

    for i, one in enumerate(turns):
        kind = values.text(one.get("from"))
        if kind in CALLS or ROLES.get(kind) == "agent":
            if messages and messages[-1].role != "agent":
                finish()
            message = _agent(one.get("value"), f"call_{i}", account, alone=kind in CALLS)
            waiting += [call.id for call in message.calls]
            if messages and messages[-1].role == "agent":
                before = messages.pop()
                message = Message("agent", "\n".join(filter(None, [before.text, message.text])), before.calls + message.calls)
            messages.append(message)
        elif kind in RESULTS:
            value = values.content(one.get("value"), account)
            for text in [text.strip() for text in ANSWERED.findall(value)] or [value]:
                messages.append(Message("tool", results=(Result(waiting.pop(0) if waiting else "", text),)))
        elif kind in ROLES:
            finish()
            messages.append(Message(ROLES[kind], values.content(one.get("value"), account)))
        else:
            account.drop("messages of an unknown role", detail=kind)
    finish()
    return messages


def _agent(value: Any, name: str, account: Account, *, alone: bool) -> Message:
    """A turn of the agent: calls `alone`, or a text with calls in it."""
    if alone:
        text, blocks = "", [_parsed(value)]
    else:
        text = values.content(value, account)
        text, blocks = CALLED.sub("", text).strip(), [_parsed(block) for block in CALLED.findall(text)]
    calls = list[Call]()
    for one in (one for block in blocks for one in (block if isinstance(block, list) else [block])):
        given = values.table(one)
        arguments = values.first(given.get(key) for key in ("arguments", "parameters"))
        calls.append(values.call(given.get("name"), arguments, f"{name}_{len(calls)}", account))
    return Message("agent", text, tuple(calls))


def _parsed(block: Any) -> Any:
    """The calls of a block: JSON, or as Hermes writes many, a Python literal with values that JSON has."""
    found = values.parsed(block)
    if isinstance(found, str):
        with warnings.catch_warnings(), suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            return json.loads(json.dumps(ast.literal_eval(found.strip())))
    return found


def make() -> ShareGPTFormat:
    return ShareGPTFormat()
