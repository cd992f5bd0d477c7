"""Whether an episode succeeded, from where the user says and nowhere else; what is not said is unknown. Whether one was truncated, as far
as the user says where that stands."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dreamgym.errors import UsageError, explain_errors
from dreamgym.logs.formats._values import parsed
from dreamgym.logs.records import LoggedEpisode
from dreamgym.runs.files import is_number

OPERATOR = re.compile(r"==|!=|>=|<=|>|<")
SEVERAL = re.compile(r"\s(?:and|or|AND|OR)\s|&&|\|\|")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
CONDITION = re.compile(r"\s*([^=!<>[\]{}]+?)\s*(?:(==|!=|>=|<=|>|<)\s*([^=\s].*?)\s*)?")
MISSING = object()
T = TypeVar("T")
WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
"""Outcomes in a table."""
IDS_EXPECTED = (
    "Expected the ids of the episodes that succeeded, one a line; or a file *.csv with a header, ids in the first column, and 1 or 0, "
    "true or false, yes or no in the second."
)
MOST_NAMED = 12  # fields of a record that a message lists


@dataclass(frozen=True)
class Condition:
    """`path`, or `path OPERATOR value`: `reward==1`, `reward_info.reward>=0.5`, `info.status==done`."""

    path: str
    operator: str = ""
    value: Any = None

    def __str__(self) -> str:
        return f"'{self.path}{self.operator}{json.dumps(self.value) if self.operator else ''}'"

    def holds(self, found: Any) -> bool | None:
        """Whether a value fulfils the condition; None where that cannot be said. A bare path needs true, false, 1 or 0. A string counts as
        what it holds, unless it is compared with a string. Values of two kinds, such as a number and a list, are not compared."""
        if isinstance(found, str) and (not self.operator or isinstance(self.value, bool | int | float)):
            found = _held(found)
        if found is MISSING or found is None or (isinstance(found, float) and not is_number(found)):
            return None
        if not self.operator:
            return bool(found) if isinstance(found, bool) or (is_number(found) and found in (0, 1)) else None
        if self.operator in ("==", "!="):
            if self.value is not None and _kind(found) != _kind(self.value):
                return None
            return (found == self.value) is (self.operator == "==")
        if not is_number(found) or not is_number(self.value):
            return None
        return bool({">=": found >= self.value, "<=": found <= self.value, ">": found > self.value, "<": found < self.value}[self.operator])


@dataclass(frozen=True)
class Outcomes:
    """At most one source of outcomes; none means that all are unknown."""

    field: Condition | None = None
    score: Condition | None = None
    ids: frozenset[str] | None = None
    failures: frozenset[str] | None = None  # beside `ids`; None: all others failed
    option: str = "--success"  # of the command, that names the field
    unknown: Counter[str] = dataclasses.field(default_factory=Counter, compare=False)
    """What was found instead of an outcome, and how often: `of` counts it."""
    known: Counter[str] = dataclasses.field(default_factory=Counter, compare=False)
    """The values that were outcomes, and how often."""

    @property
    def advice(self) -> str:
        """What to do about unknown outcomes."""
        if self.ids is not None:
            return "The file of --success-ids does not list them."
        if self.field is None and self.score is None:
            return "Give --success, --success-ids or --success-score."
        return (
            f"{self._asked}, and there they have {_most(self.unknown)}. Expected true or false, 1 or 0, or a comparison with the value "
            "that stands there, such as 'reward>=0.5'."
        )

    @property
    def values(self) -> str:
        """The values that outcomes were read from, as a sentence; empty where they are from no field."""
        return f"{self._asked}, and there they have {_most(self.known)}." if self.known else ""

    @property
    def _asked(self) -> str:
        return f"{self.option} asks for {self.field}" if self.field else f"--success-score asks for {self.score}"

    def of(self, episode: LoggedEpisode, name: str) -> bool | None:
        """True, False, or None where nothing is known. `name` is the id under which the episode is written, its own or another."""
        if self.ids is not None:
            success, failed = (not (listed or frozenset()).isdisjoint({episode.id, name}) for listed in (self.ids, self.failures))
            return True if success else False if failed or self.failures is None else None
        if self.score is not None:
            return self._outcome(self.score, episode.scores.get(self.score.path, MISSING), episode.scores)
        return self._outcome(self.field, look_up(episode.record, self.field.path), episode.record) if self.field else None

    def _outcome(self, condition: Condition, value: Any, among: Mapping[str, Any]) -> bool | None:
        found = condition.holds(value)
        known = ", ".join(list(among)[:MOST_NAMED]) or "none"
        shown = f"no '{condition.path}' among {known}" if value is MISSING else f"the value {json.dumps(value, default=str):.40}"
        (self.unknown if found is None else self.known)[shown] += 1
        return found


def outcomes(success: str | None = None, ids: Path | None = None, score: str | None = None) -> Outcomes:
    """The source that `--success`, `--success-ids` or `--success-score` name. UsageError for more than one, or one that cannot be read.

    The file holds the ids of the episodes that succeeded, one a line: every other one failed. A file `*.csv` has a header, ids in its first
    column and outcomes in its second, and those that it does not list are unknown.
    """
    if sum(one is not None for one in (success, ids, score)) > 1:
        raise UsageError("Give one of --success, --success-ids and --success-score: an episode has one outcome.")
    if ids is not None:
        with explain_errors(ids):
            text = ids.read_text("utf-8-sig")
        listed = _table(ids, text) if ids.suffix.lower() == ".csv" else dict.fromkeys(filter(None, map(str.strip, text.splitlines())), True)
        if not listed:
            raise UsageError(f"'{ids}' holds no id. {IDS_EXPECTED}")
        by_outcome = [frozenset(name for name, one in listed.items() if one is outcome) for outcome in (True, False)]
        return Outcomes(ids=by_outcome[0], failures=by_outcome[1] if ids.suffix.lower() == ".csv" else None)
    if score is not None:
        return Outcomes(score=condition(score))
    return Outcomes(field=condition(success)) if success is not None else Outcomes()


def _table(path: Path, text: str) -> dict[str, bool]:
    """The outcome by id of a table with a header. UsageError, with the number of the row, for a row without an outcome, for one that
    contradicts another, and where the header is missing."""
    listed = dict[str, bool]()
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not any(row):
            continue
        name, word = row[0].strip(), row[1].strip().lower() if len(row) > 1 else ""
        if number == 1:
            if word in WORDS:
                raise UsageError(f"Row 1 of '{path}' is {','.join(row)!r:.80}, which is no header. {IDS_EXPECTED}")
            continue
        if not name or word not in WORDS:
            raise UsageError(f"Row {number} of '{path}' is {','.join(row)!r:.80}. {IDS_EXPECTED}")
        if listed.setdefault(name, WORDS[word]) is not WORDS[word]:
            raise UsageError(f"Row {number} of '{path}' gives '{name}' another outcome than a row before it. Keep one of them.")
    return listed


def truncations(text: str | None) -> Outcomes:
    """What `--truncated` names: True for an episode that was cut off, None where no field says it."""
    return Outcomes(field=None if text is None else condition(text), option="--truncated")


def condition(text: str) -> Condition:
    """UsageError for a text that is no condition, or that is several."""
    found = CONDITION.fullmatch(text)
    if not found:
        raise UsageError(f"'{text:.80}' is no condition. Expected a field, such as success, or a comparison, such as 'reward==1'.")
    path, operator, value = found.groups()
    if not operator:
        return Condition(path)
    bare = ""
    try:
        held = json.loads(value)
    except (ValueError, RecursionError):
        held, bare = value.strip("'\""), QUOTED.sub("", value)
    if OPERATOR.search(bare) or SEVERAL.search(f" {path} {bare} "):
        raise UsageError(
            f"'{text:.80}' is more than one comparison, and one is expected, such as 'reward==1'. Have one field say the outcome, or give "
            "the ids of the successes with --success-ids. A text that holds such words or signs stands in quotes: \"status=='a and b'\"."
        )
    return Condition(path, operator, held)


def once(values: Sequence[T] | None, option: str) -> T | None:
    """The value of an option of the command. UsageError where it was given several times."""
    if values and len(values) > 1:
        raise UsageError(
            f"{option} is given {len(values)} times, and one answer is expected. Give it once, for logs that say it in that way."
        )
    return values[0] if values else None


def _kind(value: Any) -> str:
    """`number` for whole and other numbers, else the type of a JSON value."""
    return "number" if is_number(value) else type(value).__name__


def _most(counts: Counter[str]) -> str:
    """The three most frequent, with their counts."""
    return ", ".join(f"{what} ({n})" for what, n in counts.most_common(3))


def _held(text: str) -> bool | int | float | None:
    """The truth value or number that a string holds; None for any other."""
    try:
        found = json.loads(text.lower())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, bool) or is_number(found) else None


def look_up(record: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; MISSING where there is none. A field whose own name has dots is found as well."""
    at: Any = record
    if path in record:
        return record[path]
    for part in path.split("."):
        at = parsed(at)
        if isinstance(at, dict) and part in at:
            at = at[part]
        elif isinstance(at, list) and part.isdecimal() and len(part) < 7 and int(part) < len(at):
            at = at[int(part)]
        else:
            return MISSING
    return at
