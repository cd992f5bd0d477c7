"""A site as a process on loopback: `build` makes its database once, `SiteServer` starts it; `process` is what runs in it.

A world is a copy of the database, made by SQLite's backup in a few hundredths of a second while the site runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from dreamgym.envs.web.sites.site import Site
from dreamgym.errors import EnvironmentFailure, MissingExtra, UsageError

PROCESS = "dreamgym.envs.web.sites.process"
FOLDER = "DREAMGYM_SITE"
"""The variable that tells the process the folder of its site."""
TOKEN = "DREAMGYM_SITE_TOKEN"
"""The variable that tells the process what it answers with, so that no other server at its port is taken for it."""
TOKEN_HEADER = "X-Site-Token"
"""The header of an answer that holds it."""
HEADER, FIRST = "X-World", "main"
"""The header of a request that names its world, and the world of requests without it."""
START_S, BUILD_S = 120.0, 900.0
"""How long the start and the making of the database may take."""
ANSWER_S = 5.0
"""How long a site may be silent about a request that needs no database: a few thousandths of a second are usual."""
log = logging.getLogger(__name__)


def cache() -> Path:
    """Where made sites are kept: $XDG_CACHE_HOME or ~/.cache, in `dreamgym`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dreamgym"


def build(site: Site, seed: int) -> Path:
    """The folder of the content that a seed names, made if need be (up to half a minute). MissingExtra without the site's distribution."""
    require_package(site)
    folder = cache() / f"{site.name}-{seed}-{hashlib.sha256(_source(site)).hexdigest()[:12]}"
    if (folder / "sessions.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name)
        command = [sys.executable, "-m", PROCESS, "build", site.package, str(seed)]
        done = subprocess.run(command, env=_environment(site, made), capture_output=True, text=True, timeout=BUILD_S)
        if done.returncode:
            raise EnvironmentFailure(f"The database of the {site.name} cannot be made: {done.stderr.strip()[-500:]}")
        try:
            os.replace(made, folder)
            made.mkdir()  # for the end of the block
        except OSError:  # another process was faster
            if not (folder / "sessions.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(made, folder)
    return folder


def require_package(site: Site) -> None:
    """MissingExtra without the site's distribution."""
    if importlib.util.find_spec(site.module) is None:
        raise MissingExtra(f"The {site.name} needs {site.distribution}. Install it with: pip install 'dreamgym[web]'")


def _source(site: Site) -> bytes:
    """The code that decides what the database holds."""
    spec = importlib.util.find_spec(site.package)
    assert spec and spec.origin
    package = Path(spec.origin).parent
    files = (*(package / name for name in ("content.py", "filling.py", "settings.py")), Path(__file__).with_name("settings.py"))
    return b"".join(file.read_bytes() for file in files if file.exists())


def _environment(site: Site, folder: Path) -> dict[str, str]:
    return {**os.environ, FOLDER: str(folder), "DJANGO_SETTINGS_MODULE": f"{site.package}.settings"}


class SiteServer:
    """A running site. `address` is its "host:port"."""

    def __init__(self, site: Site, seed: int = 0, port: int = 0) -> None:
        """`port` 0: a free one. UsageError for a port in use; EnvironmentFailure for a site that does not start."""
        self.site, self.template, self.port = site, build(site, seed), _free(port)
        self.token = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix=f"dreamgym-{site.name}-"))
        (self.folder / "worlds").mkdir()
        (self.folder / "template.sqlite3").symlink_to(self.template / "template.sqlite3")
        self.sessions: dict[str, str] = json.loads((self.template / "sessions.json").read_text())
        self.address = f"127.0.0.1:{self.port}"
        self.log = self.folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.reset(FIRST)
        try:
            self.start()
        except EnvironmentFailure:
            self.close()
            raise

    def start(self) -> None:
        """Start the process, or start it again at the same address and with the same worlds if it has ended or does not answer."""
        if self.process is not None and self.process.poll() is None:
            if self._answers():
                return
            log.warning("the %s does not answer within %g s, and is ended and started again", self.site.name, ANSWER_S)
            self._end()
        elif self.process is not None:
            log.warning("the %s has ended (exit status %d) and is started again", self.site.name, self.process.returncode)
        with self.log.open("a") as output:  # a second start keeps why the first process ended
            command = [sys.executable, "-m", PROCESS, "serve", str(self.port), str(os.getpid())]
            environment = {**_environment(self.site, self.folder), TOKEN: self.token}
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        self._wait(self.process)

    def world(self, name: str) -> Path:
        """The database of a world."""
        return self.folder / "worlds" / f"{name}.sqlite3"

    def reset(self, name: str) -> None:
        """Bring a world into its first state. The site need not be stopped."""
        with closing(sqlite3.connect(self.template / "template.sqlite3")) as first, closing(sqlite3.connect(self.world(name))) as world:
            first.backup(world)

    def remove(self, name: str) -> None:
        """Remove a world. Requests that name it are answered 404, and one that is being answered changes nothing that is left."""
        self.world(name).unlink(missing_ok=True)

    def query(self, name: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a world's database. That of its first state is attached as `template`."""
        with closing(sqlite3.connect(self.world(name), timeout=10)) as world:
            world.execute("ATTACH ? AS template", (str(self.template / "template.sqlite3"),))
            return world.execute(sql, values).fetchall()

    def wait(self) -> None:
        """Until the process ends. EnvironmentFailure then: nobody has ended it."""
        if self.process is not None:
            status = self.process.wait()
            raise EnvironmentFailure(f"The {self.site.name} has ended by itself (exit status {status}): {self.log.read_text()[-500:]}")

    def close(self) -> None:
        """End the process and remove its worlds."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if process.poll() is not None:
                raise EnvironmentFailure(f"The {self.site.name} ended at its start: {self.log.read_text()[-500:]}")
            if self._answers():
                return
            time.sleep(0.1)
        self._end()
        raise EnvironmentFailure(f"The {self.site.name} did not start within {START_S:g} s.")

    def _answers(self) -> bool:
        """Whether the process answers at all, and no other server at its port. A hung one is still connected to, by the system, so that
        needs a whole request."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)) as line:
            try:
                line.request("GET", "/", headers={HEADER: "none"})  # a world that there is not
                return line.getresponse().getheader(TOKEN_HEADER) == self.token
            except (OSError, HTTPException):
                return False


def _free(port: int) -> int:
    """The port, or a free one for 0. UsageError for one in use."""
    with closing(socket.socket()) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise UsageError(f"Port {port} cannot be used ({error}). Give another: dreamgym web up --port 0 finds a free one.") from error
        return int(line.getsockname()[1])
