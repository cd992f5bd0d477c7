"""Pictures of the shop: products have none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from oscar.core.thumbnails import AbstractThumbnailer

PLAIN = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='155' height='155'%3E"
    "%3Crect width='155' height='155' fill='%23dde3ea'/%3E%3C/svg%3E"
)
"""The picture of every product."""


class NoThumbnails(AbstractThumbnailer):
    """Gives every product the plain picture."""

    def generate_thumbnail(self, source: Any, **options: Any) -> Any:
        return SimpleNamespace(url=PLAIN, width=155, height=155)

    def delete_thumbnails(self, source: Any) -> None:
        """There are none."""
