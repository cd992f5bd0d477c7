"""Damaged logs and impossible episodes are errors that name the file or the trajectory, and nothing is written of them."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dreamgym.errors import DreamGymError, RunDirError, UsageError
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.replay.statistics import statistics
from dreamgym.replay.stores import open_to_read
from dreamgym.types import Observation, Source, StepInfo, Task, Trajectory, Transition, Turn, Verdict

ENCODER = lexical.make(state_dim=8, action_dim=8)
texts = st.text(max_size=8) | st.sampled_from(["", "\ud800", "\x00", "\N{SNOWMAN}" * 3])
rewards = st.floats(-1e6, 1e6) | st.integers(-5, 5)


@st.composite
def episodes(draw: st.DrawFn, source: Source = "real") -> Trajectory:
    steps = draw(st.lists(st.tuples(texts, texts, texts, rewards, st.booleans(), texts), min_size=1, max_size=3))
    turns = tuple(Turn(Transition(Observation(s), a, Observation(n), r, end, StepInfo(reasoning=why))) for s, a, n, r, end, why in steps)
    return Trajectory(draw(texts), Task(draw(texts), draw(texts), draw(texts)), source, turns, draw(st.booleans()))


def written(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(episodes(), max_size=4))
def test_what_is_added_is_read_back_whatever_the_texts_and_numbers(tmp_path: Path, made: list[Trajectory]) -> None:
    path = tmp_path / "log.sqlite"
    path.unlink(missing_ok=True)
    with ReplayBuffer.open(path, ENCODER) as buffer:
        assert buffer.add(made) == sum(len(one.turns) for one in made)
        before = list(buffer.memories())
    with ReplayBuffer.open(path, ENCODER) as again:
        assert list(again.memories()) == before
    expected = [(written(e.id), written(t.action), float(t.reward), written(t.next_state.text)) for e in made for t in e.transitions]
    assert [(m.trajectory, m.action, m.reward, m.next_state) for m in before] == expected


IMPOSSIBLE: dict[str, Any] = {
    "reward": [10**400, -(10**400), math.inf, math.nan, 2.0**63, "1", None], "id": [7, None, b"x"], "env": [3], "instruction": [None],
    "action": [5], "state": [None], "policy_version": [2**63, 1.5e300], "model_version": [-(10**30)],
}  # fmt: skip


def spoilt(kind: str, value: Any) -> Trajectory:
    fields = {"reward": 0.0, "action": "a", "state": "s", "env": "shop", "instruction": "i", "id": "t"} | {kind: value}
    turns = tuple(
        Turn(Transition(Observation(state), action, Observation("n"), reward, False))
        for state, action, reward in (("s", "a", 0.0), (fields["state"], fields["action"], fields["reward"]))
    )
    made = Trajectory(fields["id"], Task("t", fields["instruction"], fields["env"]), "real", turns, True)
    return replace(made, **{kind: value}) if kind.endswith("version") else made


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in IMPOSSIBLE.items() for value in values])
def test_what_no_log_can_hold_is_refused_by_name_before_anything_is_written(tmp_path: Path, kind: str, value: Any) -> None:
    with ReplayBuffer.open(tmp_path / "log.sqlite", ENCODER) as buffer:
        with pytest.raises(UsageError, match="cannot be logged: its .*(not text|not a finite number)"):
            buffer.add([spoilt("action", "fine"), spoilt(kind, value)])
        assert len(buffer) == 0 and buffer.add([spoilt("action", "fine")]) == 2


COLUMNS = {
    "transitions": ["row", "trajectory", "step", "state", "action", "next_state", "reward", "terminated", "reasoning", "verdict", "vector"],
    "trajectories": ["id", "env", "instruction", "source", "policy_version", "model_version", "success"],
    "meta": ["key", "value"],
}
places = st.sampled_from([(table, column) for table, columns in COLUMNS.items() for column in columns])
values = st.one_of(
    st.binary(max_size=40), st.text(st.characters(codec="utf-8"), max_size=5), st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([math.inf, -math.inf, 1.5, b"\xff\xff" * 16, b"\x00\x7c" * 16, b"\xff\xfe"]),
)  # fmt: skip


def log(path: Path) -> None:
    path.unlink(missing_ok=True)
    dream = Turn(Transition(Observation("page"), "go", Observation("end"), 1.0, True, StepInfo(verdict=Verdict("passed"))))
    with ReplayBuffer.open(path, ENCODER) as buffer:
        buffer.add([Trajectory(name, Task("t", "i", "shop"), "dream", (dream,) * 2, True) for name in "ab"])


def damage(path: Path, place: tuple[str, str], value: Any) -> None:
    table, column = place
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = 2", (value,))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=places, value=values)
def test_a_log_with_any_value_in_any_column_is_read_or_refused_by_name(tmp_path: Path, place: tuple[str, str], value: Any) -> None:
    path = tmp_path / "log.sqlite"
    log(path)
    try:
        damage(path, place, value)
    except (sqlite3.Error, UnicodeEncodeError):  # a value that SQLite itself refuses there
        return
    try:
        with ReplayBuffer.open(path, ENCODER) as buffer:
            list(buffer.memories())
            buffer.search(["page"], ["go"], k=3)
    except DreamGymError as error:
        assert "log.sqlite" in str(error)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("transitions", "vector"), b"\x00\x3c", "row 2: cannot reshape"),
        (("transitions", "vector"), b"\x00\x7e" * 16, "row 2: its vector holds a number that is not finite"),
        (("transitions", "state"), b"page", "row 2: .*str"),
        (("transitions", "reward"), "much", "row 2: expected a finite number, found 'much'"),
        (("trajectories", "source"), "guess", "row 3: expected a source of real, dream, demo, found 'guess'"),
        (("meta", "value"), "many", "its table 'meta' has no valid encoder and dim"),
        (("meta", "key"), "size", "its table 'meta' has no valid encoder and dim"),
    ],
)
def test_damage_is_an_error_that_names_the_file_and_the_row_and_what_to_do(
    tmp_path: Path, place: tuple[str, str], value: Any, words: str
) -> None:
    path = tmp_path / "log.sqlite"
    log(path)
    damage(path, place, value)
    with pytest.raises(RunDirError, match=rf"log\.sqlite' is damaged: {words}.*Restore the file from a backup"):
        ReplayBuffer.open(path, ENCODER)


def test_a_log_that_lost_a_row_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    log(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM transitions WHERE row = 2")
    for read in (lambda: ReplayBuffer.open(path, ENCODER), lambda: open_to_read(path), lambda: statistics(path)):
        with pytest.raises(RunDirError, match=r"log\.sqlite' is damaged: it holds \d+ rows, and the last has the number \d+"):
            read()


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("transitions", "vector"), b"\0\0" * ENCODER.dim, "a vector of zeros"),
        (("transitions", "vector"), b"\0\0", "a vector of another size"),
        (("transitions", "neighbours"), "junk", "neighbours that are no list of rows"),
        (("transitions", "neighbours"), '["a"]', "neighbours that are no list of rows"),
        (("transitions", "trajectory"), 99, "no trajectory"),
    ],
)
def test_damaged_rows_are_counted_by_the_statistics(tmp_path: Path, place: tuple[str, str], value: Any, says: str) -> None:
    path = tmp_path / "log.sqlite"
    log(path)
    assert statistics(path)["damaged"] == {}
    damage(path, place, value)
    assert statistics(path)["damaged"] == {says: 1}
