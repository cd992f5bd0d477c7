"""Backbones on a CUDA device: the same numbers as on the CPU, and models of full size with random weights that act and learn.

pytest -m gpu tests/gpu
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.llm import tiny
from dreamgym.llm.backbone_settings import LoraConfig
from dreamgym.llm.backbones import recompute, with_lora
from dreamgym.train.algos import grpo
from dreamgym.train.batch import pad
from dreamgym.train.forward import token_logprobs
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig, SFTConfig
from dreamgym.train.sft import train
from dreamgym.types import Completion, Observation, Request, Sampling, Task, Trajectory, Transition, Turn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SMALL = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}  # fmt: skip
LARGE = {
    "Llama-3.2-3B": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
                     "num_key_value_heads": 8, "tie_word_embeddings": True, "rope_parameters": ROPE},
    "Llama-3.1-8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "tie_word_embeddings": False, "rope_parameters": ROPE | {"factor": 8.0}},
}  # fmt: skip
WORDS = tiny.train_tokenizer(["a"], vocab_size=300)


def large(name: str) -> Any:
    """A model of that shape with random bfloat16 weights, made on the device."""
    config = LlamaConfig(vocab_size=128256, max_position_embeddings=8192, pad_token_id=None, **LARGE[name])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def prompts(*lengths: int, vocabulary: int = 300) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(10, vocabulary, n).tolist() for n in lengths]


def sampled(model: Any, asked: list[list[int]], **how: Any) -> list[Completion]:
    sampling = Sampling(**({"max_tokens": 16, "temperature": 1.0} | how))
    return LocalEngine(model, WORDS, max_context=1024 if len(asked[0]) > 60 else None).generate(
        [Request(p, sampling, (i,)) for i, p in enumerate(asked)]
    )


def learnt(model: Any, said: list[Completion], *, bf16: bool = False) -> list[float]:
    ids = [[*c.prompt_ids, *c.ids] for c in said]
    weights = [[0.0] * len(c.prompt_ids) + [1.0] * len(c.ids) for c in said]
    with torch.no_grad():
        found: list[float] = token_logprobs(model, pad(ids, weights, range(len(ids))), bf16=bf16)[0].tolist()
    return found


def by_transformers(model: Any, said: list[Completion]) -> list[float]:
    """The same by the model's own forward pass."""
    found: list[float] = []
    for c in said:
        ids = torch.tensor([[*c.prompt_ids, *c.ids]], device=model.device)
        with torch.no_grad():
            scores = torch.log_softmax(model(ids, use_cache=False).logits[0, len(c.prompt_ids) - 1 : -1].float(), -1)
        found += scores.gather(1, ids[0, len(c.prompt_ids) :, None])[:, 0].tolist()
    return found


def group(said: list[Completion]) -> list[Trajectory]:
    state = Observation("s")
    return [
        Trajectory("t", Task("t", "i", "e"), "real", (Turn(Transition(state, "a", state, float(i % 2), True), c),), i % 2 == 1)
        for i, c in enumerate(said)
    ]


@pytest.mark.parametrize("kind", [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)])
def test_a_small_model_acts_and_learns_as_on_the_cpu(kind: tuple[Any, Any]) -> None:
    torch.manual_seed(0)
    here = kind[0](kind[1](**SMALL)).eval()
    there = kind[0](kind[1](**SMALL)).eval().cuda()
    there.load_state_dict(here.state_dict())
    asked = prompts(3, 40, 17, 33)
    greedy = [sampled(model, asked, temperature=0.0) for model in (here, there)]
    assert [c.ids for c in greedy[0]] == [c.ids for c in greedy[1]]
    said = sampled(there, asked)
    assert np.allclose(learnt(here, said), [p for c in said for p in c.logprobs], atol=1e-3)
    assert np.allclose(learnt(there, said), [p for c in said for p in c.logprobs], atol=1e-3)
    for model in (here, there):
        config = LearnerConfig(minibatches=1, lr=1e-3, bf16=False)
        Learner(model, grpo.make(kl_coef=0.1), config).update([group(said)])
    assert all(torch.allclose(a, b.cpu(), atol=2e-4) for a, b in zip(here.parameters(), there.parameters(), strict=True))


@pytest.mark.parametrize("kind", [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)])
def test_recorded_passes_say_over_turns_and_updates_what_the_cpu_says(kind: tuple[Any, Any]) -> None:
    """Sessions of several turns, with others resting meanwhile, a cache that grows, and weights that change between."""
    torch.manual_seed(1)
    here = kind[0](kind[1](**SMALL)).eval()
    there = kind[0](kind[1](**SMALL)).eval().cuda()
    engines = [LocalEngine(model, WORDS) for model in (here, there)]
    for _ in range(3):
        there.load_state_dict(here.state_dict())
        for engine in engines:
            engine.refresh()
        asked = prompts(3, 40, 17, 33, 25, 9)
        for turn in range(3):
            which = range(0, 6, 2) if turn == 1 else range(6)
            how = Sampling(24, temperature=0.0)
            requests = [Request(asked[i], how, (i,), f"s{i}") for i in which]
            said = [engine.generate(requests) for engine in engines]
            assert [c.ids for c in said[0]] == [c.ids for c in said[1]]
            assert all(np.allclose(a.logprobs, b.logprobs, atol=1e-3) for a, b in zip(*said, strict=True))
            for i, c in zip(which, said[0], strict=True):
                asked[i] = [*asked[i], *c.ids, *asked[i][:9]]
        recorded = engines[1].runner.graphs
        assert recorded is not None and any(found is not None for found in recorded.kept.values())
        with torch.no_grad():
            for weight in here.parameters():
                weight.add_(0.02 * torch.randn_like(weight))


@pytest.mark.parametrize("name", LARGE)
def test_a_model_of_full_size_acts_and_its_adapters_learn(name: str) -> None:
    pytest.importorskip("peft")
    torch.cuda.reset_peak_memory_stats()
    model = large(name)
    asked = prompts(*[400] * 8, vocabulary=128_000)
    plain = sampled(model, asked)
    assert all(len(c.ids) == 16 and all(math.isfinite(p) for p in c.logprobs) for c in plain)
    off = np.mean(np.abs(np.array(learnt(model, plain)) - [p for c in plain for p in c.logprobs]))
    assert off < 1.5 * np.mean(np.abs(np.array(learnt(model, plain)) - by_transformers(model, plain)))  # what bfloat16 rounds away
    model = with_lora(model, LoraConfig(rank=16))
    recompute(model)
    said = sampled(model, asked)
    before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    metrics = Learner(model, grpo.make(kl_coef=0.01), LearnerConfig(minibatches=1, lr=1e-3, micro_tokens=2048)).update([group(said)])
    assert math.isfinite(metrics["grad_norm"]) and metrics["grad_norm"] > 0 and metrics["logprob_mismatch"] < 0.05
    losses: list[float] = []
    rows = prompts(*[512] * 4, vocabulary=128_000)
    config = SFTConfig(epochs=4.0, lr=1e-3, batch_tokens=2048, bf16=True)
    train(model, rows, [[1.0] * len(r) for r in rows], config, on_step=lambda step, done, found: losses.append(found["loss"]) and None)
    assert losses[-1] < losses[0]
    after = dict(model.named_parameters())
    assert all(not torch.equal(p, after[n]) for n, p in before.items() if "lora_B" in n)
    assert torch.cuda.max_memory_allocated() < 60e9


def test_the_whole_of_a_large_model_takes_a_step() -> None:
    model = large("Llama-3.2-3B").float()
    recompute(model)
    rows = prompts(*[512] * 2, vocabulary=128_000)
    losses: list[float] = []
    config = SFTConfig(epochs=4.0, lr=1e-5, batch_tokens=1024, bf16=True)
    train(model, rows, [[1.0] * len(r) for r in rows], config, on_step=lambda step, done, found: losses.append(found["loss"]) and None)
    assert losses[-1] < losses[0]
