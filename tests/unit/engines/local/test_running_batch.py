"""Continuous batching: requests come and go at any time, and each gets what it would have got alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.local.ngram_speculation import NGramSpeculator
from dreamgym.engines.local.running_batch import ActiveRequest
from dreamgym.errors import InvariantError, UsageError
from dreamgym.llm import tiny
from dreamgym.types import Completion, Request, Sampling

SHAPE = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 1,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip


@pytest.fixture(params=["compiled", "fast"])
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=32 if request.param == "compiled" else 8)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(8)
    return LocalEngine(model, tiny.train_tokenizer(["a"], vocab_size=300))


def requests(n: int, *, seed: int = 0, stop: tuple[int, ...] = ()) -> list[Request]:
    """Prompts of 3 to 90 tokens, every third beginning like the one before, asking for 1 to 30 tokens."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(10, 300, rng.integers(3, 90)).tolist() for _ in range(n)]
    for i in range(2, n, 3):
        prompts[i] = prompts[i - 1][:60] + prompts[i]
    lengths, temperatures = rng.integers(1, 30, n).tolist(), rng.choice([0.0, 0.7, 1.0], n).tolist()
    return [
        Request(p, Sampling(m, stop, t), seed=(seed, i)) for i, (p, m, t) in enumerate(zip(prompts, lengths, temperatures, strict=True))
    ]


def same(a: Completion, b: Completion) -> bool:
    return (a.ids, a.text, a.finish_reason) == (b.ids, b.text, b.finish_reason) and np.allclose(a.logprobs, b.logprobs, atol=1e-4)


@pytest.mark.parametrize(("max_batch", "cache_bytes"), [(256, 2_000_000_000), (4, 2_000_000_000), (16, 150_000)])
def test_requests_that_come_while_others_run_get_what_they_get_alone(engine: LocalEngine, max_batch: int, cache_bytes: int) -> None:
    asked = requests(40, stop=(17,))
    alone = [engine.generate([request])[0] for request in asked]
    engine.max_batch, engine.kv_cache.cache_bytes = max_batch, cache_bytes
    engine.refresh()
    found: dict[int, Completion] = {}
    tickets: list[int] = []
    for i in range(0, 40, 5):  # five more after every poll
        tickets += engine.submit(asked[i : i + 5])
        found |= engine.poll()
        assert engine.batch.n <= max_batch
        assert (
            engine.kv_cache.rows == 0
            or engine.kv_cache.most_rows(engine.kv_cache.capacity) >= engine.batch.running
            or engine.batch.running == 1
        )
    while finished := engine.poll():
        found |= finished
    assert all(same(found[ticket], completion) for ticket, completion in zip(tickets, alone, strict=True))


def test_a_finished_request_gives_its_place_to_a_waiting_one(engine: LocalEngine) -> None:
    engine.max_batch = 2
    prompt = [20, 30, 40]
    long, short = Request(prompt, Sampling(40), (0,)), Request(prompt, Sampling(5), (1,))
    first, *others = engine.submit([long, short, short, short])
    order = []
    while finished := engine.poll():
        order += [ticket for ticket, _ in finished]
    assert order == [*others, first]  # three short ones, one after the other, beside the long one


def test_where_memory_limits_the_rows_a_place_is_filled_before_all_are_free(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).choice([4, 8, 100], 64).tolist()
    asked = [Request([20, 30 + i], Sampling(n), (i,)) for i, n in enumerate(lengths)]
    kv_cache = engine.kv_cache
    kv_cache.cache_bytes = (16 + 1) * 128 * 2 * kv_cache.layers * kv_cache.kv_heads * kv_cache.head_dim * kv_cache.dtype.itemsize
    assert kv_cache.most_rows(102) == 16 < engine.max_batch // 8, "as many free rows as an eighth of max_batch there never are"
    passes = 0
    step = engine._step

    def counted() -> None:
        nonlocal passes
        passes += 1
        step()

    monkeypatch.setattr(engine, "_step", counted)
    engine.generate(asked)
    assert passes < 1.4 * sum(lengths) / 16, "in batches of 16 that all end before the next begins it is 400, twice as many"


def test_cancelling_frees_the_place_and_the_memory(engine: LocalEngine) -> None:
    engine.max_batch = 2
    running = engine.submit([Request([20, 30], Sampling(400), (i,)) for i in range(2)])
    waiting = engine.submit([Request([20, 40], Sampling(3), (9,))])
    dropped = engine.submit([Request([20, 50], Sampling(3), (8,))])
    for _ in range(3):
        engine._advance()
    engine.cancel([*running, *dropped, 12345])
    assert [ticket for ticket, _ in engine.poll()] == waiting and engine.poll() == []
    assert not engine.kv_cache.row_of and engine.batch.running == 0


def test_releasing_sessions_whose_requests_were_cancelled_frees_their_memory_and_text_at_once(engine: LocalEngine) -> None:
    engine.speculator = NGramSpeculator(4)
    names = [f"s{i}" for i in range(4)]
    tickets = engine.submit([Request([20 + i] * 40, Sampling(50), (i,), name) for i, name in enumerate(names)])
    for _ in range(3):
        engine._advance()
    engine.cancel(tickets[:1])
    engine.release(names[:1])
    assert engine.batch.running == 3, "the others go on"
    engine.cancel(tickets)
    assert set(names[1:]) <= set(engine.kv_cache.row_of), "what is only cancelled may go on in a next turn"
    engine.release(names)
    assert not engine.kv_cache.row_of and not engine.kv_cache.keys and not engine.speculator._text


def test_generate_leaves_what_others_submitted_to_their_poll(engine: LocalEngine) -> None:
    (ticket,) = engine.submit([Request([20, 30], Sampling(2), (1,))])
    (mine,) = engine.generate([Request([20, 30], Sampling(9), (1,))])
    ((found, theirs),) = engine.poll()
    assert found == ticket and theirs.ids == mine.ids[:2]


def test_ten_thousand_short_requests_leak_nothing(engine: LocalEngine) -> None:
    asked = [Request([10 + i % 200, 20], Sampling(1 + i % 2), (i,), f"s{i}" if i % 4 == 0 else None) for i in range(1000)]
    sizes = []
    for _ in range(10):
        assert len(engine.generate(asked)) == 1000
        engine.release([request.session for request in asked if request.session])
        sizes.append((engine.kv_cache.rows, engine.kv_cache.capacity))
    assert len(set(sizes)) == 1 and sizes[0][0] <= engine.max_batch + 250
    assert not engine.kv_cache.row_of and not engine._finished and not engine.waiting


def test_a_stop_sequence_of_several_tokens_ends_the_answer_and_is_not_in_its_text(engine: LocalEngine) -> None:
    request = Request([20, 30, 40], Sampling(30), (3,))
    (free,) = engine.generate([request])
    pair = free.ids[6:8]
    (stopped,) = engine.generate([Request(request.prompt, Sampling(30, stop=(299, pair)), (3,))])
    assert stopped.ids == free.ids[:8] and stopped.finish_reason == "stop" and stopped.text == engine.decode(free.ids[:6])


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 3), (0.6, 0), (0.8, 5)])
def test_top_p_and_top_k_draw_from_what_they_keep_in_proportion(engine: LocalEngine, top_p: float, top_k: int) -> None:
    prompt = [20, 30, 40]
    how = Sampling(1, temperature=2.0, top_p=top_p, top_k=top_k)
    found = engine.generate([Request(prompt, how, (i,)) for i in range(3000)])
    with torch.no_grad():
        p = torch.softmax(engine.model(torch.tensor([prompt])).logits[0, -1] / 2.0, -1)
    ordered, order = p.sort(descending=True)
    kept = (ordered.cumsum(0) - ordered < top_p) & (torch.arange(300) < (top_k or 300))
    expected = torch.zeros(300).scatter(0, order[kept], ordered[kept] / ordered[kept].sum()).numpy()
    counts = np.bincount([c.ids[0] for c in found], minlength=300) / 3000
    assert np.abs(counts - expected).max() < 0.05 and not counts[expected == 0].any()
    assert np.allclose(found[0].logprobs, np.log(p[found[0].ids[0]].item()), atol=1e-4)  # of the whole vocabulary


def test_weights_that_change_under_running_requests_are_an_error(engine: LocalEngine) -> None:
    engine.submit([Request([20, 30], Sampling(50), (1,))])
    engine._advance()
    with torch.no_grad():
        next(engine.model.parameters()).mul_(1.01)
    engine.submit([Request([20, 30], Sampling(5), (2,))])
    with pytest.raises(InvariantError, match="1 requests were running"):
        engine.poll()


def test_weights_are_not_published_under_running_requests(engine: LocalEngine, tmp_path: Path) -> None:
    engine.submit([Request([20, 30], Sampling(50), (1,))])
    engine._advance()
    with pytest.raises(InvariantError, match="Requests are running .1.: finish or cancel them"):
        engine.publish(1, lambda: tmp_path)
    while not engine.poll():
        pass
    engine.publish(1, lambda: tmp_path)
    assert engine.version == 1


def test_after_a_failure_what_was_running_starts_again(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(6, seed=4)
    expected = engine.generate(asked)
    tickets = engine.submit(asked)
    engine._advance()
    with monkeypatch.context() as broken, pytest.raises(MemoryError):
        broken.setattr(engine.runner, "decode", lambda *_: (_ for _ in ()).throw(MemoryError("no memory")))
        while True:
            engine._advance()
    found = dict(engine.poll())
    while finished := engine.poll():
        found |= finished
    assert all(same(found[ticket], completion) for ticket, completion in zip(tickets, expected, strict=True))


@pytest.mark.parametrize("place", ["assign_rows", "append", "prefill"])
def test_requests_whose_admission_fails_wait_again_each_once(engine: LocalEngine, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(6, seed=5)
    expected = engine.generate(asked)
    tickets = engine.submit(asked[:3])
    engine._advance()
    tickets += engine.submit(asked[3:])
    owner = {"assign_rows": engine.kv_cache, "append": engine.batch, "prefill": engine.runner}[place]
    with monkeypatch.context() as broken, pytest.raises(MemoryError):
        broken.setattr(owner, place, lambda *_: (_ for _ in ()).throw(MemoryError("no memory")))
        while True:
            engine._advance()
    assert {active.ticket for active in engine.waiting} <= set(tickets) and {*tickets[3:]} <= {active.ticket for active in engine.waiting}
    found: list[tuple[int, Completion]] = []
    while finished := engine.poll():
        found += finished
    assert sorted(ticket for ticket, _ in found) == tickets
    assert all(same(dict(found)[ticket], completion) for ticket, completion in zip(tickets, expected, strict=True))


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"stop": ((),)}]
)
def test_sampling_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Sampling(**({"max_tokens": 5} | wrong))  # type: ignore[arg-type]


def test_streams_whose_names_differ_in_trailing_zeros_draw_different_numbers():
    def drawn(*stream: int) -> list[float]:
        return ActiveRequest(0, Request([1], Sampling(8)), stream).uniforms().tolist()

    start, first_step, redrawn = drawn(3, 40, 2), drawn(3, 40, 2, 0), drawn(3, 40, 2, 0, 0)  # of one dreamed episode
    assert start != first_step != redrawn != start and drawn(0) != drawn() != drawn(0, 0)
    assert drawn(3, 40, 2) == start and drawn(5 + 2**32, 1) != drawn(5, 1, 1)  # a large number is two words
