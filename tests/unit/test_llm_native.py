"""What is compiled on the machine computes what torch would have computed, and where nothing can be compiled, torch does."""

from __future__ import annotations

import ctypes
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.llm import _native, tiny
from dreamgym.llm._cache import Slab
from dreamgym.llm._decode import Decoder, decoder
from dreamgym.llm._llama import Weights, causal, hidden, rotary
from dreamgym.llm._slots import Slots, Work, sample
from dreamgym.llm.hf import HFEngine
from dreamgym.types import Request, Sampling

compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: install gcc or clang")


def llama(heads: int, key_heads: int, head: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=301, hidden_size=16 * heads, intermediate_size=80, num_hidden_layers=3, num_attention_heads=heads,
                    num_key_value_heads=key_heads, head_dim=head, max_position_embeddings=512)
    ).eval()  # fmt: skip


def passes(model: LlamaForCausalLM, dtype: torch.dtype) -> tuple[Decoder | None, Slab]:
    config = model.config
    slab = Slab(layers=3, kv_heads=config.num_key_value_heads, head_dim=config.head_dim, dtype=dtype, device=torch.device("cpu"),
                cache_bytes=10**8, max_length=512)  # fmt: skip
    slab.enter(0, ["a", "b", "c"], 400)
    return decoder(Weights(model, dtype=dtype), *rotary(model, torch.arange(512)), slab), slab


@compiled
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
@torch.inference_mode()
def test_what_a_row_holds_beyond_its_length_is_not_seen() -> None:
    native, slab = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    ids, rows, at = np.arange(20, 50), np.zeros(30, dtype=np.int64), np.arange(30)
    first = native.states(ids, rows, at).clone()
    for held in (*slab.keys, *slab.values):
        held[0, :, 30:] = float("nan")
    assert torch.equal(first, native.states(ids, rows, at))


@compiled
@pytest.mark.parametrize("vocabulary", [5, 16, 301])
def test_drawing_in_one_pass_draws_what_sorting_it_out_in_torch_draws(vocabulary: int) -> None:
    native, _ = passes(llama(4, 1, 32), torch.float32)
    assert native is not None
    slots, n = Slots(), 2000
    how = [Sampling(1, temperature=(0.0, 1.0, 0.3, 2.0)[i % 4]) for i in range(n)]
    slots.enter([Work(i, Request([1], one), (i,)) for i, one in enumerate(how)])
    torch.manual_seed(0)
    logits = torch.randn(n, vocabulary) * 3
    logits[:, 2] = float("-inf")
    ids, scores = sample(slots, logits, np.arange(n), draw=native.draw)
    expected, told = sample(slots, logits, np.arange(n))
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


def engine_of(model: LlamaForCausalLM) -> HFEngine:
    return HFEngine(model, tiny.train_tokenizer(["a"], vocab_size=301))


@compiled
def test_heads_of_another_width_and_caches_of_another_kind_are_left_to_torch() -> None:
    assert engine_of(llama(4, 1, 32)).runner.decoder is not None
    assert engine_of(llama(4, 1, 24)).runner.decoder is None
    assert HFEngine(llama(4, 1, 32), tiny.train_tokenizer(["a"], vocab_size=301), cache_dtype="bfloat16").runner.decoder is None


def test_nothing_is_compiled_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_COMPILE", "0")
    assert engine_of(llama(4, 1, 32)).runner.decoder is None


def test_without_a_compiler_torch_decodes_and_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    _native._library.cache_clear()
    for _ in range(2):
        engine = engine_of(llama(4, 1, 32))
    assert engine.runner.decoder is None and engine.generate([Request([5, 6], Sampling(3))])[0].ids
    assert [record.message.partition(" is not compiled: no C compiler was found")[2] != "" for record in caplog.records] == [True]
    assert "Install gcc or clang" in caplog.text
    _native._library.cache_clear()


@compiled
def test_a_library_is_compiled_once_for_each_set_of_constants_and_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "_sum.c"
    source.write_text("int sum(int x) { return x + MORE; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = [_native.library(source, MORE=more) for more in (1, 2, 1)]
    assert [one.sum(ctypes.c_int(40)) for one in found if one is not None] == [41, 42, 41]
    kept = sorted((tmp_path / "cache" / "dreamgym").iterdir())
    assert len(kept) == 2 and all(path.suffix == ".so" for path in kept)
    times = [path.stat().st_mtime_ns for path in kept]
    _native._library.cache_clear()
    assert _native.library(source, MORE=1) is not None and [path.stat().st_mtime_ns for path in kept] == times


@compiled
def test_what_does_not_compile_is_told_in_the_compilers_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = tmp_path / "_wrong.c"
    source.write_text("int wrong(void) { return nothing; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert _native.library(source) is None
    assert "_wrong.c is not compiled" in caplog.text and "nothing" in caplog.text
    assert list((tmp_path / "cache" / "dreamgym").iterdir()) == []


@compiled
def test_a_cache_that_cannot_be_written_costs_compiling_again_and_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "_one.c"
    source.write_text("int one(void) { return 1; }\n")
    (tmp_path / "cache").write_text("a file, where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = _native.library(source)
    assert found is not None and found.one() == 1
