"""Tokens a second of models: what is measured, and what is extrapolated from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chat_model import save_instruct_model

from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.recipes import rates
from dreamgym.recipes.rates import Rates, Workload
from dreamgym.train.settings import SFTConfig

ROW = (list(range(1, 41)), [0.0] * 30 + [1.0] * 10)


def load(**engine: int) -> Workload:
    return Workload(ROW, SFTConfig(batch_tokens=128), engine, at_once=4, full_precision=True)


def test_the_time_of_a_layer_is_added_for_every_layer_that_was_not_measured():
    shallow, deep = Rates(100.0, 50.0, 10.0), Rates(50.0, 25.0, 5.0)  # three layers more take as long as everything before them
    assert rates.extrapolate(shallow, deep, 3, 3) == deep
    found = rates.extrapolate(shallow, deep, 3, 9)
    assert (found.fitted_per_s, found.prompt_per_s, found.sampled_per_s) == pytest.approx((25.0, 12.5, 2.5))
    assert rates.extrapolate(deep, shallow, 3, 9).fitted_per_s < 100.0, "a busy machine may measure the deep one as the faster"


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_a_model_of_many_layers_is_extrapolated_and_one_of_few_is_measured_whole(
    lora: LoraConfig | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if lora:
        pytest.importorskip("peft")
    config = BackboneConfig(model=str(save_instruct_model(tmp_path, width=64)), device="cpu", lora=lora)
    built, real = list[int](), backbones.excerpt
    monkeypatch.setattr(backbones, "excerpt", lambda config, layers: built.append(layers) or real(config, layers))
    found, how = rates.of_backbone(config, load())
    assert min(found.fitted_per_s, found.prompt_per_s, found.sampled_per_s) > 0
    assert built == [2] and how.endswith("measured with random weights")
    file = tmp_path / "config.json"
    shape = json.loads(file.read_text())
    file.write_text(json.dumps(shape | {"num_hidden_layers": 12, "layer_types": shape["layer_types"] * 6}))
    found, how = rates.of_backbone(config, load())
    assert built[1] == 1 < built[2] < 12 and f"extrapolated to 12 layers from 1 and {built[2]} with random weights" in how
    assert min(found.fitted_per_s, found.prompt_per_s, found.sampled_per_s) > 0


def test_the_batch_is_as_large_as_the_caches_of_the_whole_model_allow(tmp_path: Path):
    outline = backbones.outline(BackboneConfig(model=str(save_instruct_model(tmp_path)), device="cpu"))
    a_token, _ = rates.bytes_of_token(outline, {})
    assert rates._rows_at_once(outline, load()) == 4
    assert rates._rows_at_once(outline, load(max_batch=3)) == 3
    assert rates._rows_at_once(outline, load(cache_bytes=2 * a_token * 40)) == 2
