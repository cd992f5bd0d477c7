"""A server that gives known tokens and can fail on purpose, and engines at such servers, which are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fault_server import FaultServer

from dreamgym import plugins
from dreamgym.llm import tiny


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny.train_tokenizer(["red mug"], vocab_size=300, special=("<|act|>",))


@pytest.fixture
def server(tokenizer: Any) -> Iterator[FaultServer]:
    with FaultServer(lambda text: tiny.encode(tokenizer, text)) as server:
        yield server


@pytest.fixture
def make(request: pytest.FixtureRequest, tokenizer: Any) -> Iterator[Any]:
    """`make(**settings)`: an engine at `server`; `make(servers, **settings)`: one at these."""
    made: list[Any] = []

    def make(servers: Sequence[FaultServer] | None = None, **settings: Any) -> Any:
        first, *others = [one.url for one in (servers or [request.getfixturevalue("server")])]
        known = {"base_url": first, "more_urls": others, "model": "policy", "dialect": "vllm", "tokenizer": tokenizer, "backoff_s": 0.01}
        made.append(plugins.make("engines", "server", **known | settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
