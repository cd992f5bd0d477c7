"""Worlds: every episode has a database of its own, which a request names in a header. Nothing else of the shop has state."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound
from oscar.core.thumbnails import AbstractThumbnailer

from dreamgym.envs.web.shop.server import FIRST, HEADER

NAME = re.compile(r"^[a-z0-9-]{1,40}$")


PLAIN = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='155' height='155'%3E"
    "%3Crect width='155' height='155' fill='%23dde3ea'/%3E%3C/svg%3E"
)
"""The picture of every product."""


class ChooseWorld:
    """Has the thread of a request read and write the database of its world."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = request.headers.get(HEADER, FIRST)
        path = Path(settings.FOLDER) / "worlds" / f"{name}.sqlite3"
        if not NAME.match(name) or not path.exists():
            return HttpResponseNotFound(f"There is no world '{name[:40]}'.", content_type="text/plain")
        connection.close()
        connection.settings_dict = {**connection.settings_dict, "NAME": str(path)}
        return self.get_response(request)


class NoThumbnails(AbstractThumbnailer):
    """Products have no pictures."""

    def generate_thumbnail(self, source: Any, **options: Any) -> Any:
        return SimpleNamespace(url=PLAIN, width=155, height=155)

    def delete_thumbnails(self, source: Any) -> None:
        """There are none."""
