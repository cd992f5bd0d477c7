"""The encoder and the index of the replay buffer, each against a slow or independent version of itself."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.errors import ConfigError
from dreamgym.replay.encoders import lexical
from dreamgym.replay.indexes import exact

TEXTS = ["", "...", "Mug, red ($12.50)", "click[b017]", "search[red mug]", "naïve \ud800", "a b c d " * 40]


def test_every_text_has_a_vector_of_length_one_and_the_same_one_whatever_stands_beside_it() -> None:
    together = lexical.make().encode(TEXTS, TEXTS[::-1])
    assert together.dtype == np.float32 and together.shape == (7, 448)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)
    encoder = lexical.make(cache=2)  # small enough to forget
    for _ in range(2):
        apart = np.concatenate([encoder.encode([s], [a]) for s, a in zip(TEXTS, TEXTS[::-1], strict=True)])
        np.testing.assert_array_equal(apart, together)
    assert encoder.encode([], []).shape == (0, 448)


def test_vectors_are_the_same_in_another_process_with_another_hash_seed() -> None:
    program = "from dreamgym.replay.encoders import lexical; print(lexical.make().encode(['red mug'], ['click[b017]']).tobytes().hex())"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment).stdout
    assert printed.strip() == lexical.make().encode(["red mug"], ["click[b017]"]).tobytes().hex()


def test_the_cosine_is_the_weighted_sum_of_the_cosines_of_states_and_actions() -> None:
    encoder = lexical.make(action_weight=0.6)
    same_state, same_action = (
        encoder.encode(["a page", "a page", "other"], ["click", "buy", "click"])[1:] @ encoder.encode(["a page"], ["click"])[0]
    )
    words = lexical.HashedText(256, pair_weight=0.5, cache=9).encode(["click", "buy"])
    states = lexical.HashedText(192, pair_weight=0.5, cache=9).encode(["a page", "other"])
    assert same_state == pytest.approx(0.4 + 0.6 * float(words[0] @ words[1]), abs=1e-6)
    assert same_action == pytest.approx(0.6 + 0.4 * float(states[0] @ states[1]), abs=1e-6)


def test_repeating_a_word_counts_by_its_logarithm_and_ids_stay_whole() -> None:
    text = lexical.HashedText(4096, pair_weight=0.0, cache=0)
    once, thrice, id_, price = text.encode(["mug red", "mug mug mug red", "b017", "12.50"])
    weight = 1 + math.log(3)
    assert float(once @ thrice) == pytest.approx((weight + 1) / math.sqrt(2 * (weight**2 + 1)), abs=1e-6)
    assert np.count_nonzero(id_) == np.count_nonzero(price) == 1


def test_settings_are_in_the_id_and_unknown_ones_are_refused() -> None:
    assert lexical.make().id != lexical.make(pair_weight=0.0).id and lexical.make().id == lexical.make(cache=3).id
    with pytest.raises(ConfigError, match="Did you mean 'action_dim'"):
        lexical.make(action_dims=3)


@settings(max_examples=60)
@given(st.data())
def test_the_exact_index_agrees_with_brute_force(data: st.DataObject) -> None:
    n, queries, k = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    corners = random.integers(-1, 2, (n + queries, 3)) + np.array([0.0, 0.0, 2.0])  # few distinct directions, so that ties abound
    unit = (corners / np.linalg.norm(corners, axis=1, keepdims=True)).astype(np.float32)
    rows, groups = unit[:n], random.integers(0, 4, n)
    mask = data.draw(st.sampled_from([None, random.random(n) < 0.5]))
    exclude = data.draw(st.sampled_from([None, random.integers(-1, 4, queries), random.integers(-1, 4, (queries, 2))]))
    coarse = data.draw(st.sampled_from(["auto", "always"]))
    index = exact.make(dim=3, capacity=2, block=data.draw(st.sampled_from([1, 50, 10_000])), coarse=coarse)
    extra = data.draw(st.integers(0, 5))
    for part in np.array_split(np.arange(n), 3):
        index.add(rows[part], groups[part])
    index.add(unit[:extra][: n + queries], np.zeros(min(extra, n + queries), np.int64))
    index.truncate(n)

    positions, cosines = index.search(unit[n:], k=k, mask=mask, exclude=exclude)

    for q in range(queries):
        allowed = [i for i in range(n) if (mask is None or mask[i]) and (exclude is None or groups[i] not in np.ravel(exclude[q]))]
        expected = sorted(allowed, key=lambda i: (-round(float(np.clip(unit[n + q] @ rows[i], -1, 1)), 5), i))[:k]
        missing = k - len(expected)
        assert positions[q].tolist() == expected + [-1] * missing
        np.testing.assert_allclose(cosines[q][: len(expected)], [unit[n + q] @ rows[i] for i in expected], atol=1e-5)
        assert np.isneginf(cosines[q][len(expected) :]).all()
