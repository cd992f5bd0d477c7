"""What every index promises (`replay.indexes.Index`). Indexes are discovered; one whose package is not installed is skipped.

An approximate index may miss neighbours, but never shows a hidden one, and where it looks at everything it finds everything.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym import plugins
from dreamgym.errors import InvariantError, MissingExtra
from dreamgym.replay.indexes import Index

DIM = 8
SMALL = {"ivf": {"train_from": 40, "background": False, "probes": 1000}, "exact": {"coarse": "always"}}
"""Settings under which an index takes the path meant for many rows, and looks at all of them."""


def made(name: str, **more: object) -> Index:
    try:
        index: Index = plugins.make("replay.indexes", name, dim=DIM, **SMALL.get(name, {}), **more)
    except MissingExtra as error:
        pytest.skip(str(error))
    return index


def rows_of(random: np.random.Generator, n: int) -> np.ndarray:
    rows = random.standard_normal((n, DIM)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)


every_index = pytest.mark.parametrize("name", plugins.known("replay.indexes"))


@every_index
def test_room_that_is_made_beforehand_holds_what_comes_and_changes_nothing(name: str) -> None:
    random = np.random.default_rng(0)
    rows, groups = rows_of(random, 60), random.integers(0, 9, 60)
    plain, roomy = made(name), made(name)
    for index in (plain, roomy):
        index.add(rows[:10], groups[:10])
        if index is roomy:
            index.reserve(60)
            index.reserve(5)  # less than there is: nothing is lost
        index.add(rows[10:], groups[10:])
    for one, other in zip(plain.search(rows, k=7), roomy.search(rows, k=7), strict=True):
        assert np.array_equal(one, other)


@every_index
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 120), k=st.integers(1, 20))
def test_the_nearest_rows_that_may_be_seen_are_found_best_first(name: str, seed: int, n: int, k: int) -> None:
    random, index = np.random.default_rng(seed), made(name)
    rows, groups = rows_of(random, n), random.integers(0, 9, n)
    for part in np.array_split(np.arange(n), 3):
        index.add(rows[part], groups[part])
        index.search(rows[:1], k=1) if n else None
    queries, mask = rows_of(random, 3), random.random(n) < 0.6
    exclude = random.integers(-1, 9, (3, 2))
    positions, cosines = index.search(queries, k=k, mask=mask, exclude=exclude)
    assert len(index) == n and positions.shape == cosines.shape == (3, k)
    for q in range(3):
        allowed = [i for i in range(n) if mask[i] and groups[i] not in exclude[q]]
        best = sorted((float(queries[q] @ rows[i]) for i in allowed), reverse=True)[:k]
        found = positions[q][positions[q] >= 0]
        assert len(found) == len(set(found.tolist())) == len(best) and set(found.tolist()) <= set(allowed)
        np.testing.assert_allclose(cosines[q][: len(best)], best, atol=2e-5)
        assert (positions[q][len(best) :] == -1).all() and np.isneginf(cosines[q][len(best) :]).all()
        assert (np.diff(cosines[q][: len(best)]) <= 0).all()


@every_index
def test_truncation_and_retention_leave_what_a_new_index_of_the_rest_would_have(name: str) -> None:
    random = np.random.default_rng(0)
    rows, groups, queries = rows_of(random, 150), random.integers(0, 9, 150), rows_of(random, 5)
    index, keep = made(name), random.random(120) < 0.7
    index.add(rows, groups)
    index.search(queries, k=3)
    index.truncate(100)
    assert len(index) == 100 and index.search(queries, k=100)[0].max() < 100
    index.add(rows[100:120], groups[100:120])
    index.retain(keep)
    fresh = made(name)
    fresh.add(rows[:120][keep], groups[:120][keep])
    for one, other in zip(index.search(queries, k=9), fresh.search(queries, k=9), strict=True):
        np.testing.assert_array_equal(one, other)


@every_index
def test_nothing_asked_or_nothing_there_is_an_empty_answer_and_a_wrong_shape_a_bug(name: str) -> None:
    index = made(name)
    assert (index.search(np.zeros((2, DIM), np.float32), k=3)[0] == -1).all()
    index.add(np.eye(DIM, dtype=np.float32), np.arange(DIM))
    assert index.search(np.zeros((0, DIM), np.float32), k=3)[0].shape == (0, 3)
    nothing = index.search(np.eye(DIM, dtype=np.float32), k=2, mask=np.zeros(DIM, bool))
    assert (nothing[0] == -1).all() and np.isneginf(nothing[1]).all()
    with pytest.raises(InvariantError, match="Expected vectors of shape"):
        index.add(np.zeros((1, DIM + 1), np.float32), np.zeros(1, np.int64))


def test_inverted_lists_built_in_the_background_find_most_neighbours_and_searches_go_on_meanwhile() -> None:
    pytest.importorskip("faiss", reason="the extra 'faiss' is not installed")
    random = np.random.default_rng(1)
    rows = rows_of(random, 4000)
    index, exact = (plugins.make("replay.indexes", one, dim=DIM, **more) for one, more in (("ivf", {"train_from": 1000}), ("exact", {})))
    for part in np.array_split(np.arange(4000), 4):
        index.add(rows[part], part)
        exact.add(rows[part], part)
        assert (index.search(rows[:20], k=8)[1][:, 0] > 0.99).all()
    index.wait()
    found, expected = index.search(rows[:100], k=8)[0], exact.search(rows[:100], k=8)[0]
    assert index._inside > 0 and np.mean([len(set(a) & set(b)) / 8 for a, b in zip(found.tolist(), expected.tolist(), strict=True)]) > 0.9
