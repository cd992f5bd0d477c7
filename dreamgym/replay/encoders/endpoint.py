"""phi(s, a) by an OpenAI-compatible embeddings endpoint (POST {base_url}/embeddings), hosted or served beside the run.

Retried are answers that another try may better: no connection, timeouts, 408, 409, 429 (after the server's Retry-After) and 5xx. Every
other refusal is final at once. An error names the server and never holds the key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym.config import ServerUrl, build
from dreamgym.errors import ConfigError, ServerError, counted
from dreamgym.replay.encoders._pair import PairConfig, PairEncoder

TRANSIENT = frozenset({408, 409, 429, 500, 502, 503, 504})
LONGEST_WAIT_S = 60.0


class EndpointConfig(PairConfig):
    """`model`, `dim` and `action_weight` are part of the encoder's id; where it is served is not."""

    base_url: ServerUrl  # such as http://localhost:8000/v1
    model: str
    dim: int = Field(ge=1)  # numbers a text, as the model gives them
    key_env: str = "OPENAI_API_KEY"  # environment variable that holds the key; a server that asks for none needs none
    batch: int = Field(default=128, ge=1)  # texts a request
    retries: int = Field(default=5, ge=0)
    timeout_s: float = Field(default=60.0, gt=0)


class Endpoint:
    """See `_pair.TextModel`."""

    def __init__(self, config: EndpointConfig, client: httpx.Client | None = None, sleep: Callable[[float], None] = time.sleep):
        self.id = f"endpoint-1 {config.model} dim={config.dim}"
        self.dim = config.dim
        self._config, self._sleep = config, sleep
        self._url = config.base_url.rstrip("/") + "/embeddings"
        self._client = client or httpx.Client(timeout=config.timeout_s)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim]. ServerError when the server fails for good or answers something else."""
        batch = self._config.batch
        parts = [self._read(self._ask(texts[i : i + batch]), len(texts[i : i + batch])) for i in range(0, len(texts), batch)]
        return np.concatenate(parts)

    def _ask(self, texts: Sequence[str]) -> Any:
        key = self._key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        body = {"model": self._config.model, "input": [text or " " for text in texts], "encoding_format": "float"}  # "" is refused by some
        for attempt in range(self._config.retries + 1):
            status: int | None = None
            wait = min(LONGEST_WAIT_S, 0.5 * 2.0**attempt)
            try:
                answer = self._client.post(self._url, json=body, headers=headers)
                status = answer.status_code
                if answer.is_success:
                    return answer.json()
                reason = f"status {status}: {answer.content.decode('utf-8', 'replace')[:300]}"  # whatever charset the server names
                if status not in TRANSIENT:
                    break
                asked = answer.headers.get("retry-after", "")
                wait = min(LONGEST_WAIT_S, float(asked)) if asked.replace(".", "", 1).isdecimal() else wait
            except (httpx.TransportError, ValueError, RecursionError) as error:
                reason = str(error) or type(error).__name__
            if attempt < self._config.retries:
                self._sleep(wait)
        reason = reason.replace(key, "***") if key else reason
        raise ServerError(
            f"Embeddings of '{self._config.model}' from {self._url} failed after {counted(attempt + 1, 'attempt')}: {reason}. "
            f"Check that the server runs, serves this model, and that {self._config.key_env} holds its key if it needs one.",
            status=status,
        )

    def _key(self) -> str:
        """The key to send, or nothing. ConfigError for one that no header takes: the HTTP library would repeat it in its own error."""
        key = os.environ.get(self._config.key_env, "").strip()  # a file that holds a key ends in a newline
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"The key in {self._config.key_env} holds a character that no HTTP header takes. Copy it again.")
        return key

    def _read(self, answer: Any, n: int) -> NDArray[np.float32]:
        """The vectors in the order of the texts, wherever the server put them."""
        try:
            rows = sorted(answer["data"], key=lambda row: int(row["index"]))
            if [int(row["index"]) for row in rows] != list(range(n)):
                raise ValueError(f"expected one embedding for each of {n} texts")
            vectors = np.array([row["embedding"] for row in rows], np.float32)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ServerError(f"{self._url} answered something that is no list of embeddings ({error!r}).") from error
        if vectors.shape != (n, self.dim):
            raise ServerError(f"{self._url} answered {vectors.shape} numbers; expected {(n, self.dim)}. Set `dim` to what the model gives.")
        return vectors


def make(*, client: httpx.Client | None = None, **config: object) -> PairEncoder:
    """`make("replay.encoders", "endpoint", base_url="http://localhost:8000/v1", model="bge-small", dim=384)`."""
    settings = build(EndpointConfig, config, where="replay.encoders.endpoint")
    return PairEncoder(Endpoint(settings, client), settings)
