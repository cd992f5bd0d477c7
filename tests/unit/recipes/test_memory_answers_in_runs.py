"""Runs that hold out tasks to choose between the model and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy import shrink

from dreamgym.config import build, dump
from dreamgym.recipes import factory
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases import experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.rundir import RunDir

SETTINGS: dict[str, Any] = {
    "env": {"name": "corridor", "options": {"length": 6, "keys": False, "max_steps": 6}},
    "rules": "none",
    "logs": {"trajectories": 60, "task_pairs": 0},
    "model": {"size": "test", "vocab_size": 320},
    "experience": {
        "recall": False,
        "conditions": False,
        "validation_share": 0.3,
        "max_answer_tokens": 40,
        "training": {"epochs": 1.0, "batch_tokens": 1024, "bf16": False},
    },
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def fitted(path: Path, settings: dict[str, Any]) -> tuple[RunContext, RunDir]:
    config = build(RunConfig, settings)
    with RunDir.open(path, dump(config)) as run:
        context = prepare_logs(run, config)
        experience.train_experience(run, context)
    return context, RunDir.view(path)


def test_a_run_fits_its_model_to_the_other_tasks_and_memory_answers_what_it_predicts_better(tmp_path: Path):
    context, run = fitted(tmp_path / "run", SETTINGS)
    training, validation = experience.validation_split(context)
    keys = [{context.suite.task_key(episode.task) for episode in side} for side in (training, validation)]
    assert keys[0] and keys[1] and not keys[0] & keys[1] and len(training) + len(validation) == len(context.logs)
    assert run.data("experience")["sequences"] == len(training), "a model of validation tasks could not be judged by them"
    record = run.data("experience-validation")
    assert record["steps"] and record["memory"] > record["model"], "hardly fitted, the model knows less than memory"
    assert "left" in record["kinds"] or "right" in record["kinds"]
    assert "open" not in record["kinds"], "the action that ends an episode stays with the model"
    _, model = factory.make_dream(context, factory.replay_in_memory(context))
    assert model.memory_answers is not None and model.memory_answers.kinds == set(record["kinds"])
    _, control = factory.make_dream(context.without("model"), factory.replay_in_memory(context))
    assert control.memory_answers is None


def test_an_action_that_ends_episodes_in_held_out_tasks_alone_stays_with_the_model_too(tmp_path: Path):
    context, _ = fitted(tmp_path / "run", SETTINGS)
    training, validation = experience.validation_split(context)
    endless = [replace(episode, turns=episode.turns[:-1]) for episode in training if len(episode.turns) > 1]
    assert any(episode.transitions[-1].action == "open" for episode in validation)
    record = experience.compare_with_memory(replace(context, logs=endless), validation)
    assert record["kinds"] and "open" not in record["kinds"]


def test_a_refreshed_model_keeps_what_was_chosen_for_the_first_and_without_a_share_nothing_is_chosen(tmp_path: Path):
    context, run = fitted(tmp_path / "run", SETTINGS)
    kinds = frozenset(run.data("experience-validation")["kinds"])
    assert kinds
    assert factory.answered_by_memory(replace(context, experience_checkpoint="experience-dream-1")) == kinds
    plain, run = fitted(tmp_path / "plain", {**SETTINGS, "experience": {**SETTINGS["experience"], "validation_share": 0.0}})
    assert not factory.answered_by_memory(plain) and not run.done("experience-validation")
    assert run.data("experience")["sequences"] == len(plain.logs)
