"""What every store of the replay buffer promises (`replay.stores.Store`). They are discovered; one whose package is missing is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.errors import InvariantError, MissingExtra, RunDirError
from dreamgym.replay.buffer import ReplayBuffer, ReplayBufferConfig
from dreamgym.replay.encoders import lexical
from dreamgym.replay.stores import Entry, Store
from dreamgym.types import Memory, Observation, Source, StepInfo, Task, Trajectory, Transition, Turn, Verdict

DIM = 4

every_store = pytest.mark.parametrize("name", plugins.known("replay.stores"))


def opened(name: str, path: Path | None, encoder: str = "test", dim: int = DIM) -> Store:
    try:
        store: Store = plugins.make("replay.stores", name, path=path, encoder=encoder, dim=dim)
    except MissingExtra as error:
        pytest.skip(str(error))
    return store


def entry(name: str, n: int = 3, source: Source = "real", reward: float = 0.5) -> Entry:
    info = StepInfo("why", (1, 2), Verdict("passed") if source == "dream" else None)
    turns = tuple(
        Turn(Transition(Observation(f"naïve 'page' {i}"), f"click[{i}]", Observation("n\n"), reward, False, info)) for i in range(n)
    )
    vectors = np.random.default_rng(n).standard_normal((n, DIM)).astype(np.float16)
    return Entry(Trajectory(name, Task("t", "buy a mug", "shop"), source, turns, True, policy_version=2), tuple(range(n)), vectors)


def everything(store: Store, after: int = 0) -> tuple[list[Memory], np.ndarray]:
    pages = list(store.rows(after))
    return [m for page, _ in pages for m in page], np.concatenate([v for _, v in pages] or [np.zeros((0, DIM), np.float16)])


@every_store
def test_what_was_appended_is_read_back_in_order_also_by_another_that_opens_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    store, entries = opened(name, path), [entry("a"), entry("b", 2, "dream")]
    logged = store.append(entries)
    assert [m.row for m in logged] == [1, 2, 3, 4, 5] and len(store) == store.last_row == 5
    other = opened(name, path)
    assert [m.row for m in other.append([entry("c", 1)])] == [6]
    for reader in (store, other, opened(name, path)):
        found, vectors = everything(reader)
        assert found[:5] == logged and reader.last_row == 6
        np.testing.assert_array_equal(vectors[:5], np.concatenate([e.vectors for e in entries]))
        assert vectors.dtype == np.float16 and [m.row for m in everything(reader, after=4)[0]] == [5, 6]
    store.close()


@every_store
def test_a_batch_with_a_bad_entry_leaves_nothing_behind(name: str) -> None:
    store = opened(name, None)
    store.append([entry("a")])
    wrong = Entry(entry("b").trajectory, (0, 1, 2), np.zeros((2, DIM), np.float16))
    for bad in (wrong, entry("c", reward=float("nan"))):
        with pytest.raises(InvariantError):
            store.append([entry("d"), bad])
        assert len(store) == store.last_row == 3
    assert store.append([]) == [] and store.append([entry("e")])[0].row == 4


@every_store
def test_rows_after_a_checkpoint_are_hidden_and_their_evictions_undone(name: str, tmp_path: Path) -> None:
    store = opened(name, tmp_path / "log")
    store.append([entry("a", 4)])
    store.evict([1])
    store.append([entry("b", 2)])
    store.evict([2, 5])
    assert [m.row for m in everything(store)[0]] == [3, 4, 6] and len(store) == 3 and store.last_row == 6
    assert store.hide_after(4) == 1
    assert [m.row for m in everything(store)[0]] == [2, 3, 4] and store.last_row == 4
    assert store.append([entry("c", 1)])[0].row == 5


@every_store
def test_another_encoder_is_refused(name: str, tmp_path: Path) -> None:
    opened(name, tmp_path / "log").close()
    for encoder, dim in (("other", DIM), ("test", DIM + 1)):
        with pytest.raises(RunDirError, match="built with encoder 'test'"):
            opened(name, tmp_path / "log", encoder, dim)


@every_store
def test_two_processes_that_append_at_once_lose_and_double_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    opened(name, path).close()
    program = """
from test_replay_stores import *
store = opened(sys.argv[1], Path(sys.argv[2]))
for _ in range(10):
    store.append([entry(sys.argv[3])])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    writers = [subprocess.Popen([sys.executable, "-c", program, name, str(path), one], env=environment) for one in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    found = everything(opened(name, path))[0]
    assert [m.row for m in found] == list(range(1, 61)) and sorted(m.trajectory for m in found) == ["a"] * 30 + ["b"] * 30


@every_store
def test_a_buffer_over_it_resumes_as_if_it_had_never_been_interrupted(name: str, tmp_path: Path) -> None:
    opened(name, None)  # skips where the package is missing
    encoder, config = lexical.make(state_dim=32, action_dim=32), build(ReplayBufferConfig, {"store": name, "max_rows": 6})
    first, second, third = ([entry(f"{i}/{j}", 2, "dream").trajectory for j in range(2)] for i in range(3))
    with ReplayBuffer.open(tmp_path / "log", encoder, config) as run:
        run.add(first)
        checkpoint = run.last_row
        run.add(second)
    with ReplayBuffer.open(tmp_path / "log", encoder, config) as resumed, ReplayBuffer.open(None, encoder, config) as whole:
        resumed.rollback(checkpoint)
        resumed.add(third)
        whole.add(first)
        whole.add(third)
        assert list(resumed.memories()) == list(whole.memories())
        assert resumed.search(["page"], ["click[1]"], k=5) == whole.search(["page"], ["click[1]"], k=5)
