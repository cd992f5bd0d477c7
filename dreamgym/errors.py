"""What can go wrong, as a tree a caller can catch by branch.

    DreamGymError
    ├── UsageError          you asked for something that cannot be: fix the command, the config or the file
    │   ├── ConfigError     an unknown key, a value out of range, two options that clash
    │   ├── PluginError     no such environment, backend, store or algorithm
    │   ├── MissingExtra    an optional package is not installed
    │   └── RunDirError     the run directory is of another version, half-written, or not a run
    ├── ServerError         a server we depend on refused, failed for good or broke its word: a later try may help
    └── InvariantError      a bug of ours, or a world that changed under us: stop at once

A model that answers garbage is not an exception: it is counted on the prediction or the trajectory (`types.Trajectory.error`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


class RunDirError(UsageError):
    """A run directory cannot be used."""


class ServerError(DreamGymError):
    """A server failed. `status` is its last HTTP status (None: no answer came), `ticket` the request that failed, if it has one."""

    def __init__(self, message: str, *, status: int | None = None, ticket: int | None = None) -> None:
        super().__init__(message)
        self.status, self.ticket = status, ticket


class InvariantError(DreamGymError):
    """Something that must hold does not."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or the empty string when nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
