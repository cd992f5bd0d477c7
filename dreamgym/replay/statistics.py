"""What is in a replay log. SQLite counts itself, without disturbing a run that writes; other logs are read."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dreamgym.errors import RunDirError
from dreamgym.replay.stores import open_to_read, sqlite
from dreamgym.types import Memory

BY_SOURCE = """
SELECT e.env, e.source, count(*), count(DISTINCT e.number), count(DISTINCT t.action || char(0) || t.next_state),
       avg(t.reward), sum(t.reward > 0), sum(t.reward < 0), sum(t.terminated), max(e.policy_version), max(e.model_version)
FROM transitions t JOIN trajectories e ON e.number = t.trajectory WHERE t.evicted_at IS NULL
GROUP BY e.env, e.source ORDER BY e.env, e.source
"""
NAMES = (
    "env",
    "source",
    "rows",
    "trajectories",
    "contents",
    "mean_reward",
    "rewarded",
    "punished",
    "terminal",
    "policy_version",
    "model_version",
)
DAMAGED = """
SELECT count(*) FILTER (WHERE e.number IS NULL),
       count(*) FILTER (WHERE typeof(t.vector) != 'blob' OR length(t.vector) != 2 * :dim),
       count(*) FILTER (WHERE t.vector = zeroblob(2 * :dim) AND t.state || t.action != ''),
       count(*) FILTER (WHERE NOT CASE WHEN json_valid(t.neighbours) THEN json_type(t.neighbours) = 'array' AND NOT EXISTS (
           SELECT 1 FROM json_each(t.neighbours) WHERE type != 'integer') ELSE 0 END)
FROM transitions t LEFT JOIN trajectories e ON e.number = t.trajectory
"""
DAMAGES = ("no trajectory", "a vector of another size", "a vector of zeros", "neighbours that are no list of rows")
VERDICTS = "SELECT verdict, count(*) FROM transitions WHERE evicted_at IS NULL GROUP BY verdict ORDER BY count(*) DESC, verdict LIMIT 10"


def statistics(path: Path) -> dict[str, Any]:
    """Counts of a log at `path`.

    `rows` in use, `evicted`, `last_row`, `encoder`, `dim`, `bytes` on disk, `verdicts` (the ten commonest), and `groups`: one object per
    environment and source with the NAMES above. `contents` are distinct pairs of action and next state. `damaged` are rows, evicted ones
    too, by what is wrong with them.
    """
    if path.is_dir():
        return _read(path)
    with closing(sqlite.make(path=path, read_only=True)) as store:
        encoder, dim = store.encoder, store.dim
    try:
        with closing(sqlite.connect_to_read(path)) as db:
            db.execute("BEGIN")  # the counts are of one moment
            groups = [dict(zip(NAMES, found, strict=True)) for found in db.execute(BY_SOURCE)]
            verdicts = dict(db.execute(VERDICTS).fetchall())
            damages = zip(DAMAGES, db.execute(DAMAGED, {"dim": dim}).fetchone(), strict=True)
            evicted, last_row = db.execute("SELECT count(evicted_at), coalesce(max(row), 0) FROM transitions").fetchone()
    except sqlite3.Error as error:
        raise RunDirError(f"Replay log '{path}' cannot be counted: {error}. Try again when nothing rewrites it, or restore it.") from error
    beside = [path, path.with_name(path.name + "-wal")]
    return {
        "rows": sum(group["rows"] for group in groups),
        "evicted": evicted,
        "last_row": last_row,
        "encoder": encoder,
        "dim": dim,
        "bytes": sum(file.stat().st_size for file in beside if file.is_file()),
        "verdicts": verdicts,
        "groups": groups,
        "damaged": {name: n for name, n in damages if n},
    }


def _read(path: Path) -> dict[str, Any]:
    """The same of a log in a folder, from its rows. Evicted ones are not seen, and counted as the numbers that are missing."""
    with closing(open_to_read(path)) as store:
        found = [memory for page, _ in store.rows() for memory in page]
        encoder, dim, last_row = store.encoder, store.dim, store.last_row
    groups: dict[tuple[str, str], list[Memory]] = defaultdict(list)
    for memory in found:
        groups[memory.env, memory.source].append(memory)
    return {
        "rows": len(found),
        "evicted": last_row - len(found),
        "last_row": last_row,
        "encoder": encoder,
        "dim": dim,
        "bytes": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
        "verdicts": dict(Counter(memory.verdict for memory in found).most_common(10)),
        "groups": [dict(zip(NAMES, _counts(env, source, groups[env, source]), strict=True)) for env, source in sorted(groups)],
        "damaged": {},  # whoever reads the rows is refused those
    }


def _counts(env: str, source: str, memories: Sequence[Memory]) -> tuple[Any, ...]:
    """Of one group, in the order of NAMES."""
    rewards = [memory.reward for memory in memories]
    return (
        env,
        source,
        len(memories),
        len({memory.trajectory for memory in memories}),
        len({(memory.action, memory.next_state) for memory in memories}),
        sum(rewards) / len(rewards),
        sum(reward > 0 for reward in rewards),
        sum(reward < 0 for reward in rewards),
        sum(memory.terminated for memory in memories),
        max(memory.policy_version for memory in memories),
        max(memory.model_version for memory in memories),
    )
