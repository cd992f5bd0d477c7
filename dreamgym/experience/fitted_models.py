"""The models that experience models are fitted to: the small transformer, or a pretrained backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dreamgym.engines import check_engine
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.llm.chat_format import ChatFormat

FRESH = "tokenizer"
"""The checkpoint of the small transformer with fresh weights."""


class FittedModels:
    """How the experience models of a run begin, are saved and loaded. A model is a torch module; one with adapters is saved as these."""

    def __init__(self, backbone: BackboneConfig | None, tokenizer: Any, *, device: str = "cpu", seed: int = 0) -> None:
        """`tokenizer` and `device` are those of the small transformer, for runs without a backbone. `seed` draws fresh adapters."""
        self.backbone = backbone
        self.tokenizer = tokenizer if backbone is None else backbones.load_tokenizer(backbone)
        self.device, self.seed = device, seed

    def load(self, path: Path) -> Any:
        """The model of a checkpoint; that of the fresh small transformer stands for the backbone as it came."""
        if self.backbone is None:
            return tiny.load(path)[0].to(backbones.device(self.device))
        if path.name == FRESH:
            return backbones.load(self.backbone, seed=self.seed)[0]
        return backbones.load(self.backbone.model_copy(update={"model": str(path), "revision": None, "lora": None}))[0]

    def save(self, model: Any, path: Path) -> None:
        backbones.save(model, self.tokenizer, path)


def check_backbone(backbone: BackboneConfig, engine: dict[str, Any]) -> int:
    """Try cheaply, without weights, whether the backbone can be fitted and its engine can sample from it; one without markers speaks its
    chat template. Raises what the run would fail with later. Returns how many parameters are trained, without the markers' few."""
    module, tokenizer = backbones.outline(backbone), backbones.load_tokenizer(backbone)
    backbones.require_memory(module, backbone)
    if not backbone.markers:
        ChatFormat(tokenizer)
    check_engine(engine, module=module, tokenizer=tokenizer, where="experience.engine")
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
