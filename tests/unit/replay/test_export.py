"""Replay logs out and in, and their statistics."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dreamgym.cli import app
from dreamgym.errors import UsageError
from dreamgym.replay import export
from dreamgym.replay.buffer import ReplayBuffer, ReplayBufferConfig
from dreamgym.replay.encoders import lexical
from dreamgym.replay.statistics import statistics
from dreamgym.replay.stores import open_to_read, sqlite
from dreamgym.types import REAL_STEP, Memory, Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict

SUFFIXES = ("jsonl", "parquet")


def turn(i: int, verdict: Verdict | None, reward: float = 0.0) -> Turn:
    return Turn(
        Transition(
            Observation(f"naïve page {i}"), f"click[{i}]", Observation(f"page\n{i + 1}"), reward, i == 2, StepInfo("why", verdict=verdict)
        )
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three real rows, and a dream of which the second step failed the guard."""
    path = tmp_path / "log.sqlite"
    passed, failed = Verdict("passed"), Verdict("refused", ("price",))
    real = Trajectory("r", Task("t", "buy a mug", "shop"), "real", tuple(turn(i, None, 0.5 * (i == 2)) for i in range(3)), True)
    dream = Trajectory(
        "d", Task("t2", "buy a hat", "shop"), "dream", (turn(0, passed), turn(1, failed), turn(2, passed)), False,
        policy_version=3, model_version=2,
    )  # fmt: skip
    with ReplayBuffer.open(path, lexical.make()) as buffer:
        buffer.add([real, dream])
    return path


def rows(path: Path) -> list[Memory]:
    with ReplayBuffer.open(path, lexical.make()) as buffer:
        return list(buffer.memories())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_exported_and_read_back_is_what_it_was(log: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    file, copy = tmp_path / "out" / f"rows.{suffix}", tmp_path / "copy.sqlite"
    assert export.export(sqlite.make(path=log, read_only=True), file) == 5
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]
    with ReplayBuffer.open(copy, lexical.make()) as buffer:
        assert buffer.add(list(export.read(file))) == 5
    assert rows(copy) == rows(log)


@pytest.mark.parametrize("lengths", [(3, 3), (1, 1), (1, 3), (3, 1)])
def test_trajectories_of_one_id_stay_apart(tmp_path: Path, lengths: tuple[int, int]) -> None:
    """Ids need not be unique, as of logs that were imported twice."""
    log, file = tmp_path / "log.sqlite", tmp_path / "rows.jsonl"
    task = Task("t", "buy a mug", "shop")
    with ReplayBuffer.open(log, lexical.make()) as buffer:
        buffer.add([Trajectory("r", task, "real", tuple(turn(i, None) for i in range(n)), True) for n in lengths])
    export.export(sqlite.make(path=log, read_only=True), file)
    assert tuple(len(one.turns) for one in export.read(file)) == lengths


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_hugging_face_datasets_reads_the_export(log: Path, tmp_path: Path, suffix: str) -> None:
    datasets = pytest.importorskip("datasets")
    file = tmp_path / f"rows.{suffix}"
    export.export(sqlite.make(path=log, read_only=True), file)
    kind = "json" if suffix == "jsonl" else suffix
    table = datasets.load_dataset(kind, data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))
    assert [Memory(**row) for row in table] == rows(log)


def test_a_row_that_makes_no_sense_is_named(tmp_path: Path, log: Path) -> None:
    file = tmp_path / "rows.jsonl"
    export.export(sqlite.make(path=log, read_only=True), file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for change, message in (
        ({"source": "deram"}, r"row 2: source 'deram'.*Did you mean 'dream'"),
        ({"reward": "much"}, "row 2: reward is 'much'. Expected float"),
        ({"action": None}, "row 2: no 'action'"),
        ({"step": 0}, "trajectory 'r' lacks step 1"),
        ({"step": 7}, "trajectory 'r' lacks step 1"),
        ({"step": -1}, "row 2: step is -1"),
        ({"step": 10**12}, "row 2: step is 1000000000000. Expected 0 or more, and less than 1,000,000"),
        ({"reward": float("nan")}, "row 2: reward is nan. Expected a finite number"),
        ({"reward": float("-inf")}, "row 2: reward is -inf. Expected a finite number"),
        ({"reward": True}, "row 2: reward is True. Expected float"),
        ({"policy_version": 2**63}, "row 2: policy_version is .*below 2"),
    ):
        file.write_text("\n".join(json.dumps(row | (change if i == 1 else {})) for i, row in enumerate(lines)))
        with pytest.raises(UsageError, match=message):
            list(export.read(file))
    for content in (b'{"a": 1\n', b'{"a": "\xff"}\n', b"\x00\xfe", b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=r"rows\.jsonl', line 1"):
            list(export.read(file))
    for wrong, message in ((tmp_path / "rows.json", "Expected a name that ends in .jsonl"), (tmp_path / "no.jsonl", "no file")):
        with pytest.raises(UsageError, match=message):
            list(export.read(wrong))


def test_a_damaged_parquet_file_is_named_with_what_to_do_wherever_it_is_damaged(tmp_path: Path, log: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    file = tmp_path / "rows.parquet"
    export.export(sqlite.make(path=log, read_only=True), file)
    content = file.read_bytes()
    for start in (0, 4, len(content) - 8):  # the head, the first page, which is read last, and the length of the footer
        file.write_bytes(content[:start] + b"\xff" * 16 + content[start + 16 :])
        with pytest.raises(UsageError, match=r"rows\.parquet' is no readable Parquet file.*take another copy"):
            list(export.read(file))


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left_there(tmp_path: Path, log: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "rows.jsonl", Path("/proc/rows.jsonl"), tmp_path / "folder.jsonl"):
        (tmp_path / "folder.jsonl").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=f"Cannot write '{place}'"):
            export.export(sqlite.make(path=log, read_only=True), place)
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_a_dream_without_a_verdict_is_read_and_refused_by_the_buffer(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    export.export(sqlite.make(path=log, read_only=True), file)
    found = [t for t in export.read(file) if t.source == "dream"]
    unjudged = [replace(t, turns=tuple(Turn(replace(one.transition, info=REAL_STEP)) for one in t.turns)) for t in found]
    with ReplayBuffer.open(None, lexical.make()) as buffer:
        assert buffer.add(unjudged) == 0 and buffer.refused == 3


def test_statistics_count_what_is_in_use_by_environment_and_source(log: Path) -> None:
    sqlite.make(path=log).evict([4])
    found = statistics(log)
    assert (found["rows"], found["evicted"], found["last_row"], found["verdicts"]) == (4, 1, 5, {"": 3, "passed": 1})
    dream, real = found["groups"]
    assert (dream["source"], dream["rows"], dream["policy_version"]) == ("dream", 1, 3)
    assert (real["rows"], real["trajectories"], real["contents"], real["rewarded"]) == (3, 1, 3, 1) and real[
        "mean_reward"
    ] == pytest.approx(1 / 6)
    assert found["bytes"] > 0 and found["encoder"] == lexical.make().id


def test_the_commands_show_export_import_and_reencode_a_log(log: Path, tmp_path: Path) -> None:
    def command(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["replay", *map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert json.loads(command("stats", log, "--json"))["rows"] == 5
    shown = command("stats", log)
    assert "5 rows in use" in shown and "not judged 3, passed 2" in shown
    assert "5 rows" in command("export", log, tmp_path / "rows.jsonl")
    assert "5 rows added, 0 refused" in command("import", tmp_path / "new.sqlite", tmp_path / "rows.jsonl"), (
        "no row of a gap is in the file"
    )
    (tmp_path / "failed.jsonl").write_text((tmp_path / "rows.jsonl").read_text().replace('"verdict": "passed"', '"verdict": "refused"'))
    assert "3 rows added, 2 refused" in command("import", tmp_path / "other.sqlite", tmp_path / "failed.jsonl")
    sqlite.make(path=log).reencode(lexical.make(state_dim=64))
    assert "5 rows encoded with lexical-1" in command("reencode", log, "--encoder", "lexical")
    assert rows(tmp_path / "new.sqlite") == rows(log)


def test_a_log_in_a_folder_is_counted_and_exported_like_one_in_a_file(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="the extra 'lancedb' is not installed")
    folder = tmp_path / "log.lance"
    config = ReplayBufferConfig(store="lance")
    with ReplayBuffer.open(folder, lexical.make(), config) as buffer:
        buffer.add(list(export.read(_exported(log, tmp_path / "rows.jsonl"))))
    for one in (log, folder):
        with closing(open_to_read(one)) as store:
            store.evict([4]) if one is folder else sqlite.make(path=log).evict([4])
    inside, beside = statistics(folder), statistics(log)
    assert {**inside, "bytes": 0} == {**beside, "bytes": 0} and inside["bytes"] > 0
    assert _exported(folder, tmp_path / "a.jsonl").read_text() == _exported(log, tmp_path / "b.jsonl").read_text()
    with pytest.raises(UsageError, match="no replay log"):
        open_to_read(tmp_path)


def _exported(log: Path, file: Path) -> Path:
    with closing(open_to_read(log)) as store:
        export.export(store, file)
    return file
