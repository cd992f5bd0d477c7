"""Whether processes are gone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence


def vanish(numbers: Sequence[int], *, within_s: float = 30.0) -> bool:
    """Whether processes end in time. One that nobody has waited for is a zombie, and as good as gone."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        found = subprocess.run(["ps", "-o", "stat=", "-p", ",".join(map(str, numbers))], capture_output=True, text=True).stdout
        if all(line.startswith("Z") for line in found.split()):
            return True
        time.sleep(0.05)
    return False
