"""Asking a model server over HTTP from a background thread: pooled connections, retries, limits, and a meter of what it costs.

Retried are answers that another try may better: no connection, timeouts, 408, 409, 429 (after the server's Retry-After), 5xx, bodies cut
short and bodies that are not JSON. Every other refusal is final at once. An error says which server, which status, how many attempts, and
what to do; it never holds the key.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx

from dreamgym.engines.server.config import ServerConfig
from dreamgym.engines.server.rate_limit import Clock, RateLimiter, backoff, retry_after
from dreamgym.errors import ServerError, counted
from dreamgym.usage import Tokens, Usage

log = logging.getLogger(__name__)
T = TypeVar("T")
TRANSIENT = frozenset({408, 409, 429}) | frozenset(range(500, 600)) - {501, 505}
PATIENCE = 5.0  # seconds for what is under way to take note that it was cancelled
LONG_WAIT = 60.0  # seconds; a longer wait is logged
LARGEST_ANSWER = 64 << 20  # bytes
KEPT_HEADERS = ("location", "retry-after")  # what is read of a response
SHOWN = 300  # characters of a server's own words in an error


class TryAgain(Exception):
    """This attempt failed, another may not. `wait` is what the server asked for, in seconds; `status` 0: nothing was sent."""

    def __init__(self, reason: str, *, status: int | None = None, wait: float | None = None) -> None:
        super().__init__(reason)
        self.status, self.wait = status, wait


class Unreachable(ServerError):
    """No connection came about: nothing was sent, so that no request can be the cause."""


class Client:
    """Runs coroutines on its own event loop, in a daemon thread that starts with the first of them. `close` ends both."""

    def __init__(self, config: ServerConfig, usage: Usage, clock: Clock) -> None:
        self.config, self.usage, self.clock, self._key = config, usage, clock, config.key()
        self.apis = list(dict.fromkeys(map(_api, (config.base_url, *config.more_urls))))
        """The OpenAI bases of the servers, each with `/v1` or a path of its own."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close: Callable[[], object] = lambda: None

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the background. Cancelling the future cancels it, and with it the HTTP request it waits for."""
        if self._loop is None:
            self._open()
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Abort what is under way and end the thread. A later `start` begins anew."""
        self._close()
        self._loop = None

    def _open(self) -> None:
        loop = asyncio.new_event_loop()
        limits = httpx.Limits(max_connections=self.config.concurrency + 4, max_keepalive_connections=self.config.concurrency + 4)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._http = httpx.AsyncClient(limits=limits, timeout=None, headers=headers)  # `_attempt` limits the whole attempt
        self._semaphore = asyncio.Semaphore(self.config.concurrency)
        self._limiter = RateLimiter(self.config.requests_per_minute, self.config.tokens_per_minute, self.clock)
        thread = threading.Thread(target=_serve, args=(loop,), name="dreamgym-http", daemon=True)
        thread.start()
        self._loop = loop
        self._close = weakref.finalize(self, _shut, loop, thread, self._http)

    async def ask(
        self, method: str, url: str, payload: Any, read: Callable[[Any], tuple[T, Tokens | None]], *, tokens: int, most: Tokens
    ) -> T:
        """The server's answer to a metered request, read by `read` (which may raise TryAgain), within every limit. `tokens` is what the
        request will use as the rate limit sees it, `most` what an attempt is charged whose tokens the server does not report.
        """
        async with self._semaphore:
            return await self._retry(method, url, payload, read, tokens, most)

    async def control(self, method: str, url: str, payload: Any = None, *, timeout_s: float | None = None, retries: int = 0) -> Any:
        """An unmetered request outside the limits: its JSON, or its text where it is none, or None for an empty body."""
        for attempt in range(1, retries + 2):
            try:
                response = await self._send(method, url, payload, timeout_s or self.config.timeout_s)
                break
            except TryAgain as error:
                if attempt > retries:
                    raise self._give_up(method, url, error, attempt) from error
                await self.clock.sleep(backoff(attempt, self.config.backoff_s) if error.wait is None else error.wait)
        try:
            return response.json() if response.content else None
        except (ValueError, RecursionError):
            return _text(response)

    async def _retry(
        self, method: str, url: str, payload: Any, read: Callable[[Any], tuple[T, Tokens | None]], tokens: int, most: Tokens
    ) -> T:
        """Attempts until one succeeds, the retries are out, or the deadline would pass."""
        began: float | None = None  # when the first attempt was sent: waiting for its turn is no fault of the server
        attempts, last = 0, TryAgain("nothing was sent")
        try:
            while True:
                sent = await self._limiter.acquire(tokens)
                began = self.clock.now() if began is None else began
                if attempts and self._late(began):
                    raise self._give_up(method, url, last, attempts, late=True) from last
                attempts += 1
                try:
                    result, used = await self._attempt(method, url, payload, read, most)
                except TryAgain as error:
                    last = error
                    wait = backoff(attempts, self.config.backoff_s) if error.wait is None else error.wait
                    late = self._late(began, wait)
                    if attempts > self.config.retries or late:
                        raise self._give_up(method, url, error, attempts, late=late) from error
                    self.usage.retries += 1
                    if wait > LONG_WAIT:
                        log.warning("%s asks for a pause of %.0f seconds (%s); deadline_s would end such a wait.", url, wait, error)
                    await self.clock.sleep(wait)
                else:
                    if used is not None:
                        sent.tokens = used.prompt + used.completion
                    self._meter(used, most, url)
                    return result
        except asyncio.CancelledError:
            self.usage.cancelled += 1
            raise
        except Exception:
            self.usage.failures += 1
            raise

    def _late(self, began: float, wait: float = 0.0) -> bool:
        """Whether an attempt after `wait` seconds would begin past the deadline of a request that began then."""
        return self.config.deadline_s is not None and self.clock.now() + wait - began > self.config.deadline_s

    async def _attempt(
        self, method: str, url: str, payload: Any, read: Callable[[Any], tuple[T, Tokens | None]], most: Tokens
    ) -> tuple[T, Tokens | None]:
        """One attempt, metered whatever becomes of it."""
        self.usage.attempts += 1
        began = self.clock.now()
        try:
            response = await self._send(method, url, payload, self.config.timeout_s)
            try:
                body = response.json()
            except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
                raise TryAgain(f"its answer is not JSON: {self._excerpt(response)}", status=response.status_code) from error
            return read(body)
        except asyncio.CancelledError:
            self._lose(most)
            raise
        except (TryAgain, ServerError) as error:
            if error.status in (None, 200):  # with any other status it was refused before any work
                self._lose(most)
            raise
        finally:
            self.usage.seconds += self.clock.now() - began

    async def _send(self, method: str, url: str, payload: Any, timeout_s: float) -> httpx.Response:
        try:
            async with asyncio.timeout(timeout_s), self._http.stream(method, url, json=payload) as streamed:
                response = await _whole(streamed)
        except TimeoutError as error:
            raise TryAgain(f"no whole answer within timeout_s={timeout_s:g} seconds") from error
        except httpx.ConnectError as error:
            raise TryAgain(f"no connection ({error})", status=0) from error
        except httpx.HTTPError as error:
            raise TryAgain(f"the connection broke off ({type(error).__name__}: {error})") from error
        if response.status_code in TRANSIENT:
            wait = retry_after(response.headers.get("retry-after"))
            raise TryAgain(f"status {response.status_code}: {self._excerpt(response)}", status=response.status_code, wait=wait)
        if not response.is_success:
            raise self._refused(method, url, response)
        return response

    def _lose(self, most: Tokens) -> None:
        self.usage.lost_tokens += most.prompt
        self.usage.lost_completion_tokens += most.completion

    def _meter(self, used: Tokens | None, most: Tokens, url: str) -> None:
        if used is None:
            if not self.usage.unreported:
                log.warning("%s does not report the tokens it used: each such answer is counted as the most it may have used.", url)
            self.usage.unreported += 1
            used = most
        self.usage.requests += 1
        self.usage.prompt_tokens += used.prompt
        self.usage.completion_tokens += used.completion

    def _excerpt(self, response: httpx.Response) -> str:
        """The beginning of what the server said. Some hosts repeat a wrong key in their answer."""
        return self._shown(_text(response)) or "(an empty body)"

    def _shown(self, message: str) -> str:
        """The beginning of a text of the server on one line, without the key."""
        text = " ".join(message.split())
        return (text.replace(self._key, "***") if self._key else text)[:SHOWN]

    def _refused(self, method: str, url: str, response: httpx.Response) -> ServerError:
        """An answer that another try would not change."""
        status, env = response.status_code, self.config.api_key_env
        refusal = f"{method} {url} was refused with status {status}: {self._excerpt(response)}"
        if status in (401, 403):
            state = "one was sent, and it was not accepted" if self._key else f"none was sent: {env} is not set"
            return ServerError(f"{refusal} Expected a valid key in the option api_key or the variable {env}; {state}.", status=status)
        if 300 <= status < 400:
            location = self._shown(response.headers.get("location", ""))
            hint = f"It sends requests on to {location}: set base_url to the server there." if location else "Set base_url to the server."
            return ServerError(f"{refusal} {hint} Requests are not sent on, since they carry the key.", status=status)
        if status == 404:
            return ServerError(f"{refusal} Check base_url, the model's name, and that this server offers the path.", status=status)
        return ServerError(f"{refusal} The same request would be refused again: correct its options.", status=status)

    def _give_up(self, method: str, url: str, error: TryAgain, attempts: int, *, late: bool = False) -> ServerError:
        limit = f"; waiting longer would pass deadline_s={self.config.deadline_s:g}" if late else ""
        hint = "Check that the server is up; if it is overloaded, lower concurrency, or raise retries or timeout_s."
        kind = Unreachable if error.status == 0 else ServerError
        return kind(
            f"{method} {url} failed after {counted(attempts, 'attempt')}{limit}. The last: {error} {hint} Other requests under way stay "
            "valid.",
            status=error.status or None,
            gone=not error.status or error.status >= 500,
        )


def _api(base_url: str) -> str:
    """The OpenAI base of an address, which may be a server's root."""
    url = base_url.rstrip("/")
    return url if httpx.URL(url).path.rstrip("/") else f"{url}/v1"


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and close its sockets then, whatever stopped it."""
    try:
        loop.run_forever()
    finally:
        loop.close()


def _shut(loop: asyncio.AbstractEventLoop, thread: threading.Thread, http: httpx.AsyncClient) -> None:
    """Cancel everything on the loop, close its connections, and end its thread."""

    async def wind_up() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await http.aclose()

    def stop(_: object) -> None:
        loop.call_soon_threadsafe(loop.stop)

    if threading.current_thread() is thread:  # the garbage collector came by there: it cannot wait for itself
        loop.create_task(wind_up()).add_done_callback(stop)
        return
    asyncio.run_coroutine_threadsafe(wind_up(), loop).add_done_callback(stop)
    thread.join(timeout=PATIENCE)
    if thread.is_alive():
        log.warning("A request under way did not end within %g seconds of being cancelled; its connection stays open.", PATIENCE)


async def _whole(streamed: httpx.Response) -> httpx.Response:
    """A response with its body, uncompressed. ServerError for one that is too long to be an answer."""
    body = bytearray()
    async for part in streamed.aiter_bytes():
        body += part
        if len(body) > LARGEST_ANSWER:
            problem = f"{streamed.request.method} {streamed.url} was answered with more than {LARGEST_ANSWER >> 20} MiB."
            raise ServerError(f"{problem} Check base_url: is it a model server?", status=streamed.status_code)
    headers = {name: value for name, value in streamed.headers.items() if name in KEPT_HEADERS}
    return httpx.Response(streamed.status_code, headers=headers, content=bytes(body))


def _text(response: httpx.Response) -> str:
    """The body as UTF-8. `response.text` fails where what the server calls its charset is no encoding of text, such as base64."""
    return response.content.decode("utf-8", "replace")
