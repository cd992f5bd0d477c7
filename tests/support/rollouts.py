"""Small models and made-up rollouts that the tests of the algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dreamgym import plugins
from dreamgym.protocols import Policy
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig
from dreamgym.types import Completion, Observation, Task, Trajectory, Transition, Turn

SHAPE = {
    "vocab_size": 20, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    "tie_word_embeddings": True,
}  # fmt: skip


def tiny(seed: int = 0, kind: str = "llama") -> Any:
    """A model of width 32 over 20 tokens; "llama" takes the packed path, "qwen2" the padded one."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**SHAPE))
    return model.eval()


def hidden(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[T, W] last hidden states, by transformers' own forward."""
    return model.base_model(torch.tensor([list(ids)])).last_hidden_state[0]


def logprobs(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[T-1] log-probabilities of ids[1:], by transformers' own forward."""
    scores = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0, :-1].float(), -1)
    return scores[torch.arange(len(ids) - 1), torch.tensor(list(ids[1:]))]


def completion(model: Any, prompt: Sequence[int], ids: Sequence[int], shift: float = 0.0) -> Completion:
    """As if sampled from `model`, whose log-probabilities have since moved by `-shift`."""
    with torch.no_grad():
        found = logprobs(model, [*prompt, *ids])[len(prompt) - 1 :] + shift
    return Completion(tuple(map(int, prompt)), tuple(map(int, ids)), tuple(found.tolist()), "", "stop")


def trajectory(rewards: Sequence[float], said: Sequence[Completion], states: Sequence[str] = (), **facts: Any) -> Trajectory:
    """An episode of one turn per completion; the state after a turn is that of the next, and a last one called "end"."""
    names = [*(states or [f"s{i}" for i in range(len(said))]), "end"]
    last = len(said) - 1
    turns = tuple(
        Turn(Transition(Observation(names[i]), "a", Observation(names[i + 1]), r, i == last and not facts.get("truncated", False)), c)
        for i, (r, c) in enumerate(zip(rewards, said, strict=True))
    )
    return Trajectory("t", Task("t", "i", "e"), "real", turns, rewards[-1] >= 1, **facts)


def groups(model: Any, *, count: int = 3, size: int = 4, shift: float = 0.3) -> list[list[Trajectory]]:
    """Rollouts of one to three turns over few states, rewarded at the end, every third one cut, sampled by slightly other weights."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        group = []
        for i in range(size):
            prompt: list[int] = rng.integers(2, 20, rng.integers(2, 9)).tolist()
            said = []
            for _ in range(int(rng.integers(1, 4))):
                said.append(completion(model, prompt, rng.integers(2, 20, rng.integers(1, 5)).tolist(), float(rng.normal()) * shift))
                prompt = [*prompt, *said[-1].ids, *rng.integers(2, 20, rng.integers(1, 6)).tolist()]
            rewards = [0.0] * (len(said) - 1) + [float(rng.random())]
            states = [f"s{rng.integers(2)}" for _ in said]
            group.append(trajectory(rewards, said, states, truncated=i % 3 == 2))
        made.append(group)
    return made


def next_prompt(episode: Trajectory) -> list[int]:
    """The prompt that would have followed: a state of two tokens."""
    said = episode.turns[-1].completion
    return [*said.prompt_ids, *said.ids, 3, 4]


def learner(model: Any, algorithm: dict[str, Any], **config: Any) -> Learner:
    """One mini-batch, no clipping of gradients, float32, and a critic that has an opinion from the start."""
    defaults = {"minibatches": 1, "min_trajectories": 1, "grad_clip": 1e9, "lr": 1e-3, "bf16": False}
    made = Learner(model, plugins.make_named("train.algos", algorithm), LearnerConfig(**(defaults | config)), next_prompt=next_prompt)
    if made.critic:
        torch.manual_seed(7)
        torch.nn.init.normal_(made.critic.head.weight, std=0.1)
    return made


def gradients(made: Learner) -> torch.Tensor:
    """The last update's gradient of the policy and, where there is one, of the critic."""
    parameters = [*made.model.parameters(), *(made.critic.parameters() if made.critic else [])]
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).clone()


def shifted(episode: Trajectory, by: float) -> Trajectory:
    """The same episode, as a sampler that is off by `by` nats would have reported it."""
    turns = [replace(t, completion=replace(t.completion, logprobs=tuple(lp + by for lp in t.completion.logprobs))) for t in episode.turns]
    return replace(episode, turns=tuple(turns))


def act(policy: Policy, conversation: Any, state: Observation) -> Completion:
    """One action in one conversation."""
    (ticket,) = policy.submit([conversation], [state], temperature=1.0, seeds=[(0,)])
    return dict(policy.poll())[ticket]
