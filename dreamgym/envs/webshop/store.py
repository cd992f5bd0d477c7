"""A catalogue built once and opened in moments: products decoded when they are looked at, and the search index beside them.

A folder holds `products.jsonl` (one product a line), `places.npz` (where lines start, price ranges), `index.npz` (see `lucene.py`) and
`attributes.json`. Prices of ranged products are drawn when the folder is opened, in the original's order.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np

from dreamgym.envs.webshop import files, products
from dreamgym.envs.webshop.lucene import LuceneIndex
from dreamgym.envs.webshop.products import Product
from dreamgym.errors import UsageError

VERSION = 1
PRODUCTS, PLACES, INDEX, ATTRIBUTES = "products.jsonl", "places.npz", "index.npz", "attributes.json"
KEPT = 8192
"""Products that stay decoded."""


class ProductStore(Sequence[Product]):
    """The products of a built folder, by position; `by_asin` finds them by lower-case ASIN."""

    def __init__(self, path: Path, asins: Sequence[str], starts: np.ndarray, prices: np.ndarray) -> None:
        self.asins, self.starts, self.prices = asins, starts, prices
        self.lines = np.memmap(path, np.uint8, "r")
        self.by_asin: Mapping[str, Product] = _ByAsin(self)
        self._decoded = lru_cache(maxsize=KEPT)(self._decode)

    def __len__(self) -> int:
        return len(self.asins)

    @overload
    def __getitem__(self, place: int) -> Product: ...
    @overload
    def __getitem__(self, place: slice) -> list[Product]: ...
    def __getitem__(self, place: int | slice) -> Product | list[Product]:
        if isinstance(place, slice):
            return [self._decoded(i) for i in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self._decoded(place % len(self))

    def __iter__(self) -> Iterator[Product]:
        return (self._decode(i) for i in range(len(self)))

    def _decode(self, place: int) -> Product:
        title, description, bullets, price_text, options, attributes, category, query, product_category = json.loads(
            self.lines[self.starts[place] : self.starts[place + 1]].tobytes()
        )
        return Product(
            self.asins[place], title, description, tuple(bullets), price_text, float(self.prices[place]),
            {name: tuple(values) for name, values in options.items()}, tuple(attributes), category, query, product_category,
        )  # fmt: skip


class _ByAsin(Mapping[str, Product]):
    """Products by lower-case ASIN, decoded when asked for."""

    def __init__(self, stored: ProductStore) -> None:
        self.products = stored
        self.places = {asin.lower(): place for place, asin in enumerate(stored.asins)}

    def __getitem__(self, asin: str) -> Product:
        return self.products[self.places[asin]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def build(items: Path, attributes: Path, folder: Path, *, num_products: int | None = None) -> int:
    """Read the original's (or a generated catalogue's) two files into a folder that `open_products` reads; the number of products. A
    catalogue that was there is kept until the new one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="unfinished-") as unfinished:
        built = Path(unfinished)
        count = _write(items, attributes, built, num_products)
        (folder / PLACES).unlink(missing_ok=True)  # without it the folder is no catalogue, while files of two are side by side
        for name in (PRODUCTS, INDEX, ATTRIBUTES, PLACES):
            (built / name).replace(folder / name)
    return count


def _write(items: Path, attributes: Path, folder: Path, num_products: int | None) -> int:
    starts, ranges = [0], []
    with (folder / PRODUCTS).open("wb") as lines:

        def written() -> Iterator[Product]:
            known = files.by_asin(attributes)
            stream = products.stream(files.items(items), known, random.Random(0), file=items, num_products=num_products)
            for product in stream:
                line = json.dumps([
                    product.title, product.description, product.bullets, product.price_text, product.options, product.attributes,
                    product.category, product.query, product.product_category,
                ])  # fmt: skip
                starts.append(starts[-1] + lines.write(line.encode() + b"\n"))
                low, *high = products.parse_price(product.price_text)[0]
                ranges.append((low, high[0] if high else np.nan))
                yield product

        index = LuceneIndex.of(written())
    if not index.asins:
        raise UsageError(f"No product in '{items}'. Expected {files.KINDS['items']}.")
    index.save(folder / INDEX)
    shutil.copyfile(attributes, folder / ATTRIBUTES)
    np.savez(folder / PLACES, version=np.int64(VERSION), starts=np.array(starts, np.int64), ranges=np.array(ranges, np.float64))
    return len(index.asins)


def open_products(folder: Path, rng: random.Random) -> tuple[ProductStore, LuceneIndex]:
    """The products and the index of a built folder; ranged prices are the next draws of `rng`, in product order."""
    index = LuceneIndex.load(folder / INDEX)
    try:
        with np.load(folder / PLACES, allow_pickle=False) as stored:
            version, starts, ranges = int(stored["version"]), stored["starts"], stored["ranges"]
        size = (folder / PRODUCTS).stat().st_size
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"'{folder}' is no built catalogue ({error}). Build it with: dreamgym webshop build.") from error
    if version != VERSION or len(starts) != len(index.asins) + 1 or starts[-1] != size:
        raise UsageError(f"'{folder}' is a built catalogue of another version, or half-written. Build it again.")
    prices = ranges[:, 0].copy()
    for place in np.flatnonzero(~np.isnan(ranges[:, 1])):
        prices[place] = rng.uniform(float(ranges[place, 0]), float(ranges[place, 1]))
    return ProductStore(folder / PRODUCTS, index.asins, starts, prices), index


def attributes_of(folder: Path) -> dict[str, Any]:
    """The attributes file that the folder was built with, for synthetic goals."""
    return files.by_asin(folder / ATTRIBUTES)
