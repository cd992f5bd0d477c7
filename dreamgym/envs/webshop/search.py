"""Plain BM25 over a generated catalogue (k1 0.9, b 0.4, stop words), and what is indexed of a product.

The original's engine with Lucene's analyser and rounding is in `lucene.py`. Measurements on generated catalogues rest on this one's order.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from dreamgym.envs.webshop.listing import LONGEST_LIST, terms
from dreamgym.envs.webshop.products import Product

K1, B, LIMIT = 0.9, 0.4, LONGEST_LIST


def tokens(text: str) -> list[str]:
    """Lower-case words without stop words."""
    return terms(text, stemmed=False)


def document(product: Product) -> str:
    """What is indexed of a product: title, description, the first bullet, and its options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join([product.title, product.description, *product.bullets[:1], options])


class Index:
    """An in-memory inverted index. `search` returns product positions, best first, ties by ASIN."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.asins = [product.asin for product in products]
        counts = [Counter(tokens(document(product))) for product in products]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(1, len(lengths))
        self.postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for i, count in enumerate(counts):
            norm = K1 * (1 - B + B * lengths[i] / mean)
            for word, tf in count.items():
                self.postings[word].append((i, 1 - 1 / (1 + tf / norm)))
        n = len(products)
        self.idf = {word: math.log(1 + (n - len(rows) + 0.5) / (len(rows) + 0.5)) for word, rows in self.postings.items()}
        self._cache: dict[tuple[str, ...], list[int]] = {}

    def search(self, words: Sequence[str]) -> list[int]:
        """Positions of at most 50 products with a positive score for the bag of `words`."""
        key = tuple(words)
        if key not in self._cache:
            scores: dict[int, float] = defaultdict(float)
            for word in tokens(" ".join(words)):
                for i, weight in self.postings.get(word, ()):
                    scores[i] += self.idf[word] * weight
            ranked = sorted(scores, key=lambda i: (-round(scores[i], 6), self.asins[i]))
            self._cache[key] = ranked[:LIMIT]
        return self._cache[key]
