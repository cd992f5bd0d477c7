"""BM25 over documents that are added one by one (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009).

The search engine of generated shops and the experience model's item index share it: one ranks the catalogue, the other what logs show.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

K1, B = 0.9, 0.4
"""As search engines ship them (Anserini's defaults, and so WebShop's)."""


@dataclass(frozen=True)
class Document:
    """The terms of an item: all of them, or the part that is known."""

    terms: Counter[str]
    whole: bool

    @cached_property
    def length(self) -> int:
        return self.terms.total()


class Bm25:
    """Scores of documents by name.

    A document of which only a part is known counts at least as long as whole ones are on average, or it would rank for its brevity.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self._holders: dict[str, set[str]] = defaultdict(set)  # names by term
        self._sizes: Counter[tuple[bool, str]] = Counter()  # by whether whole: how many there are, and their terms

    def put(self, name: str, document: Document) -> None:
        """Add a document, or put it in the place of the one of that name."""
        old = self.documents.get(name, Document(Counter(), whole=True))
        for term in old.terms.keys() - document.terms.keys():
            self._holders[term].discard(name)
        for term in document.terms.keys() - old.terms.keys():
            self._holders[term].add(name)
        self.documents[name] = document
        self._sizes.update(_sizes([document]))
        self._sizes.subtract(_sizes([old]))

    def scores(self, asked: Sequence[str]) -> dict[str, float]:
        """Of every document that holds one of the terms. A term that is asked for twice counts twice."""
        n, usual = self._count()
        found: dict[str, float] = defaultdict(float)
        for term, times in Counter(asked).items():
            names = self._holders.get(term, ())
            idf = math.log(1 + (n - len(names) + 0.5) / (len(names) + 0.5))
            for name in names:
                document = self.documents[name]
                length = document.length if document.whole else max(document.length, usual)
                norm = K1 * (1 - B + B * length / usual)
                found[name] += times * idf * (1 - 1 / (1 + document.terms[term] / norm))
        return found

    def _count(self) -> tuple[int, float]:
        """How many documents there are, and the mean length of whole ones, or of all where none is whole."""
        sizes = self._sizes
        whole = bool(sizes[True, "documents"])
        usual = sizes[whole, "terms"] / max(1, sizes[whole, "documents"])
        return sizes[True, "documents"] + sizes[False, "documents"], max(1.0, usual)


def _sizes(documents: Iterable[Document]) -> Counter[tuple[bool, str]]:
    found: Counter[tuple[bool, str]] = Counter()
    for document in documents:
        if document.terms:
            found[document.whole, "documents"] += 1
            found[document.whole, "terms"] += document.length
    return found
