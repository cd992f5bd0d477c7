"""The original's search engine: BM25 as Lucene computes it for Anserini (k1 0.9, b 0.4), ties by ASIN, in numpy.

Everything that shapes an order is Lucene's: 32-bit floats, idf ln(1 + (N - df + 0.5) / (df + 0.5)), document lengths in one byte
(`SmallFloat.intToByte4`: exact up to 40, then four significant bits), the exact mean length. An index can be saved and loaded.
"""

from __future__ import annotations

import zipfile
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from dreamgym.envs.webshop.analysis import analyse
from dreamgym.envs.webshop.products import Product
from dreamgym.envs.webshop.search import LIMIT, document
from dreamgym.errors import UsageError

K1, B = np.float32(0.9), np.float32(0.4)
VERSION = 1
EXACT = 24
"""Lucene's byte counts these lengths one by one before it keeps four significant bits."""


@lru_cache(maxsize=4096)
def quantised(length: int) -> int:
    """A length after Lucene's byte: 40 -> 40, 41 -> 40, 100 -> 96."""
    rest = length - EXACT
    if rest < 16:
        return length
    shift = rest.bit_length() - 4
    return EXACT + (rest >> shift << shift)


class LuceneIndex:
    """An inverted index in flat arrays. `search` returns document positions, best first."""

    def __init__(
        self, asins: Sequence[str], terms: Sequence[str], starts: np.ndarray, documents: np.ndarray, counts: np.ndarray, lengths: np.ndarray
    ) -> None:
        self.asins, self.starts, self.documents, self.counts, self.lengths = list(asins), starts, documents, counts, lengths
        self.numbers = {term: i for i, term in enumerate(terms)}
        order = sorted(range(len(self.asins)), key=self.asins.__getitem__)
        self.rank = np.empty(len(order), np.int64)
        self.rank[order] = np.arange(len(order))
        self.indexed = max(1, int((lengths > 0).sum()))
        mean = np.float32(lengths.sum() / self.indexed)
        values, inverse = np.unique(lengths, return_inverse=True)
        short = np.array([quantised(int(value)) for value in values], np.float32)
        self.inverse_norms = (np.float32(1) / (K1 * ((np.float32(1) - B) + B * short / mean)))[inverse]
        self._cache: dict[tuple[str, ...], list[int]] = {}

    @classmethod
    def of(cls, products: Iterable[Product]) -> LuceneIndex:
        """Build the index of a catalogue."""
        asins: list[str] = []
        postings: dict[str, tuple[array[int], array[int]]] = {}
        lengths: list[int] = []
        for place, product in enumerate(products):
            terms = analyse(document(product).lower())
            asins.append(product.asin)
            lengths.append(len(terms))
            for term, count in Counter(terms).items():
                where, often = postings.setdefault(term, (array("i"), array("i")))
                where.append(place)
                often.append(count)
        starts = np.cumsum([0, *(len(where) for where, _ in postings.values())])
        flat = [np.concatenate([np.empty(0, np.int32), *(np.asarray(pair[i], np.int32) for pair in postings.values())]) for i in (0, 1)]
        return cls(asins, list(postings), starts, flat[0], flat[1], np.array(lengths, np.int64))

    def search(self, words: Sequence[str]) -> list[int]:
        """Positions of at most 50 documents that hold a word of the query; a word twice counts twice."""
        key = tuple(words)
        if key not in self._cache:
            if len(self._cache) > 100_000:
                self._cache.clear()
            self._cache[key] = self._ranked(Counter(analyse(" ".join(words))))
        return self._cache[key]

    def _ranked(self, terms: Counter[str]) -> list[int]:
        scores = np.zeros(len(self.asins), np.float64)
        for term, times in terms.items():
            if (number := self.numbers.get(term)) is None:
                continue
            rows = slice(self.starts[number], self.starts[number + 1])
            found = self.documents[rows]
            weight = np.float32(times) * self._idf(len(found))
            scores[found] += weight - weight / (np.float32(1) + self.counts[rows].astype(np.float32) * self.inverse_norms[found])
        single = scores.astype(np.float32)
        found = np.flatnonzero(single > 0)
        if len(found) > LIMIT:
            least = np.partition(single[found], len(found) - LIMIT)[len(found) - LIMIT]
            found = found[single[found] >= least]
        order = np.lexsort((self.rank[found], -single[found]))
        return [int(place) for place in found[order][:LIMIT]]

    def _idf(self, holding: int) -> np.float32:
        return np.float32(np.log(1 + (self.indexed - holding + 0.5) / (holding + 0.5)))

    def save(self, path: Path) -> None:
        """Write the index to one file, which `load` reads in a moment."""
        texts = ["\n".join(self.asins), "\n".join(self.numbers)]
        asins, terms = (np.frombuffer(text.encode(), np.uint8) for text in texts)
        with path.open("wb") as file:
            np.savez(
                file, version=np.int64(VERSION), asins=asins, terms=terms, starts=self.starts, documents=self.documents,
                counts=self.counts, lengths=self.lengths,
            )  # fmt: skip

    @classmethod
    def load(cls, path: Path) -> LuceneIndex:
        """Read a saved index; UsageError where the file is none or of another version."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                if int(stored["version"]) != VERSION:
                    raise UsageError(f"'{path}' is an index of version {int(stored['version'])}, not {VERSION}. Build it again.")
                texts = [stored[name].tobytes().decode() for name in ("asins", "terms")]
                asins, terms = (text.split("\n") if text else [] for text in texts)
                return cls(asins, terms, *(stored[name] for name in ("starts", "documents", "counts", "lengths")))
        except FileNotFoundError as error:
            build = f"dreamgym webshop build --items FILE --attributes FILE --out {path.parent}"
            raise UsageError(f"No index '{path}'. Build one with: {build}") from error
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"'{path}' is no search index of dreamgym ({error}). Build it again.") from error
