"""What every encoder promises (`protocols.Encoder`). Encoders are discovered; one whose package is not installed is skipped.

What single encoders are worth, and how an endpoint fails, is tested in tests/unit/replay/test_encoders.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import httpx
import numpy as np
import pytest

from dreamgym import plugins
from dreamgym.errors import MissingExtra
from dreamgym.llm import tiny
from dreamgym.protocols import Encoder
from dreamgym.replay.encoders.lexical import LexicalConfig, LexicalEncoder

TEXTS = ("a red mug on a shelf", "", " ", "naïve 茶碗 \u0000", "click[12.50]", "lone \ud800", "long " * 300, "[] {}", "\n")
STATES = [state for state in TEXTS for _ in TEXTS]
ACTIONS = [action for _ in TEXTS for action in TEXTS]
Make = Callable[..., Encoder]


def answer(request: httpx.Request) -> httpx.Response:
    """An endpoint whose vectors follow from the texts."""
    digests = [hashlib.sha256(text.encode()).digest()[:6] for text in json.loads(request.content)["input"]]
    return httpx.Response(200, json={"data": [{"index": i, "embedding": [b - 127.5 for b in one]} for i, one in enumerate(digests)]})


@cache
def model() -> dict[str, Any]:
    tokenizer = tiny.train_tokenizer(["a red mug on a shelf, click[mug]"], vocab_size=300)
    return {"model": tiny.build(tokenizer, "100k", seed=0), "encode": lambda text: tiny.encode(tokenizer, text), "weights": "seed-0"}


NEEDED: dict[str, Callable[[], dict[str, Any]]] = {
    "endpoint": lambda: {
        "base_url": "http://server/v1", "model": "bge", "dim": 6, "client": httpx.Client(transport=httpx.MockTransport(answer)),
    },
    "hidden": model,
}  # fmt: skip
"""What an encoder cannot be made without."""


def maker(name: str) -> Make:
    def make(**settings: Any) -> Encoder:
        encoder: Encoder = plugins.make("replay.encoders", name, **(NEEDED[name]() if name in NEEDED else {}), **settings)
        return encoder

    try:
        make()
    except MissingExtra as error:
        pytest.skip(str(error))
    return make


def vectors_are_rows_of_length_one_whatever_the_texts(make: Make) -> None:
    encoder = make()
    vectors = encoder.encode(STATES, ACTIONS)
    assert vectors.shape == (len(STATES), encoder.dim) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert encoder.encode([], []).shape == (0, encoder.dim)


def the_same_pair_is_the_same_vector_in_any_batch_order_and_instance(make: Make) -> None:
    encoder, other = make(), make()
    vectors = encoder.encode(STATES, ACTIONS)
    np.testing.assert_array_equal(encoder.encode(STATES, ACTIONS), vectors)
    np.testing.assert_allclose(other.encode(STATES[::-1], ACTIONS[::-1])[::-1], vectors, atol=2e-2)  # bfloat16 rounds by the batch
    alone = make(cache=0)
    for i in range(0, len(STATES), 17):
        np.testing.assert_allclose(alone.encode(STATES[i : i + 1], ACTIONS[i : i + 1])[0], vectors[i], atol=2e-2)
    assert encoder.id == other.id and encoder.dim == other.dim


def another_state_or_action_is_another_vector(make: Make) -> None:
    pairs = [("a red mug", "click[mug]"), ("a blue lamp", "click[mug]"), ("a red mug", "go back")]
    vectors = make().encode(*map(list, zip(*pairs, strict=True)))
    cosines = vectors @ vectors.T
    assert cosines[0, 1] < 0.999 and cosines[0, 2] < 0.999


def a_setting_that_changes_vectors_changes_the_id(make: Make) -> None:
    """The id is kept with a log, which is not searched with another encoder."""
    plain, heavier = make(), make(action_weight=0.9)
    pair = (["a red mug", "a blue lamp"], ["go back", "click[mug]"])
    assert not np.allclose(plain.encode(*pair), heavier.encode(*pair), atol=1e-3)
    assert plain.id != heavier.id and make(cache=0).id == plain.id


def states_without_their_actions_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="2 states and 1 actions"):
        make().encode(["a", "b"], ["c"])


PROMISES = [
    vectors_are_rows_of_length_one_whatever_the_texts,
    the_same_pair_is_the_same_vector_in_any_batch_order_and_instance,
    another_state_or_action_is_another_vector,
    a_setting_that_changes_vectors_changes_the_id,
    states_without_their_actions_are_refused,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", plugins.known("replay.encoders"))
def test_an_encoder_keeps_every_promise(name: str, promise: Callable[[Make], None]) -> None:
    promise(maker(name))


# Encoders that break a promise each


class Broken(LexicalEncoder):
    def __init__(self, **settings: Any) -> None:
        super().__init__(LexicalConfig(**settings))


class OfAnyLength(Broken):
    def encode(self, states: Sequence[str], actions: Sequence[str]) -> np.ndarray:
        return super().encode(states, actions) * 1.01


class ByPlace(Broken):
    def encode(self, states: Sequence[str], actions: Sequence[str]) -> np.ndarray:
        return np.roll(super().encode(states, actions), len(states) // 2, axis=0)


class OfStatesAlone(Broken):
    def encode(self, states: Sequence[str], actions: Sequence[str]) -> np.ndarray:
        return super().encode(states, [""] * len(actions))


class Nameless(Broken):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.id = "nameless"


class Fills(Broken):
    def encode(self, states: Sequence[str], actions: Sequence[str]) -> np.ndarray:
        return super().encode(states, [*actions, *[""] * len(states)][: len(states)])


@pytest.mark.parametrize(("broken", "promise"), list(zip((OfAnyLength, ByPlace, OfStatesAlone, Nameless, Fills), PROMISES, strict=True)))
def test_a_broken_encoder_does_not_keep_its_promise(broken: Make, promise: Callable[[Make], None]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        promise(broken)
