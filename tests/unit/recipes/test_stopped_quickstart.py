"""A quickstart that is killed or interrupted in every phase, and started again each time, has the results of one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dreamgym.runs.rundir import RunDir

SCRIPT = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2] / "support")!r}]
import torch
from pathlib import Path
from test_resume import SETTINGS
from toy import SIZE
from dreamgym.cli import quickstart, main
from dreamgym.llm import sizes
from dreamgym.recipes import settings
from dreamgym.recipes.config import RunConfig
from dreamgym.config import build
from dreamgym.train.fitting import FitCheckpoint

torch.set_num_threads(1)
FitCheckpoint.EVERY_S = 0.05
sizes.SIZES["test"] = SIZE
SETTINGS["experience"]["training"]["epochs"] = 8.0
settings.budget_config = lambda *_: build(RunConfig, SETTINGS)
sys.argv = ["dreamgym", "quickstart", "--run", sys.argv[1]]
main()
"""
MOMENTS = (
    ("1/7", signal.SIGKILL), ("2/7", signal.SIGINT), ("2/7", signal.SIGKILL), ("3/7", signal.SIGKILL), ("   SFT", signal.SIGINT),
    ("4/7", signal.SIGKILL), ("4/7", signal.SIGINT), ("5/7", signal.SIGKILL), ("6/7", signal.SIGKILL), ("7/7", signal.SIGINT),
)  # fmt: skip


def start(run: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-u", "-c", SCRIPT, str(run)], text=True, stderr=subprocess.PIPE, env=environment)


def stop_in(run: Path, phase: str, number: int, delay_s: float) -> bool:
    """Start the run and send a signal soon after it announces a phase; whether it was stopped before its end."""
    process = start(run)
    for line in process.stderr:
        if line.startswith(phase):
            time.sleep(delay_s)
            process.send_signal(number)
            break
    said = process.stderr.read()
    code = process.wait()
    assert code in (0, 2, -9, 130), said
    if code == 130:
        assert "the same command resumes" in said
    return code in (-9, 130)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if "seconds" not in key and key != "peak_rss_mb"}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def results(run: Path) -> list[Any]:
    """Run to the end: the summary and the metrics. So small a run may learn nothing, which ends it with code 2 after its summary."""
    process = start(run)
    said = process.communicate()[1]
    assert process.returncode in (0, 2) and (run / "summary.json").is_file(), said
    return [without_times(json.loads((run / "summary.json").read_text())), without_times(RunDir.view(run).read_jsonl("metrics.jsonl"))]


@pytest.mark.slow
def test_a_quickstart_stopped_in_every_phase_ends_with_the_summary_and_metrics_of_an_unbroken_one(tmp_path: Path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = results(whole)
    rng = random.Random(0)
    stopped = sum(stop_in(broken, phase, number, rng.uniform(0.0, 0.6)) for phase, number in MOMENTS)
    assert stopped >= 5
    assert results(broken) == expected
