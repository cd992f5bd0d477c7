"""The models that experience models are fitted to: the small transformer, or a pretrained backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dreamgym.engines import check_engine
from dreamgym.errors import ConfigError
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.llm.vocabulary import END, MARKERS

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
    if backbone.markers:
        _require_known_markers(backbone, module, tokenizer, engine)
    else:
        ChatFormat(tokenizer)
    check_engine(engine, module=module, tokenizer=tokenizer, where="experience.engine")
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _require_known_markers(backbone: BackboneConfig, module: Any, tokenizer: Any, engine: dict[str, Any]) -> None:
    """ConfigError for a server that would have to load markers which its model lacks: servers load no adapters that bring tokens, and no
    weights with more embeddings than they began with. llama.cpp loads nothing: it is started on the fitted checkpoint."""
    if engine.get("name") != "server" or engine.get("dialect") == "llama_cpp":
        return
    base = backbones.load_tokenizer(backbone.model_copy(update={"markers": False})).get_vocab()
    new = [name for name in (*MARKERS, END) if name not in base]
    adapters = getattr(module, "peft_config", {})
    brought = (new and adapters) or any(adapter.trainable_token_indices for adapter in adapters.values())
    grown = new and max(tokenizer.get_vocab().values()) >= module.get_input_embeddings().weight.shape[0]
    if brought or grown:
        how = "adapters that bring tokens" if brought else "more embeddings than its model has"
        raise ConfigError(
            f"experience.engine: the layout of markers adds tokens to '{backbone.model}', and a server that runs it cannot load {how}. "
            "Leave out the engine's name, which samples in this process; or set experience.name = 'finetuned_chat', whose layout adds no "
            "tokens; or set experience.backbone.model to an experience model of this layout that was fitted before (adapters are merged by "
            "`dreamgym merge`), and start the server on it."
        )
