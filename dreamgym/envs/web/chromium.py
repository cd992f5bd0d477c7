"""The system's Chromium, driven through Playwright: found by name, started once a process, and ended when it hangs.

Playwright 1.44, which BrowserGym 0.14 is pinned to, was built for Chromium 125 and drives newer ones. Nothing but the addresses of the task
is reachable: every other request goes to a proxy that does not exist.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from dreamgym.errors import EnvironmentFailure, MissingExtra, UsageError

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Programs to look for. The first needs 40 % less memory than a whole Chromium."""
OLDEST = 120
"""The oldest version that is accepted. Tested: 156."""
NOWHERE = "http://127.0.0.1:9"
"""The proxy of everything that is not reachable: nothing listens on the discard port."""
THREAD = "dreamgym-browser"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--mute-audio", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp", "--no-pings",
)  # fmt: skip
_browsers: WeakSet[Browser] = WeakSet()
P = ParamSpec("P")
T = TypeVar("T")


class NotStarted(EnvironmentFailure):
    """A browser that does not start, or ends while it does: another try may help."""


def in_browser_thread(work: Callable[P, T]) -> Callable[P, T]:
    """A function that runs in the one thread of this process in which Playwright lives.

    Playwright's objects belong to the thread that made them, and leave an asyncio loop running there: in the caller's own thread no other
    code could use asyncio, and in a notebook Playwright would not start. A caller that is interrupted meanwhile ends the browsers.
    """

    @wraps(work)
    def moved(*args: P.args, **kwargs: P.kwargs) -> T:
        if threading.current_thread().name.startswith(THREAD):
            return work(*args, **kwargs)
        future = _thread().submit(work, *args, **kwargs)
        try:
            return future.result()
        finally:
            if not future.done():  # Ctrl-C: a page that never answers would keep the process from ending
                for browser in list(_browsers):
                    browser.give_up()

    return moved


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=THREAD)


def find(named: str = "") -> str:
    """The path of a Chromium: the named program, or the first of `NAMES` that is installed.

    MissingExtra when there is none; UsageError for one that does not start or is too old. Both say what to install.
    """
    advice = "On Debian or Ubuntu: sudo apt install chromium-headless-shell (or chromium). Another place: env.options.browser = PATH."
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise MissingExtra(
            f"No browser '{named}'. {advice}" if named else f"No Chromium is installed (looked for {', '.join(NAMES)}). {advice}"
        )
    major = version(found)
    if major < OLDEST:
        raise UsageError(f"{found} is Chromium {major}, which is too old: expected {OLDEST} or newer. {advice}")
    return found


@cache
def version(path: str) -> int:
    """The major version of a Chromium. UsageError for a program that is none."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, errors="replace").stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} does not start as a browser ({error}). Name another: env.options.browser = PATH.") from error
    match = re.search(r"\b(\d{2,4})\.\d+\.\d+", answer)
    if not match:
        raise UsageError(
            f"{path} --version says {answer.strip()[:80]!r}, which no Chromium does. Name another: env.options.browser = PATH."
        )
    return int(match[1])


@cache
@in_browser_thread
def playwright() -> Any:
    """The Playwright of this process. MissingExtra without the package; UsageError where it does not start."""
    try:
        from browsergym.core import _set_global_playwright
        from playwright.sync_api import Error, _context_manager, sync_playwright
    except ModuleNotFoundError as error:
        raise MissingExtra(f"The web environments need {error.name}. Install it with: pip install 'dreamgym[web]'") from error
    _context_manager.MainGreenlet = _loop()
    asyncio._set_running_loop(None)  # that of a driver which has ended
    try:
        started = sync_playwright().start()
    except Error as error:
        raise UsageError(
            f"Playwright does not start: {first_line(error)}. Install it again: pip install --force-reinstall playwright"
        ) from error
    _set_global_playwright(started)  # which also names the attribute that elements are found by
    started.selectors.set_test_id_attribute("bid")
    return started


@cache
def _loop() -> Any:
    """The greenlet of Playwright's loop, which ends with the driver: Playwright then waits for ever, so that this raises instead."""
    from playwright._impl._greenlets import MainGreenlet
    from playwright.sync_api import Error

    class Loop(MainGreenlet):  # type: ignore[misc, unused-ignore]
        def switch(self, *arguments: Any) -> Any:
            if self.dead:
                raise Error("Playwright's driver has ended.")
            return super().switch(*arguments)

    return Loop


def driver_ended(made: Any) -> bool:
    """Whether the driver, Playwright's own process, has ended that made an object: the object is of no use then. A driver ends where a
    browser is killed while it opens a page (1.44)."""
    return bool(made._impl_obj._connection._transport.on_error_future.done())


class Browser:
    """One browser, which starts when it is first needed and again when it has died. `generation` counts its starts."""

    def __init__(self, path: str, *, width: int = 1280, height: int = 720) -> None:
        self.path, self.size = path, {"width": width, "height": height}
        self.generation = 0
        self._browser: Any = None
        self._pid = 0
        self._late = threading.Event()
        _browsers.add(self)

    @property
    def alive(self) -> bool:
        return self._browser is not None and not driver_ended(self._browser) and self._browser.is_connected()

    @property
    def pid(self) -> int:
        """Of the browser's main process; 0 before it starts."""
        return self._pid

    def context(self, sites: Sequence[str], *, viewport: Mapping[str, int] | None = None, **options: Any) -> Any:
        """A fresh Playwright context, as a browser just installed, in which only `sites` ("host:port") are reachable."""
        if not self.alive:
            self._start()
        return self._browser.new_context(
            viewport=viewport or self.size,
            accept_downloads=False,
            proxy={"server": NOWHERE, "bypass": ",".join(sites)},
            service_workers="block",
            reduced_motion="reduce",
            **options,
        )

    def close(self) -> None:
        """End the browser. It starts again when it is needed."""
        with suppress(Exception):  # it may be dead, or the interpreter is ending
            in_browser_thread(self._browser.close)()
        self.kill()

    def kill(self) -> None:
        """End the browser at once, from any thread."""
        pid, self._pid = self._pid, 0
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def give_up(self) -> None:
        """End the browser at once, from any thread, and what it does now as after its time limit."""
        self._late.set()
        self.kill()

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[threading.Event]:
        """End the browser when the block takes longer. The event then says that it was this limit."""
        self._late = threading.Event()
        timer = threading.Timer(seconds, self.give_up)
        timer.daemon = True
        timer.start()
        try:
            yield self._late
        finally:
            timer.cancel()

    def _start(self) -> None:
        from playwright.sync_api import Error

        if driver_ended(playwright()):
            playwright.cache_clear()
        height = self.size["height"] + (0 if "headless-shell" in Path(self.path).name else 87)  # a whole Chromium has a bar on top
        try:
            self._browser = playwright().chromium.launch(
                executable_path=self.path,
                args=[*FLAGS, f"--window-size={self.size['width']},{height}"],
                proxy={"server": NOWHERE},
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
            info = self._browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
        except Error as error:
            raise NotStarted(f"{self.path} does not start: {first_line(error)}") from error
        self._pid = next((int(one["id"]) for one in info["processInfo"] if one["type"] == "browser"), 0)
        self.generation += 1


def first_line(error: BaseException) -> str:
    """What an error says, without the call log that Playwright adds."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
