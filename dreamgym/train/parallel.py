"""Supervised training over several processes: weights, gradients and optimiser in shards, rows divided (torch's FSDP2).

    torchrun --nproc-per-node 2 script.py

    torch.distributed.init_process_group()              # in every process
    model = shard(load(config)[0])                      # the same weights everywhere
    sft.train(model, ids, weights, SFTConfig(...))      # the same rows everywhere: each process takes its part of every batch
    weights = whole(model)                              # collected again, for `model.save_pretrained(path, state_dict=weights)`

For models trained whole by `sft.train`, without a bound in seconds and without a checkpoint. Sampling and RL want all weights in one
process, and refuse a sharded model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from dreamgym.errors import ConfigError, UsageError
from dreamgym.train.batch import Batch
from dreamgym.train.weights import partial


def shard(model: Any) -> Any:
    """The model itself, each decoder layer and the rest cut into as many parts as there are processes. Every process calls it.

    UsageError without a process group, ConfigError for a model with frozen weights: adapters are small, and train in one process.
    """
    if not dist.is_initialized():
        raise UsageError("No process group: start the script with torchrun and call torch.distributed.init_process_group() first.")
    if partial(model):
        raise ConfigError("Some weights are frozen, as under LoRA. Sharding is for models trained whole; train adapters in one process.")
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def sharded(model: nn.Module) -> bool:
    """Whether `shard` has cut the model."""
    return isinstance(model, FSDPModule)


def part(batch: Batch) -> Batch:
    """The rows of a batch that this process computes: every n-th. One that gets none takes a row without weights.

    Every process must run the model, because layers are gathered from all of them.
    """
    rank, count = dist.get_rank(), dist.get_world_size()
    mine = slice(rank, None, count) if rank < len(batch.rows) else slice(1)
    own = Batch(batch.ids[mine], batch.weights[mine], batch.lengths[mine], batch.rows[mine])
    return own if rank < len(batch.rows) else replace(own, weights=torch.zeros_like(own.weights))


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size()


class _Mean(torch.autograd.Function):
    """The mean over processes forwards, nothing backwards: FSDP averages the gradients itself."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        found = value.clone()
        dist.all_reduce(found)
        return found / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def mean(value: torch.Tensor) -> torch.Tensor:
    """The mean of a loss over all processes, equal in each, whose backward pass is that of the process's own."""
    found: torch.Tensor = _Mean.apply(value)
    return found


def whole(model: Any) -> dict[str, torch.Tensor]:
    """All weights of a sharded model, on the CPU of the first process; empty in the others. Every process calls it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict  # half a second to import

    found: dict[str, Any] = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return found
