"""An engine over a model server: vLLM, SGLang, llama.cpp, or any OpenAI-compatible chat host.

`ServerEngine` implements `protocols.LLM`: prompts go out as token ids, and the ids that were sampled come back with their
log-probabilities, so that they can be trained on. A host that returns text only (dialect "chat": hosted models, `transformers serve`)
cannot serve `generate`, and says so; `replies` gives its texts, for teachers and judges. `publish_weights` moves new
weights over.

`http_client` sends and retries, `chat_replies` reads replies, `rate_limit` limits requests a minute, `dialects` holds each server's
request and answer formats, `servers` chooses among several servers of one model, `weight_sync` publishes weights.

    plugins.make("engines", "server", base_url="http://localhost:8000/v1", model="policy", dialect="vllm", tokenizer="checkpoints/policy")
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import math
import queue
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dreamgym.engines.server.chat_replies import LengthLimits, about_tokens, most_tokens, reply_in, sendable
from dreamgym.engines.server.config import ServerConfig
from dreamgym.engines.server.dialects import DIALECTS, Dialect, Sampled, cards_of, inexact, seed_of
from dreamgym.engines.server.http_client import Client, Unreachable
from dreamgym.engines.server.rate_limit import Clock
from dreamgym.engines.server.servers import Served, Servers
from dreamgym.engines.server.weight_sync import Scored, publish_saved, require_current, score, tolerance_of
from dreamgym.errors import ConfigError, InvariantError, ServerError, UsageError
from dreamgym.llm.request_queue import RequestQueue
from dreamgym.llm.tokenized import Tokenized
from dreamgym.types import Completion, Request
from dreamgym.usage import Tokens, Usage

T = TypeVar("T")
LOOK_S = 10.0  # seconds that a server which was left out has to answer
PROBE = "Red mug, 12.50 - a naïve café?\n[buy now]"  # letters, digits, accents, a newline: where tokenizers differ


class ServerEngine(Tokenized, RequestQueue):
    """Samples from a server. Implements `protocols.LLM`; `version` is set by `publish_weights` once the server has the weights.

    Log-probabilities are of the whole vocabulary at the sampling temperature, as `types.Completion` promises. Where the server reports
    others (vLLM: at temperature 1; or renormalised over top_p and top_k under processed_logprobs), requests are refused, or, with
    training=False, answered with nan, which no loss survives unnoticed.
    """

    concurrent = True

    def __init__(
        self,
        config: ServerConfig,
        tokenizer: Any = None,
        *,
        module: Any = None,
        clock: Clock | None = None,
        external_publisher: bool = False,
    ) -> None:
        """`module`: the model whose weights are published, with which the server's log-probabilities are compared.
        `external_publisher`: an engine in another process publishes, and `follow` says what."""
        super().__init__()
        self.external_publisher = external_publisher
        self.config, self.tokenizer, self.module, self.version = config, tokenizer, module, 0
        self.published = False  # whether the servers sample from weights that this engine sent them, or found there
        self.probed: dict[str, Scored] = {}  # by server: the probe that later ones are compared with
        self.model = config.model  # what requests ask for: an adapter's name once one is published
        self.usage = Usage(price_per_million_input=config.price_per_million_input, price_per_million_output=config.price_per_million_output)
        self.client = Client(config, self.usage, clock or Clock())
        self.length_limits = LengthLimits(config.length_limits)
        self.servers = Servers(self.client.apis, self.client.clock.now)
        self.dialect: Dialect | None = DIALECTS.get(config.dialect)
        if self.dialect is not None and tokenizer is None:
            raise ConfigError(f"dialect='{config.dialect}' speaks in token ids: set tokenizer to the checkpoint that the server runs.")
        self._probe = self.encode(PROBE) if self.dialect is not None else []
        self._under_way: dict[int, tuple[Request, int, Future[Sampled]]] = {}
        self._results: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._agreements: dict[str, asyncio.Task[str]] = {}  # by server
        self._looks: set[asyncio.Task[None]] = set()  # at servers that were left out; a task that nobody holds may be collected

    def release(self, sessions: Sequence[str]) -> None:
        """Nothing is kept here but which server has a session: its prefix cache serves every turn of an episode."""
        self.servers.release(sessions)

    def publish(self, version: int, save: Callable[[], Path]) -> None:
        """See `protocols.LLM`. The server must see the folder at the same path, and give the log-probabilities of our own module. An engine
        that follows another one leaves it to that."""
        if self.external_publisher:
            return
        scorer = None if self.module is None else functools.partial(score, self.module)
        publish_saved(self, save(), version, scorer)

    @property
    def tolerance(self) -> float:
        """Nats by which a server's log-probabilities may differ from the module's."""
        return tolerance_of(self.module) if self.config.tolerance is None else self.config.tolerance

    @property
    def served(self) -> Served:
        """What the servers sample from, for engines that follow this one."""
        return Served(self.model, self.version, tuple(self.servers.live), self.published)

    def follow(self, served: Served) -> None:
        """Sample from what another engine has published, and give completions its version. InvariantError while requests are under way."""
        self.require_drained()
        self.model, self.version = served.model, served.version
        self.servers.rejoin(served.apis, retry=not served.published)

    def require_reachable(self) -> None:
        """ServerError when no server answers where this engine runs."""
        for api in self.servers.apis:
            try:
                self.cards(api)
                return
            except ServerError as error:
                if error.status:  # it answers, if not to this
                    return
                last = error
        raise ServerError(f"None of the servers answers here. {last} Give addresses that every node knows: localhost is each node itself.")

    def close(self) -> None:
        """Abort what is under way and let the connections go."""
        self.cancel(list(self._under_way))
        self.client.close()

    def doctor(self) -> dict[str, Any]:
        """What the servers are, checked: each answers, it serves the model, and its tokenizer is ours. ServerError where it is not so."""
        report: dict[str, Any] = {"server": ", ".join(self.servers.apis), "model": self.model, "dialect": self.config.dialect}
        for api in self.servers.apis:
            if self.config.dialect != "llama_cpp":
                report["models"] = served = [card["id"] for card in self.cards(api)]
                if self.model not in served:
                    self._must_reply(api, served)
            if self.dialect is not None:
                report |= {"max_context": self.max_context, "tokenizer": self.client.wait(self._agree(api))}
        return report if self.dialect is not None else report | {"tokens": "text only: replies works, generate does not"}

    def _must_reply(self, api: str, served: Sequence[str]) -> None:
        """ServerError for a model that is not listed, unless it replies: `transformers serve` loads what is asked for, and lists less."""
        unknown = ServerError(f"{api} serves {', '.join(served) or 'nothing'}, not '{self.model}'. Set model to one of them.")
        if self.dialect is not None:
            raise unknown
        payload = {"model": self.model, "messages": [{"role": "user", "content": "Hello"}], self.config.max_tokens_key: 1}
        try:
            self.client.wait(self.client.control("POST", f"{api}/chat/completions", payload))
        except ServerError as error:
            raise ServerError(f"{unknown} Asked for it all the same: {error}", status=error.status) from error

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
            "messages": sendable(messages),
            self.config.max_tokens_key: max_tokens,
            "temperature": temperature,
        }
        if seed is not None:
            payload["seed"] = seed_of(seed) >> 32  # hosts take 32 bits at best
        guess = about_tokens(messages)

        def read(body: Any) -> tuple[str, Tokens | None]:
            return reply_in(body, max_tokens, allow_truncated)

        most = Tokens(most_tokens(messages), max_tokens)

        async def ask(api: str) -> str:
            url = f"{api}/chat/completions"

            def send(form: dict[str, Any]) -> Awaitable[str]:
                return self.client.ask("POST", url, payload | form | self.config.extra, read, tokens=guess + max_tokens, most=most)

            return await self.length_limits.ask(response_format, send)

        return await self._somewhere(None, ask)

    def _check(self, request: Request) -> None:
        if self.dialect is None:
            raise UsageError(
                f"{self.servers.apis[0]} is a chat server (dialect='chat'): it returns text without token ids, so nothing it says can be "
                "trained on. Use `replies`, or serve the policy with vLLM, SGLang or llama.cpp."
            )
        sampling = request.sampling
        if sampling.grammar:
            raise UsageError(
                "Servers each have their own grammars: put the server's option into `extra`, and leave Sampling.grammar empty."
            )
        wrong = inexact(self.config.server_logprobs or self.dialect.logprobs, sampling)
        if wrong and self.config.training:
            raise UsageError(
                f"The server reports log-probabilities {wrong}, so they are not the learner's. Sample at temperature 1, top_p=1, top_k=0; "
                "or set server_logprobs if the server runs otherwise (vLLM: --logprobs-mode processed_logprobs gives 'processed'); "
                "or set training=False to sample without log-probabilities."
            )
        if not len(request.prompt):
            raise UsageError("A prompt is empty: give at least one token.")
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

    def _enqueue(self, tickets: Sequence[int], requests: Sequence[Request]) -> None:
        require_current(self)
        for ticket, request in zip(tickets, requests, strict=True):
            request = replace(request, prompt=_ids(request.prompt))  # a conversation may grow while it is continued
            future = self.client.start(self._sample(ticket, request, self.model))
            self._under_way[ticket] = (request, self.version, future)
            future.add_done_callback(functools.partial(_put, self._results, ticket))

    def _advance(self) -> bool:
        """Wait until something under way is done, and take with it what else is."""
        if not self._under_way:
            return False
        self._resolve(self._results.get())
        while not self._results.empty():
            self._resolve(self._results.get())
        return True

    def _resolve(self, ticket: int) -> None:
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

    async def _sample(self, ticket: int, request: Request, model: str, api: str | None = None) -> Sampled:
        """Ask for one completion: `api`, or a server of the session and, when it is gone, another."""
        assert self.dialect is not None
        dialect, prompt, sampling = self.dialect, request.prompt, request.sampling
        stream = request.seed if request.seed is not None else (-1, self.config.seed, ticket)
        path, payload = dialect.ask(model, prompt, sampling, seed_of(stream))
        if dialect.name == "sglang" and model != self.config.model:
            payload["lora_path"] = model
        most = Tokens(len(prompt), sampling.max_tokens)

        def read(body: Any) -> tuple[Sampled, Tokens]:
            return dialect.read(body, prompt, sampling, training=self.config.training)

        async def ask(api: str) -> Sampled:
            await self._agreed(api)
            url = self.url(path, api)
            return await self.client.ask("POST", url, payload | self.config.extra, read, tokens=most.prompt + most.completion, most=most)

        return await (self._somewhere(request.session, ask) if api is None else ask(api))

    async def _somewhere(self, session: str | None, ask: Callable[[str], Awaitable[T]]) -> T:
        """The answer of a server. What one fails is sent to another, with the same seed; when all fail it, the last one's error is raised,
        and only those that no connection leads to are left out: it may be the request that is wrong."""
        for left_out in self.servers.due():
            look = asyncio.ensure_future(self._look_again(left_out))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)
        failed: dict[str, ServerError] = {}
        while (api := self.servers.take(session, failed)) is not None:
            try:
                answer = await ask(api)
            except ServerError as error:
                if not error.gone:
                    self.servers.answered(api)
                    raise
                failed[api] = error
                if isinstance(error, Unreachable):
                    self.servers.drop(api, error)
            else:
                self.servers.answered(api)
                for other, failure in failed.items():
                    self.servers.blame(other, failure)
                return answer
            finally:
                self.servers.done(api)
        raise list(failed.values())[-1]

    async def _look_again(self, api: str) -> None:
        """Use a server again if it answers. It may have started anew, so its tokenizer is compared again."""
        try:
            await self.client.control("GET", f"{api}/models", timeout_s=min(LOOK_S, self.config.timeout_s))
        except ServerError as error:
            if error.gone:
                return
        self._agreements.pop(api, None)
        self.servers.back(api)

    async def _agreed(self, api: str) -> None:
        """Wait until a server's tokenizer was found to be ours; once for each server."""
        known = self._agreements.get(api)
        if known is None or (known.done() and (known.cancelled() or known.exception())):
            known = self._agreements[api] = asyncio.ensure_future(self._agree(api))
        await asyncio.shield(known)

    def sample_at(self, api: str, request: Request, model: str) -> Completion:
        """One completion by the server at `api`, in use or not, of the weights that it serves as `model`."""
        self._check(request)
        return self._completion(request, self.version, self.client.wait(self._sample(0, request, model, api)))

    def _completion(self, request: Request, version: int, sampled: Sampled) -> Completion:
        assert self.dialect is not None
        ids, stop, scores = sampled.ids, sampled.stop, sampled.logprobs
        if inexact(self.config.server_logprobs or self.dialect.logprobs, request.sampling):
            scores = (math.nan,) * len(ids)
        text = self.decode(ids[: len(ids) - stop])
        return Completion(tuple(request.prompt), ids, scores, text, "stop" if stop else "length", version)

    async def _agree(self, api: str) -> str:
        """Compare a server's ids of a probe text with ours; says what was compared. Prompt lengths are compared in every answer."""
        assert self.dialect is not None
        url = self.url(self.dialect.tokenize_path, api)
        try:
            payload = self.dialect.tokenize(self.config.model, PROBE)
            body = await self.client.control("POST", url, payload, retries=self.config.retries)
        except ServerError as error:
            if error.status in (404, 405, 501):
                return "not offered by the server: only the lengths of prompts are compared"
            raise
        theirs = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(theirs, list):
            raise ServerError(f"{url} answered {body!r:.100}. Expected an object with a list 'tokens'.")
        if theirs != self._probe:
            at = next((i for i, ids in enumerate(itertools.zip_longest(theirs, self._probe)) if ids[0] != ids[1]), 0)
            raise ServerError(
                f"The tokenizer of {api} is not ours: of a probe text, token {at} is {theirs[at : at + 1]} there and "
                f"{self._probe[at : at + 1]} here. Set tokenizer to the checkpoint that the server runs."
            )
        return "the same ids for a probe text"

    def cards(self, api: str, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """What a server says of each model it serves; ServerError for an answer that lists none."""
        url = f"{api}/models"
        return cards_of(self.client.wait(self.client.control("GET", url, timeout_s=timeout_s)), url)

    @functools.cached_property
    def max_context(self) -> int | None:
        """The setting, or what a server says, when it is first asked for; None for a chat server without the setting."""
        if self.config.max_context is not None or self.dialect is None:
            return self.config.max_context
        *others, last = self.servers.live
        for api in others:
            try:
                return self._context_of(api, self.dialect)
            except ServerError as error:
                if not error.gone:
                    raise
        return self._context_of(last, self.dialect)

    def _context_of(self, api: str, dialect: Dialect) -> int:
        body = self.client.wait(self.client.control("GET", url := self.url(dialect.context_path, api), retries=self.config.retries))
        found = dialect.context_length(body, self.config.model, url)
        if not isinstance(found, int) or found < 2:
            raise ConfigError(f"{api} does not report the context length of '{self.config.model}'. Set max_context.")
        return found

    def url(self, path: str, api: str) -> str:
        """The address of a path: under the OpenAI base when it begins with `/v1`, else under the server's root."""
        return api + path.removeprefix("/v1") if path.startswith("/v1/") else api.removesuffix("/v1") + path

    def require_drained(self) -> None:
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


def load_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # a boundary: tokenizers, json and transformers each raise their own kinds
        raise UsageError(f"Cannot read a tokenizer at '{path}': {error} Give the checkpoint directory that the server runs.") from error
