"""Settings of a policy."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dreamgym.config import Config
from dreamgym.engines import check_settings
from dreamgym.errors import ConfigError
from dreamgym.llm.backbone_settings import ChatBackbone


class PolicyConfig(Config):
    """The policy. Without a backbone it is the small transformer, which begins as the experience model."""

    backbone: ChatBackbone | None = None
    """A pretrained instruct model, whole or with adapters. It speaks its own chat template."""
    instructions: str = ""
    """How actions are written, for a backbone; empty: what the environment suite says of itself."""
    template: dict[str, Any] = Field(default_factory=dict)
    """Variables of the backbone's chat template, such as `enable_thinking = false`."""
    tool_calls: Literal["auto", "native", "text", "off"] = "auto"
    """How a backbone calls the tools of an environment that has some: in the tool format of its chat template, as text, or, "off", as any
    other action. "auto" is native where the template has a usable form, else text."""
    max_reply_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of a turn, thinking included; a longer reply is cut, and its action is read if the thinking has ended. Not set: 24 for
    the small policy, 256 for a backbone."""
    window: int | None = Field(default=None, ge=0)
    """Past turns that a prompt shows at most; without it, all. 0 is for states that say all that matters."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """The sampling engine by `name` ("local" when it is left out), with its settings: `{cache_bytes = 20_000_000_000}`, or
    `{name = "server", base_url = "http://localhost:8000/v1", model = "policy", dialect = "vllm"}`."""

    @field_validator("engine")
    @classmethod
    def _known(cls, engine: dict[str, Any]) -> dict[str, Any]:
        check_settings(engine, where="policy.engine")
        return engine

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        backbone_only = ("instructions", "template", "tool_calls")
        defaults = {name: type(self).model_fields[name].get_default(call_default_factory=True) for name in backbone_only}
        unused = [f"policy.{name}" for name, default in defaults.items() if getattr(self, name) != default]
        if self.backbone is None and unused:
            raise ConfigError(f"{', '.join(unused)}: for a pretrained policy only, and the small one is none. Set policy.backbone.")
        return self
