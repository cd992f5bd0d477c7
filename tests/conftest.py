"""Threads, hypothesis profiles and signals for all tests.

A pytest-xdist worker and what it starts use one thread for each core that it has to itself: more would wait for each other.
Hypothesis draws the same examples on every run; `pytest --hypothesis-profile=explore` draws new ones, and so does `make test-all`
unless PROFILE=same.

Each run notes what it passed, and `--not-passed` leaves that out: `make test-all PASSED=skip` right after `make test`, of the same code,
runs what is slow and what had needed an extra.
"""

from __future__ import annotations

import os
import signal

import pytest

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

PASSED = "dreamgym/passed"
"""The key under which pytest's cache keeps the names of the tests that passed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--not-passed", action="store_true", help="leave out the tests that the last run passed")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed = set(_passed_before(config))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


class Passed:
    """Notes what passed and did not fail in its setup or teardown, in the process that collects the reports of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.passed, self.failed = config, set(_passed_before(config)), set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.config.cache.set(PASSED, sorted(self.passed - self.failed))


def _passed_before(config: pytest.Config) -> list[str]:
    """With `--not-passed`, what earlier runs passed."""
    cache = getattr(config, "cache", None)  # absent with -p no:cacheprovider
    return list(cache.get(PASSED, [])) if cache is not None and config.getoption("not_passed") else []


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and getattr(config, "cache", None) is not None:
        config.pluginmanager.register(Passed(config))
