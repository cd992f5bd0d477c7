"""Threads that share the processor: how long one waits for another before it sleeps."""

from __future__ import annotations

import os

CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SPINS = 20_000


def limit_spinning() -> None:
    """Let OpenMP threads spin for under a millisecond at the end of a parallel region, and then sleep. Takes effect before torch is loaded.

    By default they spin for some ten milliseconds. Beside another busy process the thread they wait for is off the processor for longer
    than that, so each region costs its time several times over. Sleeping at once (OMP_WAIT_POLICY=PASSIVE) makes small models twice as
    slow on a free machine; this costs nothing there. A choice in the environment stays.
    """
    if not any(name in os.environ for name in CHOICES):
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)
