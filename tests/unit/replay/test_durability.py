"""What the replay log withstands: death at any instant, crowds, a full disk, damage, other versions and other encoders."""

from __future__ import annotations

import logging
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dreamgym.errors import DreamGymError, RunDirError, UsageError
from dreamgym.replay import filesystems
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.replay.stores import Entry, sqlite
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

DIM = 8
PER_BATCH = 7


def open_store(path: Path, **more: object) -> sqlite.SqliteStore:
    return sqlite.make(path=path, encoder="test", dim=DIM, **more)


def batch(name: str, n: int = PER_BATCH, text: str = "page") -> list[Entry]:
    turns = tuple(Turn(Transition(Observation(f"{text} {i}"), f"click[{i}]", Observation(f"{text} {i + 1}"), 0.5, False)) for i in range(n))
    trajectory = Trajectory(name, Task("t", "buy a mug", "shop"), "real", turns, True)
    return [Entry(trajectory, tuple(range(n)), np.full((n, DIM), DIM**-0.5, np.float16))]


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Process id of a child that runs `work(pipe)` and exits, and the end of the pipe to read from."""
    here, there = os.pipe()
    child = os.fork()
    if child:
        os.close(there)
        return child, here
    try:
        os.close(here)
        work(there)
        os._exit(0)
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(1)


def read_all(pipe: int) -> str:
    with os.fdopen(pipe) as file:
        return file.read()


def contents(path: Path) -> list[tuple[int, str, int]]:
    """Row number, trajectory and step of every row in use."""
    store = open_store(path)
    found = [(m.row, m.trajectory, m.step) for memories, _ in store.rows() for m in memories]
    store.close()
    return found


def kill_rounds(path: Path, rounds: int) -> None:
    """A writer is killed at a random instant again and again; each time everything it acknowledged must be there, whole."""
    chance = random.Random(0)

    def write(pipe: int) -> None:
        store = open_store(path)
        for i in range(10_000):
            rows = store.append(batch(f"{os.getpid()}/{i}"))
            os.write(pipe, f"{rows[-1].row}\n".encode())

    expected = 0
    for i in range(rounds):
        child, pipe = forked(write)
        first = os.read(pipe, 1).decode() if i % 2 else ""  # half of them once they have acknowledged something, however slow the machine
        time.sleep(chance.uniform(0.0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        acknowledged = max([expected, *map(int, (first + read_all(pipe)).split("\n")[:-1])])
        rows = [row for row, _, _ in contents(path)] if path.exists() else []
        assert len(rows) >= acknowledged and len(rows) % PER_BATCH == 0, "an acknowledged batch is lost, or one is there in part"
        assert rows == list(range(1, len(rows) + 1))
        expected = len(rows)
    assert expected > 0
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_writer_killed_at_random_instants_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_rounds(tmp_path / "log.sqlite", 10)


@pytest.mark.slow
def test_a_writer_killed_sixty_times_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_rounds(tmp_path / "log.sqlite", 60)


def crowd(path: Path, seconds: float) -> None:
    """Three writers and two readers at once: no error, and every row exactly once."""
    open_store(path).close()
    end = time.monotonic() + seconds

    def write(pipe: int) -> None:
        store, i = open_store(path), 0
        while time.monotonic() < end or not i:
            i += len(store.append(batch(f"{os.getpid()}", PER_BATCH)))
        os.write(pipe, str(i).encode())

    def tail(pipe: int) -> None:
        store, seen = open_store(path), 0
        while time.monotonic() < end or not seen:  # however slow the machine
            for memories, _ in store.rows(after=seen):
                assert [m.row for m in memories] == list(range(seen + 1, seen + len(memories) + 1))
                seen += len(memories)
            assert seen % PER_BATCH == 0 or store.last_row > seen
            time.sleep(0.005)
        os.write(pipe, str(seen).encode())

    writers, readers = [forked(write) for _ in range(3)], [forked(tail) for _ in range(2)]
    wrote, read = ([int(read_all(pipe)) for _, pipe in group] for group in (writers, readers))
    assert all(os.waitpid(child, 0)[1] == 0 for child, _ in writers + readers)
    rows = contents(path)
    by_writer = [sum(trajectory == str(child) for _, trajectory, _ in rows) for child, _ in writers]
    assert by_writer == wrote and min(wrote) > 0 and min(read) > 0
    assert [row for row, _, _ in rows] == list(range(1, sum(wrote) + 1))


def test_three_writers_and_two_readers_lose_and_double_no_row(tmp_path: Path) -> None:
    crowd(tmp_path / "log.sqlite", 2.0)


@pytest.mark.slow
def test_three_writers_and_two_readers_for_twenty_seconds_lose_and_double_no_row(tmp_path: Path) -> None:
    crowd(tmp_path / "log.sqlite", 20.0)


def test_a_disk_that_fills_up_is_an_error_that_names_the_file_and_the_log_goes_on_when_there_is_space(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"

    def fill(pipe: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        store, rows = open_store(path), 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        try:
            while rows < 100_000:
                rows = store.append(batch("before", text="x" * 2000))[-1].row
        except DreamGymError as error:
            os.write(pipe, f"{error}\n".encode())
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert store.last_row == rows
        store.append(batch("after"))
        os.write(pipe, str(rows).encode())

    child, pipe = forked(fill)
    told, rows = read_all(pipe).splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert str(path) in told and ("full" in told or "disk" in told)
    assert [row for row, _, _ in contents(path)] == list(range(1, int(rows) + PER_BATCH + 1))


def test_a_truncated_log_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    store = open_store(path)
    for i in range(20):
        store.append(batch(f"t{i}", text="x" * 300))
    store.close()
    whole, content = contents(path), path.read_bytes()
    for length in (1, 50, 100, 1000, len(content) // 2, len(content) - 4096, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(RunDirError, match=r"log\.sqlite"):
            contents(path)
    path.write_bytes(content)
    assert contents(path) == whole


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter; pytest's own may not be."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so_and_its_log_can_still_be_read(open_folder: Path) -> None:
    path = open_folder / "log.sqlite"
    store = open_store(path)
    store.append(batch("a"))
    store.close()
    path.chmod(0o444)
    open_folder.chmod(0o555)

    def attempt(pipe: int) -> None:
        if os.getuid() == 0:
            os.setuid(65534)  # nobody: root may write everywhere
        for target in (path, open_folder / "new.sqlite"):
            try:
                open_store(target)
            except DreamGymError as error:
                os.write(pipe, f"{error}\n".encode())
        reader = sqlite.make(path=path, read_only=True)
        os.write(pipe, f"{len(reader)} {reader.encoder}".encode())

    child, pipe = forked(attempt)
    refused, missing, read = read_all(pipe).splitlines()
    assert os.waitpid(child, 0)[1] == 0
    assert str(path) in refused and "permissions" in refused
    assert "new.sqlite" in missing and "can be written" in missing
    assert read == f"{PER_BATCH} test"


def test_a_log_that_is_being_written_can_be_read_without_leaving_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    writer = open_store(path)
    writer.append(batch("a"))
    reader = sqlite.make(path=path, read_only=True)
    assert len(reader) == PER_BATCH and reader.dim == DIM
    with pytest.raises(DreamGymError, match="permissions"):
        reader.append(batch("b"))
    with pytest.raises(RunDirError, match=r"No replay log .*nowhere\.sqlite"):
        sqlite.make(path=tmp_path / "nowhere.sqlite", read_only=True)
    with pytest.raises(UsageError, match="dimensions of its encoder"):
        sqlite.make(path=tmp_path / "new.sqlite")


def test_a_log_that_is_wound_back_and_written_while_it_is_read_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    writer = open_store(path)
    for i in range(40):
        writer.append(batch(f"old {i}", 50))
    writer.close()  # at rest: nothing beside the file says that anybody may write
    reader = sqlite.make(path=path, read_only=True, page=200)
    pages = reader.rows()
    found = [(m.row, m.trajectory) for m in next(pages)[0]]
    writer = open_store(path)
    writer.hide_after(300)
    for i in range(60):
        writer.append(batch(f"new {i}", 50))
    writer.close()
    found += [(m.row, m.trajectory) for memories, _ in islice(pages, 20) for m in memories]
    assert found == [(row, f"old {(row - 1) // 50}") for row in range(1, 2001)]
    assert len(reader) == reader.last_row == 3300  # the next query sees what was written


def test_rows_that_only_a_dead_writers_journal_holds_are_not_silently_missing(open_folder: Path) -> None:
    path = open_folder / "log.sqlite"

    def die(pipe: int) -> None:
        open_store(path).append(batch("a"))
        os._exit(0)  # nothing is closed, as if it had been killed

    child, pipe = forked(die)
    read_all(pipe)
    os.waitpid(child, 0)
    path.with_name("log.sqlite-shm").unlink()
    assert path.with_name("log.sqlite-wal").stat().st_size > 0
    open_folder.chmod(0o555)

    def read(pipe: int) -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            os.write(pipe, f"{len(sqlite.make(path=path, read_only=True))} rows".encode())
        except DreamGymError as error:
            os.write(pipe, str(error).encode())

    child, pipe = forked(read)
    said = read_all(pipe)
    assert os.waitpid(child, 0)[1] == 0
    assert str(path) in said and "SQLITE_" in said


MOUNTINFO = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:35 / /mnt/team\\040share rw,relatime shared:20 - nfs4 server:/export rw
41 40 254:2 / /mnt/team\\040share/scratch rw - xfs /dev/vdb rw
42 22 0:36 / /cloud rw - fuse.sshfs user@host: rw
"""


def test_the_filesystem_of_a_path_is_that_of_the_innermost_mount() -> None:
    kinds = {name: filesystems.filesystem(Path(name), MOUNTINFO) for name in ("/home/a", "/mnt/team share/x", "/mnt/team share/scratch/x")}
    assert list(kinds.values()) == ["ext4", "nfs4", "xfs"]


def test_a_log_on_a_network_filesystem_is_opened_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(filesystems, "MOUNTS", table)
    for kind, warned in (("nfs4", True), ("fuse.sshfs", True), ("ext4", False)):
        table.write_text(f"22 1 254:1 / / rw - {kind} where rw\n")
        with caplog.at_level(logging.WARNING):
            open_store(tmp_path / f"{kind}.sqlite").close()
        assert (f"network filesystem ({kind})" in caplog.text) == warned
        caplog.clear()


def test_a_log_encoded_anew_opens_with_the_new_encoder_and_no_longer_with_the_old(tmp_path: Path) -> None:
    path, old, new = tmp_path / "log.sqlite", lexical.make(), lexical.make(state_dim=64)
    turns = tuple(Turn(Transition(Observation(f"page {i}"), f"click[{i}]", Observation("n"), 0.0, False)) for i in range(30))
    trajectory = Trajectory("t", Task("t", "i", "shop"), "real", turns, False)
    with ReplayBuffer.open(path, old) as late:
        late.add([trajectory])
        before = list(late.memories())
        with pytest.raises(RunDirError, match=r"replay reencode .*log\.sqlite"):
            ReplayBuffer.open(path, new)
        store = sqlite.make(path=path)
        assert store.reencode(new, batch=7) == 30 and (store.encoder, store.dim) == (new.id, new.dim)
        with pytest.raises(RunDirError, match="built with encoder"):  # it was open all the while and knows the old vectors only
            late.add([trajectory])
    with ReplayBuffer.open(path, new) as reopened, ReplayBuffer.open(None, new) as fresh:
        fresh.add([trajectory])
        assert list(reopened.memories()) == before
        assert reopened.search(["page 3"], ["click[3]"], k=5) == fresh.search(["page 3"], ["click[3]"], k=5)
    with pytest.raises(RunDirError, match="built with encoder"):
        ReplayBuffer.open(path, old)


def test_going_back_to_a_row_hides_later_rows_and_brings_back_what_was_evicted_later(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    store = open_store(path)
    store.append(batch("a"))
    store.evict([1, 2])
    checkpoint = store.last_row
    store.append(batch("b"))
    store.evict([3, 2, 9])
    assert len(store) == 2 * PER_BATCH - 4 and store.last_row == 2 * PER_BATCH
    assert store.hide_after(checkpoint) == 1  # row 3; row 9 is gone, and 1 and 2 went before the checkpoint
    assert [row for row, _, _ in contents(path)] == [3, 4, 5, 6, 7] and store.last_row == checkpoint
    assert store.append(batch("c"))[0].row == checkpoint + 1
