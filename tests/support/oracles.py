"""What verl's `core_algos` and TRL's `GRPOTrainer` make of one small batch, by calling them.

`test_references.py` holds the numbers that they gave (verl 0.9.1, TRL 1.16.0), because neither is installed where most tests run; where
one is, the slow tests call it again. Inputs are sines, so that no generator of random numbers has to stay the same.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch

MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 0], [1, 1, 1, 1, 0, 0]], dtype=torch.float64)
"""Three rollouts of at most six tokens after the prompt: two with an observation in the middle, two that end early."""


def sines(shift: float, scale: float = 1.0) -> torch.Tensor:
    """float64 [3, 6]"""
    return torch.tensor([[scale * math.sin(shift + 7 * i + j) for j in range(6)] for i in range(3)], dtype=torch.float64)


NEW, OLD, REF = (-2 + sines(1.0), -2 + sines(1.4, 0.9), -2 + sines(0.5))
ADVANTAGES = torch.tensor([1.3, -0.8, 0.6], dtype=torch.float64)
REWARDS, VALUES, PREDICTED = sines(2.0) * MASK, sines(3.0), sines(3.3)
RETURNS = torch.tensor([1.0, 0.0, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
"""Of two tasks, four rollouts each."""


def _answer(loss: torch.Tensor, leaf: torch.Tensor) -> tuple[float, list[float]]:
    """(value, gradient at the trained tokens)"""
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient[MASK != 0].tolist()


def trl(loss_type: str, beta: float = 0.0, level: str = "token", clip: tuple[float, float] = (0.2, 0.28)) -> tuple[float, list[float]]:
    """TRL's loss of the batch and its gradient by the log-probabilities, without building a trainer around a model."""
    from collections import defaultdict

    from trl import GRPOTrainer

    leaf = NEW.clone().requires_grad_()
    alone = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x, sync_gradients=True)
    me = SimpleNamespace(
        loss_type=loss_type, beta=beta, epsilon_low=clip[0], epsilon_high=clip[1], importance_sampling_level=level,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, use_vllm=False, aux_loss_enabled=False, _entropy_bonus_enabled=False, max_completion_length=50,
        current_gradient_accumulation_steps=1, accelerator=alone, model=SimpleNamespace(training=True),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1), _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, torch.zeros_like(leaf), None),
    )  # fmt: skip
    ids = torch.zeros(3, 6, dtype=torch.long)
    batch = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": torch.ones_like(MASK),
        "tool_mask": MASK, "advantages": ADVANTAGES, "old_per_token_logps": OLD, "ref_per_token_logps": REF,
        "num_items_in_batch": MASK.sum(),
    }  # fmt: skip
    return _answer(GRPOTrainer._compute_loss(me, None, batch), leaf)


def verl_policy(
    core: Any,
    aggregate: str,
    scale: int | None = None,
    old: torch.Tensor = OLD,
    kind: str = "vanilla",
    clip: tuple[float, float] = (0.2, 0.28),
) -> tuple[float, list[float]]:
    """verl's policy loss and its gradient: clipped and dually clipped (at 1.5), or "gspo"."""

    class Actor(SimpleNamespace):
        def get(self, name: str, default: Any) -> Any:
            return getattr(self, name, default)

    leaf = NEW.clone().requires_grad_()
    actor = Actor(
        clip_ratio=clip[0],
        clip_ratio_low=clip[0],
        clip_ratio_high=clip[1],
        clip_ratio_c=1.5,
        global_batch_info={"loss_scale_factor": scale},
    )
    loss = getattr(core, f"compute_policy_loss_{kind}")
    return _answer(loss(old, leaf, ADVANTAGES[:, None].expand(3, 6), MASK, aggregate, actor)[0], leaf)


def verl_value(core: Any) -> tuple[float, list[float]]:
    """verl's clipped value loss (clip 0.2) against REWARDS as targets, and its gradient."""
    leaf = PREDICTED.clone().requires_grad_()
    return _answer(core.compute_value_loss(leaf, REWARDS, VALUES, MASK, 0.2)[0], leaf)


def verl_gae(core: Any) -> tuple[list[float], list[float]]:
    """(whitened advantages, returns) at the trained tokens; gamma 0.9, lambda 0.8."""
    advantages, returns = core.compute_gae_advantage_return(REWARDS, VALUES, MASK, 0.9, 0.8)
    return advantages[MASK != 0].tolist(), returns[MASK != 0].tolist()


def verl_group(core: Any, divide: bool) -> list[float]:
    """verl's GRPO advantages of RETURNS."""
    import numpy as np

    found, _ = core.compute_grpo_outcome_advantage(
        RETURNS[:, None].clone(), torch.ones(8, 1, dtype=torch.float64), np.repeat([0, 1], 4), norm_adv_by_std_in_grpo=divide
    )
    return found[:, 0].tolist()


def verl_kl(core: Any, kind: str) -> list[float]:
    """verl's estimate at the trained tokens."""
    return core.kl_penalty(NEW, REF, kind)[MASK != 0].tolist()
