"""Claude Code sessions: JSON Lines of entries that name their parent. The chain to the last entry is the conversation, with the parallel
calls beside it; sidechains, summaries and compacted copies are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.logs.formats import _values as values
from dreamgym.logs.formats.anthropic import message_of
from dreamgym.logs.records import Account, LoggedEpisode, Message

OTHER = ("system", "summary", "queue-operation", "file-history-snapshot", "progress")


class ClaudeCodeFormat:
    name = "claude_code"

    def recognises(self, value: Any) -> bool:
        return any(
            ("sessionId" in one and one.get("type") in ("user", "assistant", *OTHER))
            or {"parentUuid", "uuid"} <= one.keys()
            or (one.get("type") == "summary" and "leafUuid" in one)
            for one in self.units(value)
        )

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        yield from values.one_or_more_tables(value)

    def key(self, unit: dict[str, Any]) -> str | None:
        return values.text(unit.get("sessionId")) or "session"

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        entries, last = dict[str, dict[str, Any]](), ""
        for i, unit in enumerate(units):
            kind = values.text(unit.get("type"))
            name = values.text(unit.get("uuid")) or f"entry {i}"
            if unit.get("isSidechain") or unit.get("isMeta") or unit.get("isCompactSummary"):
                account.drop("entries of sub-agents, copies and summaries")
            elif kind in ("user", "assistant") and isinstance(unit.get("message"), dict):
                entries[name] = {"parentUuid": last or None, **unit}
                last = name
                continue
            elif kind in OTHER:
                account.drop("entries that are no message", detail=kind)
            else:
                account.drop("entries of an unknown kind", detail=kind)
            entries[name] = {"parentUuid": last or None, **unit, "message": None}
        chain, name = list[dict[str, Any]](), last
        while name in entries:
            entry = entries.pop(name)
            chain.append(entry)
            name = values.text(entry.get("parentUuid")) or values.text(entry.get("logicalParentUuid"))
        on_chain = [entry["message"] for entry in reversed(chain) if isinstance(entry.get("message"), dict)]
        beside = [entry["message"] for entry in entries.values() if isinstance(entry.get("message"), dict)]
        kept = _with_parallel_calls(on_chain, beside)
        account.drop("entries of abandoned branches", len(on_chain) + len(beside) - len(kept))
        model = values.first(message.get("model") for message in reversed(on_chain))
        merged = list[Message]()
        for message in filter(None, (message_of(one, account) for one in kept)):  # a turn is written as one entry a block
            before = merged[-1] if merged else None
            if before and before.role == message.role == "agent":
                joined = "\n".join(filter(None, [before.text, message.text]))
                merged[-1] = Message("agent", joined, before.calls + message.calls)
            else:
                merged.append(message)
        if merged:
            session = values.text(units[0].get("sessionId"))
            yield LoggedEpisode(session, tuple(merged), record={"sessionId": session}, agent=values.text(model))


def _with_parallel_calls(chain: list[dict[str, Any]], beside: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chain, with the calls and results of its turns that lie beside it: of parallel calls each is an entry, each result has its own
    call for a parent, and the chain leads through one of them. A copy of what is there, or a second answer to a call, stays out."""
    last = list(range(len(chain)))  # of the agent's entries in a row, the last one: calls and results come behind it
    for i in reversed(range(len(chain) - 1)):
        if chain[i].get("role") == chain[i + 1].get("role") == "assistant":
            last[i] = last[i + 1]
    replies = {reply: last[i] for i, one in enumerate(chain) if (reply := _reply(one))}
    calls, results = defaultdict[int, list[dict[str, Any]]](list), defaultdict[int, list[dict[str, Any]]](list)
    for one in beside:
        at = replies.get(_reply(one))
        if at is not None and not any(_reply(one) == _reply(other) and one.get("content") == other.get("content") for other in chain):
            calls[at].append(one)
    open_calls = {call: last[i] for i, one in enumerate(chain) for part in (one, *calls[i]) for call in _ids(part, "tool_use", "id")}
    for one in chain:
        for call in _ids(one, "tool_result", "tool_use_id"):
            open_calls.pop(call, None)
    for one in beside:
        answered = [at for call in _ids(one, "tool_result", "tool_use_id") if (at := open_calls.pop(call, None)) is not None]
        if answered:
            results[answered[0]].append(one)
    return [part for i, one in enumerate(chain) for part in (one, *calls[i], *results[i])]


def _reply(message: dict[str, Any]) -> str:
    """The id that the entries of one reply of the model share; "" for a message of the user."""
    return values.text(message.get("id")) if message.get("role") == "assistant" else ""


def _ids(message: dict[str, Any], kind: str, key: str) -> list[str]:
    blocks = values.tables(message.get("content")) if isinstance(message.get("content"), list) else []
    return [values.text(block[key]) for block in blocks if block.get("type") == kind and block.get(key)]


def make() -> ClaudeCodeFormat:
    return ClaudeCodeFormat()
