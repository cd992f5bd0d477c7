"""What a world holds, as far as real memory tells, and the lists that it would answer words with.

A search that nobody made before has no precedent, but what it finds has been seen: on other pages, after other words. `Things` knows
each thing by its name, with the line that lists it and the words that find it, and ranks them as search engines do (BM25). A Domain with
such lists (`protocols.Lists`) says what a step told, and how a list is written. Dreams tell nothing here.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from dreamgym.protocols import Lists, ReplayBuffer
from dreamgym.types import Memory, Observation, Told, Transition

K1, B = 0.9, 0.4
"""Of BM25 as search engines ship it (Anserini, and so WebShop's)."""
NOBODY = ""  # no trajectory


class Things:
    """The things of one environment in the real rows of a replay buffer, which it follows.

    `hidden` names a trajectory that must not be used: the one that a training row is made of.
    """

    def __init__(self, replay: ReplayBuffer, domain: Lists, env: str) -> None:
        self.replay, self.domain, self.env = replay, domain, env
        self._forget()

    def listed(self, words: str, number: int, *, hidden: str = NOBODY) -> Memory | None:
        """A real step that showed page `number` of the list for `words`; None where nobody asked for it."""
        self._follow()
        return next((memory for memory in self._lists[words, number] if memory.trajectory != hidden), None)

    def composed(self, words: str, number: int, *, hidden: str = NOBODY) -> str | None:
        """Page `number` of what fits `words`, as the Domain writes it; None where no list of anything was ever seen."""
        self._follow()
        if not self._per_page:
            return None
        lines = [line for name in self._ranked(words, hidden) if (line := self._things[name].line(hidden))]
        return self.domain.written(lines[(number - 1) * self._per_page : number * self._per_page], number)

    def _ranked(self, words: str, hidden: str) -> list[str]:
        """Names of the things that share a word with `words`, best first, equals by name."""
        instead = {name: self._things[name].document(hidden) for name in self._told_by[hidden]} if hidden else {}
        scores = self._ranking.scores(words_of(words), instead)
        return sorted(scores, key=lambda name: (-round(scores[name], 6), name))

    def _forget(self) -> None:
        self._things: dict[str, _Thing] = {}
        self._told_by: dict[str, set[str]] = defaultdict(set)  # by trajectory: things of which it was the first to tell something
        self._lists: dict[tuple[str, int], list[Memory]] = defaultdict(list)
        self._per_page = self._read = 0
        self._ranking = Ranking()

    def _follow(self) -> None:
        """Take in the rows that have come since the last look, or all of them where the buffer was wound back."""
        if self._read == self.replay.sequence:
            return
        if self._read > self.replay.sequence:
            self._forget()
        fresh = (m for m in self.replay.memories() if m.row > self._read and m.source != "dream" and m.env == self.env)
        for _, rows in groupby(fresh, key=lambda memory: memory.trajectory):
            self._take_in(list(rows))
        self._read = self.replay.sequence

    def _take_in(self, rows: Sequence[Memory]) -> None:
        """One episode's rows, in order."""
        history: list[Transition] = []
        for memory in rows:
            state, after = Observation(memory.state), Observation(memory.next_state)
            step = Transition(state, memory.action, after, memory.reward, memory.terminated)
            told = self.domain.told_of(step)
            if asked := self.domain.asked(state, history, memory.action):
                if memory.trajectory not in [known.trajectory for known in self._lists[asked][:2]]:
                    self._lists[asked].append(memory)
                self._per_page = max(self._per_page, len(told))
            for one in told:
                thing = self._things.setdefault(one.name, _Thing())
                if thing.take(one, memory.trajectory):
                    self._told_by[memory.trajectory].add(one.name)
                    self._ranking.put(one.name, thing.document(NOBODY))
            history.append(step)


@dataclass(frozen=True)
class Document:
    """The words that find a thing: all of them, or those that a list told."""

    words: Counter[str]
    whole: bool

    @cached_property
    def length(self) -> int:
        return self.words.total()


class Ranking:
    """BM25 (Robertson and Zaragoza 2009) over documents by name.

    A document of which only a part is known counts as long as whole ones are on average, or it would rank for its brevity.
    """

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}
        self._holders: dict[str, set[str]] = defaultdict(set)  # names by word
        self._lengths = {True: Counter[str](), False: Counter[str]()}  # by whether whole: how many there are, and their words

    def put(self, name: str, document: Document) -> None:
        """Add a document, or put it in the place of the one of that name."""
        if old := self._documents.get(name):
            self._count(old, -1)
            for word in old.words:
                self._holders[word].discard(name)
        self._documents[name] = document
        self._count(document, 1)
        for word in document.words:
            self._holders[word].add(name)

    def scores(self, asked: Sequence[str], instead: Mapping[str, Document]) -> dict[str, float]:
        """Of every document that holds one of the words, as if those `instead` stood in the place of theirs; one without words is none.

        A word that is asked for twice counts twice.
        """
        n, usual = self._size(instead)
        found: dict[str, float] = defaultdict(float)
        for word, times in Counter(asked).items():
            names = [name for name in self._holders.get(word, ()) if name not in instead]
            names += [name for name, document in instead.items() if document.words[word]]
            idf = math.log(1 + (n - len(names) + 0.5) / (len(names) + 0.5))
            for name in names:
                document = instead.get(name) or self._documents[name]
                length = document.length if document.whole else max(document.length, usual)
                norm = K1 * (1 - B + B * length / usual)
                found[name] += times * idf * (1 - 1 / (1 + document.words[word] / norm))
        return found

    def _size(self, instead: Mapping[str, Document]) -> tuple[int, float]:
        """How many documents there are, and the mean length of whole ones, or of all where none is whole."""
        for name, document in instead.items():
            self._count(self._documents[name], -1)
            self._count(document, 1)
        whole, parts = self._lengths[True], self._lengths[False]
        n, counted = whole["documents"] + parts["documents"], whole if whole["documents"] else parts
        usual = counted["words"] / max(1, counted["documents"])
        for name, document in instead.items():
            self._count(self._documents[name], 1)
            self._count(document, -1)
        return n, max(1.0, usual)

    def _count(self, document: Document, sign: int) -> None:
        if document.words:
            self._lengths[document.whole].update({"documents": sign, "words": sign * document.length})


@dataclass
class _Thing:
    """What is known of one thing: what lists told of it, and what a page of its own did."""

    lists: _Facts = field(default_factory=lambda: _Facts())
    pages: _Facts = field(default_factory=lambda: _Facts())

    def take(self, told: Told, trajectory: str) -> bool:
        """Whether that was new."""
        return (self.lists if told.line else self.pages).add(told, trajectory)

    def line(self, hidden: str) -> str:
        """As it was listed last; "" where it was not."""
        known = self.lists.last(hidden)
        return known.line if known else ""

    def document(self, hidden: str) -> Document:
        whole, part = self.pages.last(hidden), self.lists.last(hidden)
        text = whole.text if whole else part.text if part else ""
        return Document(Counter(words_of(text)), whole is not None)


class _Facts:
    """What was told, each with the first two trajectories that did: whoever must not use the one knows it by the other."""

    def __init__(self) -> None:
        self._by: dict[Told, list[str]] = {}

    def add(self, told: Told, trajectory: str) -> bool:
        owners = self._by.setdefault(told, [])
        if len(owners) < 2 and trajectory not in owners:
            owners.append(trajectory)
        return owners == [trajectory]

    def last(self, hidden: str) -> Told | None:
        """What became known last, beside the hidden trajectory."""
        return next((told for told in reversed(self._by) if self._by[told] != [hidden]), None)


def words_of(text: str) -> list[str]:
    """Lower-case words."""
    return re.findall(r"\w+", text.lower())
