"""What a first implementation does: a list of requests answered by one left-padded `transformers.generate`, from the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from _script import Script
from transformers import LogitsProcessor, LogitsProcessorList

from dreamgym.llm._tokens import Tokenized
from dreamgym.types import Completion, Request


class GenerateLLM(Tokenized):
    """`encode`, `decode`, `generate` and `release` of `protocols.LLM`, saying what the script says; requests of a call share a stop."""

    version = 0

    def __init__(self, model: Any, tokenizer: Any, script: Script) -> None:
        self.model, self.tokenizer, self.script = model.eval(), tokenizer, script

    def release(self, sessions: Sequence[str]) -> None:
        """Nothing is kept."""

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
        said = [self.script.of(request) for request in requests]
        draw = _Draw(said, width, sampling.temperature)
        self.model.generate(
            ids, attention_mask=mask, max_new_tokens=sampling.max_tokens, do_sample=False, pad_token_id=0, eos_token_id=stop,
            logits_processor=LogitsProcessorList([draw]),
        )  # fmt: skip
        rated = torch.stack(draw.scores, 1).tolist()
        return [
            Completion(tuple(r.prompt), tuple(one), tuple(scores[: len(one)]), self.decode(one[:-1]), "stop", self.version)
            for r, one, scores in zip(requests, said, rated, strict=True)
        ]


class _Draw(LogitsProcessor):
    """Draws a token as `generate` does, notes its log-probability as TRL wants it, and leaves the scripted one."""

    def __init__(self, said: Sequence[Sequence[int]], start: int, temperature: float) -> None:
        self.said, self.start, self.temperature = said, start, temperature
        self.scores: list[torch.Tensor] = []  # a step each

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        likely = torch.log_softmax(scores.float() / (self.temperature or 1.0), -1)
        drawn = torch.multinomial(likely.exp(), 1) if self.temperature else likely.argmax(-1, keepdim=True)
        self.scores.append(likely.gather(1, drawn)[:, 0])
        at = input_ids.shape[1] - self.start
        wanted = torch.tensor([one[min(at, len(one) - 1)] for one in self.said])
        return torch.full_like(scores, float("-inf")).scatter_(1, wanted[:, None], 0.0)
