"""Showing how far a long job is and how long it will take, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")


class Advance(Protocol):
    """Say that `count` more are done, and what there is to say of it."""

    def __call__(self, count: int = 1, note: str = "") -> None: ...


@contextmanager
def progress(total: int | None, description: str, *, start: int = 0, every_s: float = 10.0) -> Iterator[Advance]:
    """Progress from `start` to `total`; the block calls what it is given.

    with progress(len(tasks), "collecting") as advance:
        for task in tasks:
            ...
            advance()
    """
    if not sys.stderr.isatty():
        yield _lines(total, description, start, every_s)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(description, total=total, completed=start, note="")

        def advance(count: int = 1, note: str = "") -> None:
            bar.update(job, advance=count, note=note)

        yield advance


def _lines(total: int | None, description: str, start: int, every_s: float) -> Advance:
    started = last = time.monotonic()
    done = start

    def advance(count: int = 1, note: str = "") -> None:
        nonlocal done, last
        done += count
        now = time.monotonic()
        if now - last >= every_s:
            last = now
            left = f" of {total}, about {(now - started) / (done - start) * (total - done):.0f} s left" if total and done > start else ""
            print(f"{description}: {done}{left} ({now - started:.0f} s so far){' ' + note if note else ''}", file=sys.stderr, flush=True)

    return advance
