"""Before a run a server is given weights that are moved on purpose: one that keeps those it has is refused, and the policy is as it was."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_model import save_instruct_model
from model_server import ModelServer
from test_publication_in_bfloat16 import Coarse

from dreamgym.engines import build_engine
from dreamgym.engines.server import publication_check
from dreamgym.engines.server.publication_check import check_publication, noise
from dreamgym.engines.server.weight_sync import probe
from dreamgym.errors import ServerError
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig

LOAD = {True: "/v1/load_lora_adapter", False: "/collective_rpc"}


class Stuck(ModelServer):
    """Takes the first weights that are published to it, and no others."""

    def load(self, name: str, path: str) -> None:
        super().load(name, path)
        self.loads = name == "policy" and not self.seen


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_instruct_model(tmp_path / "instruct", width=64)


def policy(checkpoint: Path, *, lora: bool) -> tuple[Any, Any]:
    """(model that learns, tokenizer)."""
    if lora:
        pytest.importorskip("peft")
    settings = BackboneConfig(model=str(checkpoint), dtype="float32", device="cpu", lora=LoraConfig(rank=4) if lora else None)
    return backbones.load(settings)


def check(server: ModelServer, model: Any, tokenizer: Any, folder: Path, **settings: Any) -> None:
    known = {"name": "server", "base_url": server.url, "model": "policy", "dialect": "vllm", "backoff_s": 0.01}
    with closing(build_engine(known | settings, model=model, tokenizer=tokenizer)) as engine:
        check_publication(engine, lambda: backbones.save(model, tokenizer, folder))


@pytest.mark.parametrize("lora", [True, False])
def test_a_server_that_takes_weights_has_the_policys_own_in_the_end(checkpoint: Path, tmp_path: Path, lora: bool) -> None:
    model, tokenizer = policy(checkpoint, lora=lora)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with ModelServer(checkpoint) as server:
        check(server, model, tokenizer, tmp_path / "served")
        assert len(server.payloads(LOAD[lora])) == 2 and list(server.weights) == ["policy"]
        assert len(server.payloads("/v1/completions")) == 1 + 2 * 2, "a few requests of 16 tokens"
        served = server.engines["policy"].model.state_dict()
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    whole = backbones.load(BackboneConfig(model=str(checkpoint), dtype="float32", device="cpu"))[0].state_dict()
    assert all(torch.equal(whole[name], p) for name, p in served.items())


@pytest.mark.parametrize("lora", [True, False])
def test_a_server_that_keeps_its_weights_is_refused_at_once(checkpoint: Path, tmp_path: Path, lora: bool) -> None:
    model, tokenizer = policy(checkpoint, lora=lora)
    with ModelServer(checkpoint) as server:
        server.loads = False
        with pytest.raises(ServerError, match=f"goes on sampling from those before.*{server.url}.*Check that the server reads that folder"):
            check(server, model, tokenizer, tmp_path / "served")
        assert len(server.payloads(LOAD[lora])) == 1 and list(server.weights) == ["policy"]


@pytest.mark.parametrize("lora", [True, False])
def test_a_server_that_keeps_the_weights_with_noise_is_refused_too(checkpoint: Path, tmp_path: Path, lora: bool) -> None:
    model, tokenizer = policy(checkpoint, lora=lora)
    with Stuck(checkpoint) as server:
        with pytest.raises(ServerError, match=f"took weights with noise, but not those of the policy after them.*{server.url}"):
            check(server, model, tokenizer, tmp_path / "served")
        assert list(server.weights) == ["policy"], "no adapter stays there"


def test_a_server_in_bfloat16_is_judged_by_its_weights_and_not_by_its_rounding(checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer = policy(checkpoint, lora=True)
    with Coarse(checkpoint) as server:
        check(server, model, tokenizer, tmp_path / "served", tolerance=0.25)
        server.loads = False
        with pytest.raises(ServerError, match="goes on sampling from those before"):
            check(server, model, tokenizer, tmp_path / "served", tolerance=0.25)


def test_a_server_of_another_model_is_not_taken_for_one_that_keeps_its_weights(checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer = policy(checkpoint, lora=True)
    other = backbones.load(BackboneConfig(model=str(checkpoint), dtype="float32", device="cpu"))[0]
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    backbones.save(other, tokenizer, tmp_path / "other")
    with ModelServer(tmp_path / "other") as server:
        server.loads = False
        with pytest.raises(ServerError, match="differ from the learner's") as found:
            check(server, model, tokenizer, tmp_path / "served")
        assert "goes on" not in str(found.value)


def test_a_server_that_refuses_adapters_says_why(checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer = policy(checkpoint, lora=True)
    with ModelServer(checkpoint) as server:
        server.manages_weights = False
        with pytest.raises(ServerError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
            check(server, model, tokenizer, tmp_path / "served")


def test_a_server_that_refuses_weights_without_a_status_says_why(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ServerError("it did not take the weights: {'success': False}")

    model, tokenizer = policy(checkpoint, lora=True)
    with ModelServer(checkpoint) as server:
        monkeypatch.setattr(publication_check, "publish_saved", refuse)
        with pytest.raises(ServerError, match="^it did not take the weights"):
            check(server, model, tokenizer, tmp_path / "served")


def test_noise_is_no_larger_than_it_must_be_and_goes_to_the_vectors_of_a_whole_model(checkpoint: Path) -> None:
    model, tokenizer = policy(checkpoint, lora=False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with ModelServer(checkpoint) as server:
        known = {"name": "server", "base_url": server.url, "model": "policy", "dialect": "vllm"}
        with closing(build_engine(known, model=model, tokenizer=tokenizer)) as engine:
            first = probe(engine, server.url, "policy")
    sizes = []
    for wanted in (0.01, 0.15, 1e9):
        with noise(model, first, wanted) as moved:
            changed = {name: p.detach() - before[name] for name, p in model.named_parameters() if not torch.equal(p, before[name])}
            assert moved == (wanted < 1e9) and all(p.dim() == 1 for p in changed.values())
            sizes.append(max(float(p.abs().max()) for p in changed.values()))
    assert sizes == sorted(sizes) and sizes[0] < 0.2
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
