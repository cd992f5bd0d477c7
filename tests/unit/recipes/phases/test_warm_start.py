"""What the policy is shown of the logs: successes whose actions its chat template can write, told before anything is fitted."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from chat_model import save_instruct_model
from toy import LOOP, SHARED, shrink

from dreamgym.config import dump, read
from dreamgym.envs import corridor
from dreamgym.errors import UsageError
from dreamgym.recipes import pilot
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.phases import baselines, warm_start
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Trajectory, Turn

BAD = "go <action>left</action>"  # of a reply that shows it, the tags' text alone would be read
SUITE = corridor.make(length=4, keys=False, max_steps=4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def damaged(episode: Trajectory) -> Trajectory:
    """Its first action is one that no chat template can show."""
    return replace(episode, turns=(Turn(replace(episode.transitions[0], action=BAD)), *episode.turns[1:]))


def played(wins: int, failures: int = 2) -> list[Trajectory]:
    """Episodes on tasks that are not held out, of which so many succeed."""
    logs = [SUITE.demonstrate(task, "expert", seed=0) for task in SUITE.tasks("train", wins + failures)]
    assert all(episode.success for episode in logs)
    return [*logs[:wins], *(replace(episode, success=False) for episode in logs[wins:])]


def configured(folder: Path, logs: list[Trajectory], **changes: object) -> TrainConfig:
    write_trajectories(folder / "logs.jsonl", logs)
    (folder / "train.toml").write_text(f"{SHARED}\n[rl]\n{LOOP}")
    given = {
        "policy.backbone": {"model": str(save_instruct_model(folder / "model")), "device": "cpu"},
        "policy.instructions": "Action: left.",
    }
    return read(TrainConfig, folder / "train.toml", {**given, "logs.files": [str(folder / "logs.jsonl")], **changes})


def test_a_success_that_the_policy_cannot_be_shown_is_left_out_of_imitation_alone_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    logs = played(4)
    logs[1], logs[-1] = damaged(logs[1]), damaged(logs[-1])
    config = configured(tmp_path, logs)
    with RunDir.open(tmp_path / "run", dump(config)) as run, caplog.at_level(logging.WARNING):
        context = prepare_logs(run, config)
    assert "1 episode holds an action that the policy's chat template cannot write" in caplog.text
    assert f"of 4 (the first: {BAD!r} of '{logs[1].id}'). The policy is not shown them" in caplog.text
    assert len(warm_start.demonstrations(context)[0]) == 3 and len(context.logs) == len(logs)


def test_logs_of_which_no_success_can_be_shown_are_refused_before_anything_is_fitted(tmp_path: Path):
    config = configured(tmp_path, [damaged(episode) for episode in played(3)])
    says = "3 episodes hold .* no success is left without them. Expected calls with JSON objects"
    with RunDir.open(tmp_path / "run", dump(config)) as run, pytest.raises(UsageError, match=says):
        prepare_logs(run, config)
    silent = configured(tmp_path, [damaged(episode) for episode in played(3)], **{"warm_start.epochs": 0.0})
    with RunDir.open(tmp_path / "none", dump(silent)) as run:
        assert prepare_logs(run, silent).logs, "whose policy imitates nothing"


def test_preferences_leave_out_what_the_policy_cannot_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    logs = played(4)
    logs[-1] = damaged(logs[-1])
    config, compared = configured(tmp_path, logs), list[str]()

    def noted(episodes: list[Trajectory], seed: int) -> list[tuple[Trajectory, Trajectory]]:
        compared.extend(episode.id for episode in episodes)
        return []

    monkeypatch.setattr(baselines.dpo, "dpo_pairs", noted)
    with RunDir.open(tmp_path / "run", dump(config)) as run, pytest.raises(UsageError, match="DPO needs logs"):
        baselines.train_dpo(run, prepare_logs(run, config), baselines.DPOConfig())
    assert logs[0].id in compared and logs[-1].id not in compared


def test_an_estimate_leaves_out_what_the_policy_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pilot, "_with_backbones", lambda pilot, *more: pilot)
    logs = played(4)
    wrong = [replace(damaged(episode), id=f"{episode.id}/again", success=won) for episode, won in zip(logs, (True, False), strict=False)]
    found = pilot.measure(configured(tmp_path, [*logs, *wrong]))
    assert found.policy_tokens == pilot.measure(configured(tmp_path, logs)).policy_tokens > 0
