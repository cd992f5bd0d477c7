"""Settings made from recorded episodes."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tool_desk
from chat_model import save_instruct_model
from toy import command

from dreamgym import config
from dreamgym.envs import corridor, tools
from dreamgym.envs.tools import recorded_calls
from dreamgym.envs.tools.schemas import inferred_tools
from dreamgym.errors import UsageError
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import log_survey
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.init_logs import settings
from dreamgym.recipes.log_survey import examine
from dreamgym.runs.episodes import write_trajectories
from dreamgym.types import Observation, Turn

EPISODES = collect(corridor.make(), 80, seed=0)


def test_the_printed_settings_are_a_configuration_of_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_trajectories(tmp_path / "episodes.jsonl", EPISODES)
    code, out, err = command(monkeypatch, capsys, "init", "--logs", tmp_path / "episodes.jsonl", "--size", "4m")
    found = config.resolve(TrainConfig, tomllib.loads(out))
    assert code == 0 and found.env.name == "logs" and found.model.size == "4m" and found.eval.tasks == found.rl.probe_every == 0
    assert f"{len(EPISODES)} episodes" in err and "tokens" in err
    assert found.experience.settings["max_answer_tokens"] >= examine([tmp_path / "episodes.jsonl"]).answer_tokens


def test_logs_with_enough_outcomes_of_both_kinds_get_a_verifier_and_rl_near_their_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "episodes.jsonl"
    for failures in (20, 19):
        wins, losses = (next(one for one in EPISODES if one.success is kind) for kind in (True, False))
        copies = [replace(wins, id=f"w{i}") for i in range(20)] + [replace(losses, id=f"l{i}") for i in range(failures)]
        write_trajectories(file, copies)
        code, out, _ = command(monkeypatch, capsys, "init", "--logs", file)
        found = config.resolve(TrainConfig, tomllib.loads(out))
        verifier = found.experience.verifier
        assert code == 0 and (verifier is not None and verifier.name == "learned") is (failures == 20)
        assert found.rl.algorithm.model_dump().get("kl_coef") == (0.1 if failures == 20 else 0.0)


def test_a_verifier_for_a_world_that_hides_something_does_not_repeat_dreamed_actions_in_the_real_one(tmp_path: Path):
    file = tmp_path / "episodes.jsonl"
    write_trajectories(file, EPISODES)
    account = replace(examine([file]), ended=(20, 20))
    for hidden, by in ((True, "rollouts"), (False, "actions")):
        found = config.resolve(TrainConfig, tomllib.loads(settings([file], replace(account, hidden=hidden))))
        assert found.experience.verifier is not None
        assert found.experience.verifier.model_dump()["probes"]["by"] == by


def test_logs_too_few_for_a_verifier_and_tools_of_which_none_is_known_to_read_are_named(tmp_path: Path):
    file = tmp_path / "logs.jsonl"
    write_trajectories(file, tool_desk.episodes(20))
    listed = [{"name": tool.name} for tool in inferred_tools(recorded_calls(tool_desk.episodes(20)))]
    for reads in (False, True):
        hint = {"annotations": {"readOnlyHint": True}} if reads else {}
        (tmp_path / "logs.tools.json").write_text(json.dumps([listed[0] | hint, *listed[1:]]))
        account = examine([file])
        warnings = " ".join(account.warnings())
        assert "too few for a verifier, which takes 20 of each" in warnings
        assert ("readOnlyHint" in warnings) is not reads and (f"tools that only read: {listed[0]['name']}" in str(account)) is reads


def test_tools_whose_names_say_that_they_read_are_told_from_those_that_declare_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A name may be wrong, and other tools may read as well: both are listed."""
    file, beside = tmp_path / "logs.jsonl", tmp_path / "logs.tools.json"
    write_trajectories(file, tool_desk.episodes(20))
    names = [tool.name for tool in inferred_tools(recorded_calls(tool_desk.episodes(20)))]
    monkeypatch.setattr(tools, "says_reading", lambda name: name == names[0])
    beside.write_text(json.dumps([{"name": name} for name in names]))
    estimated = examine([file])
    (warning,) = [text for text in estimated.warnings() if "readOnlyHint" in text]
    assert f"tools that only read, by their names: {names[0]}" in str(estimated)
    assert f"assumed: {names[0]}. The others ({', '.join(names[1:])})" in warning
    beside.write_text(json.dumps([{"name": name, "annotations": {"readOnlyHint": name == names[1]}} for name in names]))
    declared = examine([file])
    assert f"tools that only read: {names[1]}" in str(declared) and "readOnlyHint" not in " ".join(declared.warnings())


def test_few_successes_are_imitated_for_more_epochs_than_many_but_within_bounds(tmp_path: Path):
    file = tmp_path / "episodes.jsonl"
    write_trajectories(file, EPISODES)
    account = examine([file])
    long = replace(account, episode_tokens=3_000)
    written = [tomllib.loads(settings([file], replace(long, successes=n))) for n in (1, 80, 160, 9_000)]
    assert [config.resolve(TrainConfig, found).warm_start.epochs for found in written] == [200, 32, 16, 3]
    written = [tomllib.loads(settings([file], replace(long, episodes=n))) for n in (10, 60, 100, 400, 9_000)]
    assert [config.resolve(TrainConfig, found).experience.training.epochs for found in written] == [40, 16, 16, 6, 4]
    written = [tomllib.loads(settings([file], replace(account, episodes=80, tasks=n))) for n in (19, 20)]
    assert [config.resolve(TrainConfig, found).experience.settings["validation_share"] for found in written] == [0.0, 0.15]


def test_next_states_that_are_too_long_to_be_dreamed_are_said(tmp_path: Path):
    write_trajectories(tmp_path / "episodes.jsonl", EPISODES)
    account = examine([tmp_path / "episodes.jsonl"])
    short, long, longest = (replace(account, answer_tokens=n) for n in (100, 1_500, 4_000))
    assert [one.answer_limit for one in (short, long, longest)] == [128, 1664, account.context // 2]
    assert not any("cannot be dreamed" in text for one in (short, long) for text in one.warnings())
    assert any("up to 4,000 tokens" in text and "cannot be dreamed" in text for text in longest.warnings())


def test_the_longest_next_state_of_all_episodes_can_be_dreamed(tmp_path: Path):
    """Also one that no episode has from which a vocabulary is tried."""
    *others, last = tool_desk.episodes(log_survey.SAMPLE + 10)
    long = " ".join(f"{n}x" for n in range(150))
    step = replace(last.transitions[0], next_state=Observation(f"> {last.transitions[0].action}\n{long}"), terminated=True)
    found = {}
    for name, episodes in (("short", [*others, last]), ("long", [*others, replace(last, turns=(Turn(step),))])):
        write_trajectories(tmp_path / f"{name}.jsonl", episodes)
        found[name] = examine([tmp_path / f"{name}.jsonl"])
    assert found["short"].answer_tokens < 50 and found["long"].answer_limit > found["long"].answer_tokens > 300
    assert found["long"].episode_tokens == found["short"].episode_tokens


def test_a_verifier_needs_outcomes_of_episodes_that_ended(tmp_path: Path):
    win, loss = (next(one for one in EPISODES if one.success is kind and not one.truncated) for kind in (True, False))
    last = replace(loss.turns[-1], transition=replace(loss.transitions[-1], terminated=False))
    cut = replace(loss, turns=(*loss.turns[:-1], last), truncated=True)
    for lost in (loss, cut):
        write_trajectories(tmp_path / "e.jsonl", [replace(one, id=f"{i}") for i, one in enumerate([*[win] * 20, *[lost] * 20])])
        account = examine([tmp_path / "e.jsonl"])
        assert account.failures == 20 and account.verifiable is (lost is loss)
        assert any("20 known successes and 0 known failures that were not truncated" in text for text in account.warnings()) is (
            lost is cut
        )


def test_a_backbone_acts_and_dreams_with_adapters_and_its_tokens_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file, model = tmp_path / "episodes.jsonl", save_instruct_model(tmp_path / "model")
    write_trajectories(file, EPISODES)
    code, out, _ = command(monkeypatch, capsys, "init", "--logs", file, "--backbone", model)
    found = config.resolve(TrainConfig, tomllib.loads(out))
    assert code == 0 and found.policy.backbone and found.experience.backbone
    assert found.policy.backbone.model == found.experience.backbone.model == str(model)
    assert found.policy.backbone.lora and found.experience.training and found.experience.training.optimiser == "adamw"
    chosen = BackboneConfig(model=str(model))
    account, small = examine([file], backbone=chosen), examine([file])
    assert account.episode_tokens > 2 * small.episode_tokens  # a token of this model is a byte
    assert (found.policy.max_reply_tokens or 0) >= account.action_tokens + 2
    assert found.warm_start.batch_tokens >= account.episode_tokens and account.context == 3686  # nine tenths of its 4,096 positions


def test_several_files_need_their_tools_in_the_first_ones(tmp_path: Path):
    for name, tool in (("a", "get_order"), ("b", "get_invoice")):
        write_trajectories(tmp_path / f"{name}.jsonl", EPISODES)
        (tmp_path / f"{name}.tools.json").write_text(json.dumps([{"name": tool, "description": "", "parameters": {"properties": {}}}]))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with pytest.raises(UsageError, match=r"b\.tools\.json' has tools that .*a\.tools\.json' lacks: get_invoice"):
        log_survey.suite_options("tools", files)
    (tmp_path / "b.tools.json").write_text((tmp_path / "a.tools.json").read_text())
    assert log_survey.suite_options("tools", files)["tools"] == str(tmp_path / "a.tools.json")
    assert "tools" not in log_survey.suite_options("logs", files)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--backbone", "./nowhere"], "there is no such directory"),
        (["--backbone", "nobody/nothing"], "is not on this machine"),
        (["--backbone", "smollm2", "--size", "4m"], "Give one of them"),
        (["--download"], "--download goes with --backbone"),
    ],
)
def test_a_backbone_that_cannot_be_is_refused(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    write_trajectories(tmp_path / "episodes.jsonl", EPISODES)
    code, _, err = command(monkeypatch, capsys, "init", "--logs", tmp_path / "episodes.jsonl", *options)
    assert code == 2 and says in " ".join(err.split())


def test_what_train_would_refuse_is_refused_by_init(tmp_path: Path):
    file = tmp_path / "episodes.jsonl"
    write_trajectories(file, [EPISODES[0], *EPISODES])
    with pytest.raises(UsageError, match=f"Two logged episodes are called '{EPISODES[0].id}'"):
        examine([file])
    write_trajectories(file, [*EPISODES, replace(EPISODES[0], id="dreamed", source="dream")])
    with pytest.raises(UsageError, match="holds a dream, 'dreamed'"):
        examine([file])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[" * 100_000, "is not JSON: it is nested too deep"),
        ("{}", "is no episode: it has no 'task'"),
        ('{"task": 3}', "is no episode: 'int' object is not a mapping"),
        ('{"task": {"goal": {}, "parents": [], "name": "x"}, "turns": []}', "is no episode: got an unexpected keyword argument 'name'"),
    ],
)
def test_an_episode_that_cannot_be_read_is_explained_without_the_words_of_python(line: str, says: str, tmp_path: Path):
    (tmp_path / "episodes.jsonl").write_text(line)
    with pytest.raises(UsageError, match=f"Line 1 of .*{says}") as caught:
        examine([tmp_path / "episodes.jsonl"])
    assert "Error" not in str(caught.value) and "recursion" not in str(caught.value)


def test_logs_that_cannot_teach_enough_are_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "episodes.jsonl"
    wins = [episode for episode in EPISODES if episode.success]
    write_trajectories(file, [*wins[:9], replace(EPISODES[0], id="open", success=False, scored=False)])
    warnings = " ".join(examine([file]).warnings())
    assert (
        "10 episodes are few" in warnings
        and "1 of 10 episodes has no known outcome" in warnings
        and "No episode is a known failure" in warnings
    )
    write_trajectories(file, [episode for episode in EPISODES if not episode.success])
    code, _, err = command(monkeypatch, capsys, "init", "--logs", file)
    assert code == 2 and "is a known success" in err
    code, _, err = command(monkeypatch, capsys, "init")
    assert code == 2 and "--logs FILE" in err
