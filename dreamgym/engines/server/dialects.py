"""How token ids go to each kind of server and come back with their log-probabilities: payloads out, answers in, no network here.

    dialect     request                       ids and log-probabilities                  log-probabilities are by default
    vllm        /v1/completions               token_ids (or "token_id:7") + logprobs     raw: of the model, at temperature 1
    sglang      /generate                     meta_info.output_token_logprobs            tempered: at the sampling temperature
    llama_cpp   /completion                   tokens + completion_probabilities          raw
    chat        /v1/chat/completions          none: text only

Every sampling option is sent, also where it is the usual default: servers lay the model's generation_config.json, or a sampler chain of
their own, under what a request leaves out.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dreamgym.engines.server.config import Logprobs
from dreamgym.engines.server.http_client import TryAgain
from dreamgym.errors import ServerError, reason_of
from dreamgym.types import Sampling
from dreamgym.usage import Tokens

LARGEST_ID = 2**31  # beyond every vocabulary: a model may have more rows than its tokenizer has tokens


@dataclass(frozen=True)
class Sampled:
    """What a server sampled, cut behind the first stop. `stop` is that stop's length in ids, 0 when there is none."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: int


@dataclass(frozen=True)
class Raw:
    """An answer in one form for all servers. `why` is the server's reason to end; `seen` the prompt length it counted."""

    ids: Sequence[int]
    logprobs: Sequence[float | None]  # None where the server gave none
    why: str
    seen: int | None
    stopped_by: int | None = None  # a stop token that the server left out of `ids`


class Dialect(ABC):
    """One kind of server."""

    name: str
    logprobs: Logprobs
    tokenize_path = "/tokenize"
    context_path = "/v1/models"

    @abstractmethod
    def ask(self, model: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> tuple[str, dict[str, Any]]:
        """Path and payload of a request; a path under `/v1` is under base_url, any other under the server's root."""

    @abstractmethod
    def answer(self, body: Any) -> Raw:
        """The fields of an answer; KeyError, IndexError, TypeError or AttributeError where it does not have them."""

    def read(self, body: Any, prompt: Sequence[int], sampling: Sampling, *, training: bool) -> tuple[Sampled, Tokens]:
        """The answer, checked against what was asked. ServerError for one without ids, and when `training` for one with a log-probability
        missing, which is nan otherwise.
        """
        try:
            raw = self.answer(body)
            stopped_by = None if raw.stopped_by is None else _token_id(raw.stopped_by)
            scores = [_number(score) for score in raw.logprobs]
            raw = replace(raw, ids=[_token_id(token) for token in raw.ids], logprobs=scores, stopped_by=stopped_by)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ServerError(
                f"The server's answer has no sampled token ids with log-probabilities ({reason_of(error)}). Expected those of a "
                f"{self.name} server. Check the option dialect and the server's version; one that returns text only is dialect='chat'."
            ) from error
        if raw.why == "abort":
            raise TryAgain("the server aborted the request", status=200)
        if raw.seen is not None and raw.seen != len(prompt):
            raise ServerError(
                f"The server counted {raw.seen} prompt tokens where {len(prompt)} were sent: it adds or drops tokens, so that it continues "
                "another prompt than the one we train on. Start it with the same tokenizer and without added special tokens."
            )
        return cut(raw, sampling, training=training), Tokens(len(prompt), len(raw.ids))

    def tokenize(self, model: str, text: str) -> dict[str, Any]:
        """Payload that asks the server for the ids of `text`, without special tokens."""
        return {"model": model, "prompt": text, "add_special_tokens": False}

    def context_length(self, body: Any, model: str, url: str) -> Any:
        """What the answer of `context_path` says of the longest context of `model`; None where it says nothing."""
        return next((card.get("max_model_len") for card in cards_of(body, url) if card["id"] == model), None)


def cards_of(body: Any, url: str) -> list[dict[str, Any]]:
    """What a server says of each model it serves; ServerError for an answer that lists none."""
    found = body.get("data") if isinstance(body, dict) else None
    if not isinstance(found, list) or not all(isinstance(card, dict) and isinstance(card.get("id"), str) for card in found):
        raise ServerError(f"{url} answered {body!r:.100}. Expected an object with a list 'data': is it an OpenAI-compatible server?")
    return found


def _token_id(token: Any) -> int:
    """A token id as it came; ValueError for what cannot be one."""
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < LARGEST_ID:
        raise ValueError(f"{token!r:.40} is no token id")
    return token


def _number(score: Any) -> float | None:
    """A log-probability as a float; None for what is none: nan, and minus infinity, since no token of probability 0 is sampled."""
    value = math.nan if score is None else float(score)
    return value if value > -math.inf else None


def cut(raw: Raw, sampling: Sampling, *, training: bool) -> Sampled:
    """Up to and with the first stop, as every engine of dreamgym ends. What the server sampled after it is dropped."""
    ids, found = list(raw.ids), list(raw.logprobs)
    if len(found) == len(ids) + 1 and raw.stopped_by is not None:
        ids.append(raw.stopped_by)
    if len(ids) != len(found):
        raise ServerError(f"The server returned {len(ids)} token ids and {len(found)} log-probabilities. Expected one of each per token.")
    if training and None in found:
        raise ServerError(
            f"The server gave no log-probability for token {found.index(None)} of its answer, so that it cannot be trained on. llama.cpp "
            "leaves them out inside a character of several tokens. Set training=False to sample without, or use another server."
        )
    scores = [math.nan if score is None else score for score in found]
    if wrong := [score for score in scores if score > 1e-3]:
        raise ServerError(f"The server returned {wrong[0]!r} as a log-probability. Expected numbers of at most 0: does it report logits?")
    ids, scores = ids[: sampling.max_tokens], scores[: sampling.max_tokens]
    end = next((end for end in range(1, len(ids) + 1) if sampling.ends(ids[:end])), 0)
    if end:
        return Sampled(tuple(ids[:end]), tuple(map(float, scores[:end])), sampling.ends(ids[:end]))
    if raw.why == "stop":
        last = raw.stopped_by if raw.stopped_by is not None else ids[-1] if ids else None
        raise ServerError(
            f"The server stopped at token {last}, which is no stop of the request: it ends on tokens of its own. Add it to the sampling's "
            "stop, or start the server without the model's generation config."
        )
    if len(ids) < sampling.max_tokens:
        raise ServerError(
            f"The server ended after {len(ids)} of {sampling.max_tokens} tokens because of '{raw.why}': its context is smaller than "
            "max_context says. Set max_context to the server's, or start it with a longer one."
        )
    return Sampled(tuple(ids), tuple(map(float, scores)), 0)


def single_stops(sampling: Sampling) -> list[int]:
    """The stops that a server can watch for itself; those of several tokens are found here, in `cut`."""
    return [stop[0] for stop in sampling.stops if len(stop) == 1]


def seed_of(stream: tuple[int, ...]) -> int:
    """63 bits that name a random stream: the same for the same numbers on every machine."""
    digest = hashlib.blake2b(repr(tuple(int(n) for n in stream)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def inexact(kind: Logprobs, sampling: Sampling) -> str | None:
    """Why the server's log-probabilities are not those of the whole vocabulary at the sampling temperature; None when they are."""
    if kind == "raw" and sampling.temperature not in (0, 1):
        return f"at temperature 1, not {sampling.temperature:g}"
    if kind == "processed" and (sampling.top_p < 1 or sampling.top_k) and sampling.temperature > 0:
        return f"over the tokens that top_p={sampling.top_p:g}, top_k={sampling.top_k} leave, not the whole vocabulary"
    return None


class VLLM(Dialect):
    """`vllm serve`, 0.10.2 or later for `return_token_ids`; earlier ones answer through `return_tokens_as_token_ids`.

    vLLM reports raw log-probabilities (temperature 1) unless it runs with `--logprobs-mode processed_logprobs`, and those are renormalised
    over what top_p and top_k leave.
    """

    name, logprobs = "vllm", "raw"

    def ask(self, model: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": seed,
            "logprobs": 1,
            "stop_token_ids": single_stops(sampling),
            "ignore_eos": True,  # only the request's own stops count
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }

    def answer(self, body: Any) -> Raw:
        choice, usage = body["choices"][0], body.get("usage") or {}
        ids = choice.get("token_ids")
        if ids is None:
            ids = [_spelled(token) for token in choice["logprobs"]["tokens"]]
        reason = choice.get("stop_reason")
        return Raw(
            ids,
            choice["logprobs"]["token_logprobs"],
            choice["finish_reason"],
            usage.get("prompt_tokens"),
            reason if isinstance(reason, int) else None,
        )


def _spelled(token: str) -> int:
    head, _, number = token.partition("token_id:")
    if head or not number.isdecimal():
        raise KeyError("token_ids")
    return int(number)


class SGLang(Dialect):
    """SGLang's native `/generate`. It divides by the temperature before it takes log-probabilities, and applies top_p and top_k after.

    With the server variable SGLANG_RETURN_ORIGINAL_LOGPROB set they are raw: say so with server_logprobs. Its `ignore_eos` switches every
    stop off, so the model's own end token always ends; it must be among the stops. Seeds count under --enable-deterministic-inference.
    """

    name, logprobs = "sglang", "tempered"

    def ask(self, model: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> tuple[str, dict[str, Any]]:
        stops = single_stops(sampling)
        payload = {
            "input_ids": list(prompt),
            "sampling_params": {
                "max_new_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "sampling_seed": seed,
                "stop_token_ids": stops,
                "ignore_eos": not stops,
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "stream": False,
        }
        return "/generate", payload

    def answer(self, body: Any) -> Raw:
        meta = body["meta_info"]
        pairs, reason = meta["output_token_logprobs"], meta["finish_reason"]
        matched = reason.get("matched")
        return Raw(
            [pair[1] for pair in pairs],
            [pair[0] for pair in pairs],
            reason["type"],
            meta.get("prompt_tokens"),
            matched if isinstance(matched, int) else None,
        )


class LlamaCpp(Dialect):
    """llama.cpp's `llama-server`, native `/completion`. It takes no stop ids: a stop that is not the model's end of generation is found
    here, after `max_tokens` were sampled. Seeds are 32 bits there. A token that ends inside a character has no log-probability.
    """

    name, logprobs = "llama_cpp", "raw"

    context_path = "/props"

    def context_length(self, body: Any, model: str, url: str) -> Any:
        settings = body.get("default_generation_settings") if isinstance(body, dict) else None
        return settings.get("n_ctx") if isinstance(settings, dict) else None

    def ask(self, model: str, prompt: Sequence[int], sampling: Sampling, seed: int) -> tuple[str, dict[str, Any]]:
        return "/completion", {
            "prompt": list(prompt),
            "n_predict": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "samplers": ["temperature", "top_k", "top_p"],  # theirs put the temperature last, which changes what top_p keeps
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": seed % (2**32 - 1),  # 2**32 - 1 itself means a random one
            "n_probs": 1,
            "post_sampling_probs": False,
            "return_tokens": True,
            "stream": False,
        }

    def answer(self, body: Any) -> Raw:
        ends = {"eos": "stop", "word": "stop", "limit": "length"}
        return Raw(
            body["tokens"],
            _aligned(body["tokens"], body["completion_probabilities"]),
            "context" if body.get("truncated") else ends[body["stop_type"]],
            body.get("tokens_evaluated"),
        )

    def tokenize(self, model: str, text: str) -> dict[str, Any]:
        return {"content": text, "add_special": False, "parse_special": False}


def _aligned(ids: Sequence[int], entries: Sequence[Any]) -> list[float | None]:
    """A log-probability per id; None for ids that have no entry."""
    scores: list[float | None] = []
    for token in ids:
        here = len(entries) > 0 and entries[0]["id"] == token
        scores.append(entries[0]["logprob"] if here else None)
        entries = entries[1:] if here else entries
    if entries:
        raise KeyError(f"the token of the log-probability of {entries[0]['id']}")
    return scores


DIALECTS: dict[str, Dialect] = {one.name: one for one in (VLLM(), SGLang(), LlamaCpp())}
