"""Training state and models on disk: whole or not at all, and what cannot be written or read says so."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from dreamgym.errors import DreamGymError, RunDirError
from dreamgym.llm import tiny
from dreamgym.runs import files
from dreamgym.train import checkpoint


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_state_comes_back_as_it_was_saved(tmp_path: Path):
    state = {"model": {"w": torch.arange(3.0)}, "step": 4, "stopped": ""}
    checkpoint.save(tmp_path / "new" / "a.pt", state)
    found = checkpoint.load(tmp_path / "new" / "a.pt")
    assert torch.equal(found["model"]["w"], state["model"]["w"]) and (found["step"], found["stopped"]) == (4, "")


@pytest.mark.parametrize("keep", [0, 10, 500])
def test_a_torn_state_is_named_with_what_to_do(tmp_path: Path, keep: int):
    path = tmp_path / "a.pt"
    checkpoint.save(path, {"step": 4})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RunDirError, match=r"a\.pt.*delete it to begin this phase again"):
        checkpoint.load(path)


def test_a_full_disk_is_named_and_the_state_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint.save(tmp_path / "a.pt", {"step": 4})
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DreamGymError, match=r"No space left on the disk for '.*a\.pt'"):
        checkpoint.save(tmp_path / "a.pt", {"step": 5})
    assert checkpoint.load(tmp_path / "a.pt") == {"step": 4}


def test_a_model_that_finds_the_disk_full_says_so_and_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer = tiny.train_tokenizer(["red mug"], vocab_size=300)
    model = tiny.build(tokenizer)
    tiny.save(model, tokenizer, tmp_path / "policy")
    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(DreamGymError, match="No space left on the disk for '.*policy'.*resumes"):
        tiny.save(model, tokenizer, tmp_path / "policy")
    assert tiny.load(tmp_path / "policy") and [path.name for path in tmp_path.iterdir()] == ["policy"]
