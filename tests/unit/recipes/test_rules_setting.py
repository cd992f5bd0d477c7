"""`rules = "none"`: the state mapping of a suite and nothing else of its rules, in the run and in its worker processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym.config import dump, resolve
from dreamgym.envs.induction import induce
from dreamgym.envs.tools.conversation import Exchange, conversation_state, extend
from dreamgym.envs.wrappers.induced_rules import InducedRules
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.errors import ConfigError, UsageError
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import open_context
from dreamgym.recipes.factory import make_suite, start_workers
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir
from dreamgym.tool_calls import ToolCall, action_of, calls_of
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn


def test_without_rules_a_suite_keeps_its_state_mapping_and_its_environment():
    config = TrainConfig.model_validate({"env": {"name": "corridor", "options": {"length": 4}}, "rules": "none"})
    suite, whole = make_suite(config), make_suite(config.model_copy(update={"rules": "suite"}))
    task = suite.tasks("train", 1)[0]
    assert isinstance(suite.rules, StateMapping) and not isinstance(whole.rules, StateMapping)
    assert suite.rules.abstract(suite.require_env().reset(task)) == whole.rules.abstract(whole.require_env().reset(task))
    step = whole.demonstrate(task, "expert", seed=0).transitions[-1]
    assert whole.rules.check_success(task.instruction, (), step) is not None
    assert suite.rules.check_success(task.instruction, (), step) is None


def test_without_rules_a_run_keeps_what_follows_from_the_schemas_of_its_tools(tmp_path: Path):
    call = action_of([ToolCall("look", {"at": "door"})])
    state = conversation_state([])
    ended = Transition(state, call, extend(state, Exchange(tuple(calls_of(call)), ("open",))), 1.0, True)
    write_trajectories(tmp_path / "e.jsonl", [Trajectory("e", Task("t", "Look.", "tools"), "demo", (Turn(ended),), True, False)])
    config = TrainConfig.model_validate({"env": {"name": "tools", "options": {"files": [str(tmp_path / "e.jsonl")]}}, "rules": "none"})
    rules = make_suite(config).rules
    assert rules.admissible(state, (), call) is None and rules.admissible(state, (), "jump()") is False
    assert rules.encodes_deltas and rules.encode_delta(ended) == "open" and rules.token_patterns
    assert rules.check_success("Look.", (), ended) is None and not rules.explain(Task("t", "Look.", "tools"), (), ended)


def test_workers_play_the_suite_that_the_run_sees():
    config = TrainConfig.model_validate({"env": {"name": "corridor", "options": {"length": 4}, "workers": 1}, "rules": "none"})
    suite = make_suite(config)
    job = (suite.tasks("train", 1)[0], "expert", 0)
    with start_workers(config.effective_env) as workers:
        assert workers is not None
        (episode,) = workers.demonstrate([job])
    assert episode == suite.demonstrate(job[0], job[1], seed=0)
    assert all(not step.info.reasoning for step in episode.transitions)


def test_induced_rules_are_written_beside_the_run_read_back_and_taken_as_a_person_left_them(tmp_path: Path):
    values = {
        "start": "scratch", "rules": "induced", "env": {"name": "corridor", "options": {"length": 4, "keys": False}},
        "logs": {"trajectories": 120}, "model": {"size": "100k", "vocab_size": 300},
    }  # fmt: skip
    config = resolve(TrainConfig, values)
    with RunDir.open(tmp_path, dump(config)) as run:
        found = prepare_logs(run, config)
    file = tmp_path / "rules.toml"
    rules, elsewhere = found.suite.rules, (Observation("room 1 of 4\n[right]"), (), "left")
    assert isinstance(rules, InducedRules) and rules.rules == induce(found.logs)
    assert rules.admissible(*elsewhere) is False and rules.check_success("", (), found.logs[0].transitions[0]) is None
    assert open_context(tmp_path).suite.rules.admissible(*elsewhere) is False

    file.write_text(file.read_text().replace("used = true", "used = false"))
    with RunDir.open(tmp_path, dump(config)) as run:
        assert prepare_logs(run, config).suite.rules.admissible(*elsewhere) is not False
    file.write_text("no rules")
    with pytest.raises(UsageError, match=r"rules\.toml"):
        open_context(tmp_path)


def test_another_word_for_the_rules_is_refused():
    with pytest.raises((ConfigError, ValueError), match="suite"):
        TrainConfig.model_validate({"rules": "some"})
