"""The engine against a server that we did not write: `transformers serve` over a tiny checkpoint. It speaks text only."""

from __future__ import annotations

import os
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
from dreamgym.errors import ServerError, UsageError
from dreamgym.llm import tiny
from dreamgym.llm.hf import HFEngine
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
    for package in ("fastapi", "uvicorn", "accelerate"):
        pytest.importorskip(package, reason="transformers serve needs it: pip install 'dreamgym[serve,peft]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cache = tmp_path_factory.mktemp("hub")
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
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(240):
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except httpx.HTTPError:
                assert server.poll() is None, "transformers serve ended by itself"
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=20)


def test_replies_are_those_of_the_model_in_process(checkpoint: Path, url: str) -> None:
    engine = plugins.make("llm", "openai", base_url=url, model=str(checkpoint), flavour="chat", concurrency=3)
    questions = ["red mug", "a mug for 12", "asks", "user", "red red red", "12 12"]
    chats = [[{"role": "user", "content": text}] for text in questions]
    replies = engine.complete(chats, max_tokens=12, temperature=0.0, allow_truncated=True)
    local = HFEngine(*tiny.load(checkpoint))
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
    engine = plugins.make("llm", "openai", flavour="vllm", **options)
    with pytest.raises(ServerError, match="status 422.*return_token_ids"):
        engine.generate([Request([5, 6], Sampling(4))])
    engine.close()
    engine = plugins.make("llm", "openai", flavour="chat", base_url=url, model="/nowhere", retries=1, backoff_s=0.01)
    with pytest.raises(ServerError, match="chat/completions (failed after 2 attempts|was refused)"):
        engine.complete([[{"role": "user", "content": "red"}]], max_tokens=4)
    engine.close()
