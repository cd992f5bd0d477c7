"""ATIF (Harbor), v1.0 to v1.8: observations stand inside the agent's step. Copied context is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.records import Account, LoggedEpisode, Message, Result, Role

SOURCES: dict[str, Role] = {"system": "system", "user": "user", "agent": "agent"}


class ATIFFormat:
    name = "atif"

    def recognises(self, value: Any) -> bool:
        return any(values.text(unit.get("schema_version")).startswith("ATIF") for unit in self.units(value))

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        yield from values.one_or_more_tables(value)

    def key(self, unit: dict[str, Any]) -> str | None:
        return None

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            agent, messages = values.table(unit.get("agent")), list[Message]()
            account.drop("trajectories of sub-agents", len(values.tables(unit.get("subagent_trajectories"))))
            for step in values.tables(unit.get("steps")):
                role = SOURCES.get(values.text(step.get("source")))
                if step.get("is_copied_context"):
                    account.drop("steps that are copied context")
                elif role is None:
                    account.drop("steps of an unknown source", detail=values.text(step.get("source")))
                else:
                    messages += _step(step, role, account)
            name = values.first(unit.get(key) for key in ("trajectory_id", "session_id"))
            if not messages:
                account.drop("records without messages")
                continue
            extra = values.table(unit.get("extra"))
            cut = unit.get("continued_trajectory_ref") is not None or extra.get("truncated") is True
            yield LoggedEpisode(
                values.text(name), tuple(messages), values.schemas(agent.get("tool_definitions")), unit, values.named(extra.get("scores")),
                agent=values.text(agent.get("model_name")), truncated=cut,
            )  # fmt: skip


def _step(step: dict[str, Any], role: Role, account: Account) -> Iterator[Message]:
    if step.get("reasoning_content"):
        account.drop("thinking of the agent")
    given = values.tables(step.get("tool_calls")) if role == "agent" else []
    calls = [values.call(one.get("function_name"), one.get("arguments"), one.get("tool_call_id"), account) for one in given]
    yield Message(role, values.content(step.get("message"), account), tuple(calls))
    for one in values.tables(values.table(step.get("observation")).get("results")):
        content = values.content(one.get("content"), account)
        if one.get("source_call_id") is not None:
            yield Message("tool", results=(Result(values.text(one["source_call_id"]), content),))
        elif content:
            yield Message("user", content)  # what no call asked for


def make() -> ATIFFormat:
    return ATIFFormat()
