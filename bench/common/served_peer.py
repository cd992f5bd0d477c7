"""A server that somebody started, such as vLLM, as a contender: the same weights, asked by token ids through `dreamgym`'s own client."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import httpx
import numpy as np

from dreamgym.engines import build_engine
from dreamgym.engines.server.weight_sync import score
from dreamgym.types import Request, Sampling


def first_model(url: str) -> str:
    """The name of the first model that the server lists. SystemExit, with what to do, where none answers there."""
    try:
        return str(httpx.get(f"{url}/models", timeout=30).raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise SystemExit(f"No model at {url}/models ({error!r:.200}). Start the server, and give its address with /v1.") from error


class Served(AbstractContextManager["Served"]):
    """Greedy decoding by the first model that the server at `url` (`http://…/v1`) lists. ServerError where its tokenizer is another."""

    def __init__(self, dialect: str, url: str, *, module: Any, tokenizer: Any, concurrency: int) -> None:
        settings = {"name": "server", "base_url": url, "model": first_model(url), "dialect": dialect}
        self.module = module
        self.engine = build_engine(settings | {"concurrency": concurrency, "training": False}, model=module, tokenizer=tokenizer)

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def answer(self, side: str, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        """All prompts at once; the server keeps what it likes between turns."""
        asked = [
            Request(prompt, Sampling(n, temperature=0.0), session=f"{side}{i}")
            for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True))
        ]
        return [list(one.ids) for one in self.engine.generate(asked)]

    def logprob_gaps(self, prompts: list[list[int]], tokens: int) -> dict[str, float]:
        """Quantiles of |log-probability there - of the module here| of tokens sampled at temperature 1."""
        asked = [Request(prompt, Sampling(tokens), (i,)) for i, prompt in enumerate(prompts)]
        gaps = [
            abs(there - here)
            for one in self.engine.generate(asked)
            for there, here in zip(one.logprobs, score(self.module, one), strict=True)
        ]
        return {name: float(np.quantile(gaps, share)) for name, share in (("median", 0.5), ("p99", 0.99), ("max", 1.0))}
