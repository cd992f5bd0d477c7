"""Conversations that outgrow a context: one of them fails, and not the batch that it is in."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.protocols import LLM
from dreamgym.types import Completion, Request


def generate(llm: LLM, requests: Sequence[Request]) -> list[Completion]:
    """`llm.generate`, with an empty completion that says "overflow" for every prompt that the context has no room for.

    An engine that does not tell its `max_context`, such as a server's before the first request, refuses such a prompt itself.
    """
    limit = getattr(llm, "max_context", None)
    fits = [limit is None or len(request.prompt) + request.sampling.max_tokens <= limit for request in requests]
    answers = iter(llm.generate([request for request, fit in zip(requests, fits, strict=True) if fit]) if any(fits) else ())
    return [
        next(answers) if fit else Completion(tuple(request.prompt), (), (), "", "overflow", llm.version)
        for request, fit in zip(requests, fits, strict=True)
    ]
