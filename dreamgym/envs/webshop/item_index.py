"""An index of the products in real memory, and the search results composed from it: the shop's own option `compose_results`.

A search that no log holds has no precedent, but its products were seen on other pages. `ItemIndex` holds each product with its line in
lists and its words, and ranks products by BM25, as the shop's search engine does: it is knowledge of the simulator, and off by default.
Dreams add nothing to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from dreamgym.envs.real_rows import RealRows
from dreamgym.envs.webshop.bm25 import Bm25, Document
from dreamgym.envs.webshop.listing import MAX_RESULTS, ItemMention, item_mentions, requested_page, results_page, search_terms
from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Memory, Query, Transition

KEPT = 4096  # rankings that are not computed again


class SearchComposer:
    """The results page that an action shows (`envs.base.Composer`): the recorded one, or else one composed from the products in memory."""

    def __init__(self, replay: ReplayBuffer, *, stemmed: bool) -> None:
        self.replay, self.stemmed = replay, stemmed
        self._indexes: dict[str, ItemIndex] = {}  # by environment

    def compose(self, query: Query) -> Memory | None:
        """The page as what the action of `query` led to; None where it shows no results, or no results were ever seen."""
        requested, env = requested_page(query.state, query.history, query.action), query.task.env
        if requested is None:
            return None
        index = self._indexes.setdefault(env, ItemIndex(self.replay, env, stemmed=self.stemmed))
        if memory := index.recorded_page(*requested):
            return replace(memory, state=query.state.text, action=query.action, reasoning="")
        page = index.compose_page(*requested)
        return None if page is None else Memory(
            row=0, trajectory="", step=0, env=env, instruction="", source="demo", state=query.state.text, action=query.action,
            next_state=page, reward=0.0, terminated=False, success=False,
        )  # fmt: skip


class ItemIndex(RealRows):
    """The products of one environment in the real rows of a replay buffer, which it follows."""

    def __init__(self, replay: ReplayBuffer, env: str, *, stemmed: bool) -> None:
        self.stemmed = stemmed
        super().__init__(replay, env=env)

    def recorded_page(self, words: str, number: int) -> Memory | None:
        """The last real step that showed page `number` of the results for `words`; None where no step did."""
        self._follow()
        return self._shown.get((words, number))

    def compose_page(self, words: str, number: int) -> str | None:
        """Page `number` of the products that match `words`; None where no results of any search were ever seen.

        Products on recorded pages of the same search are not repeated.
        """
        self._follow()
        if not self._per_page:
            return None
        room = min(self._per_page, MAX_RESULTS - (number - 1) * self._per_page)
        elsewhere = {page: self._names(words, page) for page in self._pages.get(words, ()) if page != number}
        ended = any(page < number and len(names) < self._per_page for page, names in elsewhere.items())
        if room <= 0 or ended:
            return results_page([], number)
        taken = {name for names in elsewhere.values() for name in names}
        before = sum(page not in elsewhere for page in range(1, number)) * self._per_page  # items on unrecorded pages before it
        free = (line for name in self._ranked(words) if name not in taken and (line := self._line(name)))
        return results_page(list(islice(free, before, before + room)), number)

    def _names(self, words: str, number: int) -> list[str]:
        """Names of the items on a recorded page."""
        return [one.name for one in item_mentions(self._shown[words, number].transition)]

    def _line(self, name: str) -> str:
        """An item as it was listed last; "" where it was not."""
        return self._listed[name].line if name in self._listed else ""

    def _ranked(self, words: str) -> list[str]:
        """Names of the items that share a word with `words`, best first, ties by name."""
        if words not in self._rankings:
            if len(self._rankings) >= KEPT:
                self._rankings.clear()
            scores = self._bm25.scores(search_terms(words, stemmed=self.stemmed))
            self._rankings[words] = sorted(scores, key=lambda name: (-round(scores[name], 6), name))
        return self._rankings[words]

    def _clear(self) -> None:
        self._listed: dict[str, ItemMention] = {}  # by name, as seen last in a list
        self._whole: dict[str, ItemMention] = {}  # and on its own page
        self._shown: dict[tuple[str, int], Memory] = {}  # by words and page
        self._pages: dict[str, set[int]] = defaultdict(set)  # recorded ones, by words
        self._per_page = 0  # the most items that a page has shown
        self._bm25 = Bm25()
        self._rankings: dict[str, list[str]] = {}

    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        self._rankings.clear()
        for rows in episodes:
            self._add_episode(rows)

    def _add_episode(self, rows: Iterable[Memory]) -> None:
        """One episode's rows, in order."""
        history: list[Transition] = []
        for memory in rows:
            step = memory.transition
            mentions = item_mentions(step)
            if requested := requested_page(step.state, history, memory.action):
                self._shown[requested] = memory
                self._pages[requested[0]].add(requested[1])
                self._per_page = max(self._per_page, len(mentions))
            for one in mentions:
                (self._listed if one.line else self._whole)[one.name] = one
                self._bm25.put(one.name, self._document(one.name))
            history.append(step)

    def _document(self, name: str) -> Document:
        known = self._whole.get(name) or self._listed[name]
        return Document(Counter(search_terms(known.text, stemmed=self.stemmed)), name in self._whole)
