"""Checkpoints of training state, from which an interrupted phase resumes. A file is replaced atomically and flushed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from dreamgym.errors import RunDirError
from dreamgym.runs.files import write_atomic


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the state at `path`; after a kill or on a full disk the previous one remains."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(path, buffer.getvalue())


def load(path: Path) -> dict[str, Any]:
    """The state at `path`. RunDirError when it cannot be read."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)  # loaded where it fits; restoring copies
    except Exception as error:  # a boundary: zip files, pickles and tensors each raise their own kinds
        reason = str(error).split("\n")[0]
        raise RunDirError(
            f"Cannot read the training state '{path}': {reason}. Restore the file, or delete it to begin this phase again."
        ) from error
    return state
