"""Plain BM25 over a generated catalogue (k1 0.9, b 0.4, stop words), and what is indexed of a product.

The original's engine with Lucene's analyser and rounding is in `lucene.py`. Measurements on generated catalogues rest on this one's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dreamgym.envs.webshop.bm25 import Bm25, Document
from dreamgym.envs.webshop.listing import MAX_RESULTS, search_terms
from dreamgym.envs.webshop.products import Product

LIMIT = MAX_RESULTS


def tokens(text: str) -> list[str]:
    """Lower-case words without stop words."""
    return search_terms(text, stemmed=False)


def document(product: Product) -> str:
    """What is indexed of a product: title, description, the first bullet, and its options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join([product.title, product.description, *product.bullets[:1], options])


class Index:
    """The catalogue under BM25. `search` returns product positions, best first, ties by ASIN."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.asins = [product.asin for product in products]
        self._positions = {asin: i for i, asin in enumerate(self.asins)}
        self._bm25 = Bm25()
        for product in products:
            self._bm25.put(product.asin, Document(Counter(tokens(document(product))), whole=True))
        self._cache: dict[tuple[str, ...], list[int]] = {}

    def search(self, words: Sequence[str]) -> list[int]:
        """Positions of at most 50 products with a positive score for the bag of `words`."""
        key = tuple(words)
        if key not in self._cache:
            scores = self._bm25.scores(tokens(" ".join(words)))
            ranked = sorted(scores, key=lambda asin: (-round(scores[asin], 6), asin))
            self._cache[key] = [self._positions[asin] for asin in ranked[:LIMIT]]
        return self._cache[key]
