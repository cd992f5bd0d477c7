"""An instruct model in this process that answers chats, as a server would: a plug-in of `engines`. Importing it loads no torch.

    [experience]
    name = "prompted"
    engine = {name = "instruct", model = "smollm2"}

For teachers, judges, chat verifiers and prompted experience models. A server is faster for many requests; this one needs nothing but the
weights, which it shares with a backbone that is in memory with adapters (`llm.backbones`). Replies are held to the JSON that is asked for
by a grammar (extra `structured`), unless `format = "none"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from dreamgym.config import Config as Settings
from dreamgym.config import build
from dreamgym.engines.local.config import Dtype
from dreamgym.errors import ConfigError
from dreamgym.llm.backbone_settings import BackboneConfig, check_backbone

if TYPE_CHECKING:
    from dreamgym.engines.token_chat import TokenChat


class InstructConfig(Settings):
    """Which model, and how much of it at once."""

    model: str
    """A directory, a name on the Hugging Face hub, or `smollm2`, as in `backbone.model`. The directory may hold adapters."""
    revision: str | None = None
    download: bool = False
    """Whether to fetch from the hub what is not here yet."""
    device: str = "auto"
    dtype: Dtype | None = "auto"
    """Of the linear layers, as in the engine `local`."""
    max_batch: int = Field(16, ge=1)
    """Conversations that are answered together. The next ones are taken when all of them have their reply."""
    max_context: int | None = Field(None, ge=2)
    """Tokens of a conversation and its reply; not set: what the model was built for."""

    @property
    def backbone(self) -> BackboneConfig:
        """The model as `llm.backbones` loads it."""
        return BackboneConfig(model=self.model, revision=self.revision, download=self.download, device=self.device)


Config = InstructConfig


def make(**settings: Any) -> TokenChat:
    """The chat of a model: `make(model="smollm2")`. UsageError for a model that cannot be read, that has no chat template,
    or that this machine has not the memory for."""
    from dreamgym.engines.local.engine import LocalEngine
    from dreamgym.engines.token_chat import TokenChat
    from dreamgym.llm import backbones, memory
    from dreamgym.llm.chat_format import ChatFormat

    config = build(Config, settings, where="engine")
    check_backbone(config.backbone)
    memory.require_memory([memory.LoadedModel("engine", config.backbone, trains=False, frozen=True)])
    module, tokenizer = backbones.load(config.backbone, frozen=True)
    engine = LocalEngine(module, tokenizer, dtype=config.dtype, max_batch=config.max_batch, max_context=config.max_context)
    return TokenChat(engine, ChatFormat(tokenizer), name=config.model, at_once=config.max_batch, structured=True)


def check(config: InstructConfig, *, module: Any = None, trains: bool = False, **_: Any) -> None:
    """ConfigError for a directory or a device that is not there, and where tokens are wanted instead of a chat; UsageError for a model that
    is not here or has no chat template; MissingExtra without llguidance."""
    if trains or module is not None:
        raise ConfigError(
            "The engine 'instruct' answers chats with weights of its own: it samples from no policy and no fitted model. Leave out the "
            "engine's name, which samples from them in this process, or use a server."
        )
    from dreamgym.engines.local.grammar import Grammars
    from dreamgym.llm import backbones
    from dreamgym.llm.chat_format import ChatFormat

    check_backbone(config.backbone)
    tokenizer = backbones.load_tokenizer(config.backbone)
    ChatFormat(tokenizer)
    Grammars(tokenizer)
