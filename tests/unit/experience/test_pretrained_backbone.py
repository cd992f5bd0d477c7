"""A pretrained model as the experience model: fitted in the layout of markers, whole or with adapters, beside a policy over its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_model import save_instruct_model
from toy import LOOP, SHARED, command, shrink
from transformers import AutoModelForCausalLM

from dreamgym.config import read, resolve
from dreamgym.errors import ConfigError, UsageError
from dreamgym.experience.prompts import opening
from dreamgym.llm import memory
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.llm.vocabulary import END, MARKERS
from dreamgym.recipes import context, factory
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.rundir import RunDir
from dreamgym.train import sft
from dreamgym.types import Query

pytest.importorskip("peft")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_instruct_model(tmp_path_factory.mktemp("hub") / "blank")


def settings(path: Path, model: Path, lora: str, *, epochs: float = 2.0) -> TrainConfig:
    both = f'model = "{model}"\n{lora}\n'
    policy = f'[policy]\ninstructions = "Such as Action: left."\n[policy.backbone]\n{both}'
    shared = SHARED.replace("epochs = 4.0", f"epochs = {epochs}\nlr = 5e-3").replace("epochs = 12.0", "epochs = 0.0")
    path.write_text(f"{shared}\n[experience.backbone]\n{both}\n{policy}\n[rl]\n{LOOP}")
    return read(TrainConfig, path)


@pytest.mark.parametrize("lora", ["", "lora = {rank = 8}"])
def test_a_backbone_is_fitted_to_the_logs_and_dreams_and_its_checkpoint_is_an_ordinary_one(
    lora: str, instruct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, path = settings(tmp_path / "run.toml", instruct, lora), tmp_path / "run"
    with context.open_run(path, config) as run:
        shared = prepare_logs(run, config)
        before = shared.load_experience_model("tokenizer")
        train_experience(run, shared)
    assert run.data("experience")["loss_state"] < 5.0, "letters alone are 5.6 nats"
    words = shared.experience_vocabulary
    assert {words[marker] for marker in (*MARKERS, END)} and len(set(words.ids.values())) == len(MARKERS) + 1
    assert words.decode(words.encode("go <|end|> [left]\n")) == "go <|end|> [left]\n" and not words.marks & set(words.encode("<|end|>"))
    _, model = factory.make_dream(shared, factory.replay_in_memory(shared))
    (task, *_) = shared.suite.tasks("train", 2, seed=0)
    (first,) = model.start([task], seed=0)
    (predicted,) = model.predict([Query(task, (), first, "left", (0, 0, 0))])
    assert isinstance(predicted.next_state.text, str) and sum(model.counts.values()) >= 1
    folder = path / "checkpoints" / "experience"
    assert (folder / ("adapter_model.safetensors" if lora else "model.safetensors")).is_file()
    after = shared.load_experience_model("experience")
    new = words[END]
    assert not torch.equal(before.get_input_embeddings().weight[new], after.get_input_embeddings().weight[new]), "new tokens are trained"
    if lora:
        assert torch.equal(before.get_input_embeddings().weight[:200], after.get_input_embeddings().weight[:200])
        code, out, err = command(monkeypatch, capsys, "merge", folder, tmp_path / "whole")
        assert code == 0 and Path(out.strip()) == tmp_path / "whole", err
        assert command(monkeypatch, capsys, "merge", folder, tmp_path / "whole")[0] == 2, "nothing is overwritten"
        folder = tmp_path / "whole"
    ids = torch.tensor([opening(words, "task", "state")])
    theirs = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    assert torch.allclose(after(ids).logits, theirs, atol=1e-4)


def test_an_interrupted_fit_of_adapters_goes_on_to_the_same_weights(
    instruct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path / "run.toml", instruct, "lora = {rank = 4}", epochs=1.0)

    def fitted(name: str, stop_at: int | None) -> bytes:
        path = tmp_path / name
        monkeypatch.setattr(sft.FitCheckpoint, "EVERY_S", 0.0)
        for attempt in range(2):
            with context.open_run(path, config) as run:
                shared = prepare_logs(run, config)
                if attempt == 0 and stop_at is not None:
                    monkeypatch.setattr(sft, "_step", _broken(stop_at, step))
                    with pytest.raises(KeyboardInterrupt):
                        train_experience(run, shared)
                    monkeypatch.setattr(sft, "_step", step)
                else:
                    train_experience(run, shared)
        return (path / "checkpoints" / "experience" / "adapter_model.safetensors").read_bytes()

    step = sft._step
    assert fitted("whole", None) == fitted("broken", 3)


def _broken(after: int, step: Any) -> Any:
    done = 0

    def stepped(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done > after:
            raise KeyboardInterrupt
        return step(*arguments)

    return stepped


def test_experience_model_and_policy_differ_by_adapters_over_the_same_weights(instruct: Path, tmp_path: Path) -> None:
    config = settings(tmp_path / "run.toml", instruct, "lora = {rank = 4}")
    with context.open_run(tmp_path / "run", config) as run:
        shared = prepare_logs(run, config)
    dreamer, policy = shared.load_experience_model("tokenizer"), shared.policies.initial_model(tmp_path)
    frozen = [{p.data_ptr() for name, p in m.named_parameters() if "base_layer" in name and "proj" in name} for m in (dreamer, policy)]
    assert frozen[0] == frozen[1] != set()
    own = [{p.data_ptr() for p in m.parameters() if p.requires_grad} for m in (dreamer, policy)]
    assert not own[0] & own[1]


def test_what_cannot_be_fitted_is_refused_before_anything_is_made(instruct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="A small policy starts as a small experience model"):
        resolve(TrainConfig, {"experience": {"backbone": {"model": str(instruct)}}}, where="here")
    muon = {"backbone": {"model": str(instruct)}, "training": {"optimiser": "muon", "epochs": 2.0}}
    with pytest.raises(ConfigError, match="experience.training.optimiser = 'muon'"):
        resolve(TrainConfig, {"start": "scratch", "experience": muon}, where="here")
    config = settings(tmp_path / "run.toml", instruct, "")
    monkeypatch.setattr(memory, "machine_memory", lambda: 1000)
    with context.open_run(tmp_path / "run", config) as run, pytest.raises(UsageError, match="in memory at once need"):
        prepare_logs(run, config)
    assert not RunDir.view(tmp_path / "run").done("logs")
    with pytest.raises(ConfigError, match="there is no such directory"):
        factory.checked_suite(resolve(TrainConfig, {"start": "scratch", "experience": {"backbone": {"model": "./nowhere"}}}, where="here"))


def test_a_backbone_is_fitted_by_one_gentle_pass_unless_it_is_said_otherwise(instruct: Path) -> None:
    config = resolve(TrainConfig, {"start": "scratch", "experience": {"backbone": {"model": str(instruct)}}}, where="here")
    assert config.experience.training and config.experience.training.optimiser == "adamw" and config.experience.training.epochs == 1.0
    assert json.loads(json.dumps(config.model_dump(mode="json")))["experience"]["backbone"]["model"] == str(instruct)
    assert BackboneConfig.model_validate(config.experience.settings["backbone"]) == config.experience.backbone
