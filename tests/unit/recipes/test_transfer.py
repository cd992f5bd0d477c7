"""`dreamgym transfer`: the models of one environment in another, and what its table says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy import LOOP, SHARED, command, object_in, renamed, shrink, weights

from dreamgym.config import read
from dreamgym.errors import ConfigError
from dreamgym.llm import tiny
from dreamgym.recipes import transfer, universal
from dreamgym.recipes.config import TrainConfig

TOY = f"{SHARED}\n[rl]\n{LOOP}\n".replace("epochs = 4.0", "epochs = 40.0").replace("iterations = 2", "iterations = 0")
RENAMED = renamed(TOY)


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    shrink(monkeypatch)
    files = [tmp_path / "plain.toml", tmp_path / "renamed.toml"]
    for file, text in zip(files, (TOY, RENAMED), strict=True):
        file.write_text(text)
    return files


@pytest.mark.slow
def test_every_model_is_tried_in_every_environment_and_nothing_is_measured_twice(
    configs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "both"
    call = ("transfer", *configs, "--out", out, "--held-out", "8", "--universal", "--json")
    before_universal, fit = [], universal.train
    monkeypatch.setattr(
        universal, "train", lambda *given: before_universal.append(json.loads((out / "transfer.json").read_text())) or fit(*given)
    )
    code, said, _ = command(monkeypatch, capsys, *call)
    found = object_in(said)
    assert before_universal == [{name: value for name, value in found.items() if name != "universal"}], "nothing measured waits for it"
    assert code == 0 and found == json.loads((out / "transfer.json").read_text())
    plain, renamed = found["environments"]
    vocabularies = [tiny.load(out / name / "checkpoints" / "tokenizer")[1].get_vocab() for name in (plain, renamed)]
    assert vocabularies[0] == vocabularies[1], "one tokenizer, so that a policy can read and act elsewhere"
    assert weights(out / plain, "experience") != weights(out / renamed, "experience")
    own, abroad = (found["pairs"][plain][name]["next_states_exact"]["held_out"] for name in (plain, renamed))
    assert own["n"] > 10 and own["value"] > abroad["value"], "what was learned of one world's words is not known of another's"
    for source in (plain, renamed):
        for target in (plain, renamed):
            assert {"warm_start", "dream", "next_states_exact"} == found["pairs"][source][target].keys()
    together = {name: found["universal"][name]["held_out"] for name in (plain, renamed)}
    assert together[plain]["n"] == own["n"] and together[renamed]["value"] > abroad["value"]
    table = (out / "transfer.md").read_text().splitlines()
    assert len(table) == 2 + 2 + 2 * 3 + 2 and table[-1].startswith("| none | control without a model |")
    before = {file: file.stat().st_mtime_ns for file in out.glob("pairs/*.json")}
    assert command(monkeypatch, capsys, *call)[0] == 0
    assert len(before) == 4 + 2 and before == {file: file.stat().st_mtime_ns for file in out.glob("pairs/*.json")}


def test_configurations_that_do_not_fit_one_another_are_refused(configs: list[Path]):
    plain, renamed = (read(TrainConfig, file) for file in configs)
    for wrong, error in (
        ([plain], "two or more environments"),
        ([plain, plain], "two or more environments"),
        ([plain, read(TrainConfig, configs[1], {"seed": 1})], "the same seed, model and backbones"),
        ([plain, read(TrainConfig, configs[1], {"model.vocab_size": 400})], "the same seed, model and backbones"),
        ([plain, read(TrainConfig, configs[1], {"mode": "s2r"})], "Set mode = 'dream'"),
        ([renamed, read(TrainConfig, configs[0], {"eval.tasks": 0})], "leaves nothing to act on"),
    ):
        with pytest.raises(ConfigError, match=error):
            transfer.check(wrong)
