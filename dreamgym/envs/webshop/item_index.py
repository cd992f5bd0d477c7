"""An index of the products in real memory, and the search results composed from it.

A search that no log holds has no similar memory that shows its results, but its products were seen on other pages. `ItemIndex` holds each
product with its line in lists and its words, and ranks products by BM25, as search engines do. Dreams add nothing to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Generic, TypeVar

from dreamgym.envs.webshop.bm25 import Bm25, Document
from dreamgym.envs.webshop.listing import MAX_RESULTS, ItemMention, item_mentions, requested_page, results_page, search_terms
from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Memory, Observation, Query, Transition

NOBODY = ""  # no trajectory
KEPT = 4096  # rankings that are not computed again
Fact = TypeVar("Fact", bound=Hashable)


class SearchComposer:
    """The results page that an action shows (`envs.base.Composer`): the recorded one, or else one composed from the products in memory."""

    def __init__(self, replay: ReplayBuffer, *, stemmed: bool) -> None:
        self.replay, self.stemmed = replay, stemmed
        self._indexes: dict[str, ItemIndex] = {}  # by environment

    def compose(self, query: Query, hidden: str) -> Memory | None:
        """The page as what the action of `query` led to; None where it shows no results, or no results were ever seen."""
        requested, env = requested_page(query.state, query.history, query.action), query.task.env
        if requested is None:
            return None
        index = self._indexes.setdefault(env, ItemIndex(self.replay, env, stemmed=self.stemmed))
        if memory := index.recorded_page(*requested, hidden=hidden):
            return replace(memory, state=query.state.text, action=query.action, reasoning="")
        page = index.compose_page(*requested, hidden=hidden)
        return None if page is None else Memory(
            row=0, trajectory="", step=0, env=env, instruction="", source="demo", state=query.state.text, action=query.action,
            next_state=page, reward=0.0, terminated=False, success=False,
        )  # fmt: skip


class ItemIndex:
    """The products of one environment in the real rows of a replay buffer, which it follows.

    `hidden` is a trajectory that must not be used: the one that a training row is made from. Results are those of a buffer without it.
    """

    def __init__(self, replay: ReplayBuffer, env: str, *, stemmed: bool) -> None:
        self.replay, self.env, self.stemmed = replay, env, stemmed
        self._read = (0, -1)  # rollbacks, and the buffer's last row, when it was read
        self._forget()

    def recorded_page(self, words: str, number: int, *, hidden: str = NOBODY) -> Memory | None:
        """A real step that showed page `number` of the results for `words`; None where no step did."""
        self._follow()
        return self._known(words, number, hidden)

    def compose_page(self, words: str, number: int, *, hidden: str = NOBODY) -> str | None:
        """Page `number` of the products that match `words`; None where no results of any search were ever seen.

        Products on recorded pages of the same search are not repeated.
        """
        self._follow()
        per_page = max(self._sizes.without(hidden), default=0)
        if not per_page:
            return None
        room = min(per_page, MAX_RESULTS - (number - 1) * per_page)
        elsewhere = {page: self._names(words, page, hidden) for page in self._pages.get(words, ()) if page != number}
        ended = any(names is not None and page < number and len(names) < per_page for page, names in elsewhere.items())
        if room <= 0 or ended:
            return results_page([], number)
        taken = {name for names in elsewhere.values() for name in names or ()}
        before = sum(elsewhere.get(page) is None for page in range(1, number)) * per_page  # items on unrecorded pages before it
        free = (line for name in self._ranked(words, hidden) if name not in taken and (line := self._items[name].line(hidden)))
        return results_page(list(islice(free, before, before + room)), number)

    def _known(self, words: str, number: int, hidden: str) -> Memory | None:
        return next((memory for memory in reversed(self._shown.get((words, number), ())) if memory.trajectory != hidden), None)

    def _names(self, words: str, number: int, hidden: str) -> list[str] | None:
        """Names of the items on a recorded page; None for another page."""
        memory = self._known(words, number, hidden)
        return None if memory is None else [one.name for one in item_mentions(_step(memory))]

    def _ranked(self, words: str, hidden: str) -> list[str]:
        """Names of the items that share a word with `words`, best first, ties by name."""
        instead = self._instead(hidden)
        key = (words, hidden if instead else NOBODY)
        if key not in self._rankings:
            if len(self._rankings) >= KEPT:
                self._rankings.clear()
            scores = self._bm25.scores(search_terms(words, stemmed=self.stemmed), instead)
            self._rankings[key] = sorted(scores, key=lambda name: (-round(scores[name], 6), name))
        return self._rankings[key]

    def _instead(self, hidden: str) -> Mapping[str, Document]:
        """Things that would be known otherwise without the hidden trajectory."""
        mentions = self._first_seen_by.get(hidden, ()) if hidden else ()
        changed = {name: self._document(name, hidden) for name in mentions}
        return {name: document for name, document in changed.items() if document != self._bm25.documents[name]}

    def _document(self, name: str, hidden: str) -> Document:
        whole, part = self._items[name].whole.last(hidden), self._items[name].listed.last(hidden)
        text = whole.text if whole else part.text if part else ""
        return Document(Counter(search_terms(text, stemmed=self.stemmed)), whole is not None)

    def _forget(self) -> None:
        self._items: dict[str, _Item] = defaultdict(_Item)
        self._first_seen_by: dict[str, set[str]] = defaultdict(set)  # by trajectory: items of which it was the first to show something
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
            mentions = item_mentions(step)
            if requested := requested_page(step.state, history, memory.action):
                others = [one for one in self._shown[requested] if one.trajectory != memory.trajectory]
                self._shown[requested] = [*others[-1:], memory]
                self._pages[requested[0]].add(requested[1])
                self._sizes.add(len(mentions), memory.trajectory)
            for one in mentions:
                item = self._items[one.name]
                if (item.listed if one.line else item.whole).add(one, memory.trajectory):
                    self._first_seen_by[memory.trajectory].add(one.name)
                    self._bm25.put(one.name, self._document(one.name, NOBODY))
            history.append(step)


class _Facts(Generic[Fact]):
    """Facts, each with the first two trajectories that show it: without the one it is known by the other."""

    def __init__(self) -> None:
        self._by: dict[Fact, list[str]] = {}

    def add(self, fact: Fact, trajectory: str) -> bool:
        """Add a fact; whether it differs from the last one."""
        repeated = fact == self.last(NOBODY)
        owners = self._by[fact] = self._by.pop(fact, [])
        if len(owners) < 2 and trajectory not in owners:
            owners.append(trajectory)
        return not repeated

    def without(self, hidden: str) -> Iterator[Fact]:
        """The facts that another trajectory than `hidden` shows, the latest first."""
        return (fact for fact in reversed(self._by) if self._by[fact] != [hidden])

    def last(self, hidden: str) -> Fact | None:
        return next(self.without(hidden), None)


class _Item:
    """What is known of one item, from lists and from its own page."""

    def __init__(self) -> None:
        self.listed, self.whole = _Facts[ItemMention](), _Facts[ItemMention]()

    def line(self, hidden: str) -> str:
        """As it was listed last; "" where it was not."""
        known = self.listed.last(hidden)
        return known.line if known else ""


def _step(memory: Memory) -> Transition:
    return Transition(Observation(memory.state), memory.action, Observation(memory.next_state), memory.reward, memory.terminated)
