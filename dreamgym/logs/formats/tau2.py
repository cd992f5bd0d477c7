"""tau2 results: a file of simulations. Calls of the simulated user, and what they returned, are not the agent's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message, Result

ENDS = ("agent_stop", "user_stop")
"""Reasons of an end that the agent or the user brought about. Every other one tau2's evaluator calls premature."""


class Tau2Format:
    name = "tau2"

    def recognises(self, value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        return isinstance(value.get("simulations"), list) or (
            "messages" in value and {"termination_reason", "reward_info"} & value.keys() != set()
        )

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        if not isinstance(value, dict):
            return
        if not isinstance(value.get("simulations"), list):
            yield value
            return
        tools = values.table(values.table(value.get("info")).get("environment_info")).get("tool_defs")
        tickets = {values.text(task.get("id")): task.get("ticket") for task in values.tables(value.get("tasks"))}
        for one in values.tables(value["simulations"]):
            yield {"tools": tools, "ticket": tickets.get(values.text(one.get("task_id"))), **one}

    def key(self, unit: dict[str, Any]) -> str | None:
        return None

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            messages, theirs = list[Message](), set[str]()
            for one in values.tables(unit.get("messages")):
                messages += _message(one, theirs, account)
            if not messages:
                account.drop("records without messages")
                continue
            name = values.text(values.first([unit.get("id"), unit.get("task_id")]))
            ticket, task = values.text(unit.get("ticket")), values.text(unit.get("task_id"))
            yield LoggedEpisode(
                name, tuple(messages), values.schemas(unit.get("tools")), unit, instruction=ticket, task=task,
                truncated=values.text(unit.get("termination_reason")) not in ("", *ENDS),
            )  # fmt: skip


def _message(one: dict[str, Any], theirs: set[str], account: Account) -> Iterator[Message]:
    role = one.get("role")
    if role == "tool":
        for part in values.tables(one.get("tool_messages")) or [one]:
            call_id = values.text(part.get("id"))
            if part.get("requestor") == "user" or call_id in theirs:
                account.drop("calls and results of the simulated user")
            else:
                yield Message("tool", results=(Result(call_id, values.content(part.get("content"), account)),))
    elif role in ("assistant", "user"):
        calls = list[Call]()
        for given in values.tables(one.get("tool_calls")):
            if given.get("requestor") == "user" or role == "user":
                theirs.add(values.text(given.get("id")))
                account.drop("calls and results of the simulated user")
            else:
                calls.append(values.call(given.get("name"), given.get("arguments"), given.get("id"), account))
        yield Message("agent" if role == "assistant" else "user", values.content(one.get("content"), account), tuple(calls))
    elif role == "system":
        yield Message("system", values.content(one.get("content"), account))
    else:
        account.drop("messages of an unknown role", detail=values.text(role))


def make() -> Tau2Format:
    return Tau2Format()
