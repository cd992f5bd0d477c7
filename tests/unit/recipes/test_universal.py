"""One experience model of several environments: it is told which one, shares weights, and never a memory."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from dreamgym.config import build
from dreamgym.errors import ConfigError
from dreamgym.experience.prompts import PromptParts
from dreamgym.recipes import factory, universal
from dreamgym.recipes.blocks import EnvBlock
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.phases.experience import experience_rows
from dreamgym.types import Query, Task

ENVS = (EnvBlock(name="corridor", options={"length": 4}), EnvBlock(name="webshop"))
SETTINGS: dict[str, Any] = {
    "logs": {"trajectories": 12, "task_pairs": 4},
    "model": {"size": "100k", "vocab_size": 700},
    "experience": {"max_answer_tokens": 60, "training": {"epochs": 0.5, "lr": 5e-3, "batch_tokens": 2048, "bf16": False}},
}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The parts of a universal model of a corridor and a shop, hardly trained."""
    return universal.train(build(RunConfig, SETTINGS), ENVS, tmp_path_factory.mktemp("universal") / "run")


def test_the_environment_is_named_in_the_context_of_every_row_and_of_every_question(together: dict[str, Any]):
    for name, context in together.items():
        rows = experience_rows(context, factory.replay_in_memory(context))
        instructions = {f"{name}: {trajectory.task.instruction}" for trajectory in context.logs}
        for row in rows:
            said = context.vocabulary.decode([i for i, segment in zip(row.ids, row.segments, strict=True) if not segment])
            assert any(instruction in said for instruction in instructions), said
        asked: list[list[int]] = []
        _, model = factory.dream(context, factory.replay_in_memory(context))
        generate = model.llm.generate
        model.llm.generate = lambda requests, generate=generate, asked=asked: asked.extend(r.prompt for r in requests) or generate(requests)
        episode = context.logs[0]
        model.predict([Query(episode.task, (), episode.transitions[0].state, episode.transitions[0].action, (0, 0, 0))])
        model.start([episode.task], seed=0)
        model.vary([episode.task], seed=0)
        assert asked and all(f"{name}: {episode.task.instruction}" in context.vocabulary.decode(prompt) for prompt in asked)


def test_weights_are_shared_and_memories_are_not(together: dict[str, Any]):
    corridor, shop = (together[env.name] for env in ENVS)
    assert corridor.checkpoint("experience") == shop.checkpoint("experience") and corridor.vocabulary is shop.vocabulary
    for context, name in ((corridor, "corridor"), (shop, "webshop")):
        _, model = factory.dream(context, factory.replay_in_memory(context))
        assert {memory.env for memory in model.replay.memories()} == {name} and model.guard.rules is context.suite.rules


def test_a_universal_training_resumes_and_says_what_it_was_made_of(together: dict[str, Any]):
    path = together["webshop"].path
    config = tomllib.loads((path / "config.toml").read_text("utf-8"))
    assert [one["env"]["name"] for one in config["environments"].values()] == ["corridor", "webshop"]
    before = (path / "checkpoints" / "experience" / "model.safetensors").stat().st_mtime_ns
    again = universal.train(build(RunConfig, SETTINGS), ENVS, path)
    assert (path / "checkpoints" / "experience" / "model.safetensors").stat().st_mtime_ns == before
    assert again["corridor"].logs == together["corridor"].logs


def test_a_model_of_one_environment_is_not_told_its_name():
    task = Task("t", "find a lamp", "webshop")
    assert PromptParts().about(task) == "find a lamp" and PromptParts(name_env=True).about(task) == "webshop: find a lamp"


@pytest.mark.parametrize("envs", [ENVS[:1], (ENVS[0], ENVS[0])])
def test_one_environment_is_not_several(envs: tuple[EnvBlock, ...], tmp_path: Path):
    with pytest.raises(ConfigError, match="two or more environments of different names"):
        universal.train(build(RunConfig, SETTINGS), envs, tmp_path / "run")


@pytest.mark.slow
def test_a_universal_model_is_measured_beside_the_models_of_each_environment(tmp_path: Path):
    settings = SETTINGS | {
        "logs": {"trajectories": 60, "task_pairs": 0},
        "experience": {"max_answer_tokens": 60, "training": SETTINGS["experience"]["training"] | {"epochs": 20.0}},
    }
    found = universal.compare(build(RunConfig, settings), ENVS, tmp_path / "compared", held_out=12)
    assert found.keys() == {"corridor", "webshop"}
    for both in found.values():
        for one in both.values():
            assert one["held_out"]["with_guard"]["state_exact_valid"]["n"] > 20
            assert one["held_out"]["with_guard"]["state_exact_invalid"]["value"] == 1.0  # by rule
    corridor = {kind: one["held_out"]["without_guard"]["state_exact_valid"]["value"] for kind, one in found["corridor"].items()}
    assert corridor["universal"] > 0.3 and corridor["single"] > 0.3, corridor
