"""Items of OpenAI's Responses API and Agents SDK: a request's `input` with the response's `output`, or all items of a run in one list
(`result.to_input_list()`). A call is an item of its own, and its result another one with the same `call_id`.

Source: https://platform.openai.com/docs/api-reference/responses (items of type `message`, `function_call`, `function_call_output`,
`custom_tool_call`, `custom_tool_call_output`, `mcp_call` and `reasoning`). Tools that OpenAI's servers run, such as `web_search_call`, show
no result and are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.formats.openai import ROLES, episode
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message, Result

COLUMNS = (("input", "output"), ("items",), ("messages",), ("input_list",))
"""Where items are: of the first that has any, the columns joined. A text in their place is a message, the user's in `input`."""
CALLS = {"function_call": "arguments", "custom_tool_call": "input", "mcp_call": "arguments"}
"""Items that are calls, and the field of the arguments."""
RESULTS = ("function_call_output", "custom_tool_call_output")


class ResponsesFormat:
    name = "openai_responses"

    def recognises(self, value: Any) -> bool:
        marks = {*CALLS, *RESULTS}
        return any(values.text(item.get("type")) in marks for unit in self.units(value) for item in _items(unit))

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, list) and any(isinstance(one, dict) and ("role" in one or "call_id" in one) for one in value):
            yield {"items": value}
        else:
            yield from values.conversations(value)

    def key(self, unit: dict[str, Any]) -> str | None:
        return None

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            if items := _items(unit):
                yield episode(unit, _messages(unit, items, account))
            else:
                account.drop("records without items")


def _items(unit: dict[str, Any]) -> list[dict[str, Any]]:
    for columns in COLUMNS:
        found = list[dict[str, Any]]()
        for column in columns:
            value = values.parsed(unit.get(column))
            if isinstance(value, str) and value:
                found.append({"role": "assistant" if column == "output" else "user", "content": value})
            else:
                found += values.tables(value)
        if found:
            return found
    return []


def _messages(unit: dict[str, Any], items: Sequence[dict[str, Any]], account: Account) -> Iterator[Message]:
    """The messages in the normal form: texts and calls of the agent that follow each other are one message."""
    if instructions := unit.get("instructions"):
        yield Message("system", values.content(instructions, account))
    texts, calls, results = list[str](), list[Call](), list[Result]()

    def flushed() -> Iterator[Message]:
        if texts or calls:
            yield Message("agent", "\n".join(filter(None, texts)), tuple(calls))
        if results:  # of calls that carry their own
            yield Message("tool", results=tuple(results))
        texts.clear()
        calls.clear()
        results.clear()

    for item in items:
        kind = values.text(item.get("type"))
        role = ROLES.get(values.text(item.get("role")))
        if kind in CALLS:
            call_id = values.text(values.first([item.get("call_id"), item.get("id")]))
            calls.append(values.call(item.get("name"), item.get(CALLS[kind]), call_id, account))
            if kind == "mcp_call":
                results.append(Result(call_id, values.content(values.first([item.get("output"), item.get("error")]), account)))
        elif kind in RESULTS:
            yield from flushed()
            yield Message("tool", results=(Result(values.text(item.get("call_id")), values.content(item.get("output"), account)),))
        elif kind == "reasoning":
            account.drop("thinking of the agent")
        elif role == "agent" and kind in ("message", ""):
            texts.append(values.content(item.get("content"), account))
        elif role and role != "tool" and kind in ("message", ""):
            yield from flushed()
            yield Message(role, values.content(item.get("content"), account))
        else:
            account.drop("items of another kind", detail=kind or values.text(item.get("role")))
    yield from flushed()


def make() -> ResponsesFormat:
    return ResponsesFormat()
