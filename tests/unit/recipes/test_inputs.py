"""Runs keep the files that they were made from: they can be moved, and changed files are noticed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tool_desk
from toy import COMPARE, command, shrink
from typer.testing import CliRunner

import dreamgym as dg
from dreamgym import cli
from dreamgym.config import assignments, build, dump, read, resolve
from dreamgym.envs import corridor
from dreamgym.envs.wrappers import renamed
from dreamgym.errors import RunDirError, UsageError
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import inputs, transfer, universal
from dreamgym.recipes.config import CompareConfig, SharedConfig, TrainConfig
from dreamgym.recipes.context import open_context
from dreamgym.recipes.fidelity import recorded_episodes
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.runs.rundir import PHASES, RunDir

SMALL = ["model.size=test", "model.vocab_size=512", "rl.iterations=1", "rl.tasks_per_iter=4", "rl.group_size=4", "rl.train_tasks=20"]
SMALL += [f"{name}.{what}" for name in ("experience.training", "warm_start") for what in ("epochs=2", "bf16=false")]
SMALL += ["eval.uncertified_dreams=4"]
TRAIN = ["train", "runs/mine", *SMALL, "--config", "train.toml"]
Said = tuple[int, str, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with logs, their settings, whose paths are relative, and a finished run."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shrink(patch)
        write_trajectories(Path("episodes.jsonl"), tool_desk.episodes(60))
        Path("episodes.tools.json").write_text(json.dumps([tool.to_json() for tool in tool_desk.TOOLS]))
        for arguments in (["init", "train.toml", "--logs", "episodes.jsonl"], TRAIN):
            done = CliRunner().invoke(cli.app, arguments)
            assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the present one."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    shrink(monkeypatch)
    return tmp_path / "here"


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Said]]:
    monkeypatch.setattr("builtins.input", lambda _: "")
    yield lambda *arguments: command(monkeypatch, capsys, *arguments)


def forget(run: Path, *phases: str) -> None:
    """Let a run stand as if it had been interrupted before these phases."""
    stored = json.loads((run / PHASES).read_text("utf-8"))
    (run / PHASES).write_text(json.dumps({name: data for name, data in stored.items() if name not in phases}))
    (run / "summary.json").unlink()


def move(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a run of the present folder into another one as `moved`, without the files that it was made from, and go there."""
    here = Path.cwd()
    other = here.parent / "other"
    other.mkdir()
    Path(run).rename(other / "moved")
    for name in ("episodes.jsonl", "episodes.tools.json", "train.toml"):
        (here / name).unlink()
    monkeypatch.chdir(other)


def test_a_run_is_used_and_resumed_in_another_place_without_its_logs(here: Path, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch):
    move("runs/mine", monkeypatch)
    held = RunDir.view(Path("moved")).read_episodes("held-out")
    assert {one.id for one in recorded_episodes(open_context(Path("moved")), 99)} == {one.id for one in held} != set()
    assert dg.TrainedPolicy("moved").env == "desk"
    dg.open_dream("moved")
    forget(Path("moved"), "fidelity", "uncertified")
    for arguments in (("play", "moved"), ("train", "moved"), ("fidelity", "moved", "--held-out", 4), ("summary", "moved")):
        code, _, err = say(*arguments)
        assert code == 0, err
    assert not (here / "episodes.jsonl").exists() and Path("moved/inputs/1-episodes.jsonl").is_file()


def test_a_run_is_estimated_in_another_place_by_its_own_episodes(here: Path, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch):
    config = read(TrainConfig, Path("train.toml"), assignments([*SMALL, 'logs.files=["episodes.jsonl"]']))
    assert inputs.read_again(config, Path("new"), corridor.make()) == config, "where nothing was read yet, the files are"
    with RunDir.open(Path("new"), dump(config)) as run:
        suite = prepare_logs(run, config).suite
    move("new", monkeypatch)
    files = inputs.read_again(config, Path("moved"), suite).logs.files
    assert [len(read_trajectories(file)) for file in files] == [RunDir.view("moved").data("logs")[n] for n in ("trajectories", "held_out")]
    code, out, err = say("train", "moved", "--dry-run")
    assert code == 0 and out.startswith("estimate: "), err


def test_episodes_that_a_suite_would_translate_twice_are_read_from_their_files(tmp_path: Path):
    suite = renamed.make(suite="corridor", options={})
    config = resolve(SharedConfig, {"logs": {"files": ["episodes.jsonl"]}})
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run:
        run.episodes("logs", collect(suite, 3, seed=0))
        run.mark("logs", {"trajectories": 3})
    assert inputs.read_again(config, tmp_path / "run", suite) == config
    assert inputs.read_again(config, tmp_path / "run", corridor.make()).logs.files == (tmp_path / "run" / "episodes" / "logs.jsonl",)


def test_a_comparison_goes_on_with_the_copies_of_its_seeds(here: Path, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch):
    env = 'options = {files = ["episodes.jsonl"], tools = "episodes.tools.json"}\n'
    toml = COMPARE.replace("options = {length = 4, keys = false, max_steps = 4}\n", env).replace('"corridor"', '"tools"')
    Path("compare.toml").write_text(toml.replace("task_pairs = 10", "task_pairs = 0"))
    config = read(CompareConfig, Path("compare.toml"))
    call = ("compare", "--config", here / "compare.toml", "--out", "moved", "--dry-run")
    for seed in config.seeds:
        with RunDir.open(Path(f"compared/seed-{seed}"), dump(config)) as run:
            prepare_logs(run, config)
    move("compared", monkeypatch)
    code, out, err = say(*call, "seeds=[0]")
    assert code == 0 and out.startswith("estimate: "), err
    code, _, err = say(*call, "seeds=[0,1]")
    assert code == 2 and "Cannot use 'episodes.jsonl'" in err, "the second seed has yet to read the file"


def test_a_transfer_and_its_universal_model_can_be_moved(here: Path, monkeypatch: pytest.MonkeyPatch):
    tools = read(TrainConfig, Path("train.toml"), assignments([*SMALL, "eval.tasks=4"]))
    other = build(TrainConfig, {"env": {"name": "corridor"}, "model": {"size": "test", "vocab_size": 512}})
    Path("both").mkdir()
    shutil.copytree("runs/mine", "both/tools")
    universal.train({"desk": open_context(Path("both/tools"))}, Path("both/universal"))
    move("both", monkeypatch)
    universal.train({"desk": open_context(Path("moved/tools"))}, Path("moved/universal"))
    assert 'tools = "episodes.tools.json"' in Path("moved/universal/config.toml").read_text("utf-8")
    transfer.check([tools, other], Path("moved"))
    with pytest.raises(UsageError, match="Cannot use 'episodes.jsonl'"):
        transfer.check([tools, other])


def test_a_run_without_recall_says_that_it_is_switched_off(here: Path, say: Callable[..., Said]):
    assert say("train", "runs/other", *TRAIN[2:], "experience.recall=false")[0] == 0
    code, out, _ = say("summary", "runs/other")
    assert code == 0 and "recalled: nothing, because experience.recall = false" in out and "precedent" not in out


@pytest.mark.parametrize("name", ["episodes.jsonl", "episodes.tools.json"])
def test_the_command_that_made_a_run_refuses_a_changed_file(name: str, here: Path, say: Callable[..., Said]):
    forget(here / "runs" / "mine", "fidelity")
    original, file = (here / name).read_bytes(), here / name
    file.write_bytes(original.replace(b"lamp", b"lump"))
    code, _, err = say(*TRAIN)
    assert code == 2 and f"'{name}' is not the file that 'runs/mine' was made from" in err and "another run directory" in err
    assert not RunDir.view(Path("runs/mine")).done("fidelity")
    context = open_context(Path("runs/mine"))
    assert "get_lamp" in context.suite.rules.tools[0]["name"] and "lump" not in str(context.suite.tasks("train", 99))
    code, _, err = say("train", "runs/mine")
    assert code == 0 and RunDir.view(Path("runs/mine")).done("fidelity"), err
    file.write_bytes(original)
    assert say(*TRAIN)[0] == 0


def test_another_file_of_the_same_name_is_not_taken(here: Path, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch):
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    Path("episodes.jsonl").write_text("This is no log.\n")
    for command_name in ("play", "train"):
        code, _, err = say(command_name, "../runs/mine")
        assert code == 0, err


def test_a_copy_that_was_changed_or_lost_is_refused(here: Path):
    copy = here / "runs" / "mine" / "inputs" / "2-episodes.tools.json"
    copy.write_text(copy.read_text("utf-8").replace("room", "rooms"))
    with pytest.raises(RunDirError, match=r"copy of 'episodes.tools.json'.*2-episodes.tools.json.*Restore it"):
        open_context(Path("runs/mine"))
    copy.unlink()
    with pytest.raises(RunDirError, match="missing or was changed"):
        open_context(Path("runs/mine"))


def test_files_that_a_first_attempt_had_not_read_are_taken_as_they_are_now(here: Path, say: Callable[..., Said]):
    shutil.rmtree("runs/mine")
    (here / "episodes.jsonl").write_text("This is no log.\n")
    assert say(*TRAIN)[0] == 2
    write_trajectories(here / "episodes.jsonl", tool_desk.episodes(59))
    code, _, err = say(*TRAIN)
    assert code == 0, err
    assert (here / "runs/mine/inputs/1-episodes.jsonl").read_bytes() == (here / "episodes.jsonl").read_bytes()


def test_changed_files_of_logs_are_refused_and_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("logs.jsonl").write_text("first")
    config = resolve(SharedConfig, {"env": {"name": "corridor"}, "logs": {"files": ["logs.jsonl"]}})
    with RunDir.open(Path("run"), "seed = 0\n") as run:
        run.mark("logs", {"inputs": inputs.take(run, config, corridor.make())})
    inputs.require_same(Path("run"))
    assert not Path("run/inputs").exists() and inputs.located(config, Path("run")) == config
    Path("logs.jsonl").write_text("second")
    with pytest.raises(RunDirError, match=r"'logs.jsonl' is not the file.*restore the file, or leave out --config"):
        inputs.require_same(Path("run"))
    Path("logs.jsonl").unlink()
    inputs.require_same(Path("run"))


def test_data_of_an_environment_stays_where_it_is_and_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("games").mkdir()
    suite: Any = corridor.make()
    suite.data_paths = {"data": Path("games"), "more": tmp_path / "games"}
    options = {"suite": "houses", "options": {"data": "games", "preset": "games", "more": str(tmp_path / "games")}}
    config = resolve(SharedConfig, {"env": {"name": "corridor", "options": options}})
    with RunDir.open(Path("run"), "seed = 0\n") as run:
        run.mark("logs", {"inputs": inputs.take(run, config, suite)})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    opened = inputs.located(config, Path("../run")).env.options["options"]
    assert opened == {"data": str(tmp_path / "games"), "preset": "games", "more": str(tmp_path / "games")}
    (tmp_path / "games").rmdir()
    assert inputs.located(config, Path("../run")) == config
