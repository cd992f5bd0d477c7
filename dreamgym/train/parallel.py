"""Training over several processes: weights, gradients and optimiser in shards, sequences divided (torch's FSDP2).

    torchrun --nproc-per-node 2 script.py

    torch.distributed.init_process_group()              # in every process
    model = shard(load(config)[0])                      # the same weights everywhere
    sft.train(model, ids, weights, SFTConfig(...))      # the same sequences everywhere: each process takes its part of every batch
    weights = whole(model)                              # collected again, for `model.save_pretrained(path, state_dict=weights)`

Supervised training is without a bound in seconds and without a checkpoint. A `Learner` of GRPO, GiGPO or REINFORCE takes a sharded policy
too; what samples is a model of its own, whole, behind a server or in the first process:

    learner = Learner(model, grpo.make(), LearnerConfig())
    groups = from_first(lambda: rollouts_of(sampler))   # the same rollouts everywhere
    learner.update(groups)                              # each process takes its part of every micro-batch; one global normaliser
    weights = whole(model)                              # for the sampler
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from dreamgym.errors import ConfigError, UsageError
from dreamgym.train.batch import Batch
from dreamgym.train.weights import partial

T = TypeVar("T")


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
    """The sequences of a batch that this process computes: every n-th. One that gets none takes a sequence without weights.

    Every process must run the model, because layers are gathered from all of them.
    """
    rank, count = dist.get_rank(), dist.get_world_size()
    mine = slice(rank, None, count) if rank < len(batch.sequences) else slice(1)
    own = Batch(batch.ids[mine], batch.weights[mine], batch.lengths[mine], batch.sequences[mine])
    return own if rank < len(batch.sequences) else replace(own, weights=torch.zeros_like(own.weights))


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size()


def joined(values: torch.Tensor, own: Batch, batch: Batch) -> torch.Tensor:
    """What every process found at the tokens of its `own` part, [N] of the whole `batch` in each. Without gradients."""
    grid = torch.zeros_like(batch.weights[:, 1:])
    rank, count = dist.get_rank(), dist.get_world_size()
    if rank < len(batch.sequences):
        part_of = torch.zeros_like(own.weights[:, 1:])
        part_of[own.weights[:, 1:] != 0] = values
        grid[rank::count] = part_of
    dist.all_reduce(grid)
    return grid[batch.weights[:, 1:] != 0]


def total(sums: dict[str, float]) -> dict[str, float]:
    """The sums of all processes, which must have the same names."""
    values = torch.tensor([sums[name] for name in sorted(sums)], dtype=torch.float64)
    dist.all_reduce(values)
    return dict(zip(sorted(sums), values.tolist(), strict=True))


def number(value: torch.Tensor) -> float:
    """A scalar that may lie in parts, such as the norm of sharded gradients."""
    return float(value.full_tensor() if isinstance(value, DTensor) else value)


def from_first(make: Callable[[], T]) -> T:
    """What `make` gives in the first process, in every process; the others do not call it."""
    held: list[Any] = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(held)
    made: T = held[0]
    return made


class _Mean(torch.autograd.Function):
    """The mean over processes forwards, nothing backwards: FSDP averages the gradients itself."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        sums = value.clone()
        dist.all_reduce(sums)
        return sums / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def mean(value: torch.Tensor) -> torch.Tensor:
    """The mean of a loss over all processes, equal in each, whose backward pass is that of the process's own."""
    average: torch.Tensor = _Mean.apply(value)
    return average


def whole(model: Any) -> dict[str, torch.Tensor]:
    """All weights of a sharded model, on the CPU of the first process; empty in the others. Every process calls it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict  # half a second to import

    weights: dict[str, Any] = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return weights
