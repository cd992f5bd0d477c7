"""Code can run and not learn: here a very small Llama must learn a very small world in seconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamgym.agent import Agent, demonstrations
from dreamgym.curriculum import CurriculumConfig, TaskCurriculum
from dreamgym.envs import corridor
from dreamgym.envs._pool import EnvPool
from dreamgym.evals.success import evaluate, success
from dreamgym.layout import END, MARKERS, Vocabulary
from dreamgym.llm import tiny
from dreamgym.llm.hf import HFEngine
from dreamgym.loop import train
from dreamgym.rollout import rollout
from dreamgym.train import sft
from dreamgym.train.algos import grpo
from dreamgym.train.learner import Learner, LearnerConfig

FAMILY = corridor.make(length=4, keys=False, max_steps=6)
TASKS = FAMILY.tasks("train", 100)


@pytest.fixture
def beginner(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Agent]:
    """A policy of width 32 that has seen a few demonstrations for a moment: it knows the actions, and seldom the way."""
    monkeypatch.setitem(tiny.SIZES, "test", {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64})
    logs = [FAMILY.behave(task, behaviour, seed=0) for task in TASKS for behaviour in ("noisy", "random")]
    texts = [text for e in logs for t in e.transitions for text in (e.task.instruction, t.state.text, t.action, t.next_state.text)]
    tokenizer = tiny.train_tokenizer(texts, vocab_size=320, special=MARKERS, atoms=FAMILY.domain.atoms)
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    words = Vocabulary(lambda text: tiny.encode(tokenizer, text), tokenizer.decode, ids)
    model = tiny.build(tokenizer, "test", seed=0)
    rows = [row for e in logs if e.turns for row in demonstrations(e, words, FAMILY.domain)]
    config = sft.SFTConfig(epochs=25.0, lr=5e-3, batch_tokens=512, bf16=False)
    sft.train(model, [r[0] for r in rows], [r[1] for r in rows], config)
    return model, Agent(HFEngine(model, tokenizer), words, FAMILY.domain)


def sampled(agent: Agent) -> float:
    """Success over 30 sampled episodes of each task."""
    episodes = evaluate(agent, EnvPool(FAMILY.env, FAMILY.domain), TASKS * 30, max_steps=FAMILY.max_steps, temperature=1.0, seed=99)
    return success(episodes).value


@pytest.mark.parametrize("negative_weight", [1.0, 0.0])
def test_grpo_raises_sampled_success_in_the_real_corridor(beginner: tuple[Any, Agent], negative_weight: float):
    model, agent = beginner
    env = EnvPool(FAMILY.env, FAMILY.domain)
    before = sampled(agent)
    learner = Learner(model, grpo.make(negative_weight=negative_weight), LearnerConfig(lr=3e-3, minibatches=2))
    train(
        curriculum=TaskCurriculum(TASKS, CurriculumConfig(strategy="uniform"), domain=FAMILY.domain),
        collect=lambda tasks, i: rollout(agent, env, tasks, seed=i, max_steps=FAMILY.max_steps, name=str(i)),
        learner=learner,
        remember=lambda trajectories: 0,
        start=0,
        iterations=30,
        tasks_per_iter=7,
        group_size=12,
        on_iteration=lambda i, trajectories, metrics: False,
    )
    after = sampled(agent)
    assert before < 0.6 and after > before + 0.2
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
