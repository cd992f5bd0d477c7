"""The memory of pretrained models: what each takes, what several share, and what is refused."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path
from typing import Any

import pytest
from chat_model import save_instruct_model

from dreamgym.engines import build_engine
from dreamgym.errors import UsageError
from dreamgym.llm import backbones, memory
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.llm.memory import LoadedModel, memory_of, memory_of_each, require_memory

LORA = LoraConfig(rank=4, alpha=8.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> BackboneConfig:
    return BackboneConfig(model=str(save_instruct_model(tmp_path_factory.mktemp("model"))), device="cpu")


def together(*configs: BackboneConfig, **how: Any) -> int:
    return sum(memory_of_each([LoadedModel(f"model {i}", config, **how) for i, config in enumerate(configs)]))


def test_the_memory_of_models_that_share_a_base_has_its_weights_once(whole: BackboneConfig) -> None:
    pytest.importorskip("peft")
    lean, marked = (whole.model_copy(update={"lora": LORA, "markers": markers}) for markers in (False, True))
    outline = backbones.outline(whole)
    weights, embeddings = (4 * sum(p.numel() for p in one.parameters()) for one in (outline, outline.get_input_embeddings()))
    adapters = memory_of(backbones.outline(lean)) - weights
    assert together(whole, whole) == 2 * memory_of(outline) == 8 * weights
    assert together(lean) == weights + adapters
    assert together(lean, lean.model_copy(update={"gradient_checkpointing": True})) == weights + 2 * adapters
    for pair in ([lean, marked], [marked, lean]):
        assert together(*pair) == weights + embeddings + 2 * adapters
    assert together(lean, lean.model_copy(update={"dtype": "bfloat16"})) == weights * 3 // 2 + 2 * adapters
    assert together(whole, whole, trains=False) == 2 * weights and together(whole, whole, trains=False, frozen=True) == weights
    assert (
        sum(memory_of_each([LoadedModel("policy", lean), LoadedModel("verifier", whole, trains=False, frozen=True)])) == weights + adapters
    )


def test_models_that_fit_one_by_one_and_not_together_are_refused_by_role(whole: BackboneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, dream = LoadedModel("policy.backbone", whole), LoadedModel("experience.backbone", whole, trains=False)
    weights = memory_of(backbones.outline(whole), trains=False)
    monkeypatch.setattr(memory, "GIB", 2**10)
    monkeypatch.setattr(memory, "machine_memory", lambda: 5 * weights)
    require_memory([policy, dream])
    monkeypatch.setattr(memory, "machine_memory", lambda: 5 * weights - 1)
    require_memory([policy])
    require_memory([dream])
    with pytest.raises(UsageError) as caught:
        require_memory([policy, dream])
    for words in (
        f"need at least {5 * weights / 2**10:,.1f} GiB on cpu, and there are {(5 * weights - 1) / 2**10:,.1f}",
        f"policy.backbone '{whole.model}' {4 * weights / 2**10:,.1f} GiB (weights and optimiser)",
        f"experience.backbone '{whole.model}' {weights / 2**10:,.1f} GiB (weights)",
        "Train adapters",
    ):
        assert words in str(caught.value)


def test_an_engine_of_a_model_beyond_the_memory_is_refused_before_it_is_loaded(
    whole: BackboneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 1000)
    monkeypatch.setattr(backbones, "load", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(UsageError, match=r"engine '.*' 0\.0 GiB \(weights\)"):
        build_engine({"name": "instruct", "model": whole.model, "device": "cpu"})


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_free_memory_below_something_that_is_kept_goes_back_to_the_system() -> None:
    def resident_mib() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    blocks = [b"x" * 100_000 for _ in range(3_000)]  # each too small to be mapped on its own
    blocks = blocks[-1:]  # so that the heap cannot shrink from its end
    before = resident_mib()
    memory.return_free_memory()
    assert before - resident_mib() > 200 and len(blocks[0]) == 100_000
