"""Memory that the allocator keeps though nothing uses it, given back to the system.

The activations of rows of different lengths leave holes of different sizes in the heap of the C library, which keeps them. Training
SmolLM2 on rows of up to 3,157 tokens, 1.2 GB of 5 were in use (`mallinfo2`). Tensors of more than 32 MB are mapped on their own and
leave none.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path

MOST_FREE = 512_000_000
"""Bytes that the process may grow by before free memory is given back. To give it back costs milliseconds, and to take it again a page
fault for every 4 KB, so that a small model, which leaves less, pays for neither."""

STATM = Path("/proc/self/statm")


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
    """Bytes of the heap that nothing uses, those that were given back included; 0 where the C library does not say."""
    functions = _functions()
    return int(functions[0]().fordblks) if functions else 0


def resident_bytes() -> int:
    """Bytes of this process in memory that belong to no file."""
    _, resident, shared, *_ = map(int, STATM.read_text().split())
    return (resident - shared) * resource.getpagesize()


class Heap:
    """The heap of this process."""

    def __init__(self) -> None:
        self._least = 0  # resident bytes: after free memory was given back for the last time, or fewer since

    def give_back(self, most_free: int = MOST_FREE) -> bool:
        """Give free memory back to the system where the process has grown by more than `most_free` bytes since the last time and as many
        are free. Returns whether it was given back."""
        functions = _functions()
        if functions is None or not STATM.is_file():
            return False
        resident = resident_bytes()
        self._least = min(self._least, resident)
        if resident - self._least <= most_free or free_bytes() <= most_free:
            return False
        functions[1](0)
        self._least = resident_bytes()
        return True


HEAP = Heap()
