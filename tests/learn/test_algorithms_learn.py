"""Every algorithm must learn: a very small Llama that seldom finds its way through a corridor finds it more often, in seconds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from dreamgym import plugins
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
from dreamgym.train import dpo, sft
from dreamgym.train.learner import Learner, LearnerConfig
from dreamgym.types import Trajectory

FAMILY = corridor.make(length=4, keys=False, max_steps=6)
TASKS = FAMILY.tasks("train", 100)
LOGS = [FAMILY.behave(task, behaviour, seed=0) for task in TASKS for behaviour in ("noisy", "random")]


@pytest.fixture(scope="module")
def beginner() -> Iterator[tuple[Any, Any, Vocabulary]]:
    """(model, tokenizer, vocabulary) of a policy that has seen a few demonstrations: it knows the actions, and seldom the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.SIZES, "test", {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64})
        texts = [text for e in LOGS for t in e.transitions for text in (e.task.instruction, t.state.text, t.action, t.next_state.text)]
        tokenizer = tiny.train_tokenizer(texts, vocab_size=320, special=MARKERS, atoms=FAMILY.domain.atoms)
        ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
        words = Vocabulary(lambda text: tiny.encode(tokenizer, text), tokenizer.decode, ids)
        model = tiny.build(tokenizer, "test", seed=0)
        imitate(model, [row for e in LOGS if e.turns for row in demonstrations(e, words, FAMILY.domain)], epochs=25.0)
        yield model, tokenizer, words


def imitate(model: Any, rows: list[tuple[list[int], list[float]]], *, epochs: float) -> None:
    config = sft.SFTConfig(epochs=epochs, lr=5e-3, batch_tokens=512, bf16=False)
    sft.train(model, [ids for ids, _ in rows], [weights for _, weights in rows], config)


def student(beginner: tuple[Any, Any, Vocabulary]) -> tuple[Any, Agent]:
    """A copy of the beginner, and the agent that samples from it."""
    model, tokenizer, words = beginner
    own = copy.deepcopy(model)
    return own, Agent(HFEngine(own, tokenizer), words, FAMILY.domain)


def sampled(agent: Agent) -> float:
    """Success over 20 sampled episodes of each task."""
    episodes = evaluate(agent, EnvPool(FAMILY.env, FAMILY.domain), TASKS * 20, max_steps=FAMILY.max_steps, temperature=1.0, seed=99)
    return success(episodes).value


ALGORITHMS: dict[str, dict[str, Any]] = {  # GRPO is in test_corridor_learns.py
    "gigpo": {"name": "gigpo"},
    "reinforce": {"name": "reinforce"},
    "reinforce, running mean": {"name": "reinforce", "baseline": "running"},
    "ppo, shared": {"name": "ppo", "critic": {"kind": "shared"}},
    "ppo, separate": {"name": "ppo", "critic": {"kind": "separate", "lr": 1e-3}},
    "ppo by token": {"name": "ppo", "level": "token", "gamma": 1.0},
}
VARIANTS = ("reinforce, running mean", "ppo, separate", "ppo by token")  # one of each algorithm is enough for every day
CASES = [pytest.param(settings, id=name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name, settings in ALGORITHMS.items()]


@pytest.mark.parametrize("algorithm", CASES)
def test_an_algorithm_raises_sampled_success_in_the_real_corridor(beginner: tuple[Any, Any, Vocabulary], algorithm: dict[str, Any]):
    model, agent = student(beginner)
    env = EnvPool(FAMILY.env, FAMILY.domain)
    iterations = 20 if algorithm.get("critic", {}).get("kind") == "separate" else 30  # a second model costs time, and learns faster
    before = sampled(agent)
    made = plugins.named("train.algos", algorithm)
    train(
        curriculum=TaskCurriculum(TASKS, CurriculumConfig(strategy="uniform"), domain=FAMILY.domain),
        collect=lambda tasks, i: rollout(agent, env, tasks, seed=i, max_steps=FAMILY.max_steps, name=str(i)),
        learner=Learner(model, made, LearnerConfig(lr=3e-3, minibatches=2), closing=agent.closing),
        remember=lambda trajectories: 0,
        start=0,
        iterations=iterations,
        tasks_per_iter=7,
        group_size=12,
        on_iteration=lambda i, trajectories, metrics: False,
    )
    after = sampled(agent)
    assert before < 0.6 and after > before + 0.12


def offline(n: int) -> list[Trajectory]:
    """Walks of mixed skill, several of each task."""
    return [FAMILY.behave(task, behaviour, seed=seed) for task in TASKS for behaviour in ("noisy", "random", "expert") for seed in range(n)]


def test_dpo_raises_sampled_success_beyond_the_imitation_that_it_starts_from(beginner: tuple[Any, Any, Vocabulary]):
    model, agent = student(beginner)
    pairs = dpo.dpo_pairs(offline(12), seed=0)
    won, lost = ([demonstrations(pair[side], beginner[2], FAMILY.domain)[0] for pair in pairs] for side in (0, 1))
    imitate(model, won, epochs=6.0)
    before = sampled(agent)
    metrics = dpo.train(model, won, lost, dpo.DPOConfig(epochs=4.0, lr=1e-3, bf16=False))
    after = sampled(agent)
    assert len(pairs) > 50 and metrics["accuracy"] > 0.8 and metrics["margin"] > 0 and after > before + 0.04


def test_sft_on_successes_alone_raises_sampled_success(beginner: tuple[Any, Any, Vocabulary]):
    model, agent = student(beginner)
    before = sampled(agent)
    imitate(model, [row for e in offline(4) if e.success for row in demonstrations(e, beginner[2], FAMILY.domain)], epochs=6.0)
    after = sampled(agent)
    assert after > before + 0.05
