"""What this machine offers to a run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from typing import Any

from dreamgym.plugins import EXTRAS


def examine() -> dict[str, Any]:
    """Versions, cores, memory arithmetic and extras, as plain values."""
    import torch

    found: dict[str, Any] = {
        "dreamgym": importlib.metadata.version("dreamgym"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
    }
    missing = {extra for package, extra in EXTRAS.items() if importlib.util.find_spec(package) is None}
    return found | {f"extra: {extra}": extra not in missing for extra in sorted(set(EXTRAS.values()))}
