"""Threads of a run leave the processor to other processes soon, unless the user chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dreamgym.runs.threads import CHOICES, LIMITS, SPINS, limit_spinning


@pytest.mark.parametrize("chosen", [None, *CHOICES])
def test_waiting_threads_sleep_soon_unless_the_user_chose_otherwise(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOICES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if chosen:
        monkeypatch.setenv(chosen, "active")
    limit_spinning()
    assert {name: os.environ.get(name) for name in CHOICES} == dict.fromkeys(CHOICES) | ({chosen: "active"} if chosen else LIMITS)


def test_the_command_sets_it_before_torch_is_loaded() -> None:
    code = (
        "import os, sys\nfrom dreamgym import cli\n"
        "cli.app = lambda: print('torch' in sys.modules, os.environ['GOMP_SPINCOUNT'])\ncli.main()"
    )
    kept = {name: value for name, value in os.environ.items() if name not in CHOICES}
    done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", str(SPINS)]
