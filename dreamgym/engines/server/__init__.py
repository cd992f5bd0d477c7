"""The engine of an inference server (vLLM, SGLang, llama.cpp, any OpenAI-compatible chat): a plug-in of `engines`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.config import build
from dreamgym.engines.server.config import ServerConfig
from dreamgym.errors import ConfigError
from dreamgym.types import Sampling

if TYPE_CHECKING:
    from dreamgym.engines.server.engine import ServerEngine
    from dreamgym.engines.server.rate_limit import Clock


class ServerEngineConfig(ServerConfig):
    """The settings of the plug-in."""

    tokenizer: str | Path | None = None
    """The directory of the checkpoint that the server runs; not set: the tokenizer that the engine is built with."""


Config = ServerEngineConfig


def make(
    *, module: Any = None, tokenizer: Any = None, external_publisher: bool = False, clock: Clock | None = None, **settings: Any
) -> ServerEngine:
    """The engine of a server: `make(base_url="http://localhost:8000/v1", model="policy", dialect="vllm", tokenizer="checkpoints/policy")`.

    `tokenizer` is a checkpoint directory, read from the disk only, or a transformers tokenizer. `external_publisher`: another
    process publishes.
    """
    from dreamgym.engines.server.engine import ServerEngine, load_tokenizer

    config = build(ServerConfig, settings, where="engine")
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(Path(tokenizer))
    return ServerEngine(config, tokenizer, module=module, clock=clock, external_publisher=external_publisher)


def check(
    config: ServerEngineConfig,
    *,
    module: Any = None,
    tokenizer: Any = None,
    temperature: float = 1.0,
    trains: bool = False,
    **_: Any,
) -> None:
    """ConfigError for a server that cannot sample for a learner, where one is meant; ServerError for one that does not answer, serves
    another model, has another tokenizer, or lacks the call that loads the weights of `module`."""
    from dreamgym.engines.server.dialects import DIALECTS, inexact
    from dreamgym.engines.server.weight_sync import LOADERS, require_loading

    if trains:
        what = f"A policy cannot be trained through this server (dialect = '{config.dialect}')"
        if config.dialect not in LOADERS:
            raise ConfigError(
                f"{what}: it cannot load new weights while it runs. Use a server of dialect {' or '.join(LOADERS)}, or leave out the "
                "engine's name, which samples in this process."
            )
        wrong = inexact(config.server_logprobs or DIALECTS[config.dialect].logprobs, Sampling(1, temperature=temperature))
        if wrong or not config.training:
            raise ConfigError(
                f"{what}: its log-probabilities are {wrong or 'switched off by training = false'}, and the learner needs those at the "
                "sampling temperature. Set rl.learner.temperature = 1 (learner.temperature of every loop) and training = true."
            )
    elif module is not None and config.dialect == "chat":
        raise ConfigError(
            "A fitted model cannot be sampled through this server (dialect = 'chat'): it takes neither weights nor token ids. Use a server "
            "of another dialect, or leave out the engine's name, which samples in this process."
        )
    given = config.model_dump(exclude={"tokenizer"}, exclude_unset=True)
    engine = make(tokenizer=config.tokenizer or tokenizer, **given)
    try:
        engine.doctor()
        if module is not None:
            require_loading(engine, lora=hasattr(module, "peft_config"))
    finally:
        engine.close()
