"""How hypothesis looks for counterexamples (the same ones on every run, so that a suite which passed passes again), and Ctrl-C for tests.

`pytest --hypothesis-profile=explore` looks for new ones, and so does `make test-all`, unless it is told PROFILE=same.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A deadline would make a slow machine a failure; some of our examples are whole files or buffers.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")

# Shells switch Ctrl-C off for what runs in the background, and the commands that tests start and interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
