"""Threads that share the processor: how long one waits for another before it sleeps."""

from __future__ import annotations

import os

SPINS = 3_000
LIMITS = {"GOMP_SPINCOUNT": str(SPINS), "KMP_BLOCKTIME": "1"}
"""By OpenMP runtime: GNU's counts turns of a loop, those of Intel and LLVM (https://openmp.llvm.org/design/Runtimes.html) milliseconds.
Each runtime reads its own variable alone."""
CHOICES = (*LIMITS, "OMP_WAIT_POLICY")


def limit_spinning() -> None:
    """Let OpenMP threads spin for a tenth of a millisecond or so (a millisecond with the runtimes of Intel and LLVM) at the end of a
    parallel region, and then sleep. Takes effect before torch is loaded.

    By default they spin for some ten milliseconds with GNU's runtime, which torch brings, and for 200 with those of Intel and LLVM. Beside
    another busy process the thread they wait for is off the processor for longer than that, so each region costs its time several times
    over. Sleeping at once (OMP_WAIT_POLICY=PASSIVE), or after 300 turns, makes small models three times as slow on a free machine; 1,000
    turns and more cost nothing there (docs/lab/log.md, 2026-11-29). A choice in the environment stays.
    """
    if not any(name in os.environ for name in CHOICES):
        os.environ.update(LIMITS)
