"""One experience model of several environments: it is told which one, shares weights, and never a memory."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dreamgym.config import build, dump
from dreamgym.errors import ConfigError
from dreamgym.experience.prompts import PromptParts
from dreamgym.experience.verifiers import learned
from dreamgym.recipes import factory, transfer, universal
from dreamgym.recipes.blocks import ExperienceConfig
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.experience import experience_rows
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Query, Task

ENVS: dict[str, dict[str, Any]] = {"corridor": {"length": 4}, "webshop": {}}
SETTINGS: dict[str, Any] = {
    "logs": {"trajectories": 12, "task_pairs": 4},
    "model": {"size": "100k", "vocab_size": 700},
    "experience": {"max_answer_tokens": 60, "training": {"epochs": 0.5, "lr": 5e-3, "batch_tokens": 2048, "bf16": False}},
}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunContext]:
    """The contexts of a universal model of a corridor and a shop, hardly trained."""
    return universal.train(runs(tmp_path_factory.mktemp("universal")), tmp_path_factory.mktemp("model") / "universal")


def runs(folder: Path, **experience: Any) -> dict[str, RunContext]:
    """A run of each environment, with its logs and the tokenizer that they share."""
    settings = SETTINGS | {"experience": SETTINGS["experience"] | experience}
    configs = [build(TrainConfig, settings | {"env": {"name": name, "options": options}}) for name, options in ENVS.items()]
    tokenizer, found = transfer._tokenizer(configs), {}
    for config in configs:
        with RunDir.open(folder / config.env.name, dump(config)) as run:
            found[config.env.name] = prepare_logs(run, config, tokenizer=tokenizer)
    return found


def test_the_environment_is_named_in_the_context_of_every_row_and_of_every_question(together: dict[str, RunContext]):
    for name, context in together.items():
        rows = experience_rows(context, factory.replay_in_memory(context))
        instructions = {f"{name}: {trajectory.task.instruction}" for trajectory in context.logs}
        for row in rows:
            said = context.vocabulary.decode([i for i, segment in zip(row.ids, row.segments, strict=True) if not segment])
            assert any(instruction in said for instruction in instructions), said
        asked: list[list[int]] = []
        _, model = factory.make_dream(context, factory.replay_in_memory(context))
        generate = model.llm.generate
        model.llm.generate = lambda requests, generate=generate, asked=asked: asked.extend(r.prompt for r in requests) or generate(requests)
        episode = context.logs[0]
        model.predict([Query(episode.task, (), episode.transitions[0].state, episode.transitions[0].action, (0, 0, 0))])
        model.start([episode.task], seed=0)
        model.vary([episode.task], seed=0)
        assert asked and all(f"{name}: {episode.task.instruction}" in context.vocabulary.decode(prompt) for prompt in asked)


def test_weights_are_shared_and_memories_are_not(together: dict[str, RunContext]):
    corridor, shop = together.values()
    assert corridor.checkpoint("experience") == shop.checkpoint("experience")
    for name, context in together.items():
        _, model = factory.make_dream(context, factory.replay_in_memory(context))
        assert {memory.env for memory in model.replay.memories()} == {name} and model.guard.rules is context.suite.rules


def test_a_universal_dream_is_judged_by_the_verifier_of_each_run_and_dreams_with_no_model_of_one(tmp_path: Path):
    contexts = runs(tmp_path, verifier={"name": "learned"}, training=SETTINGS["experience"]["training"] | {"epochs": 0.01})
    for name, context in contexts.items():
        contexts[name] = replace(context, verifier_checkpoint="verifier-2", experience_checkpoint="experience-2")  # as refreshes name them
        learned.fit(factory.verifier_inputs(contexts[name]))
    found = universal.train(contexts, tmp_path / "universal")
    for name, context in found.items():
        assert context.checkpoint(context.verifier_checkpoint) == tmp_path / name / "checkpoints" / "verifier-2"
        _, model = factory.make_dream(context, factory.replay_in_memory(context))
        assert model.guard.second is not None and context.checkpoint(context.experience_checkpoint).is_relative_to(tmp_path / "universal")


def test_a_universal_training_resumes_and_says_what_it_was_made_of(together: dict[str, RunContext]):
    path = together["webshop"].path
    config = tomllib.loads((path / "config.toml").read_text("utf-8"))
    assert [one["env"]["name"] for one in config["environments"].values()] == ["corridor", "webshop"]
    before = (path / "checkpoints" / "experience" / "model.safetensors").stat().st_mtime_ns
    again = universal.train(together, path)
    assert (path / "checkpoints" / "experience" / "model.safetensors").stat().st_mtime_ns == before
    assert again["corridor"].logs == together["corridor"].logs


def test_a_model_of_one_environment_is_not_told_its_name():
    task = Task("t", "find a lamp", "webshop")
    assert PromptParts().about(task) == "find a lamp" and PromptParts(name_env=True).about(task) == "webshop: find a lamp"


def test_a_model_that_cannot_be_told_its_environment_is_refused():
    configs = [build(TrainConfig, SETTINGS | {"env": {"name": name, "options": options}}) for name, options in ENVS.items()]
    chat = {"name": "finetuned_chat", "backbone": {"model": "smollm2", "lora": {"rank": 4}}}
    wrong = [one.model_copy(update={"experience": ExperienceConfig.model_validate(chat), "start": "scratch"}) for one in configs]
    with pytest.raises(ConfigError, match="is told which environment it dreams, and experience.name = 'finetuned_chat'"):
        transfer.check(wrong, all_in_one=True)
    transfer.check(configs, all_in_one=True)
