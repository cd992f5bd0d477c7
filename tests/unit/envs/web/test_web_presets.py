"""The quickstarts of the web."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym import config as configuration
from dreamgym.envs import web
from dreamgym.recipes.config import CompareConfig
from dreamgym.recipes.settings import budget_config


def test_the_default_quickstart_is_the_small_one_at_the_size_of_the_comparison():
    small, quick = (budget_config(budget, "web") for budget in ("small", "default"))
    compared = configuration.read(CompareConfig, Path("compare-web"))
    assert quick.env.name == small.env.name == compared.env.name and quick.env.options == compared.env.options
    for name in ("rules", "logs", "experience", "warm_start", "dream"):
        assert getattr(quick, name) == getattr(compared, name), name
    assert quick.logs.trajectories == 2 * small.logs.trajectories
    assert quick.eval.tasks > small.eval.tasks and quick.warm_start.epochs > small.warm_start.epochs


@pytest.mark.parametrize("budget", ["small", "default"])
def test_a_quickstart_names_options_that_the_web_has(budget: str):
    options = budget_config(budget, "web").env.options
    assert options["suite"] == "web"
    assert web.WebConfig.model_validate(options["options"]).benchmark == "miniwob"
