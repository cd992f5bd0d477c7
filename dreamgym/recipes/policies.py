"""Who acts in a run: the small transformer that is fitted from scratch, or a pretrained instruct model. Recipes know neither."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import Field, field_validator, model_validator

from dreamgym.agent import Agent, demonstrations
from dreamgym.chat import ChatFormat
from dreamgym.chat_agent import ChatAgent, chat_demonstrations
from dreamgym.config import Config
from dreamgym.errors import ConfigError, nearest
from dreamgym.layout import Vocabulary
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbones import BackboneConfig
from dreamgym.llm.hf import HFEngine
from dreamgym.protocols import Described, Domain
from dreamgym.types import Trajectory


class PolicyBlock(Config):
    """Who acts. Without a backbone it is the small transformer, which begins as the experience model (decision 3)."""

    backbone: BackboneConfig | None = None
    """A pretrained instruct model, whole or with adapters. It speaks its own chat template."""
    warm_start: bool = True
    """Whether it is fitted to the successful logs before RL, as `[warm]` says. A backbone may go as it came."""
    instructions: str = ""
    """How actions are written, for a backbone; empty: what the environment family says of itself."""
    template: dict[str, Any] = Field(default_factory=dict)
    """Variables of the backbone's chat template, such as `enable_thinking = false`."""
    max_reply_tokens: int = Field(default=256, ge=1)
    """Of a backbone's turn, thinking included."""
    window: int | None = Field(default=None, ge=0)
    """Past turns that a prompt shows at most; without it, all. 0 is for states that say all that matters."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the sampling engine, such as `cache_bytes = 20_000_000_000`."""

    @field_validator("engine")
    @classmethod
    def _known(cls, engine: dict[str, Any]) -> dict[str, Any]:
        known = [one.name for one in inspect.signature(HFEngine).parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY]
        if odd := [name for name in engine if name not in known]:
            raise ValueError(f"the engine has no setting '{odd[0]}'.{nearest(odd[0], known)} Known: {', '.join(known)}")
        return engine

    @model_validator(mode="after")
    def _of_somebody(self) -> Self:
        theirs = ("warm_start", "instructions", "template", "max_reply_tokens")
        defaults = {name: type(self).model_fields[name].get_default(call_default_factory=True) for name in theirs}
        idle = [f"policy.{name}" for name, default in defaults.items() if getattr(self, name) != default]
        if self.backbone is None and idle:
            raise ConfigError(f"{', '.join(idle)}: for a pretrained policy only, and the small one is none. Set policy.backbone.")
        return self

    @field_validator("backbone")
    @classmethod
    def _in_its_own_words(cls, backbone: BackboneConfig | None) -> BackboneConfig | None:
        if backbone and backbone.markers:
            raise ValueError("markers are for the layout of small models, and a policy's backbone speaks its own template: leave them out")
        return backbone


class Policies(Protocol):
    """How policies of one kind begin, are kept, act, and learn from episodes. `model` is a torch module."""

    def first(self, checkpoint: Path) -> Any:
        """What the warm start begins as: the small model at `checkpoint`, or the backbone itself."""
        ...

    def load(self, path: Path) -> Any: ...
    def save(self, model: Any, path: Path) -> None: ...

    def agent(self, model: Any, *, exact: bool) -> Agent | ChatAgent:
        """A policy that samples from `model`, which may be in training. `exact`: at the model's own precision, as a learner without bf16
        computes; else in bfloat16 where that is faster."""
        ...

    def demonstrations(self, episode: Trajectory) -> list[tuple[list[int], list[float]]]:
        """A logged episode as rows of token ids and their weights in training: one, unless a window cuts it."""
        ...


class SmallPolicies:
    """The layout of markers, and the tokenizer of the run."""

    def __init__(self, tokenizer: Any, words: Vocabulary, domain: Domain, block: PolicyBlock, device: str = "cpu") -> None:
        self.tokenizer, self.words, self.domain, self.block, self.device = tokenizer, words, domain, block, device

    def first(self, checkpoint: Path) -> Any:
        return self.load(checkpoint)

    def load(self, path: Path) -> Any:
        return tiny.load(path)[0].to(backbones.device(self.device))

    def save(self, model: Any, path: Path) -> None:
        tiny.save(model, self.tokenizer, path)

    def agent(self, model: Any, *, exact: bool) -> Agent:
        return Agent(_engine(model, self.tokenizer, self.block, exact), self.words, self.domain, window=self.block.window)

    def demonstrations(self, episode: Trajectory) -> list[tuple[list[int], list[float]]]:
        return demonstrations(episode, self.words, self.domain, window=self.block.window)


class ChatPolicies:
    """A pretrained backbone in its own chat template. Of a model with adapters, checkpoints hold the adapters alone."""

    def __init__(self, block: PolicyBlock, domain: Domain, seed: int = 0) -> None:
        """ConfigError when nobody says how actions are written; UsageError for a model that is not here, or that knows no chat."""
        assert block.backbone is not None
        self.block, self.backbone, self.domain, self.seed = block, block.backbone, domain, seed
        self.instructions = block.instructions or (f"{domain.about}\n{domain.manual}" if isinstance(domain, Described) else "")
        if not self.instructions:
            raise ConfigError(
                f"The environment '{domain.name}' does not say how actions are written. Set policy.instructions, for example "
                "'Write one line such as Action: search[red mug].'"
            )
        self.tokenizer = backbones.load_tokenizer(self.backbone)
        self.form = ChatFormat.of(self.tokenizer, **block.template)

    def first(self, checkpoint: Path) -> Any:
        return backbones.load(self.backbone, seed=self.seed)[0]

    def load(self, path: Path) -> Any:
        return backbones.load(self.backbone.model_copy(update={"model": str(path), "revision": None, "lora": None}))[0]

    def save(self, model: Any, path: Path) -> None:
        backbones.save(model, self.tokenizer, path)

    def agent(self, model: Any, *, exact: bool) -> ChatAgent:
        return ChatAgent(
            _engine(model, self.tokenizer, self.block, exact),
            self.form,
            self.domain,
            instructions=self.instructions,
            max_reply_tokens=self.block.max_reply_tokens,
            window=self.block.window,
        )

    def demonstrations(self, episode: Trajectory) -> list[tuple[list[int], list[float]]]:
        return chat_demonstrations(episode, self.form, self.domain, instructions=self.instructions, window=self.block.window)


def _engine(model: Any, tokenizer: Any, block: PolicyBlock, exact: bool) -> HFEngine:
    return HFEngine(model, tokenizer, **{"dtype": None if exact else "auto", **block.engine})
