"""`dreamgym replay`: statistics, export and import of replay logs."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli._show import Json, table
from dreamgym.errors import DreamGymError, counted

app = typer.Typer(help="Statistics, export and import of replay logs.", no_args_is_help=True)
Log = Annotated[Path, typer.Argument(help="A replay log, such as runs/quickstart/replay/dream.sqlite.")]


@app.command(name="stats")
def replay_stats(log: Log, as_json: Json = False) -> None:
    """Print the contents of a replay log: rows by environment and source, rewards, verdicts, size."""
    from dreamgym.replay.statistics import statistics

    found = statistics(log)
    if as_json:
        print(json.dumps(found))
        return
    columns = ["env", "source", "rows", "trajectories", "contents", "mean reward", "rewarded", "punished", "terminal"]
    rows = [[f"{one[key]:.3f}" if key == "mean_reward" else str(one[key]) for key in (c.replace(" ", "_") for c in columns)]
            for one in found["groups"]]  # fmt: skip
    table(f"{counted(found['rows'], 'row')} in use, {found['evicted']:,} evicted, {found['bytes'] / 1e6:,.1f} MB", columns, rows)
    print(f"encoder: {found['encoder']} ({found['dim']} numbers a row)")
    for what, n in found["damaged"].items():
        rows_have = counted(n, "row has", "rows have")
        print(f"damaged: {rows_have} {what}. Restore the file from a backup, or encode it anew (dreamgym replay reencode).")
    print("verdicts: " + ", ".join(f"{verdict or 'not judged'} {n:,}" for verdict, n in found["verdicts"].items()))


@app.command(name="export")
def replay_export(log: Log, to: Annotated[Path, typer.Argument(help="A file to write: .jsonl or .parquet.")]) -> None:
    """Write the rows of a replay log to a file that `datasets` and pandas read."""
    from dreamgym.replay import export
    from dreamgym.replay.stores import open_to_read

    with closing(open_to_read(log)) as store:
        print(f"{counted(export.export(store, to), 'row')}: {to}")


@app.command(name="import")
def replay_import(
    log: Log, file: Annotated[Path, typer.Argument(help="A file that `replay export` wrote, or one with its columns.")]
) -> None:
    """Add the rows of a file to a replay log with the lexical encoder; a missing log is created. All rows are added, or none."""
    from dreamgym.replay import export
    from dreamgym.replay.buffer import ReplayBuffer
    from dreamgym.replay.encoders import lexical

    trajectories = list(export.read(file))
    rows = sum(turn is not export.GAP for trajectory in trajectories for turn in trajectory.turns)
    with ReplayBuffer.open(log, lexical.make()) as buffer:
        added = buffer.add(trajectories)
        print(f"{counted(added, 'row')} added, {rows - added:,} refused: {log}")


@app.command(name="reencode")
def replay_reencode(
    log: Log, encoder: Annotated[str, typer.Option(help="An encoder of dreamgym/replay/encoders, or a dotted module name.")] = "lexical"
) -> None:
    """Encode all rows of a replay log again with another encoder at its default settings."""
    from dreamgym import plugins
    from dreamgym.replay.stores import sqlite

    if not log.is_file():
        raise DreamGymError(f"There is no replay log '{log}'. Expected a file such as runs/quickstart/replay/dream.sqlite.")
    made = plugins.make("replay.encoders", encoder)
    with closing(sqlite.make(path=log)) as store:
        print(f"{counted(store.reencode(made), 'row')} encoded with {made.id}: {log}")
