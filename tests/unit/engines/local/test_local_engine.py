"""The engine says what the model would say: caches, batches and sessions change its speed only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dreamgym.engines import check_engine
from dreamgym.engines.local import attention, cpu_attention, llama, native_library
from dreamgym.engines.local.attention import block_attention
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.local.kv_cache import KVCache
from dreamgym.engines.local.ngram_speculation import NGramSpeculator
from dreamgym.engines.local.runners import FastRunner, GenericRunner
from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import tiny
from dreamgym.types import Completion, Request, Sampling

SHAPE = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
STOP = 9
MODELS = {
    "compiled": (LlamaForCausalLM, LlamaConfig, FastRunner, {"head_dim": 32}),  # as the built-in sizes; 8 is too narrow for it
    "fast": (LlamaForCausalLM, LlamaConfig, FastRunner, {}),
    "generic": (Qwen2ForCausalLM, Qwen2Config, GenericRunner, {}),
}


@pytest.fixture(params=sorted(MODELS))
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
    monkeypatch.delenv("DREAMGYM_COMPILE", raising=False)
    kind, config, runner, more = MODELS[request.param]
    torch.manual_seed(0)
    model = kind(config(**SHAPE, **more)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(8)  # sharp enough that samples differ and errors show
    engine = LocalEngine(model, tiny.train_tokenizer(["a"], vocab_size=300, special=("<|act|>",)))
    assert isinstance(engine.runner, runner)
    if request.param == "compiled" and native_library._compiler() is None:
        pytest.skip("no C compiler")
    assert (engine.runner.decoder is not None) == (request.param == "compiled")
    return engine


def prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(10, 300, n).tolist() for n in lengths]


def generate(
    engine: LocalEngine,
    prompts: Sequence[Sequence[int]],
    *,
    stop_id: int,
    seeds: Sequence[tuple[int, ...]] | None = None,
    sessions: Sequence[str] | None = None,
    **sampling: Any,
) -> list[Completion]:
    how = Sampling(stop=(stop_id,), **sampling)
    return engine.generate([
        Request(prompt, how, None if seeds is None else seeds[i], None if sessions is None else sessions[i])
        for i, prompt in enumerate(prompts)
    ])  # fmt: skip


def close(a: list[Completion], b: list[Completion]) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(x.ids == y.ids for x, y in pairs) and all(np.allclose(x.logprobs, y.logprobs, atol=1e-4) for x, y in pairs)


def plain_logprobs(model: Any, c: Completion, temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([c.prompt_ids + c.ids])).logits[0] / temperature, -1)
    return [scores[len(c.prompt_ids) + i - 1, token].item() for i, token in enumerate(c.ids)]


def test_greedy_is_what_transformers_generates(engine: LocalEngine) -> None:
    asked = prompts(3, 40, 17, 90)
    for prompt, completion in zip(asked, generate(engine, asked, max_tokens=12, stop_id=STOP, temperature=0), strict=True):
        reference = engine.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=STOP, pad_token_id=0)
        assert list(completion.ids) == reference[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward(engine: LocalEngine, temperature: float) -> None:
    for c in generate(engine, prompts(3, 40, 40), max_tokens=12, stop_id=STOP, temperature=temperature, seeds=[(1,), (2,), (3,)]):
        assert np.allclose(c.logprobs, plain_logprobs(engine.model, c, temperature), atol=1e-4)


def test_the_batch_around_a_request_changes_nothing(engine: LocalEngine) -> None:
    asked, seeds = prompts(5, 80, 33, 60, 4, 50), [(0, i) for i in range(6)]
    asked[3] = asked[1][:40] + asked[3][:20]  # shares a prefix, which is computed once
    together = generate(engine, asked, max_tokens=20, stop_id=STOP, seeds=seeds)
    alone = [generate(engine, [p], max_tokens=20, stop_id=STOP, seeds=[s])[0] for p, s in zip(asked, seeds, strict=True)]
    assert close(together, alone)
    assert close(together, generate(engine, asked[::-1], max_tokens=20, stop_id=STOP, seeds=seeds[::-1])[::-1])
    assert len({c.ids for c in together}) == 6
    engine.max_batch = 2
    assert close(together, generate(engine, asked, max_tokens=20, stop_id=STOP, seeds=seeds))


class Unrecorded:
    """In the place of `Graphs`: passes of the rounded shapes that a GPU records, computed as they are."""

    def __init__(self) -> None:
        self.shapes: set[Any] = set()

    def forget(self) -> None:
        self.shapes.clear()

    def run(self, shape: Any, compute: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor) -> torch.Tensor:
        self.shapes.add(shape)
        return compute(given)


@pytest.mark.parametrize("speculate", [0, 3])
def test_rounded_shapes_and_attention_side_by_side_as_on_a_gpu_change_nothing(
    engine: LocalEngine, speculate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of sessions that rest while others run, of which what fills up a pass must not write a key."""
    engine.speculator = NGramSpeculator(speculate)
    asked, names, seeds = prompts(5, 80, 33, 60, 4, 50, 70), [f"s{i}" for i in range(7)], [(i,) for i in range(7)]

    def turns() -> list[Completion]:
        engine.refresh()
        said = generate(engine, asked, max_tokens=20, stop_id=STOP, seeds=seeds, sessions=names)
        more = [[*p, *c.ids, *p[:30]] for p, c in zip(asked, said, strict=True)]
        said += generate(engine, more[::2], max_tokens=20, stop_id=STOP, seeds=seeds[::2], sessions=names[::2])
        return said + generate(engine, more, max_tokens=9, stop_id=STOP, seeds=seeds, sessions=names)

    plain = turns()
    engine.runner.graphs = shapes = Unrecorded()  # type: ignore[assignment]
    if isinstance(engine.runner, FastRunner):
        engine.runner.on_gpu = True
        monkeypatch.setenv("DREAMGYM_COMPILE", "0")
    assert close(plain, turns())
    assert {n for n, _, _ in shapes.shapes} == {4, 7} and {length % 64 for _, _, length in shapes.shapes} == {0}


def test_uneven_ends_leave_the_others_alone(engine: LocalEngine) -> None:
    asked, seeds = prompts(*range(5, 45, 2)), [(i,) for i in range(20)]
    free = generate(engine, asked, max_tokens=24, stop_id=-1, seeds=seeds)
    stop = free[0].ids[3]
    names = [f"s{i}" for i in range(20)]
    for _ in range(2):  # the second time with what the first left in the cache
        stopped = generate(engine, asked, max_tokens=24, stop_id=stop, seeds=seeds, sessions=names)
        for a, b in zip(free, stopped, strict=True):
            end = a.ids.index(stop) + 1 if stop in a.ids else 24
            assert b.ids == a.ids[:end] and b.finish_reason == ("stop" if end < 24 or a.ids[-1] == stop else "length")
            assert b.text == engine.decode(b.ids[:-1] if b.finish_reason == "stop" else b.ids)


@pytest.mark.parametrize("cache_bytes", [2_000_000_000, 200_000])
def test_a_cache_kept_across_turns_equals_recomputation(engine: LocalEngine, cache_bytes: int) -> None:
    engine.kv_cache.cache_bytes = cache_bytes  # the smaller one evicts
    rng = np.random.default_rng(0)
    history = dict(enumerate(prompts(5, 30, 12, 60, 8)))
    for turn in range(5):
        rows = [int(i) for i in rng.permutation(5)[: 2 + turn % 3]]
        seeds = [(turn, i) for i in rows]
        kept = generate(engine, [history[i] for i in rows], max_tokens=6, stop_id=STOP, seeds=seeds, sessions=[f"e{i}" for i in rows])
        assert close(kept, generate(engine, [history[i] for i in rows], max_tokens=6, stop_id=STOP, seeds=seeds))
        for i, c in zip(rows, kept, strict=True):
            history[i] = history[i] + list(c.ids) + rng.integers(10, 300, 7).tolist()
        if turn == 3:
            history[rows[0]] = history[rows[0]][10:]  # a slid window shares no prefix
            engine.release([f"e{rows[1]}", "unknown"])
    assert engine.kv_cache.row_of.keys() <= {f"e{i}" for i in range(5)}


def test_a_seed_names_a_stream_and_no_seed_is_a_new_one(engine: LocalEngine) -> None:
    (prompt,) = prompts(10)

    def sample(seed: Any) -> tuple[int, ...]:
        return generate(engine, [prompt], max_tokens=16, stop_id=-1, seeds=seed)[0].ids

    assert sample([(1, 2)]) == sample([(1, 2)]) != sample([(2, 1)])
    assert sample(None) != sample(None)


def test_samples_follow_the_distribution(engine: LocalEngine) -> None:
    (prompt,) = prompts(10)
    found = generate(engine, [prompt] * 2000, max_tokens=1, stop_id=-1, temperature=2.0)
    counts = np.bincount([c.ids[0] for c in found], minlength=300) / 2000
    with torch.no_grad():
        expected = torch.softmax(engine.model(torch.tensor([prompt])).logits[0, -1] / 2.0, -1).numpy()
    assert np.abs(counts - expected).max() < 0.05


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(engine: LocalEngine) -> None:
    assert len(generate(engine, prompts(502), max_tokens=10, stop_id=-1)[0].ids) == 10
    with pytest.raises(UsageError, match="503 tokens.*512.*leaves 502"):
        generate(engine, prompts(503), max_tokens=10, stop_id=-1)
    with pytest.raises(UsageError, match="empty"):
        generate(engine, [[]], max_tokens=10, stop_id=-1)
    assert generate(engine, [], max_tokens=10, stop_id=-1) == []


def test_new_weights_are_noticed_and_old_caches_forgotten(engine: LocalEngine) -> None:
    asked = prompts(30, 20)
    before = generate(engine, asked, max_tokens=8, stop_id=-1, temperature=0, sessions=["a", "b"])
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    engine.version = 4
    after = generate(engine, asked, max_tokens=8, stop_id=-1, temperature=0, sessions=["a", "b"])
    assert before[0].logprobs != after[0].logprobs and after[0].version == 4
    assert np.allclose(after[0].logprobs, plain_logprobs(engine.model, after[0]), atol=1e-4)
    for weight in engine.model.parameters():
        weight.data.mul_(1.1)  # behind autograd's back
    engine.refresh()
    last = generate(engine, asked, max_tokens=8, stop_id=-1, temperature=0, sessions=["a", "b"])
    assert np.allclose(last[1].logprobs, plain_logprobs(engine.model, last[1]), atol=1e-4)


def test_markers_in_text_stay_text(engine: LocalEngine) -> None:
    assert engine.special_id("<|end|>") not in engine.encode("a <|end|> b <|act|>")
    assert engine.decode([*engine.encode("a <|end|> b"), engine.special_id("<|end|>")]) == "a <|end|> b"


def test_the_functional_forward_and_its_gradients_are_those_of_transformers() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    rows = prompts(70, 300, 9)
    packed = torch.tensor([token for row in rows for token in row])
    target = packed.roll(-1)

    def gradients(scores: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad((scores * torch.linspace(-1, 1, len(scores))).sum(), list(model.parameters())))

    logits = torch.cat([model(torch.tensor([r])).logits[0] for r in rows])
    theirs = torch.log_softmax(logits / 0.8, -1).gather(1, target[:, None])[:, 0]
    hidden = llama.forward(model, packed, [len(r) for r in rows])
    ours = attention.token_logprobs(hidden, model.lm_head.weight, target, temperature=0.8)
    assert torch.allclose(theirs, ours, atol=1e-4)
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(gradients(theirs), gradients(ours), strict=True))


@pytest.mark.parametrize(("queries", "positions"), [(300, 300), (300, 410), (1, 40)])
def test_attention_in_blocks_is_causal_attention(queries: int, positions: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(queries, 4, 8), torch.randn(2, positions, 8), torch.randn(2, positions, 8)
    for x in (q, k, v):
        x.requires_grad_()
    seen = torch.arange(positions)[None] <= torch.arange(positions - queries, positions)[:, None]
    theirs = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1)[None], k[None], v[None], attn_mask=seen, enable_gqa=True)
    theirs, ours = theirs[0].transpose(0, 1), block_attention(q, k, v)
    grad = torch.randn_like(ours)
    pairs = zip(torch.autograd.grad(theirs, (q, k, v), grad), torch.autograd.grad(ours, (q, k, v), grad), strict=True)
    assert torch.allclose(theirs, ours, atol=1e-5) and all(torch.allclose(a, b, atol=1e-4) for a, b in pairs)


@pytest.mark.parametrize(
    ("lengths", "together"), [([7, 7, 7], True), ([60, 52, 64, 1, 64], False), ([60, 52, 64], True), ([300, 300], False)]
)
def test_packed_sequences_attend_side_by_side_as_they_do_one_by_one(
    lengths: list[int], together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients, whatever way is chosen; `blocks` is said to be the faster one for float32, too."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(sum(lengths), heads, 8, requires_grad=True) for heads in (4, 2, 2))
    theirs = llama.causal(lengths)(0, q, k, v)
    monkeypatch.setattr(llama, "blocks", lambda *_: True)
    assert llama._alike(lengths, torch.device("cpu")) is together
    ours = llama.causal(lengths)(0, q, k, v)
    grad = torch.randn_like(ours)
    pairs = zip(torch.autograd.grad(theirs, (q, k, v), grad), torch.autograd.grad(ours, (q, k, v), grad), strict=True)
    assert torch.allclose(theirs, ours, atol=1e-5) and all(torch.allclose(a, b, atol=1e-4) for a, b in pairs)


@pytest.mark.parametrize("cached", [torch.float32, torch.bfloat16])
def test_attention_over_a_few_rows_at_a_time_is_attention_row_by_row(cached: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts short and long, behind a past and without one, in rows in disorder; then one and three tokens decoded in every row."""
    torch.manual_seed(0)
    monkeypatch.setattr(cpu_attention, "ROWS", 3)
    lengths, past = [5, 140, 1, 30, 130, 64, 90, 7], [0, 3, 200, 150, 0, 17, 60, 100]
    kv_cache = KVCache(layers=1, kv_heads=2, head_dim=8, dtype=cached, device=torch.device("cpu"), cache_bytes=10**8, max_length=512)
    rows = [3, 0, 6, 1, 7, 2, 5, 4]
    kv_cache.assign_rows(0, [str(i) for i in range(len(rows))], 300)
    kv_cache.keys[0][:], kv_cache.values[0][:] = torch.randn(kv_cache.keys[0].shape), torch.randn(kv_cache.keys[0].shape)

    def alone(q: torch.Tensor, row: int, before: int) -> torch.Tensor:
        n = before + len(q)
        seen = torch.arange(n)[None] <= torch.arange(before, n)[:, None]
        keys, values = kv_cache.keys[0][None, row, :, :n].float(), kv_cache.values[0][None, row, :, :n].float()
        mixed = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1)[None], keys, values, attn_mask=seen, enable_gqa=True)
        return mixed[0].transpose(0, 1)

    near = 1e-5 if cached == torch.float32 else 3e-2
    q, k, v = (torch.randn(sum(lengths), heads, 8) for heads in (4, 2, 2))
    ours = cpu_attention.prompts(kv_cache, rows, lengths, past, 2, cached)(0, q, k, v)
    theirs = torch.cat([alone(part, row, p) for part, row, p in zip(q.split(lengths), rows, past, strict=True)])
    assert torch.allclose(ours.float(), theirs, atol=near)
    ends = torch.tensor([past[rows.index(row)] + lengths[rows.index(row)] for row in range(len(rows))])
    for t in (1, 3):
        positions = ends[:, None] + torch.arange(t)
        q, k, v = (torch.randn(len(rows) * t, heads, 8) for heads in (4, 2, 2))
        ours = cpu_attention.decoding(kv_cache, positions, torch.arange(len(rows))[:, None].expand(-1, t), 320, 2)(0, q, k, v)
        theirs = torch.cat([alone(part, row, int(ends[row])) for row, part in enumerate(q.split(t))])
        assert torch.allclose(ours.float(), theirs, atol=near)


@pytest.mark.parametrize("kind", ["compiled", "fast"])
def test_bfloat16_layers_stay_near_float32(kind: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **MODELS[kind][3]))
    engine = LocalEngine(model, tiny.train_tokenizer(["a"], vocab_size=300), dtype="bfloat16")
    for lengths in ((40, 300), (40, 60)):  # the second over a cache with room for longer rows
        for c in generate(engine, prompts(*lengths), max_tokens=8, stop_id=-1, seeds=[(1,), (2,)]):
            assert np.allclose(c.logprobs, plain_logprobs(model, c), atol=0.02)
    assert engine.kv_cache.dtype == torch.bfloat16


@pytest.mark.parametrize("rows", [2, 4, 16])
def test_keys_and_values_stay_within_their_budget_with_the_spare_row(rows: int) -> None:
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).eval()
    a_position = 2 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"] * 8 * 4  # type: ignore[operator]
    budget = rows * 448 * a_position
    engine = LocalEngine(model, tiny.train_tokenizer(["a"], vocab_size=300), max_context=448, cache_bytes=budget)
    engine.submit([Request([5 + i] * 300, Sampling(148), (i,)) for i in range(20)])
    held = 0
    while not held or engine._advance():
        held = max(held, sum(t.nbytes for t in (*engine.kv_cache.keys, *engine.kv_cache.values)), 1)
        if len(engine._finished) >= rows:
            break
    assert budget / 2 < held <= budget


def test_a_context_beyond_a_table_of_positions_is_refused_before_anything_is_sampled() -> None:
    shape = {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(**shape))
    check_engine({"name": "local", "max_context": 128}, module=model)
    with pytest.raises(ConfigError, match=r"max_context=256 is beyond the model's table of 128 positions"):
        check_engine({"name": "local", "max_context": 256}, module=model)
    rotary = LlamaForCausalLM(LlamaConfig(**SHAPE))
    check_engine({"name": "local", "max_context": 4096}, module=rotary)  # the small model reads longer states than it was built for
