"""OpenAI chat messages with tools: also tau-bench's lists, OpenEnv's records, verifiers' `results.jsonl` and rows whose columns are JSON
strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message, Result, Role

COLUMNS = (("messages",), ("traj",), ("conversation",), ("conversations",), ("prompt", "completion"))
"""Where messages are: of the first that has any, the columns joined."""
CUT = ("prompt_too_long", "timeout_reached", "max_total_completion_tokens_reached")
"""Stop conditions of verifiers' rollouts that were cut off. `max_turns_reached` need not be one: a task of one turn ends so."""
TOOLS = ("tools", "functions", "tool_defs", "oai_tools")
ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "agent", "tool": "tool", "function": "tool",
}  # fmt: skip


class OpenAIFormat(values.Conversations):
    name = "openai"

    def recognises(self, value: Any) -> bool:
        return any(values.text(one.get("role")) in ROLES for unit in self.units(value) for one in _messages(unit))

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            found = _messages(unit)
            if not found:
                account.drop("records without messages")
                continue
            account.drop(values.NO_OBJECTS, sum(values.no_objects(unit.get(column)) for column in _columns(unit)))
            yield episode(unit, messages_of(found, account))


def episode(unit: dict[str, Any], messages: Iterable[Message]) -> LoggedEpisode:
    """The episode of a record: everything but its messages stands in the same fields, whichever interface of OpenAI they are of."""
    name, task = values.text(values.first([unit.get("id"), unit.get("episode_id")])), unit.get("task_id")
    if not name and task is not None:
        name = values.text(task) + ("" if unit.get("trial") is None else f"/{values.text(unit['trial'])}")
    info = values.table(unit.get("info"))
    tools = (*(unit.get(key) for key in TOOLS), *(info.get(key) for key in TOOLS))
    return LoggedEpisode(
        name,
        tuple(messages),
        values.schemas(values.first(tools)),
        unit,
        values.named(values.first(unit.get(key) for key in ("scores", "metrics"))),
        agent=values.text(unit.get("model")),
        task=values.text(values.first([task, unit.get("example_id")])),
        truncated=unit.get("stop_condition") in CUT or unit.get("truncated") is True,
    )


def messages_of(found: Sequence[dict[str, Any]], account: Account) -> Iterator[Message]:
    """The messages in the normal form. Legacy `function_call` has no id: its result is the next message of that function. Calls and results
    that stand in blocks of the content are other formats' and are counted."""
    legacy: dict[str, str] = {}
    for i, one in enumerate(found):
        for kind in _kinds(one):
            account.drop(f"blocks of another format ({kind})", int(kind in values.CALL_PARTS))
        role = ROLES.get(values.text(one.get("role")))
        if role is None:
            account.drop("messages of an unknown role", detail=values.text(one.get("role")))
        elif role == "tool":
            ids = one.get("tool_call_ids") if isinstance(one.get("tool_call_ids"), list) else [one.get("tool_call_id")]
            if one.get("role") == "function":
                ids = [legacy.pop(values.text(one.get("name")), "")]
            content = values.content(one.get("content"), account)
            name = values.text(values.first([one.get("name"), one.get("tool_name")]))
            yield Message("tool", results=tuple(Result(values.text(call_id), content, name) for call_id in ids or [""]))
        else:
            calls = list[Call]()
            account.drop("thinking of the agent", int(bool(one.get("reasoning_content"))))
            for given in _calls(one) if role == "agent" else ():
                inner = next((given[kind] for kind in ("function", "custom") if isinstance(given.get(kind), dict)), given)
                arguments = values.first(inner.get(key) for key in ("arguments", "input"))
                calls.append(values.call(inner.get("name"), arguments, given.get("id"), account))
            if role == "agent" and isinstance(old := one.get("function_call"), dict):
                legacy[values.text(old.get("name"))] = f"function_call/{i}"
                calls.append(values.call(old.get("name"), old.get("arguments"), f"function_call/{i}", account))
            content = values.content(one.get("content"), account) or values.text(one.get("refusal"))
            yield Message(role, content, tuple(calls))


def is_plain(value: Any) -> bool:
    """Whether a value is conversations of text alone. OpenAI's and Anthropic's formats write these alike."""
    messages = [one for unit in values.conversations(value) for one in _messages(unit)]
    return bool(messages) and not any(
        ROLES.get(values.text(one.get("role"))) == "tool"
        or any(one.get(key) for key in ("tool_calls", "function_call"))
        or any(kind and kind not in (*values.TEXT_PARTS, *values.MEDIA) for kind in _kinds(one))
        for one in messages
    )


def _kinds(message: dict[str, Any]) -> list[str]:
    """The types of the blocks of a message."""
    content = message.get("content")
    return [values.text(block.get("type")) for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _messages(unit: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for column in _columns(unit) for one in values.tables(unit.get(column))]


def _columns(unit: dict[str, Any]) -> tuple[str, ...]:
    """The columns that the messages of a record are read from; () where none has any."""
    return next((columns for columns in COLUMNS if any(values.tables(unit.get(column)) for column in columns)), ())


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a message; verifiers writes each as a JSON string."""
    found = values.parsed(message.get("tool_calls"))
    return [values.table(one) for one in found] if isinstance(found, list) else []


def make() -> OpenAIFormat:
    return OpenAIFormat()
