"""A model server that misbehaves on demand: vLLM's, SGLang's, llama.cpp's and the chat API over one scripted model, on a free port.

The model's next token depends on the prompt, the position and the weights; its log-probabilities on the position and the weights. Faults
are consumed in order by requests that generate; everything a test may want to know afterwards is recorded.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 300


def next_tokens(prompt: Sequence[int], n: int, weights: int) -> list[int]:
    """What the scripted model says: n ids of 10 and above."""
    return [10 + (sum(prompt) * 31 + i * 7 + weights * 13) % (VOCABULARY - 10) for i in range(n)]


def logprob(position: int, weights: int) -> float:
    return -0.1 - 0.01 * position - 0.001 * weights


class FaultServer:
    """`with FaultServer(encode) as server`: `server.url` is its OpenAI base. `faults` holds names, or (name, argument)."""

    def __init__(self, encode: Callable[[str], list[int]] = lambda text: list(text.encode())) -> None:
        self.encode = encode
        self.faults: deque[Any] = deque()
        self.script: Callable[[list[int]], list[int]] | None = None  # prompt -> ids, in place of the model
        self.answer: Callable[[list[dict[str, Any]]], str] | None = None  # messages -> reply, in place of the chat API's echo
        self.dead = False  # True: closes every connection without a word, as a host whose process has gone
        self.delay = 0.0
        self.weights = {"policy": 0}  # served name -> weights; a request has those of its arrival
        self.metrics: str | None = None  # Prometheus' text
        self.loads = True  # False: says that it loads, and does not
        self.spells_ids = False  # answers as a vLLM without return_token_ids
        self.offers_tokenize = True
        self.manages_weights = True
        self.seen: list[tuple[str, Any]] = []
        self.keys: list[str | None] = []
        self.arrivals: list[float] = []
        self.in_flight = self.most_in_flight = 0
        self.disconnected = threading.Event()
        self.arrived = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> FaultServer:
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"owner": self}))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]

    def payloads(self, path: str) -> list[Any]:
        return [payload for at, payload in self.seen if at == path]

    def count(self, by: int) -> None:
        with self._lock:
            self.in_flight += by
            self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def load(self, name: str, path: str) -> None:
        """Serve other weights under that name."""
        newest = max(self.weights.values()) + 1 if name not in self.weights else self.weights[name] + 1
        self.weights[name] = newest if self.loads else self.weights["policy"]

    def complete(self, body: Any) -> tuple[list[int], list[float], str]:
        """What vLLM's completions answer: see `sample`."""
        return self.sample(body["weights"], body["prompt"], body["max_tokens"], body["stop_token_ids"])

    def sample(self, weights: int, prompt: list[int], n: int, stops: Sequence[int]) -> tuple[list[int], list[float], str]:
        """(ids, log-probabilities, why it ended)."""
        ids = (self.script(prompt) if self.script else next_tokens(prompt, n, weights))[:n]
        end = next((i + 1 for i, token in enumerate(ids) if token in stops), None)
        ids = ids[:end]
        return ids, [logprob(i, weights) for i in range(len(ids))], "length" if end is None else "stop"


class Handler(BaseHTTPRequestHandler):
    """One connection. Paths are methods."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: apart, the second waits for the first to be acknowledged
    owner: FaultServer

    def log_message(self, *_: Any) -> None:
        """Silence."""

    def do_GET(self) -> None:
        if self.owner.dead:
            self.close_connection = True
            return
        self.owner.seen.append((self.path, None))
        if self.path == "/v1/models":
            cards = [{"id": name, "max_model_len": 128} for name in self.owner.weights]
            return self.say({"object": "list", "data": cards})
        if self.path == "/props":
            return self.say({"default_generation_settings": {"n_ctx": 96}})
        if self.path == "/metrics" and self.owner.metrics is not None:
            return self.raw(self.owner.metrics.encode())
        self.say({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "null")
        owner = self.owner
        if owner.dead:
            self.close_connection = True
            return
        owner.seen.append((self.path, body))
        owner.keys.append(self.headers.get("authorization"))
        answers = {
            "/v1/completions": self.vllm,
            "/generate": self.sglang,
            "/completion": self.llama_cpp,
            "/v1/chat/completions": self.chat,
        }
        if self.path in answers:
            owner.arrivals.append(time.monotonic())
            owner.count(+1)
            owner.arrived.set()
            if body.get("model", "policy") not in owner.weights and self.path == "/v1/completions":
                owner.count(-1)
                return self.say({"error": {"message": f"The model {body['model']} does not exist."}}, 404)
            body = body | {"weights": owner.weights.get(body.get("lora_path") or body.get("model", "policy"), 0)}
            try:
                self.generate(answers[self.path], body)
            finally:
                owner.count(-1)
        elif self.path == "/tokenize" and owner.offers_tokenize:
            self.say({"tokens": owner.encode(body.get("prompt") or body.get("content"))})
        elif not owner.manages_weights:
            self.say({"detail": "Not Found"}, 404)
        elif self.path.endswith(("/load_lora_adapter", "/collective_rpc", "/update_weights_from_disk")) and not body:
            self.say({"error": {"message": "Missing fields."}}, 400)
        elif self.path.endswith("/load_lora_adapter") and "unload" not in self.path:
            owner.load(body["lora_name"], body["lora_path"])
            self.say({"success": True}) if self.path == "/load_lora_adapter" else self.raw(b"Success: LoRA adapter added.")
        elif self.path.endswith("/unload_lora_adapter"):
            del owner.weights[body["lora_name"]]
            self.say({"success": True})
        elif self.path in ("/collective_rpc", "/update_weights_from_disk"):
            owner.load("policy", body["kwargs"]["weights_path"] if "kwargs" in body else body["model_path"])
            self.say({"success": True})
        elif self.path.startswith("/reset_prefix_cache"):
            self.raw(b"")
        else:
            self.say({"detail": "Not Found"}, 404)

    def generate(self, answer: Callable[[Any], Any], body: Any) -> None:
        time.sleep(self.owner.delay)
        fault = self.owner.faults.popleft() if self.owner.faults else None
        name, argument = fault if isinstance(fault, tuple) else (fault, None)
        if name == "status":
            return self.say({"error": {"message": f"no luck {self.headers.get('authorization')}"}}, argument)
        if name == "busy":
            return self.say({"error": "slow down"}, 429, {"Retry-After": str(argument)})
        if name == "hang":
            return self.hang()
        if name == "json":
            return self.raw(b'{"choices": [')
        reply = answer(body)
        if name == "count":
            reply["usage"]["prompt_tokens"] += 1
        if name == "change":
            argument(reply)
        text = json.dumps(reply).encode()
        if name == "cut":
            self.raw(text[: len(text) // 2], length=len(text))
            self.close_connection = True
            return
        self.raw(text)

    def hang(self) -> None:
        """Say nothing until the client goes away."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            readable, _, _ = select.select([self.connection], [], [], 0.02)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                self.owner.disconnected.set()
                break
        self.close_connection = True

    def vllm(self, body: Any) -> Any:
        owner = self.owner
        ids, scores, why = owner.complete(body)
        choice = {
            "finish_reason": why,
            "stop_reason": ids[-1] if why == "stop" else None,
            "logprobs": {"token_logprobs": scores, "tokens": [f"token_id:{i}" for i in ids]},
        }
        if not owner.spells_ids:
            choice["token_ids"] = ids
        return {"choices": [choice], "usage": usage(body["prompt"], ids)}

    def sglang(self, body: Any) -> Any:
        how = body["sampling_params"]
        ids, scores, why = self.owner.sample(body["weights"], body["input_ids"], how["max_new_tokens"], how["stop_token_ids"])
        reason = {"type": "stop", "matched": ids[-1]} if why == "stop" else {"type": "length", "length": len(ids)}
        pairs = [[score, token, None] for score, token in zip(scores, ids, strict=True)]
        meta = {"finish_reason": reason, "output_token_logprobs": pairs, "prompt_tokens": len(body["input_ids"])}
        return {"text": "", "output_ids": ids, "meta_info": meta}

    def llama_cpp(self, body: Any) -> Any:
        ids, scores, why = self.owner.sample(body["weights"], body["prompt"], body["n_predict"], [1])  # 1: its end of generation
        return {
            "content": "",
            "tokens": ids,
            "completion_probabilities": [{"id": token, "logprob": score} for token, score in zip(ids, scores, strict=True)],
            "stop_type": "eos" if why == "stop" else "limit",
            "tokens_evaluated": len(body["prompt"]),
            "timings": {"cache_n": 3},
        }

    def chat(self, body: Any) -> Any:
        asked = body["messages"][-1]["content"]
        if self.owner.answer is not None:
            said = self.owner.answer(body["messages"])
            text = "".join(message["content"] for message in body["messages"])
            counts = usage(text.encode()[::4], said.encode()[::4])  # four bytes are a token
            return {"choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}], "usage": counts}
        message = {"role": "assistant", "content": f"You said {asked}"}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage(list(asked), [1, 2])}

    def say(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.raw(json.dumps(body).encode(), status, headers)

    def raw(self, text: bytes, status: int = 200, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text) if length is None else length))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # the client has gone


def usage(prompt: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
    return {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
