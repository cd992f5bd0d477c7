"""A catalogue that is built once: what is in it, and what a build that fails leaves behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dreamgym.envs.webshop import files, lifelike, products, store
from dreamgym.errors import UsageError


def built(folder: Path, *, seed: int) -> list[str]:
    """The titles of a generated catalogue of a hundred products, built into the folder."""
    items, attributes = lifelike.write(folder.with_name(f"files-{seed}"), 100, seed)
    assert store.build(items, attributes, folder) == 100
    return [product.title for product in products.load(files.items(items), files.by_asin(attributes), seed=0, file=items)]


def opened(folder: Path) -> list[str]:
    return [product.title for product in store.open_products(folder, random.Random(0))[0]]


def test_a_built_catalogue_holds_its_products_and_a_second_build_replaces_it(tmp_path: Path):
    first = built(tmp_path / "shop", seed=0)
    assert opened(tmp_path / "shop") == first
    second = built(tmp_path / "shop", seed=1)
    assert opened(tmp_path / "shop") == second != first


def test_a_build_that_fails_midway_keeps_the_catalogue_that_was_there(tmp_path: Path):
    first = built(tmp_path / "shop", seed=0)
    items, attributes = lifelike.write(tmp_path / "broken", 100, 1)
    items.write_text(items.read_text()[:-2000])
    before = sorted(file.name for file in (tmp_path / "shop").iterdir())
    with pytest.raises(UsageError):
        store.build(items, attributes, tmp_path / "shop")
    assert opened(tmp_path / "shop") == first
    assert sorted(file.name for file in (tmp_path / "shop").iterdir()) == before, "nothing unfinished stays"
