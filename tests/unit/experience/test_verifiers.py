"""Verifiers by configuration: who gives the guard a second opinion in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from outside.logged_ends import LoggedEnds

from dreamgym.config import build, dump, resolve
from dreamgym.errors import ConfigError, PluginError
from dreamgym.experience.env import DreamEnv
from dreamgym.experience.guard import DISAGREED
from dreamgym.recipes import factory
from dreamgym.recipes.blocks import ExperienceConfig
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.rundir import RunDir


def context(path: Path, verifier: dict[str, Any]) -> RunContext:
    settings = {
        "start": "scratch",
        "env": {"name": "corridor", "options": {"length": 4, "keys": False}},
        "logs": {"trajectories": 12},
        "model": {"size": "100k", "vocab_size": 300},
        "experience": {"name": "outside.nearest_memory", "verifier": verifier},
    }
    config = resolve(TrainConfig, settings)
    with RunDir.open(path, dump(config)) as run:
        return prepare_logs(run, config)


def test_a_verifier_in_a_file_of_ones_own_masks_what_it_does_not_believe(tmp_path: Path):
    found = context(tmp_path, {"name": "outside.logged_ends", "at_least": 1000})
    logged = next(log for log in found.logs if log.success)
    dreams = {guarded: factory.make_dream(found, factory.replay_in_memory(found), guarded=guarded)[0] for guarded in (True, False)}
    ends = {}
    for guarded, batch in dreams.items():
        dream = DreamEnv(batch)
        dream.reset(logged.task)
        ends[guarded] = [dream.step(transition.action) for transition in logged.transitions][-1]
    verdict = ends[True].info.verdict
    assert verdict is not None and verdict.kind == "masked" and verdict.reasons[0] == DISAGREED and ends[True].reward == 0.0
    assert ends[False].reward == 1.0


def test_ablations_of_the_model_keep_the_verifier_and_the_one_of_the_guard_leaves_it_out(tmp_path: Path):
    found = context(tmp_path, {"name": "outside.logged_ends"})
    second = factory.make_guard(found).second
    assert second is not None and isinstance(second.verifier, LoggedEnds) and second.verifier.ends
    assert factory.make_guard(found.without("model")).second is not None
    unguarded = found.without("guard")
    assert factory.make_guard(unguarded).second is None and unguarded.experience_checkpoint == "experience"


@pytest.mark.parametrize(
    ("verifier", "error", "says"),
    [
        ({"name": "chta", "engine": {}}, PluginError, "Did you mean 'chat'"),
        ({"name": "chat"}, ConfigError, r"'experience\.verifier\.engine'.*Field required"),
        ({"applies_to": "all"}, ConfigError, r"'verifier\.name'.*Field required"),
        ({"name": 3}, ConfigError, "name of a plug-in as text"),
        ({"name": "outside.logged_ends", "applies_to": "some"}, ConfigError, "'ends' or 'all'"),
        ({"name": "learned", "of": "all"}, ConfigError, r"Unknown key 'experience\.verifier\.of'.*Known: .*alpha.*applies_to"),
    ],
)
def test_a_verifier_that_cannot_be_is_refused_with_the_configuration(verifier: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        build(ExperienceConfig, {"verifier": verifier})
