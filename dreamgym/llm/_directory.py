"""Directories that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dreamgym.errors import DreamGymError


def replace(path: Path | str, fill: Callable[[Path], object]) -> Path:
    """Let `fill` write a fresh directory, then put it at `path`; one that was there before is replaced, or stays when `fill` fails."""
    path = Path(path)
    try:
        _replace(path, fill)
    except Exception as error:  # a boundary: safetensors and tokenizers each raise their own kinds
        if not any(words in str(error) for words in ("No space left", "quota exceeded")):
            raise
        raise DreamGymError(f"No space left on the disk for '{path}'. Free some, then give the same command again: it resumes.") from error
    return path


def _replace(path: Path, fill: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        fill(fresh)
        fresh.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.rename(path, old / "checkpoint")
            os.rename(fresh, path)
            shutil.rmtree(old)
        else:
            os.rename(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
