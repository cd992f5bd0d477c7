"""The presets of the paper's policies: each takes one training step, with random weights of its architecture in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from chat_model import bytes_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dreamgym.config import read
from dreamgym.envs import corridor
from dreamgym.llm.vocabulary import END
from dreamgym.plugins import make_named
from dreamgym.policy.loading import Policies
from dreamgym.recipes.config import TrainConfig
from dreamgym.train.learner import Learner
from dreamgym.types import Completion, Observation, Request, Sampling, Task, Trajectory, Transition, Turn

SHAPE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}  # fmt: skip
ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}  # fmt: skip
MODELS: dict[str, Any] = {
    "train-llama-3b": lambda n: LlamaForCausalLM(LlamaConfig(vocab_size=n, rope_parameters=ROPE, tie_word_embeddings=True, **SHAPE)),
    "train-llama-8b": lambda n: LlamaForCausalLM(LlamaConfig(vocab_size=n, rope_parameters=ROPE, tie_word_embeddings=False, **SHAPE)),
    "train-qwen-7b": lambda n: Qwen2ForCausalLM(Qwen2Config(vocab_size=n, **SHAPE)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_preset_of_a_published_policy_takes_a_training_step(name: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    words = bytes_tokenizer()
    torch.manual_seed(0)
    MODELS[name](len(words) + 1).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    config = read(TrainConfig, Path(name), {"policy.backbone.model": str(tmp_path), "policy.backbone.device": "cpu"})
    block, settings = config.policy.model_copy(update={"instructions": "Such as Action: left."}), config.rl
    suite = corridor.make(length=4, keys=False, max_steps=4)
    policies = Policies(block, suite.rules, None, {END: 1}, served=tmp_path / "served")  # type: ignore[arg-type]
    model = policies.initial_model(tmp_path)
    agent = policies.agent(model, full_precision=not settings.learner.bf16)
    state = Observation("a corridor")
    prompt = agent.template.opening("go left", state.text)
    sampling = Sampling(12, stop=agent.template.stop, temperature=1.0)
    said: list[Completion] = agent.llm.generate([Request(prompt, sampling, (i,)) for i in range(settings.group_size)])
    group = [
        Trajectory(
            f"t{i}", Task("t", "go left", "corridor"), "real", (Turn(Transition(state, "a", state, float(i % 2), True), c),), i % 2 == 1
        )
        for i, c in enumerate(said)
    ]
    learner = Learner(
        model, make_named("train.algos", settings.algorithm.model_dump()), settings.learner, total_updates=settings.iterations
    )
    before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    found = learner.update([group])
    assert found["grad_norm"] > 0 and found["optimiser_steps"] == 1 and learner.reference is not None
    assert any(not torch.equal(before[n], p) for n, p in model.named_parameters() if n in before)
    assert settings.algorithm.model_dump()["invalid_penalty"] == 0.01, "verl-agent's 0.1 goes with a reward of 10"
    assert settings.tasks_per_iter * settings.group_size == 128 and settings.learner.schedule == "constant"
    assert ("lora" in "".join(before)) == (config.policy.backbone is not None and config.policy.backbone.lora is not None)
