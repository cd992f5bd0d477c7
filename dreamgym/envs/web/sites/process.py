"""What runs in a site's process: `build PACKAGE SEED` makes its database, `serve PORT CALLER` answers requests until the caller is gone.

Django's settings are those that `DJANGO_SETTINGS_MODULE` names; `server` sets it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from dreamgym.envs.web.sites.server import FOLDER, TOKEN, TOKEN_HEADER


def build(package: str, seed: int) -> None:
    """Make the database, and write the key of a session of each role beside it."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import transaction

    content = importlib.import_module(f"{package}.content")
    call_command("migrate", run_syncdb=True, verbosity=0)
    with transaction.atomic():
        keys = {role: _session(user) for role, user in content.fill(seed).items()}
    Path(os.environ[FOLDER], "sessions.json").write_text(json.dumps(keys))


def _session(user: Any) -> str:
    """The key of a session in which the user is logged in."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore

    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.set_expiry(10 * 365 * 24 * 3600)
    store.create()
    return str(store.session_key)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are no news."""

    def address_string(self) -> str:
        return str(self.client_address[0])


def serve(port: int, caller: int) -> None:
    """Answer requests on loopback until the process `caller` is gone."""
    import django

    django.setup()
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application

    def end_with_the_caller() -> None:
        while os.getppid() == caller:
            time.sleep(0.5)
        os._exit(0)

    site, token = StaticFilesHandler(get_wsgi_application()), os.environ.get(TOKEN, "")

    def with_token(request: dict[str, Any], respond: Any) -> Any:
        """The site's answer and the caller's token, by which the caller knows it."""
        return site(request, lambda status, headers, *rest: respond(status, [*headers, (TOKEN_HEADER, token)], *rest))

    threading.Thread(target=end_with_the_caller, daemon=True).start()
    server = _Server(("127.0.0.1", port), _Quiet)
    server.set_app(with_token)
    server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(sys.argv[2], int(sys.argv[3]))
    else:
        serve(int(sys.argv[2]), int(sys.argv[3]))
