"""Memory that the allocator keeps though nothing uses it, given back to the system.

The activations of rows of different lengths leave holes of different sizes in the heap of the C library, which keeps them. Training
SmolLM2 on rows of up to 3,157 tokens, 1.2 GB of 5 were in use (`mallinfo2`). Tensors of more than 32 MB are mapped on their own and
leave none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

MOST_FREE = 512_000_000
"""Bytes that may stay free in the heap. To give them back costs milliseconds, and to take them again a page fault for every 4 KB, so that
a small model, which leaves less, pays for neither."""


class _Usage(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


@cache
def _functions() -> tuple[Callable[[], _Usage], Callable[[int], int]] | None:
    """`mallinfo2` and `malloc_trim`; None where the C library has none, as on macOS and with musl."""
    try:
        library = ctypes.CDLL(None)
        usage, trim = library.mallinfo2, library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    usage.restype, trim.argtypes = _Usage, [ctypes.c_size_t]
    return usage, trim


def free_bytes() -> int:
    """Bytes of the heap that nothing uses; 0 where the C library does not say."""
    functions = _functions()
    return int(functions[0]().fordblks) if functions else 0


def give_back(most_free: int = MOST_FREE) -> None:
    """Give the free pages of the heap back to the system where they are more than `most_free` bytes."""
    functions = _functions()
    if functions and free_bytes() > most_free:
        functions[1](0)
