"""What programs read of a run: what was not measured is no figure."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from toy import LOOP, SHARED, shrink

from dreamgym.config import dump, read
from dreamgym.evals.attribution import Attribution
from dreamgym.evals.gap import compare_success
from dreamgym.recipes import fidelity, tables
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.replayed_dreams import dream_measures
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict

RATE = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with RunDir.open(tmp_path / "run", config_toml="") as found:
        yield found


def decided(*kinds: Any) -> dict[str, Any]:
    found = Attribution()
    found.add([StepInfo(decided_by=kind, reward_by=kind) for kind in kinds])
    return found.to_json()


def episode(source: Any, *, masked: bool = False) -> Trajectory:
    info = StepInfo(verdict=Verdict("masked")) if masked else StepInfo()
    turn = Turn(Transition(Observation("a"), "b", Observation("c"), 0.0, True, info))
    return Trajectory("i", Task("t", "find it", "shop"), source, (turn,), False)


@pytest.mark.parametrize("masked", [True, False])
def test_a_gap_without_an_unmasked_dream_is_no_success_in_the_dream(run: RunDir, masked: bool):
    run.mark("logs", {"transitions": 3})
    run.mark("eval-dream", {"greedy": RATE, "sampled": RATE})
    gap = compare_success([episode("dream", masked=masked)] * 4, [episode("real")] * 4)
    run.mark("gap-dream", {"policy": "dream", "real_steps": 4, **asdict(gap)})
    assert tables.table(run, ["dream"])["dream"]["dream_success"] == (None if masked else 0.0)


def test_what_decided_the_dreams_is_of_a_phase_that_dreamed(run: RunDir):
    run.mark("grpo-real", {"decided_by": decided()})
    run.mark("grpo-dream", {"decided_by": decided("generated", "generated", "rule")})
    run.mark("dream-no-verifier", {"decided_by": decided("recalled")})
    assert dream_measures(run, None)["decided_by"]["states"]["generated"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("logged", "played", "whole"), [(10.0, 20.0, 30.0), (None, 20.0, None), (10.0, None, None)])
def test_time_in_the_real_environment_is_that_of_all_phases_or_unknown(
    run: RunDir, logged: float | None, played: float | None, whole: float | None
):
    loop = {"iterations": 1, "steps": 9, "real_steps": 9, "probe_steps": 0, "optimiser_steps": 1, "seconds": 50.0, "decided_by": decided()}
    run.mark("logs", {"transitions": 3} | ({"real_seconds": logged} if logged else {}))  # earlier versions did not count it
    run.mark("experience", {"seconds": 5.0})
    run.mark("real_only", {**loop, "real_seconds": played})
    for policy in ("warm_start", "real_only"):
        run.mark(f"eval-{policy}", {"greedy": RATE, "sampled": RATE, "seconds": 7.0})
    found = tables.table(run, ["warm_start", "real_only"])
    assert found["real_only"]["real_seconds"] == whole and found["warm_start"]["real_seconds"] == logged
    assert tables.hours({"real_seconds": whole}) == ("-" if whole is None else "0.01") and tables.hours({}) == "-"
    pooled = tables.pool([found["real_only"], {k: v for k, v in found["real_only"].items() if k != "real_seconds"}])
    assert pooled and pooled["real_seconds"] is None


def test_predictions_of_each_split_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    file, path = tmp_path / "train.toml", tmp_path / "run"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    config = read(TrainConfig, file, {"experience.training.epochs": 0.5})
    with RunDir.open(path, dump(config)) as begun:
        train_experience(begun, prepare_logs(begun, config))
    for split in ("train", "dev", "test", "train", "dev"):
        assert fidelity.held_out(path, 4, split=split)["held_out"]["split"] == split
    latest = fidelity.latest(path)
    assert latest and latest["held_out"]["split"] == "dev" and len(list((path / "fidelity").iterdir())) == 3
