"""Adapters that a learner in float32 publishes to a server in bfloat16: rounding is no refusal, and weights that stay are found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_model import save_instruct_model
from model_server import ModelServer

pytest.importorskip("peft")

from dreamgym.engines import build_engine
from dreamgym.errors import ServerError
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig


class Coarse(ModelServer):
    """Serves in bfloat16. `loads`: whether what it is given takes the place of what it has."""

    def load(self, name: str, path: str) -> None:
        if self.loads:
            module, tokenizer = backbones.load(BackboneConfig(model=path, dtype="float32", device="cpu"), shared=False)
            whole = module.merge_and_unload() if hasattr(module, "peft_config") else module
            self.newest = build_engine({}, model=whole.to(torch.bfloat16), tokenizer=tokenizer, full_precision=True)
        self.engines[name], self.weights[name] = self.newest, 1 + max(self.weights.values())


@pytest.fixture
def learner(tmp_path: Path) -> tuple[Any, Any, Path]:
    """(model with adapters, tokenizer, checkpoint of the model without them)."""
    path = save_instruct_model(tmp_path / "instruct", width=64)
    settings = BackboneConfig(model=str(path), dtype="float32", device="cpu", lora=LoraConfig(rank=4))
    return *backbones.load(settings), path


def updates(model: Any, sizes: list[float]) -> Iterator[int]:
    """Move the adapters at random by each of the sizes, and say which it is."""
    for i, size in enumerate(sizes):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight += size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
        yield i


def test_updates_of_any_size_are_published_and_a_server_that_keeps_its_weights_is_found(
    learner: tuple[Any, Any, Path], tmp_path: Path
) -> None:
    model, tokenizer, path = learner
    settings = {"name": "server", "model": "policy", "dialect": "vllm", "tolerance": 0.25}
    with Coarse(path) as server, closing(build_engine(settings | {"base_url": server.url}, model=model, tokenizer=tokenizer)) as engine:

        def publish(version: int) -> None:
            engine.publish(version, lambda: backbones.save(model, tokenizer, tmp_path / "served"))

        sizes = [0.0, *[1e-5] * 2, *[1e-4] * 2, *[1e-3] * 8, *[1e-2] * 2]
        for version in updates(model, sizes):
            publish(version)
        assert engine.version == len(sizes) - 1
        server.loads = False
        with pytest.raises(ServerError, match="have not moved with them"):
            for version in updates(model, [1e-3] * 40):
                publish(len(sizes) + version)
