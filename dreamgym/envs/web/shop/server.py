"""The shop as a process on loopback: `build` makes its database once, `ShopServer` starts it, `python -m ...server` is the process.

A world is a copy of the database, made by SQLite's backup in a few hundredths of a second while the shop runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from dreamgym.errors import EnvironmentFailure, MissingExtra, UsageError

HERE = "dreamgym.envs.web.shop"
HEADER, FIRST = "X-World", "main"
"""The header of a request that names its world, and the world of requests without it."""
START_S, BUILD_S = 120.0, 900.0
"""How long the start and the making of the database may take."""


def cache() -> Path:
    """Where made shops are kept: $XDG_CACHE_HOME or ~/.cache, in `dreamgym`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dreamgym"


def build(seed: int) -> Path:
    """The folder of the shop that a seed names, made if need be (about half a minute)."""
    import importlib.util

    if importlib.util.find_spec("oscar") is None:
        raise MissingExtra("The shop needs django-oscar. Install it with: pip install 'dreamgym[web]'")
    source = b"".join((Path(__file__).parent / name).read_bytes() for name in ("content.py", "settings.py"))
    folder = cache() / f"shop-{seed}-{hashlib.sha256(source).hexdigest()[:12]}"
    if (folder / "sessions.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name)
        done = _process(made, "build", str(seed), timeout=BUILD_S)
        if done.returncode:
            raise EnvironmentFailure(f"The shop's database cannot be made: {done.stderr.strip()[-500:]}")
        try:
            os.replace(made, folder)
            made.mkdir()  # for the end of the block
        except OSError:  # another process was faster
            if not (folder / "sessions.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(made, folder)
    return folder


def _process(folder: Path, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"{HERE}.server", *arguments]
    return subprocess.run(command, env=_environment(folder), capture_output=True, text=True, timeout=timeout)


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "DREAMGYM_SHOP": str(folder), "DJANGO_SETTINGS_MODULE": f"{HERE}.settings"}


class ShopServer:
    """A running shop. `site` is its "host:port"."""

    def __init__(self, seed: int = 0, port: int = 0) -> None:
        """`port` 0: a free one. UsageError for a port in use; EnvironmentFailure for a shop that does not start."""
        self.template = build(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="dreamgym-shop-"))
        (self.folder / "worlds").mkdir()
        (self.folder / "template.sqlite3").symlink_to(self.template / "template.sqlite3")
        self.sessions: dict[str, str] = json.loads((self.template / "sessions.json").read_text())
        port = _free(port)
        self.site = f"127.0.0.1:{port}"
        self.log = self.folder / "server.log"
        with self.log.open("w") as log:
            command = [sys.executable, "-m", f"{HERE}.server", "serve", str(port), str(os.getpid())]
            self.process = subprocess.Popen(command, env=_environment(self.folder), stdout=log, stderr=log)
        self.reset(FIRST)
        self._wait(port)

    def world(self, name: str) -> Path:
        """The database of a world."""
        return self.folder / "worlds" / f"{name}.sqlite3"

    def reset(self, name: str) -> None:
        """Bring a world into its first state. The shop need not be stopped."""
        with closing(sqlite3.connect(self.template / "template.sqlite3")) as first, closing(sqlite3.connect(self.world(name))) as world:
            first.backup(world)

    def query(self, name: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a world's database."""
        with closing(sqlite3.connect(self.world(name), timeout=10)) as world:
            return world.execute(sql, values).fetchall()

    def close(self) -> None:
        """End the process and remove its worlds."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self, port: int) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise EnvironmentFailure(f"The shop ended at its start: {self.log.read_text()[-500:]}")
            with closing(socket.socket()) as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        self.close()
        raise EnvironmentFailure(f"The shop did not start within {START_S:g} s.")


def _free(port: int) -> int:
    """The port, or a free one for 0. UsageError for one in use."""
    with closing(socket.socket()) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise UsageError(f"Port {port} cannot be used ({error}). Give another: dreamgym web up --port 0 finds a free one.") from error
        return int(line.getsockname()[1])


def _build(seed: int) -> None:
    """Make the database, and write the session keys beside it."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import transaction

    from dreamgym.envs.web.shop import content

    call_command("migrate", run_syncdb=True, verbosity=0)
    with transaction.atomic():
        keys = content.fill(seed)
    Path(os.environ["DREAMGYM_SHOP"], "sessions.json").write_text(json.dumps(keys))


def _serve(port: int, caller: int) -> None:
    """Answer requests until the caller is gone."""
    import threading
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    import django

    django.setup()
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Requests are no news."""

        def address_string(self) -> str:
            return self.client_address[0]

    def end_with_the_caller() -> None:
        while os.getppid() == caller:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=end_with_the_caller, daemon=True).start()
    server = Server(("127.0.0.1", port), Quiet)
    server.set_app(StaticFilesHandler(get_wsgi_application()))
    server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "build":
        _build(int(sys.argv[2]))
    else:
        _serve(int(sys.argv[2]), int(sys.argv[3]))
