"""Files of logs as JSON values. JSON Lines are read line by line; where lines belong together, their places are kept and not their text,
so that memory is bounded by one episode. Any other JSON document is read whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.errors import UsageError, explain_errors, reason_of, unreadable
from dreamgym.logs.formats import CHAT, ORDER, LogFormat, recognise
from dreamgym.logs.formats.openai import is_plain
from dreamgym.logs.records import Account
from dreamgym.runs.progress import Advance

EPISODE = {"task", "source", "turns"}  # keys of our own episodes
LOOKED_AT = 50  # lines that `auto` looks at
OWN = "docs/tutorials/logs.md shows how to write a format of your own, in about twenty lines."
BROKEN = object()  # a line that is no JSON
Units = list[dict[str, Any]]


@dataclass(frozen=True)
class LogFile:
    """A file, whether it holds a value a line, and its format, which was given or recognised."""

    path: Path
    lines: bool
    form: LogFormat
    given: bool = False

    def episodes(self, account: Account, advance: Advance) -> Iterator[Units]:
        """The units of each episode. A line that is no JSON, or of no episode of this format, costs that line."""
        if not self.lines:
            account.here = self.path.name
            for number, (name, group) in enumerate(_grouped(self.form, self._expanded(_load(self.path), account)), start=1):
                account.here = f"{self.path.name}, episode {name or number}"
                yield group
            advance(self.path.stat().st_size)
            return
        places: dict[str, list[int]] = {}
        with explain_errors(self.path), self.path.open("rb") as file:
            number, start = 0, 0
            for number, line in enumerate(file, start=1):
                account.here = f"{self.path.name}, line {number}"
                for unit in self._expanded(_value(line, account), account) if line.strip() else ():
                    if (key := self.form.key(unit)) is None:
                        yield [unit]
                    elif not (known := places.setdefault(key, [])) or known[-1] != start:
                        known.append(start)
                start += len(line)
                advance(len(line))
            kept: tuple[int, Units] = (-1, [])
            for episode, starts in places.items():
                units: Units = []
                for start in starts:
                    if kept[0] != start:  # a line may hold the spans of many traces
                        file.seek(start)
                        kept = start, list(self.form.units(json.loads(file.readline())))
                    units += [unit for unit in kept[1] if self.form.key(unit) == episode]
                account.here = f"{self.path.name}, episode {episode}"
                yield units

    def _expanded(self, value: Any, account: Account) -> Units:
        if value is BROKEN:
            return []
        if isinstance(value, dict | list) and not _fits(self.form, value, whatever=self.given) and (other := recognise(value)):
            account.drop(f"records of another format ({other.name})")
            return []
        units = list(self.form.units(value))
        if not units:
            account.drop(f"values that are no record of the format {self.form.name}", detail=json.dumps(value)[:60])
        elif isinstance(value, list):
            account.drop("values that are no JSON object", sum(not isinstance(one, dict) for one in value))
        return units


def open_log(path: Path, form: LogFormat | None) -> LogFile:
    """The file with its format, recognised where none is given: of several the most specific one, since conversations without tools have
    no marks of their own. UsageError for a file that holds nothing of a known or the given format."""
    with explain_errors(path), path.open("rb") as file:
        head = [line for line in (file.readline() for _ in range(LOOKED_AT)) if line.strip()]
    if head and b"\0" in head[0]:
        raise UsageError(f"'{path}' is a binary file. Expected JSON or JSON Lines: decompress an archive, and never give a pickle.")
    found = [value for line in head if isinstance(value := _value(line, Account()), dict | list)]
    lines = bool(found) and (len(head) > 1 or path.suffix == ".jsonl" or isinstance(found[0], dict)) and _is_lines(head, path)
    if not lines:
        found = [_load(path)]
    if any(isinstance(value, dict) and value.keys() >= EPISODE for value in found):
        raise UsageError(
            f"'{path}' holds episodes already, as a run and `dreamgym import` write them. Give it to `dreamgym init --logs`, or to "
            "`dreamgym train` as logs.files."
        )
    recognised = [(other, value) for value in found if (other := recognise(value))]
    marked = [other for other, value in recognised if not (other.name in CHAT and is_plain(value))] or [other for other, _ in recognised]
    likely = min(marked, key=lambda other: ORDER.index(other.name) if other.name in ORDER else len(ORDER), default=None)
    if form is not None:
        if likely is not None and not any(_fits(form, value) for value in found):
            raise UsageError(f"'{path}' is not of the format '{form.name}': it looks like '{likely.name}'. Give --format auto.")
        return LogFile(path, lines, form, given=True)
    if likely is None:
        raise UsageError(f"'{path}' is in no format that is known: {', '.join(_known())}. Look at its first line. {OWN}")
    return LogFile(path, lines, likely)


def _fits(form: LogFormat, value: Any, *, whatever: bool = False) -> bool:
    """Whether the format recognises a value, or finds messages in one of text alone; with `whatever` in any."""
    if form.recognises(value):
        return True
    return (whatever or is_plain(value)) and any(one.messages for unit in form.units(value) for one in form.read([unit], Account()))


def _known() -> list[str]:
    from dreamgym import plugins
    from dreamgym.logs.formats import KIND

    return plugins.known(KIND)


def _is_lines(head: list[bytes], path: Path) -> bool:
    """Whether lines are values of their own: two of the first do, or the only one is an object."""
    whole = sum(isinstance(_value(line, Account()), dict | list) for line in head)
    return whole >= 2 or path.suffix == ".jsonl" or len(head) == 1


def _value(line: bytes, account: Account) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        account.drop("lines that are no JSON", detail=reason_of(error))
        return BROKEN


def _load(path: Path) -> Any:
    with explain_errors(path):
        data = path.read_bytes()
    if not data.strip():
        raise UsageError(f"'{path}' is empty. Expected a log, as JSON or JSON Lines.")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        if data.lstrip()[:1] not in (b"{", b"["):
            raise UsageError(
                f"'{path}' is text, and a log is JSON or JSON Lines. Write each conversation as a record first, such as OpenAI's chat "
                "messages: docs/tutorials/logs.md shows one."
            ) from error
        raise UsageError(f"'{path}' is neither JSON nor JSON Lines: {unreadable(error)}") from error


def _grouped(form: LogFormat, units: Units) -> Iterator[tuple[str, Units]]:
    """The units of each episode, by key; "" for an episode of one unit."""
    groups: dict[str, Units] = {}
    for unit in units:
        if (key := form.key(unit)) is None:
            yield "", [unit]
        else:
            groups.setdefault(key, []).append(unit)
    yield from groups.items()
