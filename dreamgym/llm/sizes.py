"""Sizes of the small transformer, apart from `tiny` so that a configuration is checked before torch is imported."""

from __future__ import annotations

from dreamgym.errors import ConfigError, nearest

MAX_POSITIONS = 4096
"""Tokens that the small transformer reads at most."""
SIZES: dict[str, dict[str, int]] = {
    "100k": {"layers": 2, "width": 64, "heads": 2, "kv_heads": 1, "mlp": 128},  # for toys
    # One key-value head: decoding reads the cache of every token, and four query heads on one key halve what two would read.
    "1m": {"layers": 4, "width": 128, "heads": 4, "kv_heads": 1, "mlp": 384},
    "4m": {"layers": 6, "width": 224, "heads": 7, "kv_heads": 1, "mlp": 640},
    "15m": {"layers": 8, "width": 384, "heads": 6, "kv_heads": 1, "mlp": 1024},
    "60m": {"layers": 12, "width": 640, "heads": 10, "kv_heads": 2, "mlp": 1792},
}


def shape_of(size: str) -> dict[str, int]:
    """Layers, width, heads and feed-forward width of a named size. ConfigError for an unknown name."""
    if size not in SIZES:
        raise ConfigError(f"No model size '{size}'.{nearest(size, SIZES)} Known: {', '.join(SIZES)}.")
    return SIZES[size]


def parameters(size: str, vocab_size: int) -> int:
    """How many numbers a model of the named size has, roughly: embeddings, attention and feed-forward layers."""
    shape = shape_of(size)
    width = shape["width"]
    attention = 2 * width * width * (1 + shape["kv_heads"] / shape["heads"])
    return int(vocab_size * width + shape["layers"] * (attention + 3 * width * shape["mlp"]))
