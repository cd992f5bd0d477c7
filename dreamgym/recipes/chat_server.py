"""An instruct model behind an OpenAI-compatible address, or in this process, as the commands ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.errors import ConfigError
from dreamgym.experience.chat_requests import AskConfig
from dreamgym.protocols import Chat


@contextmanager
def open_chat(model: str, base_url: str | None, more: Sequence[str] = (), **options: Any) -> Iterator[Chat]:
    """The engine of a chat host, by the options of `engines.server.ServerEngineConfig`; `more` are further ones as `name=value`, which
    come last. Without a `base_url` the engine `instruct`, which has the options of `more` alone.

    Nothing is sent until something is asked. ConfigError names a wrong option.
    """
    given = dict(map(_pair, more))
    if base_url is None:
        if of_hosts := [name for name, value in options.items() if value and name.startswith(("price", "requests", "tokens"))]:
            raise ConfigError(
                f"'{of_hosts[0]}' is an option of a host, and this model runs in this process. Leave it out, or give --base-url."
            )
        engine = plugins.make("engines", "instruct", model=model, **given)
    else:
        engine = plugins.make("engines", "server", dialect="chat", model=model, base_url=base_url, **options | given)
    try:
        yield engine
    finally:
        engine.close()


def ask_config(**options: Any) -> AskConfig:
    """How to ask, by the options of `AskConfig`; ConfigError names a wrong one."""
    return build(AskConfig, options, where="the options")


def _pair(text: str) -> tuple[str, Any]:
    """`timeout_s=60` as ("timeout_s", 60); a value that is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals or name in ("dialect", "tokenizer", "clock"):
        raise ConfigError(f"--engine-option '{text}' is no option of the engine. Write NAME=VALUE, such as timeout_s=60.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
