"""Directories that appear whole or not at all, and are replaced in one step: a kill at any instant leaves the old one or the new one.

Linux swaps two directories at once (`renameat2` with RENAME_EXCHANGE). Where the system or the file system cannot, the old directory steps
aside to `.NAME.old` for the instant between two renames, and `restore_interrupted` puts it back if that instant was the last.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dreamgym.errors import explain_errors

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of <fcntl.h> and <linux/fs.h>
ABANDONED_S = 3600
CANNOT = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def replace(path: Path | str, fill: Callable[[Path], object]) -> Path:
    """Let `fill` write a fresh directory, then put it at `path`; one that was there before is replaced, or stays when `fill` fails."""
    path = Path(path)
    with explain_errors(path):
        _replace(path, fill)
    return path


def restore_interrupted(path: Path | str) -> Path:
    """`path`, after the directory that an interrupted `replace` moved aside was put back; whoever reads one calls this first."""
    path = Path(path)
    aside = _aside(path)
    if aside.exists() and not path.exists():
        os.rename(aside, path)
    return path


def _replace(path: Path, fill: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_interrupted(path)
    _remove_abandoned(path)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        fill(fresh)
        fresh.chmod(0o755)
        _flush(fresh)
        if not path.exists():
            os.rename(fresh, path)
        elif _exchange(fresh, path):
            _remove(fresh)  # which is the old one now
        else:
            aside = _aside(path)
            _remove(aside)
            os.rename(path, aside)
            os.rename(fresh, path)
            _remove(aside)
    except BaseException:
        restore_interrupted(path)
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _remove_abandoned(path: Path) -> None:
    """Remove what killed processes were writing: others may be at work on the same path, but not for so long without a change."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.{'[a-z0-9_]' * 8}"):  # as `mkdtemp` names them: no dot, as in `.old`
        with suppress(OSError):  # another process may be faster
            if other.is_dir() and time.time() - max(one.stat().st_mtime for one in (other, *other.rglob("*"))) > ABANDONED_S:
                shutil.rmtree(other, ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step; False where the system cannot."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if swap is None:
        return False
    if swap(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _flush(folder: Path) -> None:
    """Everything in a folder on the disk, so that a power failure after the swap finds no empty files."""
    for place, _, names in os.walk(folder):
        for name in [".", *names]:
            file = os.open(os.path.join(place, name), os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
