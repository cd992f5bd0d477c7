"""OpenAI chat messages with tools: also tau-bench's lists, OpenEnv's records and rows whose columns are JSON strings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message, Result, Role

COLUMNS = ("messages", "traj", "conversation", "prompt")
ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "agent", "tool": "tool", "function": "tool",
}  # fmt: skip


class OpenAIFormat:
    name = "openai"

    def recognises(self, value: Any) -> bool:
        return any(values.text(one.get("role")) in ROLES for unit in self.units(value) for one in _messages(unit))

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        return values.conversations(value)

    def key(self, unit: dict[str, Any]) -> str | None:
        return None

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            found = _messages(unit)
            if not found:
                account.drop("records without messages")
                continue
            name = values.first(unit.get(key) for key in ("id", "episode_id", "task_id"))
            trial = "" if unit.get("trial") is None else f"/{values.text(unit['trial'])}"
            yield LoggedEpisode(
                values.text(name) + trial if name is not None else "",
                tuple(messages_of(found, account)),
                values.schemas(values.first(unit.get(key) for key in ("tools", "functions"))),
                unit,
                values.named(unit.get("scores")),
                agent=values.text(unit.get("model")),
                task=values.text(unit.get("task_id")),
            )


def messages_of(found: Sequence[dict[str, Any]], account: Account) -> Iterator[Message]:
    """The messages in the normal form. Legacy `function_call` has no id: its result is the next message of that function."""
    legacy: dict[str, str] = {}
    for i, one in enumerate(found):
        role = ROLES.get(values.text(one.get("role")))
        if role is None:
            account.drop("messages of an unknown role", detail=values.text(one.get("role")))
        elif role == "tool":
            ids = one.get("tool_call_ids") if isinstance(one.get("tool_call_ids"), list) else [one.get("tool_call_id")]
            if one.get("role") == "function":
                ids = [legacy.pop(values.text(one.get("name")), "")]
            content = values.content(one.get("content"), account)
            yield Message("tool", results=tuple(Result(values.text(call_id), content) for call_id in ids or [""]))
        else:
            calls = list[Call]()
            for given in values.tables(one.get("tool_calls")) if role == "agent" else ():
                inner = next((given[kind] for kind in ("function", "custom") if isinstance(given.get(kind), dict)), given)
                arguments = values.first(inner.get(key) for key in ("arguments", "input"))
                calls += filter(None, [values.call(inner.get("name"), arguments, given.get("id"), account)])
            if role == "agent" and isinstance(old := one.get("function_call"), dict):
                legacy[values.text(old.get("name"))] = f"function_call/{i}"
                calls += filter(None, [values.call(old.get("name"), old.get("arguments"), f"function_call/{i}", account)])
            content = values.content(one.get("content"), account) or values.text(one.get("refusal"))
            yield Message(role, content, tuple(calls))


def _messages(unit: dict[str, Any]) -> list[dict[str, Any]]:
    return next((found for column in COLUMNS if (found := values.tables(unit.get(column)))), [])


def make() -> OpenAIFormat:
    return OpenAIFormat()
