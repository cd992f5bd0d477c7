"""A claim of success as sparse features of its text: no environment is known here, and no download is needed.

A claim is an instruction and the steps that led to the claimed end. Its features are hashed names (Weinberger et al. 2009,
arXiv:0902.2206) with a value:

* words of the last action, of the claimed next state, and of what each kind of action showed last; pairs of neighbouring words;
* which kinds of action follow each other, and how many steps there were;
* for every word of the instruction whether it stands in each *place* of the episode. A place is what all actions of one kind named, what
  stood beside the elements that they named, a line of the last state by its first word, or that whole state. Each match counts by the word
  itself, and by the one and the two words before it in the instruction, which hold for words that no log has;
* how many words of the instruction the last state has and a place has not, and how many elements were named that it does not ask for;
* how many lines of the states no log has (`support`), and how many states the experience model wrote itself. The latter is 0 in logs, so
  that only probes can tell what it means;
* for every number of the instruction and every number of the last state, by what stands around them, which is larger.

Which of these matter is learned. Features of one word have the value `LEXICAL`, so that the fit prefers those that many words share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol
from zlib import crc32

import numpy as np

from dreamgym.bracket_actions import ELEMENT
from dreamgym.envs.actions import kind_of, kinds_of
from dreamgym.types import Transition

HASHED = 1 << 18  # columns of hashed names
DIM = HASHED + (1 << 14)
"""All columns: behind those of hashed names stand the hidden states of a pretrained model (`hidden_states`)."""
LEXICAL = 0.3
WORD = re.compile(r"\d+(?:\.\d+)?|\w+")
BESIDE = re.compile(r" \| |[\[\n]")  # where what stands beside an element ends
MOST_WORDS = 400  # of a state that are read: from its beginning and its end
MOST_LINES = 20  # of what an action showed
MOST_COUNTED = 6  # novel lines and written states
STEPS = 24  # the last ones are read


@dataclass(frozen=True)
class SparseRows:
    """Rows of features, as coordinates: value `values[i]` stands in row `rows[i]` and column `columns[i]`."""

    n: int
    rows: np.ndarray  # int64 [values], ascending
    columns: np.ndarray  # int64 [values], below DIM
    values: np.ndarray  # float64 [values]

    def times(self, weights: np.ndarray) -> np.ndarray:
        """float64 [n]: the product with a vector of column weights."""
        return np.bincount(self.rows, self.values * weights[self.columns], minlength=self.n)

    def then(self, others: SparseRows) -> SparseRows:
        """These rows and then the others."""
        rows = np.concatenate([self.rows, others.rows + self.n])
        columns, values = (np.concatenate([getattr(self, name), getattr(others, name)]) for name in ("columns", "values"))
        return SparseRows(self.n + others.n, rows, columns, values)

    def beside(self, others: SparseRows) -> SparseRows:
        """These rows, each with the values of the same one of the others in further columns."""
        rows = np.concatenate([self.rows, others.rows])
        order = np.argsort(rows, kind="stable")
        columns, values = (np.concatenate([getattr(self, name), getattr(others, name)])[order] for name in ("columns", "values"))
        return SparseRows(self.n, rows[order], columns, values)


class Claim(Protocol):
    """An instruction, the steps up to and with the claimed end, and how many lines of their states no log has."""

    @property
    def instruction(self) -> str: ...
    @property
    def steps(self) -> Sequence[Transition]: ...
    @property
    def novel(self) -> int: ...


Reader = Callable[[Sequence[Claim]], SparseRows]
"""How claims become rows of features, one each."""


def rows_of(claims: Sequence[Claim]) -> SparseRows:
    """The features of claims, a row each."""
    feature_lists = [sorted(features(claim.instruction, claim.steps, claim.novel).items()) for claim in claims]
    owners = np.repeat(np.arange(len(feature_lists)), [len(row) for row in feature_lists])
    flat = [pair for row in feature_lists for pair in row]
    columns, values = np.array([name for name, _ in flat], np.int64), np.array([value for _, value in flat], np.float64)
    return SparseRows(len(feature_lists), owners, columns, values)


def features(instruction: str, steps: Sequence[Transition], novel: int = 0) -> dict[int, float]:
    """Hashed name -> value of one claim. `steps` is not empty; its last one is the claimed end."""
    steps = steps[max(0, len(steps) - STEPS) :]
    values: dict[int, float] = {}

    def add(value: float, *name: str) -> None:
        values[_hashed(name)] = value

    def count(*name: str, of: int) -> None:
        for i in range(1, min(of, MOST_COUNTED) + 1):
            add(1.0, *name, "at least", str(i))

    last = steps[-1]
    kinds = [kind_of(step.action) for step in steps]
    values[ALWAYS] = 1.0
    add(LEXICAL, "length", str(min(len(steps), 12)))
    count("novel lines", of=novel)
    count("states written", of=sum(step.info.decided_by == "generated" for step in steps[:-1]))
    for before, after in zip(["", *kinds], [*kinds, "end"], strict=True):
        add(LEXICAL, "order", before, after)
    for word in _words(last.action):
        add(LEXICAL, "last action", word)
    latest_steps = {"claimed": last} | {name: step for name, step in zip(kinds[:-1], steps[:-1], strict=True)}  # the last of each kind
    for name, step in latest_steps.items():
        for line in new_lines(step)[:MOST_LINES]:
            there = _words(line)
            for before, word in zip(("", *there), there, strict=False):
                add(LEXICAL, "shown", name, word)
                add(LEXICAL, "shown", name, before, word)
    lines = [read for read in map(_words, last.state.text.split("\n")) if read]
    instruction_words = _words(instruction)
    beside = [_beside(step) for step in steps]
    for (name, role), n in Counter(
        (name, _role(words)) for name, words in zip(kinds, beside, strict=True) if _unasked(words, instruction_words)
    ).items():
        count("unasked", name, role, of=n)
    places = _places(steps, kinds, beside, lines)
    for name, words_there in places.items():
        count("shown and missing", name, of=sum(word in places["state"] and word not in words_there for word in instruction_words))
        for i, word in enumerate(instruction_words):
            match = "there" if word in words_there else "missing"
            add(LEXICAL, match, name, word)
            add(1.0, match, name, "after", *instruction_words[max(0, i - 1) : i])
            add(1.0, match, name, "after two", *instruction_words[max(0, i - 2) : i])
    for i, word in enumerate(instruction_words):
        if word[0].isdecimal():
            for first, number in [(words[0], other) for words in lines for other in words if other[0].isdecimal()]:
                order = _order(float(number), float(word))
                add(1.0, "number", first, order, *instruction_words[max(0, i - 1) : i])
                add(1.0, "number", first, order, "two", *instruction_words[max(0, i - 2) : i])
    return values


def new_lines(step: Transition) -> list[str]:
    """The lines of the next state that the state before did not have."""
    old = set(step.state.text.split("\n"))
    return [line for line in step.next_state.text.split("\n") if line not in old]


def _places(
    steps: Sequence[Transition], kinds: Sequence[str], beside: Sequence[tuple[str, ...]], lines: Sequence[tuple[str, ...]]
) -> dict[str, set[str]]:
    """The words of each place of an episode, by its name. `beside` are those of the steps' elements, `lines` those of the last state."""
    places: dict[str, set[str]] = {"state": {word for line in lines for word in line}}
    for name, step, words in zip(kinds, steps, beside, strict=True):
        places.setdefault(f"action {name}", set()).update(_words(step.action)[len(_words(kinds_of(step.action)[0])) :])
        if words:
            places.setdefault(f"beside {name}", set()).update(words)
        if _role(words):
            places[f"beside the last {name} {_role(words)}"] = set(words)
    for line in lines:
        places.setdefault(f"line {line[0]}", set()).update(line)
    return places


def _beside(step: Transition) -> tuple[str, ...]:
    """The words beside the element that the action names, such as those of `link 'Books'` for `click [3]` where the state lists
    `[3] link 'Books'`. Elements of states stand in square brackets."""
    named = ELEMENT.search(step.action)
    rest = step.state.text.partition(named[0])[2] if named else ""
    return _words(BESIDE.split(rest, maxsplit=1)[0])


def _role(beside: Sequence[str]) -> str:
    """The first word beside an element, such as `link`; "" where that is a number, such as a price."""
    return beside[0] if beside and beside[0].isalpha() else ""


def _unasked(beside: Sequence[str], instruction_words: Sequence[str]) -> bool:
    """Whether the instruction has no word of an element but its first."""
    return len(beside) > 1 and not set(beside[1:]) & set(instruction_words)


def _order(value: float, other: float) -> str:
    return "less" if value < other else "more" if value > other else "equal"


@lru_cache(maxsize=100_000)
def _words(text: str) -> tuple[str, ...]:
    words = WORD.findall(text.lower())
    half = MOST_WORDS // 2
    return tuple(words if len(words) <= MOST_WORDS else [*words[:half], *words[-half:]])


@lru_cache(maxsize=1_000_000)
def _hashed(name: tuple[str, ...]) -> int:
    return crc32("\x1f".join(name).encode("utf-8", "surrogatepass")) % HASHED


ALWAYS = _hashed(("always",))
"""The column that every claim has."""
