"""`[replay]`: which memory a run's dreams are grounded in is a matter of its configuration, and is checked before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy import LOOP, SHARED, command, object_in, shrink

from dreamgym.config import build, dump, read
from dreamgym.errors import ConfigError, DreamGymError, PluginError
from dreamgym.llm import tiny
from dreamgym.recipes import factory
from dreamgym.recipes.blocks import ReplayConfig
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import open_context, open_run
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.rundir import RunDir

DREAM = f'mode = "dream"\n{SHARED}\n[rl]\n{LOOP}'.replace("epochs = 4.0", "epochs = 25.0")  # enough to be worth dreaming in


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)


@pytest.fixture
def dream(tmp_path: Path) -> Path:
    (tmp_path / "dream.toml").write_text(DREAM)
    return tmp_path / "dream.toml"


def test_a_run_remembers_with_the_encoder_and_the_limits_of_its_configuration(
    tmp_path: Path, dream: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    chosen = ('replay.encoder={name = "lexical", action_weight = 0.25}', "replay.max_rows=1")
    code, _, err = command(monkeypatch, capsys, "train", tmp_path / "run", *chosen, "--config", dream, "--json")
    assert code == 0, err
    code, out, _ = command(monkeypatch, capsys, "replay", "stats", tmp_path / "run" / "replay" / "dream.sqlite", "--json")
    found = object_in(out)
    assert "action_weight=0.25" in found["encoder"]
    assert found["evicted"] > 0 and {group["source"] for group in found["groups"]} == {"demo"}  # logs stay, dreams went
    with factory.replay_in_memory(open_context(tmp_path / "run")) as remembered:
        assert len(remembered) == RunDir.view(tmp_path / "run").data("logs")["transitions"]


def test_what_cannot_remember_is_refused_before_anything_is_made(
    tmp_path: Path, dream: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for setting, told in {
        'replay.encoder={name = "lexcial"}': "Did you mean 'lexical'",
        'replay.encoder={name = "lexical", weight = 1}': "Unknown key 'weight'",
        "replay.encoder={name = 1}": "an encoder's name is text",
        'replay.encoder={name = "hidden"}': "it needs a checkpoint. Set checkpoint to the folder of a trained model",
        'replay.store="sqlte"': "Did you mean 'sqlite'",
        'replay.index="exacd"': "Did you mean 'exact'",
        "replay.index_options={devise = 1}": "Unknown key 'devise'",
        "replay.max_row=1": "Did you mean 'max_rows'",
    }.items():
        code, _, err = command(monkeypatch, capsys, "train", tmp_path / "run", setting, "--config", dream)
        assert code == 2 and told in err, (setting, err)
    assert not (tmp_path / "run" / "episodes").exists()
    corrected = read(TrainConfig, dream)  # in the same directory
    with open_run(tmp_path / "run", corrected) as run:
        assert prepare_logs(run, corrected).logs


def test_a_trained_model_is_an_encoder_by_its_hidden_states_and_other_weights_are_another_encoder(tmp_path: Path):
    tokenizer = tiny.train_tokenizer(["room 1 go right"], vocab_size=300, special=[], token_patterns=[])
    ids = []
    for seed in (0, 1):
        folder = tmp_path / f"model-{seed}"
        tiny.save(tiny.build(tokenizer, "1m", seed=seed), tokenizer, folder)
        made = factory.encoder({"name": "hidden", "checkpoint": str(folder), "action_weight": 0.3})
        assert made.encode(["room 1"], ["go right"]).shape == (1, made.dim)
        ids.append(made.id)
    assert ids[0] != ids[1] and "action_weight=0.3" in ids[0]
    with pytest.raises(DreamGymError, match="no weights at"):
        factory.encoder({"name": "hidden", "checkpoint": str(tmp_path / "nowhere")})


def test_the_block_is_written_and_read_back(dream: Path, tmp_path: Path):
    given = {"replay.encoder": {"name": "endpoint", "base_url": "http://localhost:1", "model": "bge", "dim": 4}, "replay.max_rows": 2}
    config = read(TrainConfig, dream, given)
    (tmp_path / "back.toml").write_text(dump(config))
    assert read(TrainConfig, tmp_path / "back.toml") == config
    assert config.replay.settings.max_rows == 2
    with pytest.raises(ConfigError, match="max_rows"):
        build(ReplayConfig, {"max_rows": -1})
    with pytest.raises(PluginError, match="No replay.stores plug-in 'lnace'"):
        factory.check_replay(ReplayConfig(store="lnace"))


def test_the_log_of_another_store_has_its_name():
    assert factory.file_name("dream", ReplayConfig()) == "dream.sqlite"
    assert factory.file_name("dream", ReplayConfig(store="my_company.stores.redis")) == "dream.redis"
