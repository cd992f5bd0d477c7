"""When a client of a server may send: requests and tokens a minute, and the wait after a failure.

Time is a `Clock`, so that tests of a minute take none.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MINUTE = 60.0
LONGEST_BACKOFF = 30.0  # seconds; a Retry-After header may ask for more


@dataclass(frozen=True)
class Clock:
    """`now` in seconds from any beginning, and a `sleep` that agrees with it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass
class Sent:
    """One request in the last minute and the tokens it is charged."""

    at: float
    tokens: int


class RateLimiter:
    """At most `requests` and `tokens` within any minute (None: no limit). First come, first served."""

    def __init__(self, requests: int | None, tokens: int | None, clock: Clock) -> None:
        self.requests, self.tokens, self.clock = requests, tokens, clock
        self._recent: deque[Sent] = deque()
        self._turn = asyncio.Lock()

    async def acquire(self, tokens: int) -> Sent:
        """Wait until a request of that many tokens may be sent. Correct `tokens` of the result when the true number is known."""
        async with self._turn:
            while (wait := self._wait(tokens)) > 0:
                await self.clock.sleep(wait)
            sent = Sent(self.clock.now(), tokens)
            if self.requests is not None or self.tokens is not None:
                self._recent.append(sent)
            return sent

    def _wait(self, tokens: int) -> float:
        """Seconds until enough of the last minute is over; 0 when the request fits now."""
        now = self.clock.now()
        while self._recent and self._recent[0].at + MINUTE <= now:
            self._recent.popleft()
        count, charged = len(self._recent), sum(sent.tokens for sent in self._recent)
        wait = 0.0
        for sent in self._recent:
            if self._fits(count, charged, tokens):
                break
            wait = sent.at + MINUTE - now
            count, charged = count - 1, charged - sent.tokens
        return wait

    def _fits(self, count: int, charged: int, tokens: int) -> bool:
        return (self.requests is None or count < self.requests) and (self.tokens is None or charged + tokens <= self.tokens)


def backoff(failures: int, first: float) -> float:
    """Seconds to wait after the n-th failure in a row: doubling from `first`, of which a random half at most is left out.

    Without the random part, clients that failed together come back together.
    """
    return min(LONGEST_BACKOFF, first * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


def retry_after(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, as a number or as a date; None when there is none that can be read."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
