"""Low-rank adapters merged into bfloat16 weights: an update far below half a step of the grid must still be sampled from."""

from __future__ import annotations

import pytest
import torch

from dreamgym.engines.local.llama import Adapted


def adapted(size: float, *, dtype: torch.dtype) -> Adapted:
    generator = torch.Generator().manual_seed(0)
    weight = (0.05 * torch.randn(256, 192, generator=generator)).to(torch.bfloat16)
    down, up = torch.randn(8, 192, generator=generator), size * torch.randn(256, 8, generator=generator)
    return Adapted(weight.to(dtype), down, up, 0.5)


@pytest.mark.parametrize("size", [1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])  # of the base
def test_merging_into_bfloat16_keeps_an_update_of_any_size_on_average(size: float, dtype: torch.dtype):
    one = adapted(size, dtype=dtype)
    update = one.scale * one.up @ one.down
    merged = one.merged(torch.bfloat16)
    assert merged.dtype == torch.bfloat16 and torch.equal(merged, one.merged(torch.bfloat16))
    kept = float(((merged.float() - one.weight.float()) * update).sum() / (update * update).sum())
    assert abs(kept - 1) < 0.1 * max(1.0, (1e-5 / size) ** 0.5 * 2)
    nearest = (one.weight.float() + update).to(torch.bfloat16).float() - one.weight.float()
    lost = float((nearest * update).sum() / (update * update).sum())
    assert size > 1e-5 or lost < 0.3, "the nearest number is the old one"


def test_what_no_adapter_changes_stays_as_it_is_and_float32_is_merged_exactly():
    none = adapted(0.0, dtype=torch.bfloat16)
    assert torch.equal(none.merged(), none.weight)
    one = adapted(1e-4, dtype=torch.float32)
    assert torch.allclose(one.merged(), one.weight + one.scale * one.up @ one.down, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_merged_weight_is_one_of_the_two_numbers_next_to_it(scale: float):
    one = adapted(1e-3 * scale, dtype=torch.float32)
    one = one._replace(weight=one.weight * scale)
    exact, merged = one.merged(), one.merged(torch.bfloat16).float()
    step = exact.abs() * 2.0**-7
    assert bool(((merged - exact).abs() <= step).all())
    assert float((merged - exact).mean() / exact.abs().mean()) == pytest.approx(0, abs=1e-4)
