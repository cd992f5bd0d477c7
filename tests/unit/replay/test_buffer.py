"""The replay buffer as its users meet it: what is admitted, what is found, and what survives."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dreamgym.config import build
from dreamgym.errors import ConfigError, DreamGymError, RunDirError, UsageError
from dreamgym.replay.buffer import ReplayBuffer, ReplayBufferConfig
from dreamgym.replay.encoders import lexical
from dreamgym.replay.indexes import exact
from dreamgym.replay.stores import sqlite
from dreamgym.types import Neighbour, Observation, Source, StepInfo, Task, Trajectory, Transition, Turn, Verdict

PASSED = Verdict("passed")
Step = tuple[str, str, str]  # state, action, next state


def episode(
    name: str, *steps: Step, source: Source = "real", verdict: Verdict | None = PASSED, env: str = "shop", **more: object
) -> Trajectory:
    turns = tuple(
        Turn(
            Transition(
                Observation(state),
                action,
                Observation(after),
                0.5,
                False,
                StepInfo("because", (1, 2), None if source == "real" else verdict),
            )
        )
        for state, action, after in steps
    )
    return Trajectory(name, Task("t1", "buy a red mug", env), source, turns, True, **more)  # type: ignore[arg-type]


def shopping(name: str, n: int = 3, **more: object) -> Trajectory:
    return episode(name, *[(f"page {name} {i}", f"click[item b{i:03}]", f"page {name} {i + 1}") for i in range(n)], **more)  # type: ignore[arg-type]


def found(neighbours: Sequence[Neighbour]) -> list[str]:
    return [neighbour.memory.trajectory for neighbour in neighbours]


@pytest.fixture
def buffer() -> ReplayBuffer:
    return ReplayBuffer.open(None, lexical.make())


def test_what_is_known_of_evicted_rows_is_forgotten() -> None:
    buffer = ReplayBuffer.open(None, lexical.make(), ReplayBufferConfig(max_rows=10))
    buffer.add([shopping("real", 4)])
    for i in range(60):
        buffer.add([shopping(f"dream {i}", 3, source="dream")])
        assert len(buffer) <= 10 and len(buffer._codes["content"]) <= 2 * 10 + 3
    codes = buffer._columns["content"].view.tolist()
    contents = [(memory.action, memory.next_state) for memory in buffer.memories()]
    assert [codes.index(code) for code in codes] == [contents.index(content) for content in contents], "equal rows have equal codes"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "replay.sqlite"


def test_a_query_finds_the_most_similar_situation_first(buffer: ReplayBuffer) -> None:
    buffer.add([episode("mug", ("shelf of mugs", "click[mug]", "a mug")), episode("hat", ("shelf of hats", "search[hat]", "a hat"))])
    (neighbours,) = buffer.search(["shelf of mugs"], ["click[mug]"], k=2)
    assert found(neighbours) == ["mug", "hat"]
    assert neighbours[0].similarity == pytest.approx(1.0, abs=1e-3) and neighbours[1].similarity < 0.5


def test_a_row_keeps_its_text_and_its_provenance_when_the_log_is_reopened(path: Path) -> None:
    dream = episode("d", ("s", "a", "s'"), source="dream", policy_version=3, model_version=7)
    odd = episode("odd", ("naïve \ud800 page", "click[\x00 é]", ""), source="demo", verdict=None)
    with ReplayBuffer.open(path, lexical.make()) as first:
        assert first.add([dream, odd]) == 2
        before, answers = list(first.memories()), first.search(["s", "page"], ["a", "click[é]"], k=2)
    with ReplayBuffer.open(path, lexical.make()) as second:
        assert list(second.memories()) == before and second.last_row == 2
        assert second.search(["s", "page"], ["a", "click[é]"], k=2) == answers
    row = before[0]
    assert (row.source, row.policy_version, row.model_version, row.verdict, row.reward) == ("dream", 3, 7, "passed", 0.5)
    assert (row.instruction, row.reasoning, row.success, row.env) == ("buy a red mug", "because", True, "shop")
    assert before[1].state == "naïve ? page" and before[1].verdict == ""


def test_killing_the_writer_loses_no_acknowledged_batch(path: Path) -> None:
    writer = """
import sys
from pathlib import Path
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from test_buffer import shopping
buffer = ReplayBuffer.open(Path(sys.argv[1]), lexical.make())
for i in range(10_000):
    buffer.add([shopping(f"t{i}", 7)])
    print(buffer.last_row, flush=True)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(5)][-1]
        process.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    buffer = ReplayBuffer.open(path, lexical.make())
    assert len(buffer) >= acknowledged and len(buffer) % 7 == 0  # and no batch is there in part
    assert buffer.add([shopping("next")]) == 3


def test_another_encoder_is_refused_and_the_message_says_what_to_do(path: Path) -> None:
    ReplayBuffer.open(path, lexical.make()).close()
    for other in lexical.make(action_weight=0.4), lexical.make(state_dim=64):
        with pytest.raises(RunDirError, match=r"replay\.sqlite.*built with encoder 'lexical-1.*start a new run directory"):
            ReplayBuffer.open(path, other)


def test_a_log_of_another_schema_version_and_a_file_that_is_no_log_are_refused(path: Path, tmp_path: Path) -> None:
    ReplayBuffer.open(path, lexical.make()).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(RunDirError, match="schema version 99; this dreamgym reads version 2"):
        ReplayBuffer.open(path, lexical.make())
    foreign, text = tmp_path / "foreign.sqlite", tmp_path / "notes.txt"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE things (x)")
    text.write_text("no database at all " * 100)
    content = foreign.read_bytes()
    for wrong in foreign, text:
        with pytest.raises(RunDirError, match=wrong.name):
            ReplayBuffer.open(wrong, lexical.make())
    assert foreign.read_bytes() == content


def test_a_locked_or_full_or_missing_disk_is_an_error_that_names_the_file_and_adds_nothing(path: Path, tmp_path: Path) -> None:
    store = sqlite.make(path=path, encoder=lexical.make().id, dim=lexical.make().dim, timeout_s=0.05)
    buffer = ReplayBuffer(store, exact.make(dim=store.dim), lexical.make())
    buffer.add([shopping("a")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DreamGymError, match=r"replay\.sqlite.*locked.*Another process is writing"):
        buffer.add([shopping("b")])
    other.close()
    store._db.execute(f"PRAGMA max_page_count = {store._number('PRAGMA page_count')}")
    with pytest.raises(DreamGymError, match=r"replay\.sqlite.*full.*Free some space"):
        buffer.add([shopping("c", 200)])
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert buffer.add([shopping("d")]) == 3 and len(buffer) == len(store) == buffer.last_row == 6
    (tmp_path / "file").write_text("")
    with pytest.raises(DreamGymError, match="file/replay.sqlite"):
        ReplayBuffer.open(tmp_path / "file" / "replay.sqlite", lexical.make())


def test_a_reward_that_is_not_a_number_is_refused_and_nothing_is_written(buffer: ReplayBuffer) -> None:
    bad = Trajectory(
        "bad", Task("t", "i", "shop"), "real", (Turn(Transition(Observation("s"), "a", Observation("n"), float("nan"), False)),), False
    )
    with pytest.raises(UsageError, match="'bad' cannot be logged: its turn 0's reward is nan"):
        buffer.add([shopping("a"), bad])
    assert len(buffer) == 0 and buffer.search(["s"], ["a"], k=3) == [[]]


def test_a_query_does_not_see_its_own_trajectory(buffer: ReplayBuffer) -> None:
    buffer.add([episode("own", ("s", "a", "1")), episode("other", ("s", "a", "2"))])
    assert [found(n) for n in buffer.search(["s"] * 3, ["a"] * 3, k=5, exclude=["own", "other", "unknown"])] == [
        ["other"],
        ["own"],
        ["own", "other"],
    ]


def test_a_query_stays_in_its_environment(buffer: ReplayBuffer) -> None:
    buffer.add([episode("shop", ("s", "a", "1")), episode("house", ("s", "a", "2"), env="house")])
    assert [found(buffer.search(["s"], ["a"], k=5, env=env)[0]) for env in ("shop", "house", "moon")] == [["shop"], ["house"], []]


def test_duplicates_of_a_better_neighbour_are_dropped_however_many_there_are(buffer: ReplayBuffer) -> None:
    copies = [episode(f"copy{i}", ("s", "a", "same")) for i in range(100)]
    buffer.add([*copies, episode("different", ("t", "a", "else")), episode("last", ("u", "b", "same"))])
    assert found(buffer.search(["s"], ["a"], k=3)[0]) == ["copy0", "different", "last"]


def test_an_unknown_setting_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="max_row.*Did you mean 'max_rows'"):
        build(ReplayBufferConfig, {"max_row": 1})


def test_dreams_that_nobody_judged_or_that_failed_and_broken_episodes_are_refused_and_counted(buffer: ReplayBuffer) -> None:
    rows = buffer.add(
        [
            shopping("passed", source="dream"),
            shopping("failed", source="dream", verdict=Verdict("refused", ("price differs",))),
            shopping("unjudged", source="dream", verdict=None),
            shopping("broken", error="timeout"),
            shopping("real"),
        ]
    )
    assert rows == 6 and buffer.refused == 9
    assert {memory.trajectory for memory in buffer.memories()} == {"passed", "real"}
    stats = buffer.stats()
    assert {key: stats[key] for key in ("rows", "real", "dream", "demo", "dream_share", "trajectories", "refused")} == {
        "rows": 6, "real": 3, "dream": 3, "demo": 0, "dream_share": 0.5, "trajectories": 2, "refused": 9,
    }  # fmt: skip


def test_an_error_that_a_rule_wrote_is_no_memory_and_a_step_without_effect_is(buffer: ReplayBuffer) -> None:
    refused, noop = (
        Turn(Transition(Observation("a"), "x", Observation(after), 0.0, False, StepInfo(verdict=Verdict("passed"), decided_by="rule")))
        for after in ("a\nError", "a")
    )
    task = Task("t", "find it", "shop")
    before = len(buffer)
    assert buffer.add([Trajectory("d", task, "dream", (refused, noop), False)]) == 1 and len(buffer) == before + 1


def test_rolling_back_to_a_checkpoint_and_going_on_equals_never_having_been_interrupted(path: Path, buffer: ReplayBuffer) -> None:
    with ReplayBuffer.open(path, lexical.make()) as run:
        run.add([shopping("a"), shopping("b")])
        checkpoint = run.last_row
        run.add([shopping("lost", 5)])
    resumed = ReplayBuffer.open(path, lexical.make())
    resumed.rollback(checkpoint)
    assert len(resumed) == resumed.last_row == checkpoint == 6
    assert "lost" not in found(resumed.search(["page lost 1"], ["click[item b001]"], k=9)[0])
    resumed.add([shopping("c")])
    for batch in [shopping("a"), shopping("b")], [shopping("c")]:
        buffer.add(batch)
    assert list(resumed.memories()) == list(buffer.memories()) == list(ReplayBuffer.open(path, lexical.make()).memories())
    assert resumed.search(["page c 1"], ["click"], k=9) == buffer.search(["page c 1"], ["click"], k=9)


def test_a_log_that_ends_before_the_checkpoint_is_refused(buffer: ReplayBuffer) -> None:
    buffer.add([shopping("a")])
    with pytest.raises(RunDirError, match="expects 10 rows.*ends at row 3"):
        buffer.rollback(10)


def test_two_processes_may_append_to_one_log(path: Path) -> None:
    one, two = ReplayBuffer.open(path, lexical.make()), ReplayBuffer.open(path, lexical.make())
    one.add([shopping("a")])
    two.add([shopping("b")])
    assert two.last_row == 6 and one.last_row == 3
    assert one.refresh() == 3 and list(one.memories()) == list(two.memories())


def test_memories_are_read_by_filter(buffer: ReplayBuffer) -> None:
    buffer.add([shopping("a"), shopping("b", source="demo"), shopping("c", env="house"), shopping("d", source="dream")])
    assert [m.row for m in buffer.memories(env="house")] == [7, 8, 9]
    assert {m.trajectory for m in buffer.memories(source="real", env="shop")} == {"a"}
    assert [m.row for m in buffer.memories(source="dream")] == [10, 11, 12]
