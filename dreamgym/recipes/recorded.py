"""What episodes must be to serve as logs: `dreamgym train` and `dreamgym init` ask the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dreamgym.errors import UsageError
from dreamgym.experience.augmentation import RELABELLED
from dreamgym.types import Trajectory


def require_logs(episodes: Iterable[tuple[Path, Trajectory]], env: str) -> None:
    """UsageError for a dream, another environment than `env`, a name given twice, and a name that says it is a copy. Each with its file."""
    known = set[str]()
    for file, episode in episodes:
        if episode.task.env != env:
            raise UsageError(f"'{file}' holds an episode of '{episode.task.env}', and the run is of '{env}'. Set env.name.")
        if episode.source == "dream":
            raise UsageError(f"'{file}' holds a dream, '{episode.id}'. Logs are real: leave out what an experience model made up.")
        if episode.id in known:
            raise UsageError(f"Two logged episodes are called '{episode.id}' (the second in '{file}'). Give every one its own id.")
        if RELABELLED in episode.id:
            raise UsageError(
                f"A logged episode is called '{episode.id}' (in '{file}'), and '{RELABELLED}' marks our own copies. Rename it."
            )
        known.add(episode.id)
