"""Claude Code sessions: JSON Lines of entries that name their parent. The chain to the last entry is the conversation; sidechains,
summaries and compacted copies are left out."""

from __future__ import annotations

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
        yield from values.tables(value) if isinstance(value, list) else [value] if isinstance(value, dict) else []

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
        abandoned = sum(isinstance(entry.get("message"), dict) for entry in entries.values())
        account.drop("entries of abandoned branches", abandoned)
        messages = [message_of(entry["message"], account) for entry in reversed(chain) if isinstance(entry.get("message"), dict)]
        model = values.first(entry["message"].get("model") for entry in chain if isinstance(entry.get("message"), dict))
        merged = list[Message]()
        for message in filter(None, messages):  # a turn is written as one entry a block
            before = merged[-1] if merged else None
            if before and before.role == message.role == "agent":
                joined = "\n".join(filter(None, [before.text, message.text]))
                merged[-1] = Message("agent", joined, before.calls + message.calls)
            else:
                merged.append(message)
        if merged:
            session = values.text(units[0].get("sessionId"))
            yield LoggedEpisode(session, tuple(merged), record={"sessionId": session}, agent=values.text(model))


def make() -> ClaudeCodeFormat:
    return ClaudeCodeFormat()
