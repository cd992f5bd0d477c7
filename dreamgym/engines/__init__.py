"""Engines sample from language models: `local` and, by text, `instruct` in this process, `server` over HTTP, `scripted` from a function.

An engine is a module of this folder, or any module by its dotted path, with a function

    make(*, module=None, tokenizer=None, full_precision=False, external_publisher=False, **settings) -> protocols.LLM (or protocols.Chat)

that names those of the first four that it uses: the torch module to sample from, its tokenizer, whether it must compute at the module's
own precision, and whether another process publishes the weights to the server. Optional beside it:

    Config                                            a `dreamgym.config.Config` of the settings, checked when a configuration is read
    check(config, *, module, tokenizer, temperature, trains)  raises what would fail later, before anything is spent
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.errors import ConfigError

DEFAULT = "local"


def check_settings(settings: Mapping[str, Any], *, where: str = "engine") -> None:
    """PluginError for an unknown engine, ConfigError for a setting that it does not have or take, and for a key."""
    if "api_key" in settings:
        raise ConfigError(
            f"{where}.api_key would be written into the run directory. Name the variable that holds it at {where}.api_key_env."
        )
    _config(settings, where)


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    check_settings(settings)
    return settings


EngineSettings = Annotated[dict[str, Any], AfterValidator(_checked)]
"""The settings of an engine in another block, checked when the configuration is read."""


def check_engine(
    settings: Mapping[str, Any],
    *,
    module: Any = None,
    tokenizer: Any = None,
    temperature: float = 1.0,
    trains: bool = False,
    where: str = "engine",
) -> None:
    """Try cheaply whether the engine can work: its settings, the module's dtype and layers, the server's address and model.

    `module` may be an outline without weights (`llm.backbones.outline`). `trains`: the engine samples for a learner at `temperature`, so
    it must return token ids with log-probabilities and take new weights.
    """
    plugin, config = _config(settings, where)
    if check := getattr(plugin, "check", None):
        check(config, module=module, tokenizer=tokenizer, temperature=temperature, trains=trains)


def build_engine(
    settings: Mapping[str, Any], *, model: Any = None, tokenizer: Any = None, full_precision: bool = False, external_publisher: bool = False
) -> Any:
    """The engine that `settings` name (`name = "local"` when left out). `full_precision`: at the model's own precision, as a learner
    without bf16 computes; else in bfloat16 where that is faster. `external_publisher`: an engine in another process publishes the weights
    to the server."""
    plugin, _ = _config(settings, "engine")
    context = {"module": model, "tokenizer": tokenizer, "full_precision": full_precision, "external_publisher": external_publisher}
    taken = {name: context[name] for name in context if name in inspect.signature(plugin.make).parameters}
    return plugins.make("engines", settings.get("name", DEFAULT), **taken | _rest(settings))


def _rest(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "name"}


def _config(settings: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """(plug-in module, its settings as its `Config`, or as they came where it has none)."""
    plugin = plugins.load("engines", settings.get("name", DEFAULT))
    kind = getattr(plugin, "Config", None)
    return plugin, _rest(settings) if kind is None else build(kind, _rest(settings), where=where)
