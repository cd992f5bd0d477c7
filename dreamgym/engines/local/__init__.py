"""The in-process engine for transformers causal language models: a plug-in of `engines`. Importing it loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.engines.local.config import LocalConfig as Config
from dreamgym.errors import ConfigError

if TYPE_CHECKING:
    from dreamgym.engines.local.engine import LocalEngine


def make(
    *, module: Any = None, tokenizer: Any = None, full_precision: bool = False, checkpoint: Path | str | None = None, **settings: Any
) -> LocalEngine:
    """The engine over a module and its tokenizer, or over a checkpoint directory: `make(checkpoint="runs/a/checkpoints/policy")`."""
    from dreamgym.engines.local.engine import LocalEngine
    from dreamgym.llm.tiny import load

    if module is None:
        if checkpoint is None:
            raise ConfigError("The local engine needs a model: give module and tokenizer, or the directory of a checkpoint.")
        module, tokenizer = load(checkpoint)
    return LocalEngine(module, tokenizer, **{"dtype": None if full_precision else "auto", **settings})


def check(config: Config, *, module: Any = None, **_: Any) -> None:
    """ConfigError when the engine cannot run this module, or not with these settings."""
    if module is not None:
        from dreamgym.engines.local.engine import plan

        plan(module, config)
