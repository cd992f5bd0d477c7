"""What is compiled on the machine computes what torch would have computed, and where nothing can be compiled, torch does."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.engines.local import native_library
from dreamgym.engines.local.cpu_decode import Decoder, decoder
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.local.kv_cache import KVCache
from dreamgym.engines.local.llama import Weights, causal, hidden, rotary
from dreamgym.engines.local.running_batch import ActiveRequest, RunningBatch, sample
from dreamgym.errors import InvariantError
from dreamgym.llm import tiny
from dreamgym.types import Request, Sampling

compiled = pytest.mark.skipif(native_library._compiler() is None, reason="no C compiler: install gcc or clang")


@pytest.fixture(autouse=True)
def compiling_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DREAMGYM_COMPILE", raising=False)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread, and two, between which a race would show."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def llama(heads: int, key_heads: int, head: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=301, hidden_size=16 * heads, intermediate_size=80, num_hidden_layers=3, num_attention_heads=heads,
                    num_key_value_heads=key_heads, head_dim=head, max_position_embeddings=512)
    ).eval()  # fmt: skip


def passes(model: LlamaForCausalLM, dtype: torch.dtype) -> tuple[Decoder | None, KVCache]:
    config = model.config
    kv_cache = KVCache(layers=3, kv_heads=config.num_key_value_heads, head_dim=config.head_dim, dtype=dtype, device=torch.device("cpu"),
                cache_bytes=10**8, max_length=512)  # fmt: skip
    kv_cache.assign_rows(0, ["a", "b", "c"], 400)
    return decoder(Weights(model, dtype=dtype), *rotary(model, torch.arange(512)), kv_cache), kv_cache


@compiled
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "key_heads", "head"), [(4, 1, 32), (7, 1, 32), (6, 2, 64), (4, 4, 128)])
@torch.inference_mode()
def test_compiled_passes_say_what_torch_says_in_whatever_pieces_a_row_comes(
    heads: int, key_heads: int, head: int, dtype: torch.dtype
) -> None:
    """Three rows of 1 to 400 tokens, as prompts behind nothing, as prompts behind a past, and token by token."""
    model = llama(heads, key_heads, head)
    weights, near = Weights(model, dtype=dtype), 1e-4 if dtype == torch.float32 else 0.1
    lengths, ids = [400, 131, 17], torch.randint(10, 300, (548,))
    cos, sin = rotary(model, torch.cat([torch.arange(n) for n in lengths]))
    expected = hidden(weights, ids, cos, sin, causal(lengths, dtype), stream=torch.float32).split(lengths)
    native, _ = passes(model, dtype)
    assert native is not None
    texts = [part.numpy() for part in ids.split(lengths)]
    for cuts in ([0, 1.0], [0, 0.3, 0.9, 1.0]):
        for before, after in itertools.pairwise(cuts):
            spans = [(int(before * n), int(after * n)) for n in lengths]
            fed = np.concatenate([text[a:b] for text, (a, b) in zip(texts, spans, strict=True)])
            rows = np.repeat([2, 0, 1], [b - a for a, b in spans])
            found = native.states(fed, rows, np.concatenate([np.arange(a, b) for a, b in spans]))
            wanted = torch.cat([part[a:b] for part, (a, b) in zip(expected, spans, strict=True)])
            assert torch.allclose(found, wanted, atol=near)
    for row, text, part in zip([2, 0, 1], texts, expected, strict=True):
        last = native.states(text[-1:], np.array([row]), np.array([len(text) - 1]))
        assert torch.allclose(last, part[-1:], atol=near)


@compiled
@pytest.mark.parametrize("lanes", [4, 8, 16])
@torch.inference_mode()
def test_registers_of_any_width_give_the_same(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors have room for 4, 8 or 16 numbers in a register; every compiler takes each of the three."""
    model, ids = llama(6, 2, 64), np.random.default_rng(0).integers(10, 300, 200)
    rows, at = np.zeros(200, dtype=np.int64), np.arange(200)
    plain, drawn = [], []
    for more in ({}, {"LANES": lanes}):
        with monkeypatch.context() as patched:
            patched.setattr(
                native_library,
                "library",
                lambda source, more=more, library=native_library.library, **given: library(source, **given, **more),
            )
            for dtype in (torch.float32, torch.bfloat16):
                native, _ = passes(model, dtype)
                assert native is not None
                states = native.states(ids, rows, at)
                plain.append(states)
                drawn.append(native.draw(states @ states.T, np.ones(200), np.linspace(0, 1, 200, endpoint=False)))
    assert torch.allclose(plain[0], plain[2], atol=1e-5) and torch.allclose(plain[1], plain[3], atol=0.1)
    assert np.array_equal(drawn[0][0], drawn[2][0]) and np.allclose(drawn[0][1], drawn[2][1], atol=1e-4)


@compiled
@torch.inference_mode()
def test_in_bfloat16_no_more_is_lost_than_torch_loses() -> None:
    """Against float32 with the same rounded weights: rounding towards zero, or a rescaling left out, would cost twice as much."""
    model = llama(4, 1, 32).to(torch.bfloat16).float()
    ids = torch.from_numpy(np.random.default_rng(1).integers(10, 300, 400))
    cos, sin = rotary(model, torch.arange(400))
    exact, rough = (
        hidden(Weights(model, dtype=kind), ids, cos, sin, causal([400], kind), stream=torch.float32)
        for kind in (torch.float32, torch.bfloat16)
    )
    native, _ = passes(model, torch.bfloat16)
    assert native is not None
    ours = native.states(ids.numpy(), np.zeros(400, dtype=np.int64), np.arange(400))
    assert (ours - exact).abs().mean() < 1.1 * (rough - exact).abs().mean()


@compiled
@torch.inference_mode()
def test_scaled_rotation_tied_embeddings_and_a_context_of_any_length_are_decoded_to_its_end() -> None:
    torch.manual_seed(0)
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}  # fmt: skip
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=303, hidden_size=96, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
                    head_dim=96, max_position_embeddings=333, rope_parameters=rope, tie_word_embeddings=True)
    ).eval()  # fmt: skip
    engine = LocalEngine(model, tiny.train_tokenizer(["a"], vocab_size=301))
    prompt = np.random.default_rng(2).integers(10, 300, 300).tolist()
    said = engine.generate([Request(prompt, Sampling(33, temperature=0.0))])[0]
    logits = model(torch.tensor([[*prompt, *said.ids]])).logits[0, 299:-1].log_softmax(-1)
    assert engine.runner.decoder is not None and logits.argmax(-1).tolist() == list(said.ids)
    assert np.allclose(logits.max(-1).values, said.logprobs, atol=1e-4)


@compiled
@torch.inference_mode()
def test_a_place_that_the_cache_does_not_have_is_refused_by_both_numbers() -> None:
    native, kv_cache = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    for row, position in ((0, kv_cache.capacity), (kv_cache.rows + 1, 0), (0, -1), (-1, 0)):
        with pytest.raises(InvariantError, match=f"cache of {kv_cache.capacity} positions and 3 rows"):
            native.states(np.array([5]), np.array([row]), np.array([position]))
    narrow = native.states(np.array([5]), np.array([0], dtype=np.int32), np.array([0], dtype=np.int32))
    assert torch.equal(narrow, native.states(np.array([5]), np.array([0]), np.array([0])))


@compiled
def test_the_callers_autocast_changes_no_answer() -> None:
    engine = engine_of(llama(4, 1, 32))
    asked = [Request([5, 6, 7 + i], Sampling(5), (i,)) for i in range(3)]
    expected = engine.generate(asked)
    engine.refresh()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = engine.generate(asked)
    assert [(one.ids, one.logprobs) for one in found] == [(one.ids, one.logprobs) for one in expected]


@compiled
@torch.inference_mode()
def test_what_a_row_holds_beyond_its_length_is_not_seen() -> None:
    native, kv_cache = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    ids, rows, at = np.arange(20, 50), np.zeros(30, dtype=np.int64), np.arange(30)
    first = native.states(ids, rows, at).clone()
    for held in (*kv_cache.keys, *kv_cache.values):
        held[0, :, 30:] = float("nan")
    assert torch.equal(first, native.states(ids, rows, at))


@compiled
@pytest.mark.parametrize("vocabulary", [5, 16, 301])
def test_drawing_in_one_pass_draws_what_sorting_it_out_in_torch_draws(vocabulary: int) -> None:
    native, _ = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    batch, n = RunningBatch(), 2000
    how = [Sampling(1, temperature=(0.0, 1.0, 0.3, 2.0)[i % 4]) for i in range(n)]
    batch.append([ActiveRequest(i, Request([1], one), (i,)) for i, one in enumerate(how)])
    torch.manual_seed(0)
    logits = torch.randn(n, vocabulary) * 3
    logits[:, 2] = float("-inf")
    ids, scores = sample(batch, logits, np.arange(n), draw=native.draw)
    expected, told = sample(batch, logits, np.arange(n))
    assert (ids == expected).mean() > 0.999  # but for a number on the border of two tokens
    same = ids == expected
    assert np.allclose(scores[same], told[same], atol=1e-5) and 2 not in ids
    assert (ids[::4] == expected[::4]).all()


@compiled
def test_a_token_is_drawn_as_often_as_it_is_likely() -> None:
    native, _ = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    shares = np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32)
    logits = torch.from_numpy(np.log(shares)).repeat(1000, 1)
    ids, scores = native.draw(logits, np.ones(1000), (np.arange(1000) + 0.5) / 1000)
    assert np.bincount(ids).tolist() == [500, 250, 125, 125] and np.allclose(scores, np.log(shares)[ids], atol=1e-6)


@compiled
@pytest.mark.parametrize("vocabulary", [301, 2048, 32000])
def test_what_cannot_be_drawn_is_not_drawn_at_the_borders_either(vocabulary: int) -> None:
    native, _ = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    torch.manual_seed(1)
    logits = torch.randn(100, vocabulary) * 6
    logits[:, -64:] = logits[:, :40] = float("-inf")
    for uniform in (0.0, 1 - 2**-24, 1 - 2**-19):
        ids, scores = native.draw(logits, np.ones(100), np.full(100, uniform))
        assert (ids >= 40).all() and (ids < vocabulary - 64).all() and np.isfinite(scores).all()


@compiled
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_of_logits_that_are_no_numbers_nothing_likely_is_said(odd: float) -> None:
    native, _ = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    logits = torch.zeros(2, 40)
    logits[1, 33] = odd
    for temperature in (0.0, 1.0):
        ids, scores = native.draw(logits, np.full(2, temperature), np.full(2, 0.5))
        assert np.isfinite(scores[0]) and np.isnan(scores[1]) and (ids >= 0).all() and (ids < 40).all()


def engine_of(model: LlamaForCausalLM) -> LocalEngine:
    return LocalEngine(model, tiny.train_tokenizer(["a"], vocab_size=301))


@compiled
def test_a_long_prompt_beside_short_ones_changes_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamgym.engines.local.runners.LONG", 100)
    engine, rng = engine_of(llama(4, 1, 32)), np.random.default_rng(0)
    asked = [Request(rng.integers(10, 300, n).tolist(), Sampling(1), (n,)) for n in (20, 90, 60)]
    alone = engine.generate(asked)
    engine.refresh()
    beside = engine.generate([*asked, Request(rng.integers(10, 300, 300).tolist(), Sampling(1), (4,))])
    assert [one.ids for one in beside[:3]] == [one.ids for one in alone]
    assert np.allclose([one.logprobs for one in beside[:3]], [one.logprobs for one in alone], atol=1e-6)


@compiled
def test_heads_of_another_width_and_caches_of_another_kind_are_left_to_torch() -> None:
    assert engine_of(llama(4, 1, 32)).runner.decoder is not None
    assert engine_of(llama(4, 1, 24)).runner.decoder is None
    assert LocalEngine(llama(4, 1, 32), tiny.train_tokenizer(["a"], vocab_size=301), cache_dtype="bfloat16").runner.decoder is None


def test_nothing_is_compiled_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_COMPILE", "0")
    assert engine_of(llama(4, 1, 32)).runner.decoder is None


def test_without_a_compiler_torch_decodes_and_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    native_library._library.cache_clear()
    for _ in range(2):
        engine = engine_of(llama(4, 1, 32))
    assert engine.runner.decoder is None and engine.generate([Request([5, 6], Sampling(3))])[0].ids
    assert [record.message.partition(" is not compiled: no C compiler was found")[2] != "" for record in caplog.records] == [True]
    assert "Install gcc or clang" in caplog.text
    native_library._library.cache_clear()


@compiled
def test_a_library_is_compiled_once_for_each_set_of_constants_and_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "_sum.c"
    source.write_text("int sum(int x) { return x + MORE; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = [native_library.library(source, MORE=more) for more in (1, 2, 1)]
    assert [one.sum(ctypes.c_int(40)) for one in found if one is not None] == [41, 42, 41]
    kept = sorted((tmp_path / "cache" / "dreamgym").iterdir())
    assert len(kept) == 2 and all(path.suffix == ".so" for path in kept)
    times = [path.stat().st_mtime_ns for path in kept]
    native_library._library.cache_clear()
    assert native_library.library(source, MORE=1) is not None and [path.stat().st_mtime_ns for path in kept] == times


@compiled
def test_what_does_not_compile_is_told_in_the_compilers_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = tmp_path / "_wrong.c"
    source.write_text("int wrong(void) { return nothing; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert native_library.library(source) is None
    assert "_wrong.c is not compiled" in caplog.text and "nothing" in caplog.text
    assert list((tmp_path / "cache" / "dreamgym").iterdir()) == []


@compiled
def test_a_library_that_was_cut_off_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "_two.c"
    source.write_text("int two(void) { return 2; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiler = native_library._compiler()
    assert compiler is not None
    (tmp_path / "cache" / "dreamgym").mkdir(parents=True)
    (tmp_path / "cache" / "dreamgym" / native_library._name(source, compiler, [])).write_bytes(b"")
    found = native_library.library(source)
    assert found is not None and found.two() == 2


@compiled
def test_a_compiler_may_come_with_arguments_and_one_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = tmp_path / "_three.c"
    source.write_text("int three(void) { return THREE; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", f"{(native_library._compiler() or [''])[0]} -DTHREE=3")
    found = native_library.library(source)
    assert found is not None and found.three() == 3
    monkeypatch.setenv("CC", 'gcc "')
    assert native_library.library(source, THREE=4) is not None and 'CC=gcc " is no program' in caplog.text
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert native_library.library(source, THREE=3) is not None and "CC=no-such-compiler -O2 is no program" in caplog.text


@compiled
@pytest.mark.parametrize("text", [b"\xff\xfe no text at all", b""])
def test_a_compiler_that_fails_in_any_way_leaves_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, text: bytes
) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"#!/bin/sh\nprintf '" + text + b'\' >&2\ntest "$1" = --version\n')
    odd.chmod(0o755)
    source = tmp_path / "_four.c"
    source.write_text("int four(void) { return 4; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(odd))
    assert native_library.library(source) is None and "_four.c is not compiled" in caplog.text


@compiled
def test_a_user_who_is_nowhere_at_home_has_a_cache_for_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    source = tmp_path / "_five.c"
    source.write_text("int five(void) { return 5; }\n")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    found = native_library.library(source)
    assert found is not None and found.five() == 5


@compiled
def test_a_cache_that_cannot_be_written_costs_compiling_again_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "_one.c"
    source.write_text("int one(void) { return 1; }\n")
    (tmp_path / "cache").write_text("a file, where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = native_library.library(source)
    assert found is not None and found.one() == 1
