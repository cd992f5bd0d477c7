"""Which versions of other trainers the adapters were written for."""

from __future__ import annotations

import importlib.metadata
import re

from dreamgym.errors import MissingExtra, UsageError


def check_version(package: str, low: str, high: str) -> None:
    """MissingExtra without the package, whose extra has its name; UsageError for a version below `low`, or from `high` on."""
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtra(
            f"{package} is not installed. In an environment of its own, with the clone of dreamgym: pip install "
            f"'/path/to/dreamgym[{package}]'."
        ) from error
    if not _numbers(low) <= _numbers(found) < _numbers(high):
        raise UsageError(
            f"{package} {found} is installed, and this adapter knows {low} to below {high}. In an environment of its own: "
            f"pip install '{package}>={low},<{high}'."
        )


def _numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
