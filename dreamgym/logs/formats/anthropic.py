"""Anthropic messages: calls are `tool_use` blocks, results are `tool_result` blocks of the next user message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.records import Account, LoggedEpisode, Message, Result

BLOCKS = ("tool_use", "tool_result", "thinking")


class AnthropicFormat(values.Conversations):
    name = "anthropic"

    def recognises(self, value: Any) -> bool:
        return any(
            ("system" in unit and not any(one.get("tool_calls") or one.get("role") in ("system", "tool") for one in messages))
            or any(block.get("type") in BLOCKS for one in messages for block in values.tables(one.get("content")))
            or any("input_schema" in tool for tool in values.tables(unit.get("tools")))
            for unit in self.units(value)
            if (messages := values.tables(unit.get("messages")))
        )  # fmt: skip

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            found = values.tables(unit.get("messages"))
            if not found:
                account.drop("records without messages")
                continue
            account.drop(values.NO_OBJECTS, values.no_objects(unit.get("messages")))
            system = values.content(unit.get("system"), account)
            messages = [Message("system", system)] if system else []
            messages += [message for one in found if (message := message_of(one, account))]
            name = values.first(unit.get(key) for key in ("id", "episode_id", "task_id"))
            yield LoggedEpisode(
                values.text(name), tuple(messages), values.schemas(unit.get("tools")), unit, values.named(unit.get("scores")),
                agent=values.text(unit.get("model")), task=values.text(unit.get("task_id")),
            )  # fmt: skip


def message_of(one: dict[str, Any], account: Account) -> Message | None:
    """A message in the normal form; None for a role that is none, and for a result as OpenAI writes it."""
    account.drop("calls of another format (tool_calls)", len(values.tables(one.get("tool_calls"))))
    content = values.content(one.get("content"), account)
    blocks = values.tables(one.get("content")) if isinstance(one.get("content"), list) else []
    if one.get("role") == "assistant":
        calls = (values.call(b.get("name"), b.get("input"), b.get("id"), account) for b in blocks if b.get("type") == "tool_use")
        return Message("agent", content, tuple(calls))
    if one.get("role") in ("user", "tool"):
        results = tuple(
            Result(values.text(b.get("tool_use_id")), values.content(b.get("content"), account))
            for b in blocks
            if b.get("type") == "tool_result"
        )
        if "tool_call_id" in one and not results:
            account.drop("results of another format (tool_call_id)")
            return None
        return Message("user", content, results=results)
    if one.get("role") == "system":
        return Message("system", content)
    account.drop("messages of an unknown role", detail=values.text(one.get("role")))
    return None


def make() -> AnthropicFormat:
    return AnthropicFormat()
