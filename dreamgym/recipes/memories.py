"""The replay buffers of a run: what a configuration says of them, made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dreamgym import plugins
from dreamgym.errors import ConfigError
from dreamgym.llm import tiny
from dreamgym.protocols import Encoder
from dreamgym.protocols import ReplayBuffer as Memories
from dreamgym.recipes.config import ReplayBlock, SharedConfig
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.shuffled import Shuffled
from dreamgym.types import Trajectory


def open_replay(path: Path | None, logs: Sequence[Trajectory], block: ReplayBlock | None = None) -> ReplayBuffer:
    """The buffer whose log is at `path` (None: in memory only), seeded with real trajectories when it is empty."""
    block = block or ReplayBlock()
    if path is None:
        block = block.model_copy(update={"store": "sqlite", "store_options": {}})
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    buffer = ReplayBuffer.open(path, encoder(block.encoder), block.settings)
    if len(buffer) == 0:
        buffer.add(logs)
    return buffer


def check(block: ReplayBlock) -> None:
    """Make all that can be made without a log. ConfigError, PluginError or MissingExtra where it cannot be."""
    plugins.load("replay.stores", block.store)
    open_replay(None, [], block)


def file_name(name: str, block: ReplayBlock) -> str:
    """What the log of a loop is called: `dream.sqlite`."""
    return f"{name}.{block.store.rpartition('.')[2]}"


def consulted(replay: ReplayBuffer, config: SharedConfig) -> Memories:
    """The buffer as the experience model searches it: as it is, or in disorder, which is the control of retrieval."""
    return Shuffled(replay, seed=config.seed) if config.experience.retrieval == "shuffled" else replay


def encoder(settings: dict[str, Any]) -> Encoder:
    """The encoder of that name and those settings: one in a process, because its cache of texts is worth keeping.

    `{"name": "hidden", "checkpoint": "runs/first/checkpoints/experience"}` encodes with the hidden states of a model that a run saved.
    """
    return _encoder(json.dumps(settings, sort_keys=True, default=str))


@cache
def _encoder(settings: str) -> Encoder:
    values = json.loads(settings)
    if values.get("name") == "hidden":
        values |= _model(values.pop("checkpoint", None))
    made: Encoder = plugins.named("replay.encoders", values)
    return made


def _model(checkpoint: Any) -> dict[str, Any]:
    """What the encoder by hidden states is made of. Its weights go by the hash of their file, so that others are other vectors."""
    weights = Path(checkpoint) / "model.safetensors" if isinstance(checkpoint, str) else None
    if weights is None or not weights.is_file():
        wrong = f"no weights at '{weights}'" if weights else "it needs a checkpoint"
        raise ConfigError(
            f"replay.encoder hidden: {wrong}. Set checkpoint to the folder of a trained model, "
            "such as runs/quickstart/checkpoints/experience."
        )
    model, tokenizer = tiny.load(Path(checkpoint))
    return {
        "model": model,
        "encode": lambda text: tiny.encode(tokenizer, text),
        "weights": hashlib.blake2b(weights.read_bytes(), digest_size=8).hexdigest(),
    }
