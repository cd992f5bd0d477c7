"""Which environments have a quickstart, and what their settings must agree on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dreamgym import config as configuration
from dreamgym.envs import alfworld
from dreamgym.errors import ConfigError, UsageError
from dreamgym.recipes.config import CompareConfig, RunConfig
from dreamgym.recipes.quickstart import run_one
from dreamgym.recipes.settings import budget_config, command_of, run_name


@pytest.mark.parametrize("budget", ["small", "default"])
def test_houses_have_a_small_and_a_default_quickstart_whose_states_say_all_that_matters(budget: str):
    config = budget_config(budget, "alfworld")
    suite = alfworld.make(**config.env.options)
    assert config.env.name == "alfworld"
    assert config.experience.history == 0 and config.policy.window == 1  # a state says all but what was tried in vain
    assert config.experience.temperature and config.experience.draw == "hidden"  # else every house hides the likeliest things
    assert not config.logs.relabelled_goals  # an episode ends only when it is won
    assert config.eval.tasks <= suite.config.test and config.eval.dev_tasks <= suite.config.dev


def test_a_budget_or_an_environment_without_a_quickstart_is_named_with_what_there_is():
    assert run_name("small") == "quickstart-small" and run_name("default", "alfworld") == "quickstart-alfworld"
    with pytest.raises(ConfigError, match="No quickstart of 'corridor'.*Known: telecom, webshop, alfworld, web"):
        budget_config("small", "corridor")
    with pytest.raises(ConfigError, match="No budget 'smal'"):
        budget_config("smal", "alfworld")
    with pytest.raises(ConfigError, match="with budget 'large': it has small, default. Try --budget small"):
        budget_config("large")


def test_the_default_quickstart_is_an_arm_of_the_published_comparison():
    quick, compared = budget_config("default"), configuration.read(CompareConfig, Path("compare-telecom"))
    for name in ("env", "rules", "logs", "model", "experience", "guard", "warm_start", "policy", "replay"):
        assert getattr(quick, name) == getattr(compared, name), name
    assert quick.eval == compared.eval.model_copy(update={"gap_tasks": quick.eval.gap_tasks})  # a comparison measures no gap
    assert quick.dream == compared.block("grpo-dream")
    assert quick.s2r == compared.s2r
    assert quick.s2r.after(quick.dream) == compared.s2r.after(compared.block("grpo-dream"))


@pytest.mark.parametrize("budget", ["small", "default", "large", "gpu"])
def test_the_second_stage_in_the_shop_plays_few_tasks_and_is_capped(budget: str):
    config = budget_config(budget, "webshop")
    block = config.s2r.after(config.dream)
    assert (block.tasks_per_iter, block.max_real_steps, block.learner.minibatches) == (8, 2000, 1)
    assert 0 < block.iterations <= 8 and block.group_size == config.dream.group_size


def test_every_preset_of_a_quickstart_is_one_of_that_command():
    for name in configuration.presets():
        if name.startswith("quickstart"):
            assert command_of(Path(name)) == "quickstart", name


def test_settings_of_the_command_line_win_over_the_budgets():
    changed = budget_config("small", "webshop", overrides=["dream.iterations=5", "seeds=[1, 2]"])
    assert changed.dream.iterations == 5 and changed.seeds == (1, 2)
    assert changed.logs == budget_config("small", "webshop").logs


def test_the_papers_offline_set_is_a_preset():
    config = configuration.read(RunConfig, Path("alfworld-paper"))
    shares = alfworld.make(**config.env.options).scripted_policies
    assert config.logs.trajectories == 5200 and shares["expert"] * 5200 == pytest.approx(3200)


def test_the_budget_for_a_gpu_says_before_any_work_that_there_is_none(tmp_path: Path):
    config = budget_config("gpu", "webshop")
    assert config.model.size == "15m" and config.dream.iterations >= budget_config("default", "webshop").dream.iterations
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UsageError, match="device=cuda, but"):
        run_one(config, tmp_path / "run", budget="gpu", say=lambda _: None)
    assert not (tmp_path / "run" / "episodes").exists()
