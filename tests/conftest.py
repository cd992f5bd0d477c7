"""Threads, hypothesis profiles and signals for all tests.

A pytest-xdist worker and what it starts use one thread for each core that it has to itself: more would wait for each other.
Hypothesis draws the same examples on every run; `pytest --hypothesis-profile=explore` draws new ones, and so does `make test-all`
unless PROFILE=same.
"""

from __future__ import annotations

import os
import signal

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):  # before anything imports torch
    threads = max(1, len(os.sched_getaffinity(0)) // workers) if hasattr(os, "sched_getaffinity") else 1
    for variable in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads))

from hypothesis import HealthCheck, settings

# With a deadline, a slow machine would be a failure; some examples are whole files or buffers.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")

# A shell disables Ctrl-C for background processes; the commands that tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
