"""Which weights an optimiser moves, and by how much."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.errors import ConfigError
from dreamgym.train.fitting import optimiser_of, set_lr
from dreamgym.train.optimisers import Optimisers, muon
from dreamgym.train.settings import FitConfig


def small(*, tied: bool = True) -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, tie_word_embeddings=tied, **shape))


def names(model: Any, part: torch.optim.Optimizer) -> set[str]:
    held = {id(p) for group in part.param_groups for p in group["params"]}
    return {name for name, p in model.named_parameters() if id(p) in held}


@pytest.mark.parametrize("tied", [True, False])
def test_muon_moves_the_matrices_inside_layers_and_adamw_embeddings_heads_and_gains(tied: bool):
    model = small(tied=tied)
    matrices, rest = muon(model, lr=1e-2, weight_decay=0.0).parts
    inside, outside = names(model, matrices), names(model, rest)
    assert inside | outside == {name for name, _ in model.named_parameters()} and not inside & outside
    assert all("proj" in name for name in inside) and len(inside) == 2 * 7
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= outside and ("lm_head.weight" in outside) is not tied


def test_a_step_of_muon_has_the_size_of_adamws_and_turns_every_direction_alike():
    model = small()
    both = muon(model, lr=1e-2, weight_decay=0.0)
    weight = model.model.layers[0].mlp.up_proj.weight  # [24, 16]
    before = weight.detach().clone()
    gradient = torch.outer(torch.arange(1.0, 25), torch.ones(16)) + 3 * torch.randn(24, 16)  # nearly of rank one
    weight.grad = gradient
    both.step()
    moved = before - weight.detach()
    spectrum = torch.linalg.svdvals(moved)
    assert spectrum[-1] > 0.3 * spectrum[0]  # of the gradient it is a hundredth
    assert 0.1e-2 < moved.square().mean().sqrt() < 0.3e-2  # a fifth of the learning rate, which is AdamW's size in practice
    assert all(torch.equal(a, b) for a, b in zip(small().parameters(), model.parameters(), strict=True) if b is not weight)


def test_the_schedule_reaches_all_parts():
    model = small()
    found = optimiser_of(model, FitConfig(optimiser="muon", lr=0.5, warmup_ratio=0.0))
    assert isinstance(found, Optimisers)
    set_lr(found, FitConfig(lr=0.5, warmup_ratio=0.0), 0.5, 0.01)
    assert {round(group["lr"], 3) for group in found.param_groups} == {0.25} and len(found.param_groups) == 3


def rates(steps: int, **config: float) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    seen = []
    for step in range(steps):
        set_lr(optimiser, FitConfig(lr=0.5, **config), step / steps, 1 / steps)
        seen.append(optimiser.param_groups[0]["lr"])
    return seen


def test_a_warm_up_counts_steps_and_never_exceeds_the_learning_rate():
    assert rates(1) == [0.5], "a fit of one step"
    assert rates(100, warmup_ratio=0.04)[:5] == pytest.approx([0.125, 0.25, 0.375, 0.5, 0.5])
    for ratio in (1e-4, 1e-3, 0.03, 0.5):
        seen = rates(2000, warmup_ratio=ratio)
        assert max(seen) == pytest.approx(0.5) and seen[0] == pytest.approx(min(0.5, 0.5 * 1e-3 / ratio))


def test_a_model_without_a_matrix_inside_it_is_refused():
    with pytest.raises(ConfigError, match="no trained matrix inside a layer"):
        muon(nn.Embedding(4, 4), lr=1e-3, weight_decay=0.0)
