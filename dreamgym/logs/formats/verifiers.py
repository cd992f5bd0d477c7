"""Episodes of verifiers (`traces.jsonl`, 0.2 and later): a graph of messages an agent, from whose last leaf the conversation is read.

Older results files of verifiers hold `prompt` and `completion`, which are chat messages: `openai` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.formats.openai import messages_of
from dreamgym.logs.records import Account, LoggedEpisode
from dreamgym.runs.files import is_number

OTHERS = "traces of agents that are not trained"
CUT = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "context_length", "error")
"""Stop conditions of a trace that was refused a further turn, or broke before it ended. Those that tasks define are ends of theirs."""


class VerifiersFormat:
    name = "verifiers"

    def recognises(self, value: Any) -> bool:
        found = value if isinstance(value, list) else [value]
        return any(isinstance(one, dict) and (_is_episode(one) or _is_trace(one)) for one in found)

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        """The traces of an episode: those of its judges and simulated users only where nobody else has one."""
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict) or not _is_episode(one):
                yield from [one] if isinstance(one, dict) else []
                continue
            traces = values.tables(one["traces"])
            trained = [trace for trace in traces if values.table(trace.get("agent")).get("trainable", True)] or traces
            around, left_out = {"env": one.get("env")}, len(traces) - len(trained)
            yield {**(trained[0] if trained else {"errors": one.get("errors")}), **around, "left_out": left_out}
            yield from ({**trace, **around} for trace in trained[1:])

    def key(self, unit: dict[str, Any]) -> str | None:
        return None

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            left_out = unit.get("left_out")
            account.drop(OTHERS, left_out if isinstance(left_out, int) else 0)
            messages = tuple(messages_of(_conversation(unit, account), account))
            if not messages:
                account.drop("records without messages")
                continue
            task = values.table(unit.get("task"))
            row = values.table(task.get("data"))
            rewards, calls = values.table(unit.get("rewards")), values.tables(unit.get("calls"))
            total = _total(rewards)
            yield LoggedEpisode(
                values.text(unit.get("id")),
                messages,
                values.schemas(unit.get("tools")),
                unit if total is None else {**unit, "reward": total},
                {**values.named(unit.get("metrics")), **values.named(rewards)},
                agent=values.text(values.first(call.get("model") for call in reversed(calls))),
                task=values.text(values.first([task.get("key"), row.get("name"), row.get("idx")])),
                truncated=unit.get("stop_condition") in CUT,
            )


def _is_episode(value: dict[str, Any]) -> bool:
    return isinstance(value.get("traces"), list) and bool({"env", "task", "ok"} & value.keys())


def _is_trace(value: dict[str, Any]) -> bool:
    return isinstance(value.get("nodes"), list) and any("message" in node for node in values.tables(value["nodes"]))


def _conversation(unit: dict[str, Any], account: Account) -> list[dict[str, Any]]:
    """The messages from a root to the last leaf, as verifiers itself shows a trace. What no model said, such as an example, is left out,
    with the results of its calls; a branch may repeat what the model said in another one, and that is kept."""
    nodes = [values.table(node) for node in unit["nodes"]] if isinstance(unit.get("nodes"), list) else []
    parents = [_parent(node, i) for i, node in enumerate(nodes)]
    sampled = [_identity(values.table(node.get("message"))) for node in nodes if node.get("sampled", True)]
    account.drop("branches of a trace that do not lead to its end", max(0, len(set(range(len(nodes))) - set(parents)) - 1))
    at, path = len(nodes) - 1, list[dict[str, Any]]()
    while at >= 0:
        path.append(nodes[at])
        at = parents[at]
    found, invented = list[dict[str, Any]](), set[str]()
    for node in reversed(path):
        message = values.table(node.get("message"))
        if message.get("role") == "assistant" and not node.get("sampled", True) and _identity(message) not in sampled:
            account.drop("agent messages that no model said")
            invented |= {values.text(call.get("id")) for call in values.tables(message.get("tool_calls"))}
        elif not (message.get("role") == "tool" and values.text(message.get("tool_call_id")) in invented):
            found.append(message)
    return found


def _parent(node: dict[str, Any], place: int) -> int:
    """The place of the node before this one; -1 for a root. Nodes are written in the order in which they came."""
    parent = node.get("parent")
    return parent if isinstance(parent, int) and not isinstance(parent, bool) and 0 <= parent < place else -1


def _identity(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [(call.get("name"), call.get("arguments")) for call in values.tables(message.get("tool_calls"))]
    return message.get("role"), values.text(message.get("content")), calls


def _total(rewards: dict[str, Any]) -> float | None:
    """The weighted sum, which verifiers computes and does not write; None where no reward was given."""
    found = list[float]()
    for one in rewards.values():
        score, weight = (one.get("score"), one.get("weight", 1.0)) if isinstance(one, dict) else (one, 1.0)
        if is_number(score) and is_number(weight):
            found.append(float(score) * float(weight))
    return sum(found) if found else None


def make() -> VerifiersFormat:
    return VerifiersFormat()
