"""An instruct model behind an OpenAI-compatible address, as the commands ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.experience.asking import AskConfig
from dreamgym.protocols import Chat


@contextmanager
def opened(**options: Any) -> Iterator[Chat]:
    """The engine of a chat host, by the options of `llm.openai.Config`. Nothing is sent until something is asked."""
    engine = plugins.make("llm", "openai", flavour="chat", **options)
    try:
        yield engine
    finally:
        engine.close()


def asking(**options: Any) -> AskConfig:
    """How to ask, by the options of `AskConfig`; ConfigError names a wrong one."""
    return build(AskConfig, options, where="the options")
