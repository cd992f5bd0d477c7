"""The examples run as their first lines say, from the root of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output(name: str) -> str:
    done = subprocess.run([sys.executable, f"examples/{name}.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_shop_shows_an_expert_who_buys_and_a_click_that_changes_nothing():
    assert "the episode is over: reward 1" in (said := output("01_the_shop")) and "and nothing changes" in said


def test_the_guard_refuses_what_the_model_grants():
    without, guarded = output("02_guard").split("== with the guard")
    assert without.count("reward 1, over") == 4 and guarded.count("reward 0") == 4 and "price 70.0 is above 40.0" in guarded


@pytest.mark.slow
def test_the_whole_loop_makes_a_policy_better_in_the_real_corridor_by_dreams_alone():
    said = output("03_the_whole_loop")
    before, after = (float(one) for one in re.findall(r"real success (0\.\d+)", said))
    assert after > before + 0.25 and "real steps of training: 0" in said


def test_the_example_of_a_file_of_logs_is_read_back(tmp_path: Path):
    """The snippet of docs/your_environment.md, as it stands there."""
    guide = (ROOT / "docs" / "your_environment.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    episode = [("lamp 1: off", "press 1", "lamp 1: on", 0.0, False), ("lamp 1: on", "leave", "you are outside", 1.0, True)]
    exec(snippet.replace('"episodes.jsonl"', repr(str(tmp_path / "episodes.jsonl"))), {"episode": episode})

    from dreamgym.episodes import read_trajectories

    (read,) = read_trajectories(tmp_path / "episodes.jsonl")
    assert read.success and [t.action for t in read.transitions] == ["press 1", "leave"] and read.task.env == "desk"
