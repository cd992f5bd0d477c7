"""A checkpoint directory is replaced in one step: whoever is killed leaves the old one or the new one, whole."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dreamgym.errors import DreamGymError
from dreamgym.runs import atomic_directory


def filling(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "inside").mkdir()
        for name in ("a", "inside/b"):
            (folder / name).write_text(text)

    return fill


def found(path: Path) -> set[str]:
    return {(path / name).read_text() for name in ("a", "inside/b")}


def cannot_exchange(one: Path, other: Path) -> bool:
    return False


def killed_at(call: int, path: Path, exchange: Callable[[Path, Path], bool]) -> bool:
    """Replace `path` in a child that dies before its n-th step on the file system; whether it got that far."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    steps = [call]

    def dying(step: Callable[..., object]) -> Callable[..., object]:
        def do(*arguments: object) -> object:
            if not steps[0]:
                os._exit(9)
            steps[0] -= 1
            return step(*arguments)

        return do

    os.rename = dying(os.rename)  # type: ignore[assignment]
    atomic_directory._exchange = dying(exchange)  # type: ignore[assignment]
    atomic_directory._remove = dying(atomic_directory._remove)  # type: ignore[assignment]
    atomic_directory.replace(path, filling("new"))
    os._exit(0)


@pytest.mark.parametrize("exchange", [atomic_directory._exchange, cannot_exchange])
def test_a_kill_between_any_two_steps_leaves_the_old_directory_or_the_new_one(
    tmp_path: Path, exchange: Callable[[Path, Path], bool]
) -> None:
    outcomes, call, died = [], 0, True
    while died:
        path = atomic_directory.replace(tmp_path / f"at-{call}", filling("old"))
        died = killed_at(call, path, exchange)
        (text,) = found(atomic_directory.restore_interrupted(path))
        outcomes.append(text)
        assert found(atomic_directory.replace(path, filling("after"))) == {"after"}  # and nothing is in the way of the next
        call += 1
    assert outcomes[0] == "old" and outcomes[-1] == "new" and outcomes == sorted(outcomes, reverse=True)


def test_a_replacement_leaves_nothing_beside_it_and_one_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(folder: Path) -> None:
        filling("half")(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "checkpoint"
    for _ in range(2):
        assert found(atomic_directory.replace(path, filling("whole"))) == {"whole"}
        with pytest.raises(DreamGymError, match="No space left on the disk for .*checkpoint"):
            atomic_directory.replace(path, fails)
        assert found(path) == {"whole"} and os.listdir(tmp_path) == ["checkpoint"]
        monkeypatch.setattr(atomic_directory, "_exchange", cannot_exchange)


def test_what_a_killed_process_was_writing_is_removed_by_a_later_one_and_what_one_is_writing_is_not(tmp_path: Path) -> None:
    path, long_ago = tmp_path / "checkpoint", 2 * atomic_directory.ABANDONED_S
    for name, age in (
        (".checkpoint.abandond", long_ago),
        (".checkpoint.writing0", 0),
        (".checkpoints.abandond", long_ago),
        (".checkpoint.v2.0.old", long_ago),
    ):
        (tmp_path / name).mkdir()
        filling("half")(tmp_path / name)
        for one in (*(tmp_path / name).rglob("*"), tmp_path / name):
            os.utime(one, (time.time() - age,) * 2)
    atomic_directory.replace(path, filling("whole"))
    assert sorted(os.listdir(tmp_path)) == [".checkpoint.v2.0.old", ".checkpoint.writing0", ".checkpoints.abandond", "checkpoint"]


def test_a_file_system_that_cannot_exchange_is_noticed_and_other_failures_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, code: int) -> None:
            def renameat2(*_: object) -> int:
                ctypes.set_errno(code)
                return -1

            self.renameat2 = renameat2

    for code in (errno.EINVAL, errno.ENOSYS):
        monkeypatch.setattr(atomic_directory.ctypes, "CDLL", lambda *_, code=code, **__: Library(code))
        assert atomic_directory._exchange(tmp_path, tmp_path) is False
    monkeypatch.setattr(atomic_directory.ctypes, "CDLL", lambda *_, **__: object())
    assert atomic_directory._exchange(tmp_path, tmp_path) is False
    monkeypatch.setattr(atomic_directory.ctypes, "CDLL", lambda *_, **__: Library(errno.EACCES))
    with pytest.raises(PermissionError):
        atomic_directory._exchange(tmp_path, tmp_path)
