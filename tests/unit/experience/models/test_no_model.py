"""The control without a model: rules, memory and the history answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite
from dreamgym.errors import ConfigError, UsageError
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.history_copy import HistoryCopy
from dreamgym.experience.models.no_model import NoModel, NoModelConfig
from dreamgym.experience.pipeline import ModelInputs
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.config import RunConfig, TrainConfig
from dreamgym.recipes.factory import open_replay
from dreamgym.types import Observation, Query, Trajectory

UNGUARDED = GuardConfig(admissibility=False, grounding=False, mask_disputed=False, mask_doubtful=False)


def control(suite: EnvSuite, logs: list[Trajectory], **settings: bool) -> NoModel:
    made = plugins.make(
        "experience.models", "no_model", inputs=ModelInputs(Guard(suite.rules, UNGUARDED), open_replay(None, logs), logs), **settings
    )
    assert isinstance(made, NoModel)
    return made


def test_every_query_is_answered_and_says_what_it_was_answered_from():
    suite = plugins.make("envs", "webshop")
    model = control(suite, collect(suite, 300, seed=0))
    steps = [
        (Query(e.task, e.transitions[:i], s.state, s.action), s)
        for e in collect(suite, 40, seed=3, split="dev")
        for i, s in enumerate(e.transitions)
    ]
    answers = model.predict([query for query, _ in steps])
    assert {one.info.decided_by for one in answers} == {"recalled", "composed"}
    assert all(one.info.decided_by == one.info.reward_by and one.next_state.text for one in answers)
    exact = sum(one.next_state == step.next_state for one, (_, step) in zip(answers, steps, strict=True))
    assert exact > 0.3 * len(steps) and model.counts["recalled"] and model.counts["history"] and model.counts["precedent"]


def test_what_an_action_leads_back_to_is_learned_from_the_logs():
    suite = plugins.make("envs", "webshop")
    copies = HistoryCopy(open_replay(None, collect(suite, 600, seed=0)))
    episodes = collect(suite, 200, seed=4, split="dev")
    back = [
        (copies.next_state(Query(e.task, e.transitions[:i], s.state, s.action)), s.next_state.text)
        for e in episodes
        for i, s in enumerate(e.transitions)
        if s.action == "click[back to search]" and i
    ]
    assert len(back) > 10 and all(found == truth for found, truth in back)
    first = episodes[0].transitions[0]
    assert copies.next_state(Query(episodes[0].task, (), first.state, first.action)) is None


def test_without_memory_nothing_changes_and_a_task_starts_empty():
    suite = plugins.make("envs", "corridor", length=4)
    model, task = control(suite, []), suite.tasks("train", 1)[0]
    assert model.start([task], seed=0) == [Observation("")]
    (answer,) = model.predict([Query(task, (), Observation("here"), "right")])
    assert (answer.next_state.text, answer.reward, answer.terminated) == ("here", 0.0, False)


def test_a_task_starts_as_the_logged_one_most_like_it():
    suite = plugins.make("envs", "corridor", length=4)
    logs = collect(suite, 20, seed=0)
    model = control(suite, logs)
    known = logs[0].task
    assert model.start([known], seed=0)[0] == logs[0].transitions[0].state
    assert model.start([replace(known, instruction=known.instruction + " please")], seed=0)[0] == logs[0].transitions[0].state


def test_it_varies_no_tasks_and_a_configuration_that_asks_it_to_is_refused():
    suite = plugins.make("envs", "corridor", length=4)
    with pytest.raises(UsageError, match="synthetic_share = 0"):
        control(suite, []).vary([suite.tasks("train", 1)[0]], seed=0)
    settings = {"experience": {"name": "no_model"}, "start": "scratch"}
    with pytest.raises(ConfigError, match="synthetic_share = 0.1 asks for generated tasks"):
        TrainConfig.model_validate(settings)
    TrainConfig.model_validate(settings | {"rl": {"curriculum": {"synthetic_share": 0.0}}})


def test_the_ablation_of_the_model_answers_from_memory_on_real_tasks():
    less, loop = RunConfig().without("model"), RunConfig().dream.without("model")
    assert less.experience.name == "no_model" and not less.experience.fitted and loop.curriculum.synthetic_share == 0
    assert NoModelConfig().recall
