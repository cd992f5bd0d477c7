"""The memory that pretrained models take: each alone, several that one process holds at once, and whether the machine has it.

Counted are weights and, of what is trained, gradients and optimiser: the least that the models take. Activations, and the keys and values
of engines, come on top.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dreamgym.errors import UsageError
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig

GIB = 2**30


@dataclass(frozen=True)
class LoadedModel:
    """A model that a process holds in memory."""

    role: str
    """What it is there for, by its setting, such as `policy.backbone`."""
    backbone: BackboneConfig
    trains: bool = True
    """Whether it has an optimiser."""
    frozen: bool = False
    """Whether it is loaded as `backbones.load(..., frozen=True)` does, so that its weights are shared."""


def memory_of(module: Any, *, trains: bool = True) -> int:
    """Bytes that the model takes at least: its weights (on the meta device or not), and, where it `trains`, of those that are trained a
    gradient and Adam's two moments, which torch keeps at the precision of the weights."""
    return sum(p.numel() * p.element_size() * (4 if trains and p.requires_grad else 1) for p in module.parameters())


def memory_of_each(models: Sequence[LoadedModel]) -> list[int]:
    """Bytes that each of these models adds in one process at least: as `memory_of`, with frozen weights that adapters share counted with
    the first that has them, but for embeddings that take markers in. Raises what `backbones.outline` raises."""
    sizes, shared = [], set[tuple[Any, ...]]()
    for model in models:
        config, module = model.backbone, backbones.outline(model.backbone)
        needed = memory_of(module, trains=model.trains)
        if key := backbones.base_key(config, frozen=model.frozen):
            both = (module.get_input_embeddings(), module.get_output_embeddings())
            embedding_ids = {id(p) for layer in both for p in layer.parameters()} if config.markers else set()
            frozen = {id(p): p.numel() * p.element_size() for p in module.parameters() if model.frozen or not p.requires_grad}
            needed += sum(size for weight, size in frozen.items() if weight in embedding_ids) - (
                sum(frozen.values()) if key in shared else 0
            )
            shared.add(key)
        sizes.append(needed)
    return sizes


def require_memory(models: Sequence[LoadedModel]) -> None:
    """UsageError where a device has less memory, all in all, than the models that are on it at once take."""
    sizes, total, on = memory_of_each(models), dict[torch.device, int](), list[torch.device]()
    for model, size in zip(models, sizes, strict=True):
        on.append(torch.empty(0, device=backbones.device(model.backbone.device)).device)  # "cuda" has a number there
        total[on[-1]] = total.get(on[-1], 0) + size
    for where, needed in total.items():
        if needed <= (there := _total(where)):
            continue
        each = ", ".join(
            f"{model.role} '{model.backbone.model}' {size / GIB:,.1f} GiB ({_use(model)})"
            for model, size, place in zip(models, sizes, on, strict=True)
            if place == where
        )
        raise UsageError(
            f"The models that are in memory at once need at least {needed / GIB:,.1f} GiB on {where}, and there are {there / GIB:,.1f}: "
            f"{each}. Train adapters (lora = {{rank = 16}}), set dtype = 'bfloat16', name a smaller model, let a server answer for one "
            "that is not trained, or use a machine with more memory."
        )


def _use(model: LoadedModel) -> str:
    if not model.trains:
        return "weights"
    return "weights, and adapters with their optimiser" if backbones.base_key(model.backbone) else "weights and optimiser"


def _total(where: torch.device) -> int:
    """Bytes of memory of a device, all in all."""
    return int(torch.cuda.get_device_properties(where).total_memory) if where.type == "cuda" else machine_memory()


def return_free_memory() -> None:
    """Give the free memory of the C library's heap back to the system, where the library can. What fits, updates and caches free stays
    there otherwise, up to gigabytes, and what the next step of a run needs in tensors of other sizes comes on top."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def machine_memory() -> int:
    """Bytes of memory that this process may use: those of the machine, or of its container where that has a limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            total = min(total, int(Path(file).read_text(encoding="ascii")))
    return total
