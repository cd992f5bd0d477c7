"""The optimisers: AdamW, and Muon for the matrices inside layers with AdamW for everything else."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from dreamgym.errors import ConfigError
from dreamgym.train import parallel
from dreamgym.train.weights import trained

log = logging.getLogger(__name__)


class Optimisers:
    """Several optimisers that step as one, each over weights of its own."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


Optimiser = torch.optim.Optimizer | Optimisers


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over the weights that have gradients; it decays matrices and leaves gains alone."""
    return _adamw(_moved(model).values(), lr, weight_decay)


def muon(model: nn.Module, *, lr: float, weight_decay: float) -> Optimisers:
    """Muon over the matrices inside layers, AdamW over embeddings, heads and gains.

    Steps are scaled to the root mean square that AdamW's have (Liu et al. 2025, https://arxiv.org/abs/2502.16982), so that one learning
    rate serves both. ConfigError for a model cut over several processes, or without such a matrix.
    """
    if parallel.sharded(model):
        raise ConfigError("optimiser = 'muon' needs whole matrices, and this model is sharded over several processes. Use adamw.")
    moved = _moved(model)
    outer = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    find: Any = getattr(model, "get_output_embeddings", lambda: None)
    outer |= {id(p) for p in head.parameters()} if (head := find()) is not None else set()
    inner = [p for p in moved.values() if p.dim() == 2 and id(p) not in outer]
    if not inner:
        raise ConfigError(f"{type(model).__name__} has no trained matrix inside a layer for optimiser = 'muon' to move. Use adamw.")
    own = {id(p) for p in inner}
    matrices = torch.optim.Muon(inner, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return Optimisers([matrices, _adamw([p for p in moved.values() if id(p) not in own], lr, weight_decay)])


def _adamw(weights: Collection[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.AdamW:
    matrices = [p for p in weights if p.dim() >= 2]
    gains = [p for p in weights if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def _moved(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that have gradients, by name, with a warning where small steps would round to nothing."""
    moved = trained(model)
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in moved.values()):
        log.warning(
            "The trained weights are %s: steps below a 256th of a weight round to nothing. Load the model in float32 and let the learner "
            "compute in bfloat16, or train adapters, which stay float32.",
            next(p.dtype for p in moved.values() if p.dtype != torch.float32),
        )
    return moved
