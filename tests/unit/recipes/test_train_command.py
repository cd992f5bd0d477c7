"""`dreamgym train`: a policy from the command line, in any world, from scripted logs or from files; and `eval`, `init` and the presets."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from toy import LOOP, SHARED, SIZE, command, object_in, shrink, weights

from dreamgym.config import PRESETS, assignments, dump, presets, read
from dreamgym.envs import corridor
from dreamgym.errors import ConfigError, InvariantError, UsageError
from dreamgym.recipes import context, plan
from dreamgym.recipes import train as recipe
from dreamgym.recipes.config import CompareConfig, RunConfig, TrainConfig
from dreamgym.recipes.phases.logs import prepare_logs, read_logs
from dreamgym.recipes.play import _such_as
from dreamgym.recipes.settings import train_settings
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.files import read_jsonl
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Trajectory

REAL = f'mode = "real"\nstart = "scratch"\n{SHARED}\n[rl]\n{LOOP}'


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "real.toml").write_text(REAL)
    return tmp_path / "real.toml"


def test_one_command_trains_resumes_by_itself_and_refuses_another_configuration(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    code, out, _ = command(monkeypatch, capsys, "train", run, "rl.iterations=3", "--config", real, "--json")
    found = object_in(out)
    assert code == 0 and found["budget"] == "real" and found["dream"] is None
    lines = RunDir.view(run).read_jsonl("metrics.jsonl")
    assert [line["iteration"] for line in lines if line["phase"] == "real_only"] == [0, 1, 2]
    assert found["real_only"]["real_transitions_online"] == RunDir.view(run).data("real_only")["steps"] > 0
    assert not (run / "checkpoints" / "experience").exists(), "from scratch, in the real world, no experience model is needed"
    assert (run / "report.html").is_file()

    before = weights(run, "real_only")
    code, out, _ = command(monkeypatch, capsys, "train", run, "--json")  # without a file, the run's own configuration
    assert code == 0 and object_in(out)["real_only"] == found["real_only"] and weights(run, "real_only") == before
    code, _, err = command(monkeypatch, capsys, "train", run, "rl.iterations=4")
    assert code == 2 and "- rl.iterations = 3" in err and "+ rl.iterations = 4" in err and "seed" not in err

    code, out, _ = command(monkeypatch, capsys, "eval", run, "--policy", "warm_start", "--split", "dev", "--tasks", "2", "--json")
    judged = object_in(out)
    assert (
        code == 0 and judged["policy"] == "warm_start" and judged["greedy"]["n"] == judged["sampled"]["n"] == 2 and judged["real_steps"] > 0
    )
    assert object_in(command(monkeypatch, capsys, "eval", run, "--tasks", "1", "--json")[1])["policy"] == "real_only"
    code, _, err = command(monkeypatch, capsys, "eval", run, "--policy", "drem")
    assert code == 2 and "no policy 'drem'" in err and "Known: warm_start, real_only" in err
    assert command(monkeypatch, capsys, "eval", run, "--split", "tset")[0] == 2
    code, _, err = command(monkeypatch, capsys, "eval", run, "--tasks", "4")  # a fourth one may have been a curriculum's
    assert code == 2 and "kept 3 test tasks away" in err
    none = RunDir.view(run).config | {"eval": RunDir.view(run).config["eval"] | {"tasks": 0}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDir, "config", property(lambda self: none))
        code, _, err = command(monkeypatch, capsys, "eval", run)
    assert code == 2 and "kept no test tasks away from its training (eval.tasks = 0)" in err

    again = tmp_path / "from-files"  # the logs of one run are as good as the scripted policies that made them
    files = f'logs.files=["{run / "episodes" / "logs.jsonl"}"]'
    assert command(monkeypatch, capsys, "train", again, files, "rl.iterations=3", "--config", real)[0] == 0
    assert weights(again, "warm_start") == weights(run, "warm_start") and weights(again, "real_only") == before


def test_the_run_of_another_command_is_no_directory_to_train_in(tmp_path: Path):
    with RunDir.open(tmp_path / "quick", dump(RunConfig())):
        pass
    with pytest.raises(UsageError, match="is the run of another command, such as `dreamgym quickstart`"):
        train_settings(tmp_path / "quick", None, [])
    (tmp_path / "quick" / "config.toml").write_text("seed = [")
    with pytest.raises(ConfigError, match="config.toml"):
        train_settings(tmp_path / "quick", None, [])


def test_whoever_plays_by_hand_is_shown_actions_of_the_environment_at_hand(tmp_path: Path):
    logs = [corridor.make(length=4).demonstrate(task, "expert", seed=0) for task in corridor.make(length=4).tasks("train", 2)]
    actions = [step.action for step in logs[0].transitions]
    assert _such_as(logs) == f", such as {' or '.join(dict.fromkeys([actions[0], actions[-1]]))}" and _such_as([]) == ""


def test_a_training_that_never_moved_the_policy_is_no_success(tmp_path: Path, real: Path):
    config = read(
        TrainConfig, real, {"warm_start.epochs": 0.01, "rl.train_tasks": 1, "rl.iterations": 1}
    )  # a policy that has learnt to say nothing
    lines = list[str]()
    with pytest.raises(InvariantError, match="no iteration of 'real_only' had a gradient"):
        recipe.run(config, tmp_path / "run", say=lines.append)
    assert any(line.startswith("real_only: grpo, 1 iteration, ") for line in lines)


def test_a_training_whose_rollouts_all_failed_or_all_succeeded_says_so(tmp_path: Path, real: Path):
    config = read(TrainConfig, real, {})
    (task,) = corridor.make(length=4).tasks("train", 1)
    with context.open_run(tmp_path / "run", config) as run:
        run.episodes("real_only-0000", [Trajectory("e", task, "real", (), False, error="the door is on fire")])
        for success in (None, None):
            run.append_jsonl("metrics.jsonl", {"phase": "real_only", "iteration": 0, "success": success})
        assert "failed, most of the first with: the door is on fire. Nothing was learned" in recipe._without_gradient(run, config)
        run.append_jsonl("metrics.jsonl", {"phase": "real_only", "iteration": 2, "success": 0.0})
        said = recipe._without_gradient(run, config)
        assert "every rollout failed (success in the real environment 0 %)" in said and "warm_start.epochs, 12 here" in said
        run.append_jsonl("metrics.jsonl", {"phase": "real_only", "iteration": 3, "success": 0.5})
        assert "the rollouts of every task ended alike" in recipe._without_gradient(run, config)
    with context.open_run(tmp_path / "solved", config) as run:
        run.append_jsonl("metrics.jsonl", {"phase": "real_only", "iteration": 0, "success": 1.0})
        assert "every rollout succeeded, already with that of the warm start" in recipe._without_gradient(run, config)


def test_every_mode_is_a_list_of_loops(real: Path):
    def loops(mode: str) -> list[tuple[str, str, str]]:
        return [(loop.name, loop.init_policy, loop.source) for loop in plan.loops_of(read(TrainConfig, real, {"mode": mode}))]

    assert loops("dream") == [("dream", "warm_start", "dream")]
    assert loops("real") == [("real_only", "warm_start", "real")]
    assert loops("mixed") == [("mixed", "warm_start", "mixed")]
    assert loops("s2r") == [("dream", "warm_start", "dream"), ("s2r", "dream", "real")]
    config = read(TrainConfig, real, {"mode": "s2r", "rl.algorithm": {"name": "ppo"}, "s2r.learner.lr": 3e-5})
    first, second = (loop.block for loop in plan.loops_of(config))
    assert second.algorithm == first.algorithm and (second.learner.lr, second.tasks_per_iter, second.max_real_steps) == (3e-5, 8, 2000)


# Logs from files

SUITE = corridor.make(length=4, keys=False, max_steps=4)


def test_whoever_acted_in_a_file_its_episodes_are_logs_now_and_bare_steps_are_explained(tmp_path: Path):
    task = SUITE.tasks("train", 1, seed=0)[0]
    logged = SUITE.demonstrate(task, "expert", seed=0)
    bare = replace(
        logged, id="mine", source="real", turns=tuple(replace(t, transition=t.transition.with_reasoning("")) for t in logged.turns)
    )
    write_trajectories(tmp_path / "a.jsonl", [logged])
    write_trajectories(tmp_path / "b.jsonl", [bare])
    first, second = read_logs([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], SUITE)
    assert first == logged and second == replace(logged, id="mine")


def test_a_number_of_transitions_bounds_logs_from_files_as_it_bounds_scripted_ones(tmp_path: Path, real: Path):
    episodes = [SUITE.demonstrate(task, "expert", seed=0) for task in SUITE.tasks("train", 6, seed=0)]
    write_trajectories(tmp_path / "logs.jsonl", episodes)
    wanted = len(episodes[0].turns) + 1
    config = read(TrainConfig, real, {"logs.files": [str(tmp_path / "logs.jsonl")], "logs.transitions": wanted})
    with context.open_run(tmp_path / "run", config) as run:
        assert prepare_logs(run, config).logs == episodes[:2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "dream"}, "holds a dream, 'x'"),
        ({"id": "y"}, "Two logged episodes are called 'y'"),
        ({"id": "acme/as/x"}, "'/as/' marks our own copies"),
        ({"env": "webshop"}, "episode of 'webshop', and the run is of 'corridor'"),
    ],
)
def test_dreams_other_environments_and_names_given_twice_are_no_logs(tmp_path: Path, change: dict[str, Any], words: str):
    task = SUITE.tasks("train", 1, seed=0)[0]
    logged = SUITE.demonstrate(task, "expert", seed=0)
    env = change.pop("env", "corridor")
    odd = replace(logged, id="x", task=replace(task, env=env))
    write_trajectories(tmp_path / "logs.jsonl", [replace(logged, id="y"), replace(odd, **change)])
    with pytest.raises(UsageError, match=words):
        read_logs([tmp_path / "logs.jsonl"], SUITE)


def test_episodes_on_held_out_tasks_are_no_logs(tmp_path: Path, real: Path, caplog: pytest.LogCaptureFixture):
    """A run's own evaluations have the format of logs, and whoever trains on them measures nothing afterwards."""
    train, dev, test = (SUITE.tasks(split, 2, seed=0) for split in ("train", "dev", "test"))
    write_trajectories(tmp_path / "logs.jsonl", [SUITE.demonstrate(task, "expert", seed=0) for task in (*train, *dev, *test)])
    config = read(TrainConfig, real, {"logs.files": [str(tmp_path / "logs.jsonl")]})
    with context.open_run(tmp_path / "run", config) as run:
        assert [episode.task for episode in prepare_logs(run, config).logs] == train
        assert run.data("logs")["held_out"] == len(dev) + len(test) > 0
    assert f"{len(dev) + len(test)} of {len(dev) + len(test) + 2} logged episodes are on held-out tasks" in caplog.text
    assert "cannot be told" not in caplog.text


def test_recorded_tasks_with_ids_of_their_own_are_held_out_by_what_they_ask(tmp_path: Path, real: Path, caplog: pytest.LogCaptureFixture):
    train, test = (SUITE.tasks(split, 2, seed=0) for split in ("train", "test"))
    logged = [SUITE.demonstrate(task, "expert", seed=0) for task in (*train, *test)]
    own = [replace(one, id=f"mine-{i}", task=replace(one.task, id=f"mine-{i}", goal=None)) for i, one in enumerate(logged)]
    odd = replace(own[0], id="odd", task=replace(own[0].task, id="odd", instruction="walk about"))
    write_trajectories(tmp_path / "logs.jsonl", [*own, odd])
    config = read(TrainConfig, real, {"logs.files": [str(tmp_path / "logs.jsonl")]})
    with context.open_run(tmp_path / "run", config) as run:
        assert [episode.id for episode in prepare_logs(run, config).logs] == ["mine-0", "mine-1", "odd"]
    assert "1 of 5 logged tasks, such as 'odd', cannot be told from held-out ones: the environment 'corridor'" in caplog.text


# Configuration


def test_overrides_are_read_as_toml_and_as_text_where_they_are_none():
    found = assignments(["rl.iterations=3", "env.name=corridor", 'mode="real"', "rl.learner.bf16=false", "logs.files=['a b']"])
    assert found == {"rl.iterations": 3, "env.name": "corridor", "mode": "real", "rl.learner.bf16": False, "logs.files": ["a b"]}
    with pytest.raises(ConfigError, match="'iterations' sets nothing"):
        assignments(["iterations"])


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_complete_and_lists_only_what_differs(name: str):
    kind: Any = {"quickstart": RunConfig, "compare": CompareConfig}.get(name.split("-")[0], TrainConfig)
    config = read(kind, Path(name))
    assert config != kind()
    first = (PRESETS / f"{name}.toml").read_text("utf-8").splitlines()[0]
    assert first.startswith("# ") and len(first) > 40, "the first line states the purpose"


def test_init_writes_every_setting_of_train_as_a_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "train.toml"
    assert command(monkeypatch, capsys, "init", file)[0] == 0
    assert read(TrainConfig, file) == TrainConfig()
    assert "# # max_real_steps = ... is not set" in file.read_text(), "what has no default is named too"
    lines = file.read_text().splitlines()
    settings = [(before, line) for before, line in pairwise(lines) if " = " in line and not line.startswith("##")]
    bare = [line for before, line in settings if not before.startswith("## ") and before != "# [replay.encoder]"]
    assert len(settings) > 120 and not bare, "every setting is explained above it"
    assert '## `random` is the ablation of similarity: as many memories of the same buffer, drawn at random. ("similar", "random")' in lines
    file.write_text("\n".join(line.removeprefix("# ") for line in lines))
    assert read(TrainConfig, file) == TrainConfig()
    assert command(monkeypatch, capsys, "init", file)[0] == 2, "an existing file is left alone"


# Stops


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_a_training_stopped_at_a_random_moment_ends_where_an_unbroken_one_does(tmp_path: Path, real: Path, number: int, code: int):
    script = textwrap.dedent(f"""
        import sys, torch
        from dreamgym import cli
        from dreamgym.llm import sizes
        torch.set_num_threads(1)
        sizes.SIZES["test"] = {SIZE!r}
        sys.argv = ["dreamgym", "train", sys.argv[1], "--config", {str(real)!r}, "rl.iterations=40"]
        cli.main()
    """)

    def start(run: Path) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        return subprocess.Popen([sys.executable, "-c", script, str(run)], text=True, stderr=subprocess.PIPE, env=environment)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(whole).wait() == 0
    moment = random.Random(number).randrange(1, 30)
    first = start(broken)
    while first.poll() is None and len(read_jsonl(broken / "metrics.jsonl")) < moment:
        time.sleep(0.02)
    first.send_signal(number)
    assert first.wait() == code
    if number == signal.SIGTERM:
        assert "the same command resumes" in first.stderr.read()
    assert start(broken).wait() == 0
    assert weights(broken, "real_only") == weights(whole, "real_only")
    assert RunDir.view(broken).data("real_only")["steps"] == RunDir.view(whole).data("real_only")["steps"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "run", "env.nme=1"), "Unknown key 'env.nme'"),
        (("train", "run", "rl.algorithm.gama=1"), "Unknown key 'gama' in algorithm grpo"),
        (("quickstart", "--budget", "lrge"), "No budget 'lrge'. Did you mean 'large'"),
    ],
)
def test_a_wrong_setting_is_refused_before_torch_is_imported(arguments: tuple[str, ...], words: str, tmp_path: Path):
    script = f"""
        import sys
        from dreamgym import cli
        sys.argv = ["dreamgym", *{arguments!r}]
        try:
            cli.main()
        except SystemExit as stop:
            sys.exit(9 if "torch" in sys.modules else stop.code)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert found.returncode == 2 and words in found.stderr
