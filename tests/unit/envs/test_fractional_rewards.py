"""Where an environment pays fractions of a success, nothing may rest on a text check that knows whole ones only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dreamgym.config import resolve
from dreamgym.errors import ConfigError
from dreamgym.recipes import train, transfer
from dreamgym.recipes.config import CompareConfig, SharedConfig, TrainConfig
from dreamgym.recipes.factory import checked_suite

SHOP = {"env": {"name": "webshop", "options": {"outcome": False}}}
OFF: dict[str, Any] = {"guard": {"grounding": False}, "logs": {"relabelled_goals": 0.0}}


def test_a_shop_that_fractional_reward_option_refuses_what_rests_on_whole_successes_and_says_what_to_set(tmp_path: Path):
    config = resolve(TrainConfig, {**SHOP, "rl": {"on_gap": "refresh"}})
    with pytest.raises(ConfigError) as refused:
        train.run(config, tmp_path / "run", say=lambda _: None)
    said = str(refused.value)
    assert "outcome = false" in said
    assert "Set guard.grounding = false, logs.relabelled_goals = 0, rl.refresh.relabelled_goals = 0" in said
    assert not (tmp_path / "run" / "episodes").exists() or not any((tmp_path / "run" / "episodes").iterdir())


def test_near_goals_are_refused_like_the_others():
    with pytest.raises(ConfigError, match=r"Set logs\.near_miss_goals = 0, or"):
        checked_suite(
            resolve(CompareConfig, {**SHOP, "guard": {"grounding": False}, "logs": {"relabelled_goals": 0.0, "near_miss_goals": 0.2}})
        )


def test_it_is_taken_once_they_are_off_and_where_no_experience_model_is_needed():
    assert checked_suite(resolve(SharedConfig, {**SHOP, **OFF})).name == "webshop"
    assert checked_suite(resolve(TrainConfig, {**SHOP, "mode": "real", "start": "scratch"})).name == "webshop"
    with pytest.raises(ConfigError, match="pays fractions"):
        checked_suite(resolve(TrainConfig, {**SHOP, "mode": "real"}))  # the policy starts as an experience model


def test_whole_successes_need_no_such_care():
    assert checked_suite(SharedConfig()).name == "webshop"
    assert checked_suite(resolve(SharedConfig, {"env": {"name": "corridor", "options": {"length": 4}}})).name == "corridor"


def test_one_environment_of_several_that_fractional_reward_option_is_refused_too():
    corridor = resolve(TrainConfig, {"env": {"name": "corridor", "options": {"length": 4}}})
    with pytest.raises(ConfigError, match="env webshop: it pays fractions|webshop.*pays fractions"):
        transfer.check([corridor, resolve(TrainConfig, SHOP)])
