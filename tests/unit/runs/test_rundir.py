"""A run is a directory that survives kills, full disks and second thoughts."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import ConfigError, DreamGymError, InvariantError, RunDirError, UsageError, explain_errors
from dreamgym.runs import episodes, files
from dreamgym.runs.episodes import read_trajectories, trajectory_from_json, trajectory_to_json, write_trajectories
from dreamgym.runs.files import append_jsonl, read_jsonl, write_atomic
from dreamgym.runs.progress import progress
from dreamgym.runs.rundir import PROCESS, RunDir
from dreamgym.types import Completion, Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict, VerdictKind

CONFIG = 'seed = 0\n\n[dream]\niterations = 3\nname = "a"\n'


@pytest.fixture
def run(tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG) as opened:
        yield opened


def an_episode(**changes: object) -> Trajectory:
    task = Task("t1", "go to room 2", "corridor", "synthetic", 2, {"target": 2, "options": ("a", ["b"]), "deep": {"x": None}}, ("seed",))
    completion = Completion((1, 2), (3, 4), (-0.125, -1e-9), "right", "stop", version=7)
    info = StepInfo("go", (4, 5), Verdict("refused", ("why",)), 1.0, True, "generated", out_of_support=True, error="broken")
    first = Transition(Observation("room 1"), "right", Observation("room 2\n[open] é"), 0.0, False, info)
    second = Transition(Observation("room 2\n[open] é"), "open", Observation("end"), 1.0, True)
    whole = Trajectory(
        "e1", task, "dream", (Turn(first, completion), Turn(second)), True, behaviour="policy", policy_version=3, model_version=1
    )
    return replace(whole, **changes)


# Opening


def test_a_new_run_has_its_configuration_before_the_first_step(tmp_path: Path):
    with RunDir.open(tmp_path / "deep" / "run", CONFIG) as run:
        assert (run.path / "config.toml").read_text() == CONFIG
        assert json.loads((run.path / "dreamgym.json").read_text())["format"] == 3


def test_the_same_command_reopens_the_run(tmp_path: Path):
    for i in range(3):
        with RunDir.open(tmp_path / "run", CONFIG) as run:
            run.append_jsonl("metrics.jsonl", {"step": i})
            assert [record["step"] for record in run.read_jsonl("metrics.jsonl")] == list(range(i + 1))


def test_another_configuration_is_refused_and_the_lines_that_differ_are_shown(tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG) as run:
        run.mark("logs")
    with pytest.raises(RunDirError) as caught:
        RunDir.open(tmp_path / "run", CONFIG.replace("iterations = 3", "iterations = 5"))
    assert "- dream.iterations = 3" in str(caught.value) and "+ dream.iterations = 5" in str(caught.value)
    assert "seed" not in str(caught.value)
    RunDir.open(tmp_path / "run", "# a comment is no difference\n" + CONFIG).close()


def test_a_run_that_has_finished_nothing_takes_the_corrected_configuration(tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG) as run:
        run.mark(PROCESS, {"commits": ["aaa"]})
    corrected = CONFIG.replace("iterations = 3", "iterations = 5")
    with RunDir.open(tmp_path / "run", corrected) as run:
        assert run.config["dream"]["iterations"] == 5
        run.write_summary({"seeds": [0]})
    with pytest.raises(RunDirError, match="another configuration"):  # a summary is a result too
        RunDir.open(tmp_path / "run", CONFIG)


def test_a_setting_that_changes_no_result_may_be_another_one_at_every_resume(tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG + "workers = 2\n") as run:
        run.mark("logs")
    with RunDir.open(tmp_path / "run", CONFIG + "workers = 4\n", read_by=lambda name: () if name == "dream.workers" else ("*",)) as run:
        assert run.config["dream"]["workers"] == 4
    other = CONFIG.replace("seed = 0", "seed = 1") + "workers = 8\n"
    with pytest.raises(RunDirError) as caught:
        RunDir.open(tmp_path / "run", other, read_by=lambda name: () if name == "dream.workers" else ("*",))
    assert "+ seed = 1" in str(caught.value) and "workers" not in str(caught.value)
    assert RunDir.view(tmp_path / "run").config["dream"]["workers"] == 4


def test_another_format_is_refused(tmp_path: Path):
    RunDir.open(tmp_path / "run", CONFIG, version=1).close()
    for opened in (lambda: RunDir.open(tmp_path / "run", CONFIG, version=2), lambda: RunDir.view(tmp_path / "run", version=2)):
        with pytest.raises(RunDirError, match="run format 1, and this dreamgym reads format 2"):
            opened()


def test_a_directory_with_other_things_in_it_is_refused_and_left_as_it_is(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunDirError, match=r"not a run.*thesis\.tex"):
        RunDir.open(tmp_path, CONFIG)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(RunDirError, match="is a file"):
        RunDir.open(tmp_path / "thesis.tex", CONFIG)
    with pytest.raises(UsageError, match="Cannot use"):
        RunDir.open(tmp_path / "thesis.tex" / "run", CONFIG)


def test_an_empty_directory_and_one_whose_creation_was_interrupted_become_runs(tmp_path: Path):
    for name, leftovers in {"empty": [], "locked": [".lock"], "torn": [".lock", ".dreamgym.json.17.tmp"]}.items():
        (tmp_path / name).mkdir()
        for leftover in leftovers:
            (tmp_path / name / leftover).write_text("")
        RunDir.open(tmp_path / name, CONFIG).close()
    (tmp_path / "empty" / "config.toml").unlink()
    with RunDir.open(tmp_path / "empty", CONFIG) as run:
        assert run.config["seed"] == 0


def test_two_processes_do_not_use_one_run_and_a_closed_one_is_free_again(tmp_path: Path):
    script = f"""
        from dreamgym.errors import RunDirError
        from dreamgym.runs.rundir import PROCESS, RunDir
        try:
            RunDir.open({str(tmp_path / "run")!r}, {CONFIG!r}).close()
            print("free")
        except RunDirError as error:
            print(error)
    """

    def elsewhere() -> str:
        command = [sys.executable, "-c", textwrap.dedent(script)]
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True).stdout

    with RunDir.open(tmp_path / "run", CONFIG):
        assert f"Process {os.getpid()} is working" in elsewhere()
        with pytest.raises(RunDirError, match="is working"):
            RunDir.open(tmp_path / "run", CONFIG)
        assert RunDir.view(tmp_path / "run").config["seed"] == 0  # readers need no lock
    assert elsewhere() == "free\n"


def test_what_a_killed_process_had_begun_to_write_is_removed_when_the_run_is_opened_and_what_a_living_one_writes_is_not(tmp_path: Path):
    with RunDir.open(tmp_path, CONFIG):
        pass
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    (tmp_path / "checkpoints").mkdir()
    left, living = tmp_path / "checkpoints" / f".a.json.{int(done.stdout)}.tmp", tmp_path / f".phases.json.{os.getppid()}.tmp"
    other = tmp_path / ".notes.tmp"
    for file in (left, living, other):
        file.write_text("half")
    with RunDir.open(tmp_path, CONFIG):
        assert not left.exists() and living.exists() and other.exists()


def test_a_viewed_run_cannot_be_written(run: RunDir):
    with pytest.raises(RunDirError, match="opened for reading"):
        RunDir.view(run.path).mark("sft")
    with pytest.raises(RunDirError, match="not a run directory"):
        RunDir.view(run.path.parent)


# Files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a" / "file.txt"
    write_atomic(path, "old ü")
    assert path.read_text("utf-8") == "old ü"
    monkeypatch.setattr(files.os, "replace", _raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_text("utf-8") == "old ü" and os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    path = tmp_path / "file.jsonl"
    append_jsonl(path, {"step": 0})
    monkeypatch.setattr(files.os, "fsync", _raises(OSError(code, "full")))
    with pytest.raises(DreamGymError, match=r"No space left.*file\.jsonl"):
        write_atomic(path, "new")
    monkeypatch.setattr(files.os, "pwrite", _writes_half_then_raises(OSError(code, "full")))
    with pytest.raises(DreamGymError, match=r"No space left.*file\.jsonl"):
        append_jsonl(path, {"step": 1})
    assert path.read_text() == '{"step": 0}\n'


def test_a_really_full_disk_is_told_too():
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    with pytest.raises(DreamGymError, match="/dev/full"), explain_errors("/dev/full"), open("/dev/full", "w") as file:
        file.write("x" * 100_000)


def test_another_failure_of_the_system_names_the_file_and_says_what_to_do(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(UsageError, match=rf"Cannot use '.*{name}': Not a regular file\. Expected a file"):
            write_atomic(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo(), "a device or a pipe is never replaced"


def test_a_torn_last_line_is_not_read_and_is_cut_off_by_the_next_record(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    assert read_jsonl(path) == []
    append_jsonl(path, {"step": 0})
    with path.open("ab") as file:
        file.write(b'{"step": 1, "note": "' + b"x" * 200_000)
    assert read_jsonl(path) == [{"step": 0}]
    append_jsonl(path, {"step": 2})
    assert read_jsonl(path) == [{"step": 0}, {"step": 2}]
    path.write_bytes(b'{"torn')
    append_jsonl(path, {"step": 3})
    assert read_jsonl(path) == [{"step": 3}]


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\nnonsense\n{"step": 2}\n')
    with pytest.raises(RunDirError, match="Line 2"):
        read_jsonl(path)


def test_metrics_may_hold_numbers_of_numpy_and_what_is_not_finite_becomes_null(run: RunDir):
    run.append_jsonl(
        "metrics.jsonl", {"loss": math.nan, "kl": math.inf, "n": np.int64(3), "r": np.float32(0.5), "where": Path("x"), "t": (1,)}
    )
    assert run.read_jsonl("metrics.jsonl") == [{"loss": None, "kl": None, "n": 3, "r": 0.5, "where": "x", "t": [1]}]


# Phases and summary


def test_an_interrupted_run_knows_what_is_done(tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG) as run:
        assert not run.done("sft")
        run.mark("collect", {"real_transitions": 120})
        run.mark("sft")
    with RunDir.open(tmp_path / "run", CONFIG) as run:
        assert run.done("collect") and run.done("sft") and not run.done("dream")
        assert run.data("collect") == {"real_transitions": 120} and run.data("sft") == {}
        with pytest.raises(InvariantError, match="dream"):
            run.data("dream")


def test_the_summary_is_absent_until_it_is_written(run: RunDir):
    assert run.summary() is None
    run.write_summary({"dream": {"real_success": 0.5, "ci95": (0.4, 0.6)}})
    assert RunDir.view(run.path).summary() == {"dream": {"real_success": 0.5, "ci95": [0.4, 0.6]}}


# Episodes


def test_episodes_come_back_equal(run: RunDir):
    episodes = [an_episode(), an_episode(id="e2", error="the server is away", success=False, truncated=True, turns=())]
    run.episodes("dream-000", episodes)
    assert run.read_episodes("dream-000") == episodes
    run.episodes("dream-000", episodes[:1])  # replaces: a phase that is done again does not double its episodes
    assert run.read_episodes("dream-000") == episodes[:1]
    assert run.episode_names() == ["dream-000"] and run.read_episodes("absent") == []


def test_completions_can_be_left_out(run: RunDir):
    run.episodes("eval", [an_episode()], completions=False)
    (back,) = run.read_episodes("eval")
    assert back == an_episode(turns=tuple(Turn(turn.transition) for turn in an_episode().turns))


def test_a_name_of_episodes_cannot_leave_the_folder(run: RunDir):
    for name in ("../config", "a/b", "", ".hidden"):
        with pytest.raises(InvariantError):
            run.episodes(name, [])


def test_what_json_cannot_give_back_is_refused_rather_than_changed():
    for goal in ({1: "a"}, {"__tuple__": [1]}):
        with pytest.raises(InvariantError, match="must be strings"):
            trajectory_to_json(an_episode(task=replace(an_episode().task, goal=goal)))


def test_a_frozen_mapping_is_written_like_any_other():
    frozen = an_episode(task=replace(an_episode().task, goal=MappingProxyType({"target": 2})))
    assert trajectory_from_json(trajectory_to_json(frozen)).task.goal == {"target": 2}


def test_half_characters_of_other_peoples_logs_survive_every_file(run: RunDir, tmp_path: Path):
    odd = replace(an_episode(), task=replace(an_episode().task, instruction="na\u00efve \ud83d mug"))
    run.episodes("odd", [odd, an_episode()])
    assert run.read_episodes("odd") == [odd, an_episode()]
    write_trajectories(tmp_path / "odd.jsonl", [odd])
    assert read_trajectories(tmp_path / "odd.jsonl") == [odd]
    run.append_jsonl("metrics.jsonl", {"note": "\ud83d", "mean": float("nan")})
    assert run.read_jsonl("metrics.jsonl") == [{"note": "\ud83d", "mean": None}]


@pytest.mark.parametrize("line", ["[]", '"text"', "{}", '{"task": null}'])
def test_a_line_that_is_json_and_no_episode_is_named(run: RunDir, line: str):
    run.episodes("logs", [an_episode()])
    with (run.path / "episodes" / "logs.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match=r"Line 2 of '.*logs.jsonl' is no "):
        run.read_episodes("logs")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("turns", 0, "reward"), "1", "reward is '1', and not a finite number"),
        (("turns", 0, "reward"), math.nan, "reward is 'nan'"),
        (("turns", 0, "reward"), 10**400, "and not a finite number"),
        (("turns", 0, "state"), None, "state is None, and not str"),
        (("turns", 0, "action"), 3, "action is 3, and not str"),
        (("turns", 0, "terminated"), "no", "terminated is 'no', and not bool"),
        (("task", "instruction"), None, "instruction is None"),
        (("task", "id"), {"a": 1}, "task_id is {'a': 1}, and not str"),
        (("id",), 7, "id is 7, and not str"),
        (("turns", 0, "reasoning"), "go", "a turn has 'reasoning': another version of dreamgym wrote it"),
        (("turns", 0, "completion"), {"finish": "stop"}, "a completion has 'finish': another version of dreamgym wrote it"),
        (("turns", 0, "info", "by_rule"), True, "a turn has 'by_rule': another version of dreamgym wrote it"),
        (("turns", 0, "info", "verdict"), {"kind": "maybe", "reasons": []}, "A verdict is one of passed, refused"),
        (("source",), "dreamt", "source is 'dreamt', and not one of real, dream, demo"),
        (("success",), "no", "success is 'no', and not bool"),
        (("turns",), [], "it succeeds without a turn"),
    ],
)
def test_values_that_no_episode_has_are_named_and_never_read_as_something_else(
    place: tuple[str | int, ...], value: object, says: str, tmp_path: Path
):
    record: Any = trajectory_to_json(an_episode())
    assert record["success"]
    inner = record
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (tmp_path / "odd.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(UsageError, match=re.escape(says)):
        read_trajectories(tmp_path / "odd.jsonl")


text = st.text(max_size=12)
keys = text.filter(lambda key: key != episodes.TUPLE)  # which hypothesis finds in the source and tries
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
tasks = st.builds(
    Task, text, text, text, st.sampled_from(["real", "synthetic"]), st.integers(0, 5), st.none() | st.dictionaries(keys, values)
)
floats = st.floats(allow_nan=False)
integers = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
completions = st.builds(Completion, integers, integers, st.lists(floats, max_size=4).map(tuple), text, st.sampled_from(["stop", "length"]))
verdicts = st.none() | st.builds(Verdict, st.sampled_from(get_args(VerdictKind)), st.lists(text, max_size=2).map(tuple))
observations = st.builds(Observation, text)
infos = st.builds(
    StepInfo,
    text,
    integers,
    verdicts,
    st.none() | floats,
    st.none() | st.booleans(),
    st.sampled_from([None, "rule", "generated"]),
    st.booleans(),
    st.none() | text,
)
transitions = st.builds(
    Transition,
    observations,
    text,
    observations,
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    infos,
)
turns = st.lists(st.builds(Turn, transitions, st.none() | completions), max_size=3).map(tuple)
trajectories = st.builds(
    Trajectory, text, tasks, st.sampled_from(["real", "dream", "demo"]), turns, st.booleans(), st.booleans(), st.none() | text, text
).map(lambda made: replace(made, success=made.success and bool(made.turns)))


@given(trajectories)
def test_any_trajectory_survives_a_line_of_json(trajectory: Trajectory):
    back = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(trajectory))))
    assert back == trajectory and repr(back) == repr(trajectory)  # repr tells 1 from 1.0 and a list from a tuple


# Progress


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 4.0, 10.0, 12.0, 21.0])
    monkeypatch.setattr("dreamgym.runs.progress.time.monotonic", lambda: next(clock))
    with progress(8, "collecting") as advance:
        for _ in range(4):
            advance(1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "collecting: 2 of 8, about 30 s left (10 s so far)",
        "collecting: 4 of 8, about 21 s left (21 s so far)",
    ]


def test_a_quick_loop_says_nothing(capsys: pytest.CaptureFixture[str]):
    with progress(3, "counting") as advance:
        advance()
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_there_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress(2, "painting") as advance:
        advance()
    assert capsys.readouterr().out == ""


def _raises(error: BaseException):
    def fail(*_: object) -> None:
        raise error

    return fail


def _writes_half_then_raises(error: OSError):
    real, calls = os.pwrite, []

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if calls:
            raise error
        calls.append(1)
        return real(file, data[: len(data) // 2], offset)

    return pwrite


def test_a_configuration_in_another_order_is_the_same_one(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", "seed = 0\n[dream]\na = 1\nb = [2, 3]\n") as run:
        run.mark("logs")
    RunDir.open(tmp_path / "run", "# by hand\nseed = 0\n\n[dream]\nb = [2,3]\na = 1\n").close()
    (tmp_path / "run" / "config.toml").write_text("seed = = 0\n")
    with pytest.raises(ConfigError, match=r"config\.toml' is not valid TOML.*restore the file"):
        RunDir.open(tmp_path / "run", "seed = 0\n")


def test_a_resume_accepts_changes_of_phases_that_have_not_begun_and_names_the_phase_of_others(tmp_path: Path):
    def read_by(name: str) -> tuple[str, ...]:
        return {"dream.iterations": ("dream*",)}.get(name, ("*",))

    with RunDir.open(tmp_path / "run", CONFIG, read_by=read_by) as run:
        run.mark("logs")
    changed = CONFIG.replace("iterations = 3", "iterations = 4")
    assert changed != CONFIG
    with RunDir.open(tmp_path / "run", changed, read_by=read_by) as run:
        assert run.changed == ["dream.iterations"] and run.config["dream"]["iterations"] == 4
        run.append_jsonl("metrics.jsonl", {"phase": "dream", "iteration": 0})
    with pytest.raises(RunDirError, match=r"\+ dream\.iterations = 5\nPhases that read these settings have begun: dream"):
        RunDir.open(tmp_path / "run", CONFIG.replace("iterations = 3", "iterations = 5"), read_by=read_by)


def test_a_configuration_that_was_cut_or_changed_is_refused_by_whoever_reads_the_run(tmp_path: Path):
    file = tmp_path / "run" / "config.toml"
    with RunDir.open(tmp_path / "run", "seed = 1\nsize = 2\n") as run:
        run.mark("logs")
    with RunDir.open(tmp_path / "run", "seed = 1\nsize = 3\n", read_by=lambda _: ()) as run:
        assert run.changed == ["size"] and run.config == {"seed": 1, "size": 3}, "a resume may change what nothing has read"
    assert RunDir.view(tmp_path / "run").config == {"seed": 1, "size": 3}
    for text in ("seed = 1\n", "seed = 1\nsize = 4\n", ""):
        file.write_text(text)
        for reader in (RunDir.view, lambda path: RunDir.open(path, "seed = 1\nsize = 3\n").close()):
            with pytest.raises(RunDirError, match=r"config\.toml' was changed after the run wrote it"):
                reader(tmp_path / "run")
    marker = tmp_path / "run" / "dreamgym.json"
    marker.write_text(json.dumps({"format": json.loads(marker.read_text())["format"]}))
    with pytest.raises(RunDirError, match="'config' is no list of digests"):
        RunDir.view(tmp_path / "run")


def test_a_configuration_that_is_refused_before_any_phase_is_not_kept(tmp_path: Path):
    with pytest.raises(ConfigError), RunDir.open(tmp_path / "run", "seed = 1\n"):
        raise ConfigError("no such option")
    assert not (tmp_path / "run" / "config.toml").exists()
    with pytest.raises(UsageError), RunDir.open(tmp_path / "run", "seed = 2\n") as run:
        run.mark("logs", {})
        raise UsageError("something later")
    assert RunDir.view(tmp_path / "run").config == {"seed": 2}


def test_a_run_that_has_begun_and_whose_configuration_is_missing_takes_no_other_one(tmp_path: Path):
    with RunDir.open(tmp_path / "run", "seed = 1\n"):
        pass
    (tmp_path / "run" / "config.toml").unlink()
    with RunDir.open(tmp_path / "run", "seed = 2\n") as run:
        run.mark("logs")
    (tmp_path / "run" / "config.toml").unlink()
    before = (tmp_path / "run" / "dreamgym.json").read_bytes()
    for reader in (RunDir.open, lambda path, text: RunDir.check(path, text, lambda _: ())):
        with pytest.raises(RunDirError, match=r"has begun \(logs\), and 'config\.toml' .* is missing\. Restore it"):
            reader(tmp_path / "run", "seed = 3\n")
    assert (tmp_path / "run" / "dreamgym.json").read_bytes() == before and not (tmp_path / "run" / "config.toml").exists()
