"""`dreamgym sweep`: a comparison at several values of its settings, and what its table says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy import LOOP, SHARED, command, object_in, shrink

from dreamgym.errors import ConfigError, UsageError
from dreamgym.recipes import compare, sweep
from dreamgym.recipes.config import CompareConfig
from dreamgym.runs.rundir import RunDir

TOY = f"""
arms = ["grpo-real"]
{SHARED}
[sft]
epochs = 0
[real]
{LOOP}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shrink(monkeypatch)
    file = tmp_path / "toy.toml"
    file.write_text(TOY)
    return file


def test_values_are_numbers_or_texts_and_their_combinations_are_points(config: Path):
    values = sweep.varied(["logs.transitions=40,80", "replay.encoder.name=lexical,dreamgym.replay.encoders.lexical"])
    assert values == {"logs.transitions": [40, 80], "replay.encoder.name": ["lexical", "dreamgym.replay.encoders.lexical"]}
    found = sweep.points(config, values)
    assert [point.folder for point in found][:2] == [
        "logs.transitions=40,replay.encoder.name=lexical", "logs.transitions=40,replay.encoder.name=dreamgym.replay.encoders.lexical"
    ]  # fmt: skip
    assert [point.config.logs.transitions for point in found] == [40, 40, 80, 80] and len(found) == 4


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        (["logs.transitions=40,40"], "gives no value, or one twice"),
        (["logs.transitions="], "gives no value, or one twice"),
        (["=4"], "sets nothing"),
        ([], "varies at least one setting"),
        (["seed=0,1"], r"'seed' is the setting of a single run.*write seeds = \[0, 1\]"),
    ],
)
def test_what_varies_nothing_is_refused(pairs: list[str], error: str):
    with pytest.raises((ConfigError, UsageError), match=error):
        sweep.varied(pairs)


def test_more_points_than_anybody_waits_for_are_refused_before_one_is_made(config: Path):
    with pytest.raises(UsageError, match="The values of seed, logs.transitions make 20,000 points"):
        sweep.points(config, {"seed": range(10_000), "logs.transitions": [40, 80]})


def test_a_value_that_one_point_cannot_have_is_refused_before_anything_is_trained(config: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="No model size 'huge'"):
        sweep.points(config, {"model.size": ["test", "huge"]})
    with pytest.raises(ConfigError, match="logs.transition"):
        sweep.points(config, {"logs.transition": [40, 80]})
    with pytest.raises(ConfigError, match="share the folder"):
        sweep.points(config, {"env.options": [{"length": 4}, {"length": "4"}]})
    assert not list(tmp_path.glob("toy-*"))


def test_more_logs_are_another_point_and_a_finished_point_is_not_made_again(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "curve"
    call = ("sweep", "logs.transitions=40", "--config", config, "--out", out, "--held-out", "8", "--json")
    assert command(monkeypatch, capsys, *call)[0] == 0
    made = out / "logs.transitions=40" / "seed-0" / "checkpoints" / "grpo-real" / "model.safetensors"
    before = made.stat().st_mtime_ns
    code, said, _ = command(monkeypatch, capsys, "sweep", "logs.transitions=40,100", *call[2:])
    found = object_in(said)
    assert code == 0 and found == json.loads((out / "sweep.json").read_text()) and made.stat().st_mtime_ns == before
    logged = [RunDir.view(out / point["folder"] / "seed-0").data("logs")["transitions"] for point in found["points"]]
    assert 40 <= logged[0] < 60 < 100 <= logged[1] < 120
    for point in found["points"]:
        exact = point["next_states_exact"]
        assert set(exact) == {"held_out", "no_model"} and 0.0 <= exact["no_model"]["mean"] <= 1.0
        assert point["table1"]["grpo-real"]["per_seed"]
    lines = (out / "sweep.md").read_text().splitlines()
    assert lines[2].startswith("| logs.transitions | model: next states exact, %") and len(lines) == 6
    code, said, _ = command(monkeypatch, capsys, *call[:-1])
    assert code == 0 and "2 of 2 points" in said, "what the folder has stays in the table"
    assert object_in((out / "sweep.json").read_text())["points"] == found["points"]


def test_values_are_added_to_a_sweep_and_an_interruption_shortens_no_table(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out, call = tmp_path / "curve", ("--config", config, "--out", tmp_path / "curve", "--held-out", "0", "--json")
    assert command(monkeypatch, capsys, "sweep", "logs.transitions=40,60", *call)[0] == 0
    before = (out / "sweep.md").read_text()
    compared = compare.run

    def interrupted(one: CompareConfig, *given: Any, **options: Any) -> dict[str, Any]:
        if one.logs.transitions == stops_at:
            raise KeyboardInterrupt
        return compared(one, *given, **options)

    monkeypatch.setattr(compare, "run", interrupted)
    for stops_at, rows in ((60, 2), (80, 2), (0, 3)):
        code, _, _ = command(monkeypatch, capsys, "sweep", "logs.transitions=80", *call)
        points = object_in((out / "sweep.json").read_text())["points"]
        assert (code == 0) == (not stops_at) and [one["at"]["logs.transitions"] for one in points] == [40, 60, 80][:rows]
        assert stops_at != 60 or (out / "sweep.md").read_text() == before
    code, _, said = command(monkeypatch, capsys, "sweep", "eval.tasks=2", *call)
    assert code == 2 and "holds a sweep of logs.transitions, and this one is of eval.tasks" in said


def test_a_sweep_needs_a_comparison(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    code, _, error = command(monkeypatch, capsys, "sweep", "logs.transitions=40,100")
    assert code == 2 and "Give --config FILE" in error
