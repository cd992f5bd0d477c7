"""Three episodes, turn by turn: a dreamed success, a dreamed failure (one that the guard refused, if there is one) and a real one."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dreamgym.replay.stores.sqlite import connect_to_read
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Trajectory

ITERATION = re.compile(r"(dream|mixed)-\d+")  # episodes of the loop itself: not of its ablations, and not what its probes met
PAGE = 400  # rows asked for at a time: SQLite limits the parameters of a query

READ = """
SELECT t.row, e.source, e.instruction, t.state, t.action, t.next_state, t.reward
FROM transitions t JOIN trajectories e ON e.number = t.trajectory WHERE t.row IN ({})
"""


@dataclass(frozen=True)
class Remembered:
    """A row of the replay buffer that the experience model was shown."""

    row: int
    source: str
    instruction: str
    state: str
    action: str
    next_state: str
    reward: float


@dataclass(frozen=True)
class Shown:
    """An episode of the page, with the text of its neighbours as far as the replay log still has it."""

    title: str
    file: str
    trajectory: Trajectory
    memories: Mapping[int, Remembered]


def chosen(run: RunDir) -> list[Shown]:
    """Up to three episodes; fewer when a run has not come so far."""
    names = run.episode_names()
    dreams = [*sorted(filter(ITERATION.fullmatch, names), reverse=True), *(n for n in names if n == "audit-with_guard")]
    real = [f"eval-{policy}-greedy" for policy in ("s2r", "dream", "mixed", "real_only", "sft", "warm_start")]
    wanted: list[tuple[str, Iterable[str], Callable[[Trajectory], bool]]] = [
        ("A dreamed success", dreams, lambda t: t.source == "dream" and t.success),
        ("A dreamed failure", dreams, lambda t: t.source == "dream" and not t.success and t.error is None),
        ("A real episode on a held-out task", [n for n in real if n in names], lambda t: t.error is None),
    ]
    return [shown for title, files, fits in wanted if (shown := _first(run, title, files, fits))]


def _first(run: RunDir, title: str, files: Iterable[str], fits: Callable[[Trajectory], bool]) -> Shown | None:
    """An episode of the first file that has one that fits. Of dreams one that the guard refused, if there is one, and of middle length. Of
    real episodes the first: a choice by length would be one by success."""
    for file in files:
        found = [t for t in run.read_episodes(file) if t.turns and fits(t)]
        if found:
            best = min(found, key=lambda t: (not _refused(t), abs(len(t.turns) - 4) if t.source == "dream" else 0))
            return Shown(title, file, best, _memories(run, file, best))
    return None


def _refused(trajectory: Trajectory) -> bool:
    return any(t.info.verdict is not None and not t.info.verdict.passed for t in trajectory.transitions)


def _memories(run: RunDir, file: str, trajectory: Trajectory) -> dict[int, Remembered]:
    """The neighbours' text. An audit's own buffer held the logs alone, which are the first rows of the dream's."""
    rows = sorted({row for transition in trajectory.transitions for row in transition.info.neighbours})
    loop = match[1] if (match := ITERATION.fullmatch(file)) else "dream"
    log = run.path / "replay" / f"{loop}.sqlite"
    if not rows or not log.is_file():
        return {}
    try:
        return {memory.row: memory for memory in _read(log, rows)}
    except sqlite3.Error:  # being rewritten, or of another version: the page shows row numbers instead
        return {}


def _read(log: Path, rows: list[int]) -> Iterator[Remembered]:
    """Rows by number, all from the log as it is at one moment."""
    with closing(connect_to_read(log, timeout_s=1.0)) as db:
        db.execute("BEGIN")
        for start in range(0, len(rows), PAGE):
            page = rows[start : start + PAGE]
            for columns in db.execute(READ.format(", ".join("?" * len(page))), page):
                yield Remembered(*columns)
