"""How many of the prompts' tokens vLLM's servers found in their prefix caches, by the counters that they show under `/metrics`.

vLLM counts tokens that were looked up (`vllm:prefix_cache_queries`) and tokens that were found (`vllm:prefix_cache_hits`) since it was
started, over all its clients. A rate is of two readings. Other servers show no such counters, and have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dreamgym.engines.server.engine import ServerEngine
from dreamgym.errors import ServerError

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Reading:
    """The counters of one server, in tokens."""

    hits: float = 0.0
    queries: float = 0.0


class PrefixCaches:
    """Owns the last reading of every server."""

    def __init__(self) -> None:
        self._last: dict[str, Reading] = {}

    def hit_rates(self, engines: Mapping[str, Any]) -> dict[str, float]:
        """Name -> share of the tokens that the engine's servers looked up since the last call and found; without names of engines that
        have no such servers, or whose servers looked up nothing. The first call only reads."""
        before, read_now = dict(self._last), dict[str, Reading | None]()
        found: dict[str, float] = {}
        for name, engine in engines.items():
            hits = queries = 0.0
            for api in _servers(engine):
                if api not in read_now:
                    read_now[api] = read(engine, api)
                if (now := read_now[api]) is not None:
                    last = before.get(api, now)
                    last = last if last.queries <= now.queries else Reading()  # a server that was started again counts from zero
                    hits, queries = hits + now.hits - last.hits, queries + now.queries - last.queries
                    self._last[api] = now
            if queries > 0:
                found[name] = hits / queries
        return found


def read(engine: ServerEngine, api: str) -> Reading | None:
    """The counters of the server at `api`, zeros where it has none; None where it does not answer."""
    try:
        text = engine.client.wait(engine.client.control("GET", engine.url("/metrics", api), timeout_s=TIMEOUT_S))
    except ServerError:
        return None
    return parsed(text) if isinstance(text, str) else Reading()


def parsed(text: str) -> Reading:
    """The counters in Prometheus' text format, summed over the labels (models, engines of one server)."""
    totals = {"vllm:prefix_cache_hits": 0.0, "vllm:prefix_cache_queries": 0.0}
    for line in text.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        name = name.removesuffix("_total")
        if name in totals:
            value = rest.rpartition("}")[2].split()
            totals[name] += _number(value[0]) if value else 0.0
    return Reading(totals["vllm:prefix_cache_hits"], totals["vllm:prefix_cache_queries"])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _servers(engine: Any) -> tuple[str, ...]:
    """The addresses of vLLM's servers behind an engine."""
    return engine.servers.apis if isinstance(engine, ServerEngine) and engine.config.dialect == "vllm" else ()
