"""What a world holds, as far as real memory tells, and the lists that it would answer words with.

A search that nobody made before has no precedent, but what it finds has been seen: on other pages, after other words. `Things` knows
each thing by its name, with the line that lists it and the words that find it, and ranks them as search engines do (`bm25`). A Domain
with such lists (`protocols.Lists`) says what a step told, and how a list is written. Dreams tell nothing here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Generic, TypeVar

from dreamgym.protocols import Lists, ReplayBuffer
from dreamgym.replay.bm25 import Bm25, Document
from dreamgym.types import Memory, Observation, Told, Transition

NOBODY = ""  # no trajectory
KEPT = 4096  # rankings that are not computed again
Fact = TypeVar("Fact", bound=Hashable)


class Things:
    """The things of one environment in the real rows of a replay buffer, which it follows.

    `hidden` names a trajectory that must not be used: the one that a training row is made of. Where things stay as they are, what is
    found is what a buffer without it would find.
    """

    def __init__(self, replay: ReplayBuffer, domain: Lists, env: str) -> None:
        self.replay, self.domain, self.env = replay, domain, env
        self._read = (0, -1)  # rollbacks, and the buffer's last row, when it was read
        self._forget()

    def listed(self, words: str, number: int, *, hidden: str = NOBODY) -> Memory | None:
        """A real step that showed page `number` of the list for `words`; None where nobody asked for it."""
        self._follow()
        return self._known(words, number, hidden)

    def composed(self, words: str, number: int, *, hidden: str = NOBODY) -> str | None:
        """Page `number` of what fits `words`, as the Domain writes it; None where no list of anything was ever seen.

        Pages of the same list that are known hold what they hold, and nothing of it stands on this one.
        """
        self._follow()
        per_page = max(self._sizes.without(hidden), default=0)
        if not per_page:
            return None
        room = min(per_page, self.domain.longest_list - (number - 1) * per_page)
        elsewhere = {page: self._names(words, page, hidden) for page in self._pages.get(words, ()) if page != number}
        ended = any(names is not None and page < number and len(names) < per_page for page, names in elsewhere.items())
        if room <= 0 or ended:
            return self.domain.written([], number)
        taken = {name for names in elsewhere.values() for name in names or ()}
        before = sum(elsewhere.get(page) is None for page in range(1, number)) * per_page  # things on unknown pages before it
        free = (line for name in self._ranked(words, hidden) if name not in taken and (line := self._things[name].line(hidden)))
        return self.domain.written(list(islice(free, before, before + room)), number)

    def _known(self, words: str, number: int, hidden: str) -> Memory | None:
        return next((memory for memory in reversed(self._shown.get((words, number), ())) if memory.trajectory != hidden), None)

    def _names(self, words: str, number: int, hidden: str) -> list[str] | None:
        """Of the things on a known page."""
        memory = self._known(words, number, hidden)
        return None if memory is None else [one.name for one in self.domain.told_of(_step(memory))]

    def _ranked(self, words: str, hidden: str) -> list[str]:
        """Names of the things that share a word with `words`, best first, equals by name."""
        instead = self._instead(hidden)
        key = (words, hidden if instead else NOBODY)
        if key not in self._rankings:
            if len(self._rankings) >= KEPT:
                self._rankings.clear()
            scores = self._bm25.scores(self.domain.terms(words), instead)
            self._rankings[key] = sorted(scores, key=lambda name: (-round(scores[name], 6), name))
        return self._rankings[key]

    def _instead(self, hidden: str) -> Mapping[str, Document]:
        """Things that would be known otherwise without the hidden trajectory."""
        told = self._told_by.get(hidden, ()) if hidden else ()
        changed = {name: self._document(name, hidden) for name in told}
        return {name: document for name, document in changed.items() if document != self._bm25.documents[name]}

    def _document(self, name: str, hidden: str) -> Document:
        whole, part = self._things[name].whole.last(hidden), self._things[name].listed.last(hidden)
        text = whole.text if whole else part.text if part else ""
        return Document(Counter(self.domain.terms(text)), whole is not None)

    def _forget(self) -> None:
        self._things: dict[str, _Thing] = defaultdict(_Thing)
        self._told_by: dict[str, set[str]] = defaultdict(set)  # by trajectory: things of which it was the first to tell something
        self._shown: dict[tuple[str, int], list[Memory]] = defaultdict(list)  # by words and page, of the last two trajectories
        self._pages: dict[str, set[int]] = defaultdict(set)  # known ones, by words
        self._sizes = _Facts[int]()
        self._bm25 = Bm25()
        self._rankings: dict[tuple[str, str], list[str]] = {}

    def _follow(self) -> None:
        """Take in the rows that have come since the last look, or all of them where the buffer was wound back."""
        now = (self.replay.rollbacks, self.replay.sequence)
        if self._read == now:
            return
        if self._read[0] != now[0]:
            self._forget()
            self._read = (now[0], -1)
        fresh = (m for m in self.replay.memories() if m.row > self._read[1] and m.source != "dream" and m.env == self.env)
        for _, rows in groupby(fresh, key=lambda memory: memory.trajectory):
            self._take_in(list(rows))
        self._read = now

    def _take_in(self, rows: Sequence[Memory]) -> None:
        """One episode's rows, in order."""
        self._rankings.clear()
        history: list[Transition] = []
        for memory in rows:
            step = _step(memory)
            told = self.domain.told_of(step)
            if asked := self.domain.asked(step.state, history, memory.action):
                others = [one for one in self._shown[asked] if one.trajectory != memory.trajectory]
                self._shown[asked] = [*others[-1:], memory]
                self._pages[asked[0]].add(asked[1])
                self._sizes.add(len(told), memory.trajectory)
            for one in told:
                thing = self._things[one.name]
                if (thing.listed if one.line else thing.whole).add(one, memory.trajectory):
                    self._told_by[memory.trajectory].add(one.name)
                    self._bm25.put(one.name, self._document(one.name, NOBODY))
            history.append(step)


class _Facts(Generic[Fact]):
    """What was told, each with the first two trajectories that did: whoever must not use the one knows it by the other."""

    def __init__(self) -> None:
        self._by: dict[Fact, list[str]] = {}

    def add(self, fact: Fact, trajectory: str) -> bool:
        """Whether it says something else than what was told last."""
        repeated = fact == self.last(NOBODY)
        owners = self._by[fact] = self._by.pop(fact, [])
        if len(owners) < 2 and trajectory not in owners:
            owners.append(trajectory)
        return not repeated

    def without(self, hidden: str) -> Iterator[Fact]:
        """What is known beside the hidden trajectory, last told first."""
        return (fact for fact in reversed(self._by) if self._by[fact] != [hidden])

    def last(self, hidden: str) -> Fact | None:
        return next(self.without(hidden), None)


class _Thing:
    """What is known of one thing: what lists told of it, and what a page of its own did."""

    def __init__(self) -> None:
        self.listed, self.whole = _Facts[Told](), _Facts[Told]()

    def line(self, hidden: str) -> str:
        """As it was listed last; "" where it was not."""
        known = self.listed.last(hidden)
        return known.line if known else ""


def _step(memory: Memory) -> Transition:
    return Transition(Observation(memory.state), memory.action, Observation(memory.next_state), memory.reward, memory.terminated)
