"""An environment suite made from recorded episodes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dreamgym.envs import corridor, logs
from dreamgym.envs.base import in_split
from dreamgym.errors import ConfigError, UsageError
from dreamgym.logs.demonstrations import collect
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.types import Observation, Task, Trajectory

EPISODES = collect(corridor.make(), 150, seed=0)


def made(path: Path, episodes: list[Trajectory], **options: object) -> logs.LogSuite:
    write_trajectories(path / "episodes.jsonl", episodes)
    return logs.make(files=(path / "episodes.jsonl",), **options)


def test_every_recorded_instruction_is_a_task_of_one_split(tmp_path: Path):
    suite = made(tmp_path, EPISODES)
    splits = [suite.tasks(split, 1000) for split in ("train", "dev", "test")]
    keys = [suite.task_key(task) for tasks in splits for task in tasks]
    assert sorted(keys) == sorted({suite.task_key(episode.task) for episode in EPISODES})
    assert len(splits[0]) > 2 * len(splits[1]) > 0 and len(splits[2]) > 0
    assert suite.name == "corridor" and suite.max_steps == max(len(episode.turns) for episode in EPISODES)


def test_more_logs_move_no_task_to_another_split(tmp_path: Path):
    few = made(tmp_path, EPISODES[:80])
    dev = {task.instruction for task in few.tasks("dev", 1000)}
    assert dev and dev <= {task.instruction for task in made(tmp_path, EPISODES).tasks("dev", 1000)}


def test_without_ids_of_tasks_an_instruction_in_other_capitals_is_the_same_task(tmp_path: Path):
    first = EPISODES[0]
    named = [replace(first, task=replace(first.task, id=first.id))]
    named += [replace(first, id="twin", task=replace(first.task, id="twin", instruction=first.task.instruction.upper()))]
    suite = made(tmp_path, named)
    assert sum(len(suite.tasks(split, 9)) for split in ("train", "dev", "test")) == 1


def test_an_episode_without_a_tasks_id_is_of_the_named_task_with_its_instruction(tmp_path: Path):
    asked = {episode.task.instruction: episode for episode in EPISODES}
    named = [replace(one, task=replace(one.task, id=f"task-{i}")) for i, one in enumerate(asked.values())]
    bare = [replace(one, id=f"bare-{i}", task=replace(one.task, id=f"bare-{i}")) for i, one in enumerate(asked.values())]
    for episodes in (named + bare, bare + named):
        suite = made(tmp_path, episodes)
        tasks = [task for split in ("train", "dev", "test") for task in suite.tasks(split, 1000)]
        assert sorted(task.id for task in tasks) == sorted(one.task.id for one in named)
        assert [suite.task_key(one.task) for one in bare] == [one.task.id for one in named]
        assert all(suite.knows_task(one.task) for one in episodes)


def test_of_several_named_tasks_with_its_instruction_an_unnamed_episode_is_of_a_held_out_one(tmp_path: Path):
    first = EPISODES[0]
    named = [replace(first, id=f"{i}", task=replace(first.task, id=f"task-{i}")) for i in range(30)]
    suite = made(tmp_path, [*named, replace(first, id="bare", task=replace(first.task, id="bare"))])
    bare = replace(first.task, id="bare")
    assert suite.task_key(bare).startswith("task-") and not in_split(suite.task_key(bare), "train")
    assert not suite.knows_task(bare) and suite.knows_task(named[0].task)


def test_trials_of_a_task_whose_first_words_differ_are_of_one_split(tmp_path: Path):
    trials = [
        replace(one, id=f"{i}/{trial}", task=replace(one.task, id=str(i), instruction=f"{one.task.instruction}, trial {trial}"))
        for i, one in enumerate(EPISODES[:60])
        for trial in range(3)
    ]
    suite = made(tmp_path, trials)
    keys = [suite.task_key(task) for split in ("train", "dev", "test") for task in suite.tasks(split, 1000)]
    assert sorted(keys) == sorted(str(i) for i in range(60))


def test_the_rules_know_nothing_and_every_answer_is_neutral(tmp_path: Path):
    rules, step = made(tmp_path, EPISODES, about="Rooms.").rules, EPISODES[0].transitions[0]
    task = Task("t", "go", "corridor")
    assert rules.abstract({"text": "room 1"}) == Observation("room 1") and rules.about == "Rooms."
    assert rules.canonical("Left ") == "Left " and rules.view(step.state).text == step.state.text
    assert rules.admissible(step.state, (), "jump") is None and rules.noop_reason(step.state, (), "jump") == ""
    assert rules.check_success("go", (), step) is None and rules.contradictions((), step) == []
    assert rules.explain(task, (), step) == "" and rules.composer(None) is None  # type: ignore[arg-type]
    assert rules.reveals_new(step.state, (), "left") is None and rules.revisit_consistency((step,)) == []
    assert (
        rules.apply_delta(step.state, step.action, rules.encode_delta(step)) == step.next_state
        and rules.apply_delta(step.state, step.action, " ") is None
    )
    assert rules.action_kind(step.state, "search[red lamp]") == "search"
    assert rules.well_formed("go there") and not rules.well_formed("\n") and rules.feasible("go there", ()) is True


def test_the_sample_of_the_package_is_what_the_corridors_scripts_log():
    suite = logs.make(files=("corridor",))
    assert read_trajectories(*suite.log_files) == collect(corridor.make(), 40, seed=0)
    assert all(suite.tasks(split, 1) for split in ("train", "dev", "test"))


def test_files_of_two_environments_are_refused(tmp_path: Path):
    other = replace(EPISODES[1], task=replace(EPISODES[1].task, env="desk"))
    with pytest.raises(UsageError, match=r"several environments \(corridor, desk\)"):
        made(tmp_path, [EPISODES[0], other])


def test_a_file_is_needed_and_must_exist(tmp_path: Path):
    with pytest.raises(ConfigError, match="files"):
        logs.make()
    with pytest.raises(UsageError, match="absent.jsonl"):
        logs.make(files=(tmp_path / "absent.jsonl",))
    with pytest.raises(UsageError, match="No split 'tets'. Did you mean 'test'"):
        made(tmp_path, EPISODES).tasks("tets", 1)
