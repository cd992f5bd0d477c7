"""Guessing ahead: fewer passes, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dreamgym.engines.local import ngram_speculation
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.local.ngram_speculation import NGramSpeculator
from dreamgym.errors import ConfigError
from dreamgym.llm import tiny
from dreamgym.types import Completion, Request, Sampling

SHAPE = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
MODELS = {
    "compiled": (LlamaForCausalLM, LlamaConfig, {"head_dim": 32}),
    "fast": (LlamaForCausalLM, LlamaConfig, {}),
    "generic": (Qwen2ForCausalLM, Qwen2Config, {}),
}


def engine(kind: str, speculate: int) -> LocalEngine:
    torch.manual_seed(0)
    model, config, more = MODELS[kind]
    made = model(config(**SHAPE, **more)).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.mul_(8)
    return LocalEngine(made, tiny.train_tokenizer(["a"], vocab_size=300), speculate=speculate)


def requests(*, stop: tuple[Any, ...] = (), session: str = "") -> list[Request]:
    """Prompts of 5 to 60 tokens that ask for 3 to 40 more, greedy and sampled side by side."""
    rng = np.random.default_rng(1)
    asked = []
    for i in range(12):
        how = Sampling(int(rng.integers(3, 41)), stop, temperature=(0.0, 1.0, 0.7)[i % 3], top_k=5 * (i % 2))
        asked.append(Request(rng.integers(10, 300, rng.integers(5, 61)).tolist(), how, (i,), f"{session}{i}" if session else None))
    return asked


@contextmanager
def passes(engine: LocalEngine) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of what is fed to the model's decoding passes."""
    seen: list[tuple[int, ...]] = []
    decode = engine.runner.decode
    engine.runner.decode = lambda ids, *more: (seen.append(tuple(ids.shape)), decode(ids, *more))[1]  # type: ignore[method-assign]
    yield seen
    engine.runner.decode = decode  # type: ignore[method-assign]


def same(a: list[Completion], b: list[Completion]) -> bool:
    pairs = list(zip(a, b, strict=True))
    alike = all((x.ids, x.text, x.finish_reason) == (y.ids, y.text, y.finish_reason) for x, y in pairs)
    return alike and all(np.allclose(x.logprobs, y.logprobs, atol=1e-4) for x, y in pairs)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_what_was_said_before_is_guessed_and_takes_fewer_passes_to_say_again(kind: str):
    plain, out_of_support = engine(kind, 0), engine(kind, 4)
    expected = plain.generate(requests())
    with passes(out_of_support) as first:
        assert same(out_of_support.generate(requests()), expected)
    with passes(out_of_support) as again:
        assert same(out_of_support.generate(requests()), expected)
    longest = max(len(one.ids) for one in expected)
    assert len(first) == longest - 1  # the first token comes with the prompt
    assert len(again) <= longest // 3 and max(width for _, width in again) == 5


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_wrong_guesses_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch):
    out_of_support, rng = engine(kind, 3), np.random.default_rng(0)
    expected = engine(kind, 0).generate(requests())
    told = {tuple(one.prompt_ids): one.ids for one in expected}

    def half_true(self: LocalEngine) -> list[tuple[list[int], int]]:
        """For each row what will follow, up to a token that will not, at a random place; and for some rows no guess."""
        found = []
        for row in range(self.batch.n):
            work, made = self.batch.active[row], int(self.batch.made[row])
            true = list(told[tuple(work.prompt.tolist())][made : made + int(rng.integers(0, 4))])
            if true and rng.random() < 0.6:
                true[int(rng.integers(len(true)))] ^= 1
            found.append((true[: max(0, work.request.sampling.max_tokens - made - 1)] if not self.batch.done[row] else [], 4))
        return found

    monkeypatch.setattr(LocalEngine, "_guesses", half_true)
    with passes(out_of_support) as seen:
        assert same(out_of_support.generate(requests()), expected)
    assert 10 < len(seen) < 39
    told.clear()
    monkeypatch.undo()


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_stops_among_the_guesses_end_an_answer_where_they_stand(kind: str):
    free = engine(kind, 0).generate(requests())
    longest = max(free, key=lambda one: len(one.ids))
    stop = (longest.ids[5], longest.ids[6]), longest.ids[9]
    out_of_support = engine(kind, 4)
    out_of_support.generate(requests())  # knows the answers without the stops
    expected = engine(kind, 0).generate(requests(stop=stop))
    assert any(one.finish_reason == "stop" for one in expected) and same(out_of_support.generate(requests(stop=stop)), expected)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_caches_that_held_guesses_serve_the_next_turn(kind: str):
    plain, out_of_support = engine(kind, 0), engine(kind, 4)
    turn = {name: requests(session=name) for name in ("a", "b")}
    for _ in range(3):
        for name in ("a", "b"):  # b says what a has said
            said = [one.generate(turn[name]) for one in (plain, out_of_support)]
            assert same(*said)
            turn[name] = [replace(r, prompt=[*r.prompt, *c.ids, 7, 8], seed=(*r.seed, 1)) for r, c in zip(turn[name], said[0], strict=True)]
    assert len(out_of_support.speculator._after) > 0
    out_of_support.release([f"{name}{i}" for name in ("a", "b") for i in range(12)])
    assert not out_of_support.speculator._after and not out_of_support.kv_cache.row_of  # the next rollout computes as the first one did


def test_guesses_go_to_the_end_of_the_context_and_no_further():
    plain, out_of_support = engine("fast", 0), engine("fast", 6)
    prompt = np.random.default_rng(2).integers(10, 300, 216).tolist()
    full = [Request(prompt, Sampling(40, temperature=t), (0,)) for t in (0.0, 1.0)]  # 256 in all
    expected = plain.generate(full)
    for _ in range(2):
        assert same(out_of_support.generate(full), expected) and len(expected[0].ids) == 40


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_row_at_the_end_of_the_cache_is_not_disturbed_by_the_guesses_of_others(kind: str):
    """Three rows of 64 tokens, as many as the cache has room for: two end there when the others still guess ahead."""
    rng = np.random.default_rng(3)
    lengths = [(60, 4), (24, 40), (62, 2), (30, 34)]
    asked = [Request(rng.integers(10, 300, n).tolist(), Sampling(m, temperature=1.0), (i,)) for i, (n, m) in enumerate(lengths)]
    expected, out_of_support = engine(kind, 0).generate(asked), engine(kind, 6)
    for _ in range(3):
        assert same(out_of_support.generate(asked), expected) and out_of_support.kv_cache.capacity == 64


def test_cancelling_one_that_guesses_leaves_the_others():
    out_of_support, asked = engine("fast", 4), requests()
    expected = engine("fast", 0).generate(asked)
    out_of_support.generate(asked)
    tickets = out_of_support.submit(asked)
    for _ in range(3):
        out_of_support._advance()
    out_of_support.cancel(tickets[::2])
    found: dict[int, Completion] = {}
    while done := out_of_support.poll():
        found |= done
    assert [found[t].ids for t in tickets[1::2] if t in found] == [one.ids for one in expected[1::2]]
    assert out_of_support.batch.running == 0


def test_answers_by_grammar_are_followed_token_by_token_beside_others_that_guess():
    pytest.importorskip("llguidance", reason="Structured decoding needs llguidance: pip install 'dreamgym[structured]'")
    words = tiny.train_tokenizer(["0123456789[]"], vocab_size=300)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE | {"vocab_size": len(words)})).eval()
    rule = Sampling(8, (words.eos_token_id,), temperature=1.0, grammar='start: "[" /[0-9]{3}/ "]"')
    asked = [Request([5 + i, 6, 7], how, (i,)) for i in range(6) for how in (Sampling(20), rule)]
    expected = LocalEngine(model, words).generate(asked)
    out_of_support = LocalEngine(model, words, speculate=4)
    assert all(same(out_of_support.generate(asked), expected) for _ in range(2))


def test_the_longest_context_decides_and_the_latest_text():
    speculator = NGramSpeculator(3)
    speculator.learn([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert speculator.guess([1, 2, 3, 4], 9) == ([5, 6, 7], 4) and speculator.guess([0, 3, 4], 2) == ([5, 6], 2)
    speculator.learn([3, 4, 11])
    assert speculator.guess([0, 0, 3, 4], 9) == ([11], 2) and speculator.guess([1, 2, 3, 4], 9)[0] == [5, 6, 7]
    assert speculator.guess([4, 3], 9) == speculator.guess([4], 9) == speculator.guess([3, 4], 0) == ([], 0)


def test_old_text_is_forgotten_by_halves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ngram_speculation, "KEPT", 8)
    speculator = NGramSpeculator(1)
    for start in range(0, 100, 10):
        speculator.learn(list(range(start, start + 6)))
    assert (
        speculator.guess([90, 91], 1) == ([92], 2)
        and speculator.guess([80, 81], 1) == ([82], 2)
        and speculator.guess([70, 71], 1) == ([], 0)
    )


def test_guesses_that_keep_failing_are_left_out_and_now_and_then_tried_again():
    speculator = NGramSpeculator(4)
    guesses = [([1, 2, 3, 4], 4)] * 5 + [([], 0)] * 5
    tried = 0
    for _ in range(160):
        if speculator.worth(guesses):
            speculator.score(guesses, np.zeros(10))
            tried += 1
    assert tried < 20
    for _ in range(160):
        if speculator.worth(guesses[:5]):
            speculator.score(guesses[:5], np.full(5, 4))
    assert speculator.worth(guesses[:5]) and not speculator.worth([([], 0)] * 3)


def test_less_than_no_guess_is_refused():
    with pytest.raises(ConfigError, match="'speculate' in engine"):
        engine("fast", -1)
