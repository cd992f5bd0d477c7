"""What an instruction asks for, in the words of the original: people's sentences and its synthetic ones.

`rules.requirements` reads the one wording of generated tasks exactly. `read` here takes any sentence apart into content words, options and
a price bound, and gives None for what words alone cannot settle: a negation, an alternative, a bound from below. The guard refuses those.
`missing` then asks evidence for options, price and at least half of the words, so it errs on the side of refusing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dreamgym.envs.webshop.porter import stem

LONGEST = 40
"""Sentences of more content words tell a story; they are not read."""
EVIDENCE = 0.5
"""Share of the content words that must be shown. Much of what the original asks for stands in texts that nobody needs to open: asking
for all keeps 2 % of the real successes of scripted shoppers on its small catalogue, for half 37 %, and passes 1.5 % of the failures."""
UNREADABLE = re.compile(
    r"\b(not|no|nor|neither|none|without|except|either|or|whether|unless|instead|avoid|rather|"
    r"dont|don't|doesnt|doesn't|isnt|isn't|arent|aren't|cant|can't|cannot|wont|won't|"
    r"at least|at most|more than|greater than|higher than|over|above|between|cheapest|up to|maximum|minimum)\b"
)
BOUND = re.compile(
    r",?(?: and)?(?: (?:the |a |its )?price[sd]?)?(?: should be| must be| is)? (?:lower than|less than|under|below|cheaper than) "
    r"(?:\$ ?(?P<sign>\d+(?:\.\d+)?)(?: dollars)?|(?P<word>\d+(?:\.\d+)?) ?(?:dollars|usd|\$))"
)
UNREAD_BOUND = re.compile(r"\b(lower than|less than|under|below|cheaper than|dollars?|budget|price[sd]?)\b|\$")
OPTIONS = re.compile(r" with (?P<options>(?:(?! with )[^:,])+: .+)$")
NEXT_OPTION = re.compile(r", and (?=[^:,]+: )")
WORD = re.compile(r"[^\W_]+(?:[.'/-][^\W_]+)*")
_FILLER = """
i im i'm am id i'd ive me my mine we you your it its it's that thats that's this these those which who what there they them their
a an the some any one ones something somewhere anything pair couple lot bit kind type sort
is are be being been was were will would could can should must may might do does did has have had having get got go
in on of for to from with by as at into onto and also too very really so if when then than while where but please
look looking locking search searching find finding need needing want wanting wanted like love prefer preferably preferable buy buying
purchase shop shopping order get getting give show see view help pick choose select add list made make makes come comes
good great nice suitable perfect use used using color colors colour colored size sized sizes style available
"""
FILLER = frozenset(_FILLER.split())
"""Words that ask for nothing a page could show, and the names of options, whose values stand on their own."""


Prices = tuple[float, float]
"""The lowest and the highest price that a page leaves possible: the same number twice, except of a range."""


@dataclass(frozen=True)
class Requirements:
    """What an instruction asks for, read from its text alone."""

    words: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    bound: float | None

    @property
    def count(self) -> int:
        return len(self.words) + len(self.options) + (self.bound is not None)


@lru_cache(maxsize=65536)
def read(instruction: str) -> Requirements | None:
    """The content words, options and price bound of a sentence, or None when it cannot be read."""
    text = re.sub(r"[ \t\r\n]+", " ", instruction.lower().replace("’", "'")).strip()  # other blanks are part of option values
    bounds = [float(match["sign"] or match["word"]) for match in BOUND.finditer(text)]
    text = BOUND.sub("", text)
    pairs: list[tuple[str, str]] = []
    if match := OPTIONS.search(text):
        pairs = [(name, value) for name, _, value in (part.partition(": ") for part in NEXT_OPTION.split(match["options"]))]
        text = text[: match.start()]
    if len(bounds) > 1 or UNREAD_BOUND.search(text) or UNREADABLE.search(text):
        return None
    if len({name for name, _ in pairs}) < len(pairs) or not all(value for _, value in pairs):
        return None
    words = tuple(dict.fromkeys(word for word in WORD.findall(text) if word not in FILLER))
    if not 2 <= len(words) <= LONGEST:
        return None
    return Requirements(words, tuple(pairs), bounds[0] if bounds else None)


@dataclass(frozen=True)
class Evidence:
    """What a visit to an item showed. A chosen value counts only if somebody clicked it: a dream may copy the mark from another visit."""

    prose: str
    prices: Prices
    offered: tuple[str, ...]  # option values
    chosen: tuple[tuple[str, str], ...]  # (name, value)
    clicked: frozenset[str | None]

    @cached_property
    def stems(self) -> set[str]:
        """Of the prose and of every value that was picked."""
        return _stems([self.prose, *(value for _, value in self.chosen if value in self.clicked)])

    def shows(self, word: str) -> bool:
        return _stems([word]) <= self.stems

    def picked(self, name: str, value: str) -> bool:
        return (name, value) in self.chosen and value in self.clicked


def met(wanted: Requirements, evidence: Evidence) -> list[tuple[str, bool]]:
    """Every word and option that is asked for, with whether there is evidence for it."""
    return [(word, evidence.shows(word)) for word in wanted.words] + [
        (f"[{value}]", evidence.picked(name, value)) for name, value in wanted.options
    ]


def missing(wanted: Requirements, evidence: Evidence, *, share: float = EVIDENCE) -> list[str]:
    """What has no evidence. A word that an option could have met needs its click; of the others a `share` must be shown."""
    choosable = _stems(evidence.offered)
    unseen = [word for word in wanted.words if not evidence.shows(word)]
    left_open = [word for word in unseen if _stems([word]) <= choosable]
    too_few = len(wanted.words) - len(unseen) < share * len(wanted.words)
    reasons = [f"no evidence for '{word}'" for word in (unseen if too_few else left_open)]
    for name, value in wanted.options:
        if (name, value) not in evidence.chosen:
            reasons.append(f"{name} is not {value}")
        elif value not in evidence.clicked:
            reasons.append(f"nobody clicked {value}")
    return reasons + too_dear(evidence.prices, wanted.bound)


def within(prices: Prices, bound: float | None) -> bool | None:
    """Whether what is charged is within a bound; None when the range of prices reaches over it."""
    if bound is None or prices[1] <= bound:
        return True
    return None if prices[0] <= bound else False


def too_dear(prices: Prices, bound: float | None) -> list[str]:
    """The reason against a price, if there is one. A range is too dear as soon as it may be."""
    if within(prices, bound) is True:
        return []
    shown = " to ".join(str(end) for end in dict.fromkeys(prices))
    return [f"price {shown} {'is' if within(prices, bound) is False else 'may be'} above {bound}"]


def _stems(texts: Iterable[str]) -> set[str]:
    """Stems of all words and of the parts of joined ones: "caffeine-free" is evidence for "free caffeine"."""
    return {stem(part) for text in texts for word in WORD.findall(text.lower()) for part in re.split(r"[.'/-]", word) if part}
