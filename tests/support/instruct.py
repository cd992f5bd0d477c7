"""An instruct model in small, which learnt its chat template from a few demonstrations of the corridor, and a dream of the corridor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from chat_model import CHATML
from transformers import Qwen2Config, Qwen2ForCausalLM

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.evals.success import evaluate, success
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard
from dreamgym.experience.models.no_model import NoModel, NoModelConfig
from dreamgym.experience.parse import Answer
from dreamgym.llm import tiny
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.policy.agent import Agent, demonstrations
from dreamgym.policy.templates.chat import Chat
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.train import sft
from dreamgym.train.settings import SFTConfig
from dreamgym.types import Memory, Query, Transition

SUITE = corridor.make(length=4, keys=False, max_steps=6)
TASKS = SUITE.tasks("train", 100)
INSTRUCTIONS = "Write an action."


class Instructed(NamedTuple):
    """A model and how it speaks."""

    model: Any
    tokenizer: Any
    template: Chat


def instructed(seed: int, *, epochs: float = 40.0) -> Instructed:
    """A model that imitates noisy and random behaviour in chat form."""
    logs = [SUITE.demonstrate(task, behaviour, seed=0) for task in TASKS for behaviour in ("noisy", "random")]
    texts = [text for e in logs for t in e.transitions for text in (e.task.instruction, t.state.text, f"Action: {t.action}")]
    texts += ["You are an agent in the environment 'corridor'.", "Task: system user assistant", INSTRUCTIONS] * 9
    special = ("<|im_start|>", "<|im_end|>")
    tokenizer = tiny.train_tokenizer(texts, vocab_size=360, special=special, token_patterns=SUITE.rules.token_patterns)
    tokenizer.chat_template = CHATML
    template = Chat(ChatFormat(tokenizer), SUITE.name, INSTRUCTIONS)
    torch.manual_seed(seed)
    shape = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        **shape,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=48**-0.5,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    rows = [row for e in logs if e.turns for row in demonstrations(e, template, SUITE.rules)]
    settings = SFTConfig(epochs=epochs, lr=5e-3, batch_tokens=1024, bf16=False)
    sft.train(model, [row[0] for row in rows], [row[1] for row in rows], settings)
    return Instructed(model, tokenizer, template)


class TaskMemory(NoModel):
    """The control, with what the logs show of the same task in the same state first. The state does not say which door is the right one:
    the nearest memory is often of another task, and the control alone confirms successes in two of seven tasks."""

    recorded: dict[tuple[str, str, str], Transition]

    def _answer(self, query: Query, memories: Sequence[Memory]) -> Answer:
        found = self.recorded.get((query.task.instruction, query.state.text, query.action))
        if found is None:
            return super()._answer(query, memories)
        return Answer("", found.next_state.text, found.reward, found.terminated)


def recorded_dream() -> DreamBatch:
    """The corridor as many logs show it, by rules and memory alone. Every task can be solved in it."""
    scripted = ("expert", "noisy", "random")
    logs = [SUITE.demonstrate(task, behaviour, seed=seed) for task in TASKS for behaviour in scripted for seed in range(6)]
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(logs)
    openings = {log.task.instruction: log.turns[0].transition.state.text for log in logs if log.turns}
    model = TaskMemory(replay, Guard(SUITE.rules), NoModelConfig(), openings=openings)
    model.recorded = {(log.task.instruction, step.state.text, step.action): step for log in logs for step in log.transitions}
    return DreamBatch(model, SUITE.rules, horizon=SUITE.max_steps)


def real_success(policy: Instructed, episodes: int) -> float:
    """The share of sampled episodes of each task that succeed in the real corridor; `episodes` a task."""
    agent = Agent(LocalEngine(policy.model, policy.tokenizer), policy.template, SUITE.rules, max_reply_tokens=8)
    env = EnvPool(SUITE.env, SUITE.rules)
    return success(evaluate(agent, env, TASKS * episodes, max_steps=SUITE.max_steps, temperature=1.0, seed=99)).value
