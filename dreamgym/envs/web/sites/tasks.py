"""A task in a site, and how it is checked: by the rows of its world's database, or by the answer that the agent stops with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DATE = re.compile(rf"\b(\d{{1,2}}) ({'|'.join(MONTHS)}) (\d{{4}})\b")
Query = Callable[..., list[tuple[Any, ...]]]
"""(SQL, values) -> rows of the world; `template.TABLE` is a table in its first state."""
Check = Callable[..., bool]
"""(query, what is wanted) -> whether the world is as the task wants it."""


@dataclass(frozen=True, slots=True)
class SiteTask:
    """One task. `about` is what splits go by; `wanted` is what the check compares with."""

    template: str
    instruction: str
    about: str
    role: str
    """Whose account it is done with."""
    wanted: tuple[Any, ...]
    check: Check | None = field(default=None, repr=False)
    """None: the answer decides, and not the database."""
    others: tuple[str, ...] = field(default=(), repr=False)
    """What a right answer does not hold, such as the names of others."""

    @property
    def answered(self) -> bool:
        """Whether the answer decides, and not the database."""
        return self.check is None

    def solved(self, query: Query, answer: str) -> bool:
        """Whether the task is done, by the world's rows and the answer."""
        if self.check is not None:
            return self.check(query, *self.wanted)
        return says(answer, *self.wanted, asked=self.instruction) and not any(
            _holds(answer.lower(), other.lower()) for other in self.others
        )


def says(answer: str, *wanted: object, asked: str = "") -> bool:
    """Whether an answer holds everything that is wanted, each as a whole word or number, and no other number but those of the question.
    A date of the question is no number of the answer."""
    given = _without_dates(answer.lower().replace("£", " ").replace("#", " "), asked)
    numbers = set(re.findall(r"\d+(?:\.\d+)?", given))
    texts = [str(one).lower() for one in wanted]
    extra = numbers - {number for text in (*texts, asked.lower()) for number in re.findall(r"\d+(?:\.\d+)?", text)}
    return not extra and all(_holds(given, text) for text in texts)


def _without_dates(given: str, asked: str) -> str:
    """An answer without the dates that a question names as `1 Aug 2025`, written so or as `Aug 1, 2025` or `2025-08-01`."""
    for day, month, year in DATE.findall(asked):
        number, name = f"0?{day}(?:st|nd|rd|th)?", rf"{month.lower()}[a-z]*\.?"
        iso = f"{year}-{MONTHS.index(month) + 1:02}-{int(day):02}"
        given = re.sub(rf"\b(?:(?:{number} {name}|{name} {number})(?:,? {year})?|{iso})\b", " ", given)
    return given


def _holds(given: str, text: str) -> bool:
    """Whether a text stands in another as a whole word or number."""
    return bool(re.search(rf"(?<![\w.]){re.escape(text)}(?![\w]|\.\d)", given))
