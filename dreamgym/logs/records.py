"""The one normal form of logs: what every format is read into before anything else looks at it.

Everything here is data. Texts of a log are never executed, followed as a path or an address, or read as markers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dreamgym.envs.tools.schemas import Tool

Role = Literal["system", "user", "agent", "tool"]
EXAMPLES = 3  # places that are named for each reason


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as logged. `arguments` are JSON values by name, or the text where it was no JSON object. A call is `refused` where no
    action could hold it: it is left out with its result, which answers no other call."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool returned to the call of that id. Where calls have none, a result answers the latest one of its `name`."""

    call_id: str
    text: str
    name: str = ""  # the tool, where the message names it


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the conversation. Calls are the agent's; results may stand in any message after theirs."""

    role: Role
    text: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, slots=True)
class LoggedEpisode:
    """One conversation in order, without copied context. What it says of an outcome is in `record` and `scores`, unjudged."""

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)  # the fields that a path of `--success` looks in
    scores: Mapping[str, Any] = field(default_factory=dict)  # name -> value, of evaluations in the log
    instruction: str = ""  # where the format has one outside of the messages
    agent: str = ""  # the model, where it is named
    task: str = ""  # the id of the task, where the format names one beside that of the episode
    truncated: bool = False  # whether the format says that the episode was cut off: that neither agent nor environment ended it


@dataclass
class Account:
    """What was read, left out and noticed, by reason, with the first places of each."""

    dropped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    here: str = ""  # the place that is being read: "log.jsonl, line 3"

    def drop(self, reason: str, count: int = 1, detail: str = "") -> None:
        """Something is left out."""
        self._count(self.dropped, reason, count, detail)

    def note(self, reason: str, count: int = 1, detail: str = "") -> None:
        """Something is kept, and worth knowing."""
        self._count(self.notes, reason, count, detail)

    def _count(self, counter: Counter[str], reason: str, count: int, detail: str) -> None:
        if not count:
            return
        counter[reason] += count
        if len(self.places[reason]) < EXAMPLES:
            self.places[reason].append(f"{self.here}: {detail[:120]}" if detail else self.here)
