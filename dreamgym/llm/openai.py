"""An engine over a model server: vLLM, SGLang, llama.cpp, or any OpenAI-compatible chat host.

`OpenAIEngine` implements `protocols.LLM`: prompts go out as token ids, and the ids that were sampled come back with their
log-probabilities, so that they can be trained on. A host that returns text only (flavour "chat": hosted models, `transformers serve`)
cannot serve `generate`, and says so; `complete` and `replies` give its replies, for teachers and judges. `publish_weights` moves new
weights over.

`_http` asks and retries, `_chats` reads replies, `_limits` paces, `_flavours` knows what each server says, `_sync` publishes weights.

    plugins.make("llm", "openai", base_url="http://localhost:8000/v1", model="policy", flavour="vllm", tokenizer="checkpoints/policy")
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import math
import os
import queue
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field, SecretStr, field_validator

from dreamgym.config import Config as Base
from dreamgym.config import build
from dreamgym.errors import ConfigError, InvariantError, ServerError, UsageError
from dreamgym.llm._chats import about_tokens, most_tokens, reply_in
from dreamgym.llm._flavours import FLAVOURS, Flavour, Logprobs, Sampled, inexact, seed_of
from dreamgym.llm._http import Client, Manners, Tokens, Usage
from dreamgym.llm._limits import Clock
from dreamgym.llm._queue import Queue
from dreamgym.llm._sync import publish_weights
from dreamgym.llm._tokens import Tokenized
from dreamgym.types import Completion, Request

__all__ = ["Config", "OpenAIEngine", "Usage", "make", "publish_weights"]

PROBE = "Red mug, 12.50 - a naïve café?\n[buy now]"  # letters, digits, accents, a newline: where tokenizers differ


class Config(Base):
    """Options of the engine. `base_url` is the OpenAI base, with `/v1`; a server's root will do as well."""

    base_url: str
    model: str
    flavour: Literal["vllm", "sglang", "llama_cpp", "chat"]
    api_key: SecretStr | None = None
    api_key_env: str = "OPENAI_API_KEY"  # read when api_key is not given
    max_context: int | None = Field(None, ge=2)  # None: ask the server at the first request
    training: bool = True  # refuse requests whose log-probabilities would not be the learner's; False: such log-probabilities are nan
    server_logprobs: Logprobs | None = None  # what the server reports; None: the flavour's default
    concurrency: int = Field(64, ge=1)  # requests under way at once, those between two attempts included
    retries: int = Field(4, ge=0)  # further attempts of a request
    timeout_s: float = Field(300.0, gt=0)  # of one attempt, from sending to the whole answer
    deadline_s: float | None = Field(None, gt=0)  # of a request, from its first attempt: none begins after it
    backoff_s: float = Field(0.5, ge=0)  # before the first retry; doubles, up to 30 seconds
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)  # prompts and max_tokens, corrected to what was used
    price_per_million_input: float = Field(0.0, ge=0)
    price_per_million_output: float = Field(0.0, ge=0)
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # newer hosts want the second, in chats
    extra: dict[str, Any] = {}  # laid over the payload of every request
    seed: int = 0  # names the stream of requests that bring no seeds of their own

    @field_validator("base_url")
    @classmethod
    def _address(cls, url: str) -> str:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"no address ({error}); expected one such as http://localhost:8000/v1") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("must begin with http:// or https:// and name a host, such as http://localhost:8000/v1")
        return url

    def key(self) -> str | None:
        """The key to send: the option, else the variable, else none. ConfigError, which does not show it, for one that no header takes."""
        given = self.api_key.get_secret_value() if self.api_key is not None else os.environ.get(self.api_key_env, "")
        key = given.strip()  # a file that holds a key ends in a newline
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"The key in {'api_key' if self.api_key is not None else self.api_key_env} holds a character that no HTTP header takes, "
                "such as a line break or a letter with an accent. Copy it again."
            )
        return key or None


class OpenAIEngine(Tokenized, Queue):
    """Samples from a server. Implements `protocols.LLM`; `version` is set by `publish_weights` once the server has the weights.

    Log-probabilities are of the whole vocabulary at the sampling temperature, as `types.Completion` promises. Where the server reports
    others (vLLM: at temperature 1; or renormalised over top_p and top_k under processed_logprobs), requests are refused, or, with
    training=False, answered with nan, which no loss survives unnoticed.
    """

    def __init__(self, config: Config, tokenizer: Any = None, *, clock: Clock | None = None) -> None:
        super().__init__()
        self.config, self.tokenizer, self.version = config, tokenizer, 0
        self.model = config.model  # what requests ask for: an adapter's name once one is published
        self.usage = Usage(price_per_million_input=config.price_per_million_input, price_per_million_output=config.price_per_million_output)
        manners = Manners(
            base_url=config.base_url,
            key=config.key(),
            key_env=config.api_key_env,
            concurrency=config.concurrency,
            retries=config.retries,
            timeout_s=config.timeout_s,
            deadline_s=config.deadline_s,
            backoff_s=config.backoff_s,
            requests_per_minute=config.requests_per_minute,
            tokens_per_minute=config.tokens_per_minute,
        )
        self.client = Client(manners, self.usage, clock or Clock())
        self.flavour: Flavour | None = FLAVOURS.get(config.flavour)
        if self.flavour is not None and tokenizer is None:
            raise ConfigError(f"flavour='{config.flavour}' speaks in token ids: set tokenizer to the checkpoint that the server runs.")
        self.max_context = config.max_context
        self._probe = self.encode(PROBE) if self.flavour is not None else []
        self._under_way: dict[int, tuple[Request, int, Future[Sampled]]] = {}
        self._results: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._agreement: asyncio.Task[str] | None = None

    def release(self, sessions: Sequence[str]) -> None:
        """Nothing is kept here: the server's prefix cache serves every turn of an episode."""

    def close(self) -> None:
        """Abort what is under way and let the connections go."""
        self.cancel(list(self._under_way))
        self.client.close()

    def doctor(self) -> dict[str, Any]:
        """What the server is, checked: it answers, it serves the model, and its tokenizer is ours. ServerError where it is not so."""
        report: dict[str, Any] = {"server": self.client.api, "model": self.model, "flavour": self.config.flavour}
        if self.config.flavour != "llama_cpp":
            report["models"] = served = self._models()
            if self.model not in served:
                raise ServerError(
                    f"{self.client.api} serves {', '.join(served) or 'nothing'}, not '{self.model}'. Set model to one of them."
                )
        if self.flavour is None:
            return report | {"tokens": "text only: complete works, generate does not"}
        self._learn_context()
        return report | {"max_context": self.max_context, "tokenizer": self.client.wait(self._agree())}

    def complete(
        self,
        conversations: Sequence[Sequence[Mapping[str, Any]]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seeds: Sequence[tuple[int, ...]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        allow_truncated: bool = False,
    ) -> list[str]:
        """Replies to chats ({"role", "content"} messages), all asked at once, in order. `response_format` goes through as it is.

        ServerError when one fails, and when one is cut at `max_tokens`, unless `allow_truncated`. Text is all there is: no reply of this
        method can be trained on as tokens.
        """
        for conversation in conversations:
            self._check_rate(max_tokens + about_tokens(conversation))
        work = [
            self.client.start(
                self._reply(conversation, max_tokens, temperature, seeds[i] if seeds else None, response_format, allow_truncated)
            )
            for i, conversation in enumerate(conversations)
        ]
        try:
            return [one.result() for one in work]
        except BaseException:
            for one in work:
                one.cancel()
            raise

    def replies(
        self,
        conversations: Iterable[Sequence[Mapping[str, Any]]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seeds: Sequence[tuple[int, ...]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        allow_truncated: bool = False,
    ) -> Generator[tuple[int, str | Exception], None, None]:
        """Replies to chats as they come, each with its conversation's place; the ServerError of one that failed for good is its reply.

        Conversations are taken as there is room for them (`concurrency`). What is under way when the caller stops listening is cancelled.
        """
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        under_way: dict[int, Future[str]] = {}
        waiting = enumerate(conversations)
        try:
            while True:
                for i, chat in itertools.islice(waiting, self.config.concurrency - len(under_way)):
                    self._check_rate(max_tokens + about_tokens(chat))
                    seed = seeds[i] if seeds else None
                    future = self.client.start(self._reply(chat, max_tokens, temperature, seed, response_format, allow_truncated))
                    under_way[i] = future
                    future.add_done_callback(functools.partial(_put, done, i))
                if not under_way:
                    return
                i = done.get()
                try:
                    reply: str | Exception = under_way.pop(i).result()
                except ServerError as error:
                    reply = error
                yield i, reply
        finally:
            for future in under_way.values():
                future.cancel()

    async def _reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        temperature: float,
        seed: tuple[int, ...] | None,
        response_format: Mapping[str, Any] | None,
        allow_truncated: bool,
    ) -> str:
        payload: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            self.config.max_tokens_key: max_tokens,
            "temperature": temperature,
        }
        if seed is not None:
            payload["seed"] = seed_of(seed) >> 32  # hosts take 32 bits at best
        if response_format is not None:
            payload["response_format"] = dict(response_format)
        guess = about_tokens(messages)

        def read(body: Any) -> tuple[str, Tokens | None]:
            return reply_in(body, max_tokens, allow_truncated)

        url = f"{self.client.api}/chat/completions"
        most = Tokens(most_tokens(messages), max_tokens)
        return await self.client.ask("POST", url, payload | self.config.extra, read, tokens=guess + max_tokens, most=most)

    def _check(self, request: Request) -> None:
        if self.flavour is None:
            raise UsageError(
                f"{self.client.api} is a chat server (flavour='chat'): it returns text without token ids, so nothing it says can be "
                "trained on. Use complete for its replies, or serve the policy with vLLM, SGLang or llama.cpp."
            )
        sampling = request.sampling
        if sampling.grammar:
            raise UsageError(
                "Servers each have their own grammars: put the server's option into `extra`, and leave Sampling.grammar empty."
            )
        wrong = inexact(self.config.server_logprobs or self.flavour.logprobs, sampling)
        if wrong and self.config.training:
            raise UsageError(
                f"The server reports log-probabilities {wrong}, so they are not the learner's. Sample at temperature 1, top_p=1, top_k=0; "
                "or set server_logprobs if the server runs otherwise (vLLM: --logprobs-mode processed_logprobs gives 'processed'); "
                "or set training=False to sample without log-probabilities."
            )
        if not len(request.prompt):
            raise UsageError("A prompt is empty: give at least one token.")
        self._learn_context()
        assert self.max_context is not None
        room = self.max_context - sampling.max_tokens
        if len(request.prompt) > room:
            raise UsageError(
                f"A prompt of {len(request.prompt)} tokens does not fit: the context of {self.max_context} "
                f"less max_tokens={sampling.max_tokens} leaves {room}. Shorten the history, or lower max_tokens."
            )
        self._check_rate(len(request.prompt) + sampling.max_tokens)

    def _check_rate(self, tokens: int) -> None:
        limit = self.config.tokens_per_minute
        if limit is not None and tokens > limit:
            raise UsageError(f"A request of up to {tokens} tokens never fits tokens_per_minute={limit}. Lower max_tokens, or raise it.")

    def _enter(self, tickets: Sequence[int], requests: Sequence[Request]) -> None:
        for ticket, request in zip(tickets, requests, strict=True):
            request = replace(request, prompt=_ids(request.prompt))  # a conversation may grow while it is continued
            future = self.client.start(self._sample(ticket, request, self.model))
            self._under_way[ticket] = (request, self.version, future)
            future.add_done_callback(functools.partial(_put, self._results, ticket))

    def _advance(self) -> bool:
        """Wait until something under way is done, and take with it what else is."""
        if not self._under_way:
            return False
        self._settle(self._results.get())
        while not self._results.empty():
            self._settle(self._results.get())
        return True

    def _settle(self, ticket: int) -> None:
        if ticket not in self._under_way:
            return  # dropped meanwhile
        request, version, future = self._under_way.pop(ticket)
        try:
            self._finished[ticket] = self._completion(request, version, future.result())
        except Exception as error:  # a boundary: it is raised to whoever waits for the ticket
            self._failed[ticket] = _of_ticket(error, ticket)

    def _drop(self, tickets: Sequence[int]) -> None:
        for ticket in reversed(tickets):  # the queued before those at work, whose place they would take for a moment
            if ticket in self._under_way:
                self._under_way.pop(ticket)[2].cancel()

    async def _sample(self, ticket: int, request: Request, model: str) -> Sampled:
        """Ask for one completion, after the server's tokenizer was found to be ours."""
        assert self.flavour is not None
        if self._agreement is None or (self._agreement.done() and (self._agreement.cancelled() or self._agreement.exception())):
            self._agreement = asyncio.ensure_future(self._agree())
        await asyncio.shield(self._agreement)
        flavour, prompt, sampling = self.flavour, request.prompt, request.sampling
        stream = request.seed if request.seed is not None else (-1, self.config.seed, ticket)
        path, payload = flavour.ask(model, prompt, sampling, seed_of(stream))
        if flavour.name == "sglang" and model != self.config.model:
            payload["lora_path"] = model

        def read(body: Any) -> tuple[Sampled, Tokens]:
            return flavour.read(body, prompt, sampling, training=self.config.training)

        most = Tokens(len(prompt), sampling.max_tokens)
        url = self.url(path)
        return await self.client.ask("POST", url, payload | self.config.extra, read, tokens=most.prompt + most.completion, most=most)

    def _completion(self, request: Request, version: int, sampled: Sampled) -> Completion:
        assert self.flavour is not None
        ids, stop, scores = sampled.ids, sampled.stop, sampled.logprobs
        if inexact(self.config.server_logprobs or self.flavour.logprobs, request.sampling):
            scores = (math.nan,) * len(ids)
        text = self.decode(ids[: len(ids) - stop])
        return Completion(tuple(request.prompt), ids, scores, text, "stop" if stop else "length", version)

    async def _agree(self) -> str:
        """Compare the server's ids of a probe text with ours; says what was compared. Prompt lengths are compared in every answer."""
        assert self.flavour is not None
        try:
            payload = self.flavour.tokenize(self.config.model, PROBE)
            body = await self.client.control("POST", self.url(self.flavour.tokenize_path), payload, retries=self.config.retries)
        except ServerError as error:
            if error.status in (404, 405, 501):
                return "not offered by the server: only the lengths of prompts are compared"
            raise
        theirs = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(theirs, list):
            raise ServerError(f"{self.url(self.flavour.tokenize_path)} answered {body!r:.100}. Expected an object with a list 'tokens'.")
        if theirs != self._probe:
            at = next((i for i, ids in enumerate(itertools.zip_longest(theirs, self._probe)) if ids[0] != ids[1]), 0)
            raise ServerError(
                f"The server's tokenizer is not ours: of a probe text, token {at} is {theirs[at : at + 1]} there and "
                f"{self._probe[at : at + 1]} here. Set tokenizer to the checkpoint that the server runs."
            )
        return "the same ids for a probe text"

    def cards(self, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """What the server says of each model it serves; ServerError for an answer that lists none."""
        body = self.client.wait(self.client.control("GET", url := f"{self.client.api}/models", timeout_s=timeout_s))
        found = body.get("data") if isinstance(body, dict) else None
        if not isinstance(found, list) or not all(isinstance(card, dict) and isinstance(card.get("id"), str) for card in found):
            raise ServerError(f"{url} answered {body!r:.100}. Expected an object with a list 'data': is it an OpenAI-compatible server?")
        return found

    def _models(self) -> list[str]:
        return [card["id"] for card in self.cards()]

    def _learn_context(self) -> None:
        """Ask the server how long its context is, once, unless max_context says it."""
        if self.max_context is not None or self.flavour is None:
            return
        if self.flavour.name == "llama_cpp":
            body = self.client.wait(self.client.control("GET", self.url("/props")))
            settings = body.get("default_generation_settings") if isinstance(body, dict) else None
            told = settings.get("n_ctx") if isinstance(settings, dict) else None
        else:
            told = next((card.get("max_model_len") for card in self.cards() if card["id"] == self.config.model), None)
        if not isinstance(told, int) or told < 2:
            raise ConfigError(f"{self.client.api} does not tell the context length of '{self.config.model}'. Set max_context.")
        self.max_context = told

    def url(self, path: str) -> str:
        """The address of a path: under base_url when it begins with `/v1`, else under the server's root."""
        return self.client.api + path.removeprefix("/v1") if path.startswith("/v1/") else self.client.root + path

    def idle(self) -> None:
        """Raise unless nothing is under way: weights must not change under a request."""
        if self._under_way:
            raise InvariantError(f"Requests are under way ({len(self._under_way)}): finish or cancel them before the weights change.")


def _put(done: queue.SimpleQueue[int], i: int, _: Future[Any]) -> None:
    done.put(i)


def _ids(prompt: Sequence[int]) -> tuple[int, ...]:
    """Plain integers: a prompt may be an array, and JSON knows none."""
    return tuple(int(token) for token in prompt)


def _of_ticket(error: Exception, ticket: int) -> Exception:
    """The error as this ticket's own: requests that failed together share one object."""
    if isinstance(error, ServerError):
        error = copy.copy(error)
        error.ticket = ticket
    return error


def make(*, tokenizer: Any = None, clock: Clock | None = None, **config: Any) -> OpenAIEngine:
    """The engine of a server: `make(base_url="http://localhost:8000/v1", model="policy", flavour="vllm", tokenizer="checkpoints/policy")`.

    `tokenizer` is a checkpoint directory, read from the disk only, or a transformers tokenizer.
    """
    settings = build(Config, config, where="llm openai")
    if isinstance(tokenizer, str | Path):
        tokenizer = _load_tokenizer(Path(tokenizer))
    return OpenAIEngine(settings, tokenizer, clock=clock)


def _load_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # a boundary: tokenizers, json and transformers each raise their own kinds
        raise UsageError(f"Cannot read a tokenizer at '{path}': {error} Give the checkpoint directory that the server runs.") from error
