"""What can go wrong, as a tree a caller can catch by branch.

    DreamGymError
    ├── UsageError          you asked for something that cannot be: fix the command, the config or the file
    │   ├── ConfigError     an unknown key, a value out of range, two options that clash
    │   ├── PluginError     no such environment, backend, store or algorithm
    │   ├── MissingExtra    an optional package is not installed
    │   ├── MissingModel    a pretrained model is not on this machine
    │   └── RunDirError     the run directory is of another version, half-written, or not a run
    ├── ServerError         a server we depend on refused, failed for good or sent an invalid answer: a later try may help
    │   └── EnvironmentFailure  a real environment failed in an episode, which becomes a failed rollout
    └── InvariantError      a bug of ours, or external state that changed during the run: stop at once

A model's unreadable answer is not an exception: it is counted on the prediction or the trajectory (`types.Trajectory.error`).

The operating system and libraries raise errors of their own. `explain` turns those that a user can cause (a full disk, a name of 300
characters, a damaged file, a server that is away) into errors of this tree. Every other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class DreamGymError(Exception):
    """Base of every error raised on purpose."""


class UsageError(DreamGymError):
    """The request cannot be met as it stands."""


class ConfigError(UsageError):
    """A configuration key or value is wrong."""


class PluginError(UsageError):
    """No plug-in of that name."""


class MissingExtra(UsageError):
    """An optional package is needed."""


class MissingModel(UsageError):
    """A pretrained model is needed that is not on this machine."""


class RunDirError(UsageError):
    """A run directory cannot be used."""


class ServerError(DreamGymError):
    """A server failed. `status` is its last HTTP status (None: no answer came), `ticket` the request that failed, if it has one; `gone`:
    it does not answer, or only with failures of its own, so that another server of the same model may."""

    def __init__(self, message: str, *, status: int | None = None, ticket: int | None = None, gone: bool = False) -> None:
        super().__init__(message)
        self.status, self.ticket, self.gone = status, ticket, gone


class EnvironmentFailure(ServerError):
    """A real environment failed in an episode, which is a failed rollout while the run goes on. Where nearly all fail, a command ends with
    it, and goes on when it is given again."""


class InvariantError(DreamGymError):
    """Something that must hold does not."""


ADVICE = {
    errno.EACCES: "Check the permissions of the file and of its folder, or give another path.",
    errno.EPERM: "Check the permissions of the file and of its folder, or give another path.",
    errno.EROFS: "The file system is read-only: give a path on another one.",
    errno.ENAMETOOLONG: "Give a shorter name: most file systems allow 255 bytes.",
    errno.ENOENT: "Check the spelling of the path.",
    errno.EISDIR: "Expected a file: give the path of one.",
    errno.ENOTDIR: "Expected folders before the last name: give another path.",
    errno.EEXIST: "Give another path, or move away what is there.",
    errno.ELOOP: "Its symbolic links lead in a circle: give another path.",
    errno.EMFILE: "Allow more open files with `ulimit -n 4096`, or use fewer workers.",
    errno.EIO: "The disk is failing, or was taken away: check it, then give the same command again.",
}
IN_RUST = re.compile(r'\(os error (\d+)\)(?: at path "(.*)")?')  # how safetensors and tokenizers write an errno
IN_PYTHON = re.compile(r"\b\w+\.__\w+__\(\) ")  # the function that refused a value
FROM_LIBRARIES = {
    ("sqlite3", "OperationalError"), ("sqlite3", "DatabaseError"), ("safetensors", "SafetensorError"), ("lzma", "LZMAError"),
    ("_lzma", "LZMAError"), ("zipfile", "BadZipFile"), ("pyarrow", "ArrowInvalid"), ("tomllib", "TOMLDecodeError"),
    ("json", "JSONDecodeError"),
}  # fmt: skip
"""Package and name of errors that say that a file is damaged or cannot be used."""


def explain(error: BaseException, name: object = "") -> DreamGymError | None:
    """The error of this tree for one of the operating system or of a library; None for any other, which is a bug.

    `name` is the file or the address in use. Without it, the name is what the error itself carries.
    """
    package = type(error).__module__.partition(".")[0]
    if isinstance(error, DreamGymError):
        return error
    if isinstance(error, OSError):
        return _system_error(error.errno, str(name or error.filename or ""), error.strerror or str(error), error)
    if found := IN_RUST.search(str(error)):
        return _system_error(int(found[1]), str(name or found[2] or ""), os.strerror(int(found[1])), error)
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    ):
        return UsageError(f"Not enough memory{_at(name)}: {_first_line(error)}. Give a smaller model, batch or file.")
    if isinstance(error, UnicodeError):
        return UsageError(f"Text{_at(name)} cannot be read or written as UTF-8: {error}. Correct it.")
    if isinstance(error, ValueError) and str(error) == "embedded null byte":
        return UsageError(f"The path{_at(name)} holds a null character, which no path can. Correct it.")
    if (package, type(error).__name__) in FROM_LIBRARIES:
        return UsageError(f"A file{_at(name)} is damaged or cannot be used: {_first_line(error)}. Restore it, or give another.")
    if package in ("httpx", "httpcore"):
        return ServerError(f"The server{_at(name)} cannot be used: {_first_line(error)}. Check its address, and that it is running.")
    return None


@contextmanager
def explain_errors(name: object) -> Iterator[None]:
    """Raise what `explain` makes of an error in the block, with the name of the file or the address that the block uses."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DreamGymError) or (found := explain(error, name)) is None:
            raise
        raise found from error


def _system_error(code: int | None, name: str, reason: str, error: BaseException) -> DreamGymError:
    if code in (errno.ENOSPC, errno.EDQUOT):
        again = "Free some, then give the same command again: a run resumes, a file is written anew."
        return DreamGymError(f"No space left on the disk{_for(name)}. {again}")
    if isinstance(error, ConnectionError | TimeoutError) or type(error).__name__ == "gaierror":
        return ServerError(f"No connection{_for(name)}: {reason}. Check the address, and that the server is running.")
    advice = ADVICE.get(code or 0, "")
    return UsageError((f"Cannot use '{name}': {reason}." if name else f"{reason.rstrip('.')}.") + f" {advice}".rstrip())


def _at(name: object) -> str:
    return f" of '{name}'" if name else ""


def _for(name: object) -> str:
    return f" for '{name}'" if name else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")


def reason_of(error: BaseException) -> str:
    """What an error of Python about a value says, in words that need no Python."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return IN_PYTHON.sub("", str(error))[:200].rstrip(".") or "it holds what cannot be"


def unreadable(error: BaseException) -> str:
    """`reason_of` a file that cannot be parsed, with the question that this often answers."""
    if isinstance(error, RecursionError):
        return f"{reason_of(error)}."
    several = str(error).startswith("Extra data")  # json's word for what follows a whole value
    return f"{reason_of(error)}. " + ("Does it hold several values? Write each on a line of its own." if several else "Was it cut off?")


def counted(n: int, one: str, many: str = "") -> str:
    """`1 episode`, `1,200 episodes`: a number with its noun, whose plural is `many` where that is not `one` with an s."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or the empty string when nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
