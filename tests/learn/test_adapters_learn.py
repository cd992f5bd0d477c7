"""An instruct model in small: a Qwen2 that learnt its chat template from a few demonstrations, and adapters that learn the way."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from dreamgym.curriculum.task_curriculum import CurriculumConfig, TaskCurriculum
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.evals.success import evaluate, success
from dreamgym.llm import tiny
from dreamgym.llm.backbone_settings import LoraConfig
from dreamgym.llm.backbones import with_lora
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.loop import train
from dreamgym.policy.agent import Agent, demonstrations
from dreamgym.policy.templates.chat import Chat
from dreamgym.rollout import rollout_groups
from dreamgym.train import sft
from dreamgym.train.algos import grpo
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig, SFTConfig

SUITE = corridor.make(length=4, keys=False, max_steps=6)
TASKS = SUITE.tasks("train", 100)
INSTRUCTIONS = "Write an action."
CHATML = """{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def test_adapters_of_an_instruct_model_learn_the_corridor_and_its_own_weights_stay() -> None:
    pytest.importorskip("peft")
    logs = [SUITE.demonstrate(task, behaviour, seed=0) for task in TASKS for behaviour in ("noisy", "random")]
    texts = [text for e in logs for t in e.transitions for text in (e.task.instruction, t.state.text, f"Action: {t.action}")]
    texts += ["You are an agent in the environment 'corridor'.", "Task: system user assistant", INSTRUCTIONS] * 9
    tokenizer = tiny.train_tokenizer(
        texts, vocab_size=360, special=("<|im_start|>", "<|im_end|>"), token_patterns=SUITE.rules.token_patterns
    )
    tokenizer.chat_template = CHATML
    template = Chat(ChatFormat(tokenizer), SUITE.name, INSTRUCTIONS)
    torch.manual_seed(0)
    base = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            initializer_range=48**-0.5,
            pad_token_id=0,
            bos_token_id=None,
        )
    )
    rows = [row for e in logs if e.turns for row in demonstrations(e, template, SUITE.rules)]
    sft.train(base, [r[0] for r in rows], [r[1] for r in rows], SFTConfig(epochs=20.0, lr=5e-3, batch_tokens=1024, bf16=False))
    frozen = {name: p.clone() for name, p in base.named_parameters()}
    model = with_lora(base, LoraConfig(rank=8))
    agent = Agent(LocalEngine(model, tokenizer), template, SUITE.rules, max_reply_tokens=8)
    env = EnvPool(SUITE.env, SUITE.rules)

    def sampled() -> float:
        return success(evaluate(agent, env, TASKS * 20, max_steps=SUITE.max_steps, temperature=1.0, seed=99)).value

    before = sampled()
    train(
        curriculum=TaskCurriculum(TASKS, CurriculumConfig(strategy="uniform"), rules=SUITE.rules),
        collect=lambda tasks, i: rollout_groups(agent, env, tasks, 12, seed=i, max_steps=SUITE.max_steps, name=str(i)),
        learner=Learner(model, grpo.make(kl_coef=0.01), LearnerConfig(lr=5e-3, minibatches=2, bf16=False)),
        remember=lambda trajectories: 0,
        start=0,
        iterations=12,
        tasks_per_iter=7,
        on_iteration=lambda i, trajectories, metrics: False,
    )
    after = sampled()
    assert before < 0.7 and after > before + 0.1
    own = {name.replace(".base_layer", "").removeprefix("base_model.model."): p for name, p in model.named_parameters()}
    assert all(torch.equal(p, own[name]) for name, p in frozen.items())
