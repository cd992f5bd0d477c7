"""The simplest implementation: one left-padded `transformers.generate` for a list of requests, without a cache between calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from common.forced_text import ForcedText
from dreamgym.llm.request_queue import SyncLLM
from dreamgym.llm.tokenized import Tokenized
from dreamgym.types import Completion, Request


class GenerateLLM(Tokenized, SyncLLM):
    """`protocols.LLM` with forced text; the requests of a call share a stop."""

    def __init__(self, model: Any, tokenizer: Any, forced: ForcedText) -> None:
        super().__init__()
        self.model, self.tokenizer, self.forced = model.eval(), tokenizer, forced

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """All requests in one batch, until the last has stopped."""
        if not requests:
            return []
        (sampling,) = {request.sampling for request in requests}
        ((stop,),) = sampling.stops
        width = max(len(request.prompt) for request in requests)
        ids = torch.tensor([[0] * (width - len(r.prompt)) + list(r.prompt) for r in requests])
        mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in requests])
        logged = [self.forced.of(request) for request in requests]
        draw = _ForcedDraw(logged, width, sampling.temperature)
        self.model.generate(
            ids, attention_mask=mask, max_new_tokens=sampling.max_tokens, do_sample=False, pad_token_id=0, eos_token_id=stop,
            logits_processor=LogitsProcessorList([draw]),
        )  # fmt: skip
        rated = torch.stack(draw.scores, 1).tolist()
        return [
            Completion(tuple(r.prompt), tuple(one), tuple(scores[: len(one)]), self.decode(one[:-1]), "stop", self.version)
            for r, one, scores in zip(requests, logged, rated, strict=True)
        ]


class _ForcedDraw(LogitsProcessor):
    """Draws a token as `generate` does, stores its log-probability as TRL needs it, and returns the logged token."""

    def __init__(self, logged: Sequence[Sequence[int]], start: int, temperature: float) -> None:
        self.logged, self.start, self.temperature = logged, start, temperature
        self.scores: list[torch.Tensor] = []  # one per step

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        logprobs = torch.log_softmax(scores.float() / (self.temperature or 1.0), -1)
        drawn = torch.multinomial(logprobs.exp(), 1) if self.temperature else logprobs.argmax(-1, keepdim=True)
        self.scores.append(logprobs.gather(1, drawn)[:, 0])
        at = input_ids.shape[1] - self.start
        forced = torch.tensor([one[min(at, len(one) - 1)] for one in self.logged])
        return torch.full_like(scores, float("-inf")).scatter_(1, forced[:, None], 0.0)
