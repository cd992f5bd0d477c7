"""The engine against a server that we did not write: `transformers serve` over a tiny checkpoint. It speaks text only."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from dreamgym import plugins
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.errors import ServerError, UsageError
from dreamgym.llm import tiny
from dreamgym.types import Request, Sampling

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tiny.train_tokenizer(["user asks assistant for a red mug 12"] * 5, vocab_size=400)
    tokenizer.chat_template = TEMPLATE
    model = tiny.build(tokenizer, "1m", max_positions=256)
    with torch.no_grad():
        model.model.embed_tokens.weight[tokenizer.eos_token_id] = 0  # never the likeliest: replies have some length
    return tiny.save(model, tokenizer, tmp_path_factory.mktemp("served") / "checkpoint")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for package in ("fastapi", "uvicorn", "accelerate", "openai"):
        pytest.importorskip(package, reason="transformers serve needs it: pip install 'dreamgym[dev]'")
    cache = tmp_path_factory.mktemp("hub")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    for _ in range(3):  # another process may take the port between its choice here and its use by the server
        server, port, printed = start_server(cache / "printed.txt", environment)
        if server.poll() is None or "address already in use" not in printed.read_text():
            break
    try:
        assert server.poll() is None, f"transformers serve ended by itself and printed:\n{printed.read_text()[-3000:]}"
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=20)


def start_server(printed: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], int, Path]:
    """Start `transformers serve` on a free port and wait until it answers or ends, for at most ten minutes on a loaded machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "transformers.cli.transformers",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
    ]
    with printed.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 600
    while server.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except httpx.HTTPError:
            time.sleep(0.5)
    return server, port, printed


def test_replies_are_those_of_the_model_in_process(checkpoint: Path, url: str) -> None:
    engine = plugins.make("engines", "server", base_url=url, model=str(checkpoint), dialect="chat", concurrency=3)
    questions = ["red mug", "a mug for 12", "asks", "user", "red red red", "12 12"]
    chats = [[{"role": "user", "content": text}] for text in questions]
    found = dict(engine.replies(chats, max_tokens=12, temperature=0.0, allow_truncated=True))
    replies = [found[i] for i in range(len(chats))]
    local = LocalEngine(*tiny.load(checkpoint))
    greedy = Sampling(12, stop=(local.special_id(tiny.END),), temperature=0.0)
    prompts = [local.tokenizer(f"user: {text}\nassistant:")["input_ids"] for text in questions]
    expected = local.generate([Request(prompt, greedy) for prompt in prompts])
    assert replies == [c.text for c in expected] and len(set(replies)) > 1
    assert engine.usage.requests == 6 and engine.usage.retries == 0
    assert engine.usage.prompt_tokens == sum(map(len, prompts)) and engine.usage.completion_tokens == sum(len(c.ids) for c in expected)
    with pytest.raises(UsageError, match="without token ids"):
        engine.generate([Request([5, 6], Sampling(4))])
    engine.close()


def test_what_it_cannot_do_is_an_error_and_not_a_guess(checkpoint: Path, url: str) -> None:
    options = {"base_url": url, "model": str(checkpoint), "tokenizer": checkpoint, "max_context": 256}
    engine = plugins.make("engines", "server", dialect="vllm", **options)
    with pytest.raises(ServerError, match="status 422.*return_token_ids"):
        engine.generate([Request([5, 6], Sampling(4))])
    engine.close()
    engine = plugins.make("engines", "server", dialect="chat", base_url=url, model="/nowhere", retries=1, backoff_s=0.01)
    ((_, error),) = engine.replies([[{"role": "user", "content": "red"}]], max_tokens=4)
    assert isinstance(error, ServerError) and re.search("chat/completions (failed after 2 attempts|was refused)", str(error))
    engine.close()
