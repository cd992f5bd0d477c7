"""What a person sees of a fit, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamgym.recipes.phases.fit import progress_watch
from dreamgym.runs import progress
from dreamgym.runs.rundir import RunDir


def test_the_time_left_of_a_resumed_fit_counts_from_where_it_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter([0.0, 20.0])
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run, progress_watch(run, "experience") as watch:
        monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
        watch(400, 0.400, {"loss": 2.0})  # 0 s: the first step after the interruption
        watch(420, 0.420, {"loss": 1.0})
    assert "experience: 420 of 1000, about 580 s left" in capsys.readouterr().err


def test_a_step_that_was_logged_before_the_interruption_stands_once_in_the_metrics(tmp_path: Path) -> None:
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run:
        for begin in (25, 50):
            with progress_watch(run, "experience") as watch:
                for step in range(begin, 76, 25):
                    watch(step, step / 100, {"loss": 1.0})
        assert [line["iteration"] for line in run.read_jsonl("metrics.jsonl")] == [25, 50, 75]
