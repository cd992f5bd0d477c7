"""vLLM's interface over torch modules of this process: what it samples and its log-probabilities are those of real weights."""

from __future__ import annotations

import threading
from typing import Any

from fault_server import FaultServer

from dreamgym.engines import build_engine
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.types import Request, Sampling


class ModelServer(FaultServer):
    """`with ModelServer() as server`: serves "policy", and adapters beside it, once they are loaded from checkpoints. Without `loads` what
    is loaded has the newest weights that were."""

    def __init__(self, checkpoint: Any = None) -> None:
        super().__init__()
        self.offers_tokenize = False
        self.engines: dict[str, Any] = {}
        self._one_at_a_time = threading.Lock()
        if checkpoint is not None:
            self.load("policy", str(checkpoint))

    def load(self, name: str, path: str) -> None:
        if not self.loads:
            self.engines[name], self.weights[name] = self.newest, 1 + max(self.weights.values())
            return
        module, tokenizer = backbones.load(BackboneConfig(model=path, dtype="float32", device="cpu"))
        with self._one_at_a_time:
            self.engines[name] = self.newest = build_engine({}, model=module, tokenizer=tokenizer, full_precision=True)
        self.weights[name] = 1 + max(self.weights.values())

    def complete(self, body: Any) -> tuple[list[int], list[float], str]:
        sampling = Sampling(body["max_tokens"], stop=tuple(body["stop_token_ids"]), temperature=body["temperature"])
        with self._one_at_a_time:
            completion = self.engines[body["model"]].generate([Request(body["prompt"], sampling, (body["seed"],))])[0]
        return list(completion.ids), list(completion.logprobs), completion.finish_reason
