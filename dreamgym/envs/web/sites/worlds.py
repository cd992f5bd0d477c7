"""Worlds: every episode has a database of its own, which a request names in a header. Nothing else of a site has state."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound

from dreamgym.envs.web.sites.server import FIRST, HEADER

NAME = re.compile(r"^[a-z0-9-]{1,40}$")


class ChooseWorld:
    """Middleware that has the thread of a request read and write the database of its world."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = request.headers.get(HEADER, FIRST)
        path = Path(settings.FOLDER) / "worlds" / f"{name}.sqlite3"
        if not NAME.match(name) or not path.exists():
            return HttpResponseNotFound(f"There is no world '{name[:40]}'.", content_type="text/plain")
        connection.close()
        # `mode=rw`: a world that is removed meanwhile is not made anew
        connection.settings_dict = {**connection.settings_dict, "NAME": f"{path.absolute().as_uri()}?mode=rw"}
        return self.get_response(request)
