"""Formats of agents' logs. A format is a module here, or at a dotted path, whose `make()` gives a `LogFormat`.

A file is a sequence of JSON values (lines, or one document). A format splits each value into units (`units`), names the episode that a
unit belongs to (`key`), and makes an episode of the units that share a key (`read`). Units are never paired across files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from dreamgym import plugins
from dreamgym.logs.records import Account, LoggedEpisode

KIND = "logs.formats"
ORDER = ("claude_code", "atif", "tau2", "verifiers", "otel", "openai_responses", "sharegpt", "anthropic", "openai")
"""In which `auto` asks the built-in formats: those with unmistakable marks first."""
CHAT = ("anthropic", "openai")
"""The formats in which conversations without tools look alike."""


class LogFormat(Protocol):
    """One format, in all its dialects."""

    name: str

    def recognises(self, value: Any) -> bool:
        """Whether a value of a file is of this format, by fields that others do not have."""
        ...

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        """What a value consists of: itself, the simulations of a results file, the spans of an export."""
        ...

    def key(self, unit: dict[str, Any]) -> str | None:
        """The episode that a unit is part of; None where it is an episode of its own."""
        ...

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        """The episodes of units that share a key, in the order of the file. What is left out goes into the account."""
        ...


def chosen(name: str) -> LogFormat:
    """The format of that name. One from outside of this package has its answers checked."""
    from dreamgym.logs.formats._checked import Checked

    made = plugins.make(KIND, name)
    return Checked(name, made) if "." in name else made


def recognise(value: Any) -> LogFormat | None:
    """The format of a value; None for one that no format knows."""
    others = [name for name in plugins.known(KIND) if name not in ORDER]
    made: list[LogFormat] = [plugins.make(KIND, name) for name in (*ORDER, *others)]
    return next((one for one in made if one.recognises(value)), None)
