"""In-process engine for any dense transformers causal LM: token ids in; sampled ids and their log-probabilities out.

Batching is continuous: requests of any lengths, of whatever episode or turn, decode side by side over one preallocated key-value cache
(`kv_cache`), and one that finishes gives its place to one that waits (`running_batch`). Rows of the cache keep an episode's keys and
values between its turns. Plain Llamas run through a functional forward (`FastRunner`), other models through their own (`GenericRunner`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamgym.config import build
from dreamgym.engines.local import causal_lm, llama
from dreamgym.engines.local.config import LocalConfig
from dreamgym.engines.local.grammar import Grammars
from dreamgym.engines.local.kv_cache import KVCache
from dreamgym.engines.local.ngram_speculation import CONTEXTS, NGramSpeculator
from dreamgym.engines.local.runners import FastRunner, GenericRunner
from dreamgym.engines.local.running_batch import ActiveRequest, RunningBatch, sample
from dreamgym.errors import ConfigError, InvariantError, UsageError
from dreamgym.llm.memory import return_free_memory
from dreamgym.llm.request_queue import RequestQueue
from dreamgym.llm.tokenized import Tokenized
from dreamgym.types import Completion, Request

SHARED_PREFIX = 32  # tokens; prompts that begin alike by at least this much are computed once and copied
REFILL = 1 / 8  # of the rows that fit must be free before waiting requests are admitted, so that their prompts are computed together
COMPACT = 0.3  # the largest share of finished rows in the batch


class LocalEngine(Tokenized, RequestQueue):
    """Samples from `model` (the module itself: the learner trains the same weights). Implements `protocols.LLM`.

    After the weights change, call `refresh()`; in-place changes that autograd can see (an optimiser step, `load_state_dict`) are noticed
    without it. Either drops every kept cache, because keys of old weights are wrong. `version` is the caller's to set.
    """

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        """`settings` are those of `LocalConfig`."""
        config = build(LocalConfig, settings, where="engine")
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.version, self.max_batch, self.seed = 0, config.max_batch, config.seed
        self.waiting: deque[ActiveRequest] = deque()
        self.batch = RunningBatch()
        self.grammars: Grammars | None = None  # loaded when a request has one
        self.speculator = NGramSpeculator(config.speculate)
        found = plan(model, config)
        self.max_context, self.device = found.max_context, next(model.parameters()).device
        shape = causal_lm.plain(model).config.get_text_config()
        self.kv_cache = KVCache(
            layers=shape.num_hidden_layers,
            kv_heads=getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads,
            head_dim=getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads,
            dtype=found.cache_dtype,
            device=self.device,
            cache_bytes=config.cache_bytes,
            max_length=self.max_context,
        )
        self.runner = FastRunner(model, self.kv_cache, found.dtype) if found.fast else GenericRunner(model, self.kv_cache)
        self._weights_seen = self._fingerprint()

    def refresh(self) -> None:
        """Read the module's weights again, and forget every cache computed with the old ones."""
        self.runner.refresh()
        self.kv_cache.clear()
        self.speculator = NGramSpeculator(self.speculator.longest)
        self._weights_seen = self._fingerprint()

    def publish(self, version: int, save: Callable[[], Path]) -> None:
        """See `protocols.LLM`. InvariantError while requests run: what they have sampled is of the weights before."""
        if self.batch.running:
            raise InvariantError(f"Requests are running ({self.batch.running}): finish or cancel them before the weights change.")
        super().publish(version, save)

    def release(self, sessions: Sequence[str]) -> None:
        """Forget the caches of these sessions; one whose request still runs is forgotten when it finishes.

        With the last session goes the text that guesses are made from, so that a rollout computes the same whatever came before it; and,
        on a CPU, the memory of keys and values, which a learner needs meanwhile.
        """
        running = {active.owner: active for active in self.batch.active}
        for name in sessions:
            if name in running:
                running[name].keep = False
        self.kv_cache.release([name for name in sessions if name not in running])
        if not self.kv_cache.row_of:
            self.speculator = NGramSpeculator(self.speculator.longest)
            if self.device.type == "cpu":
                self.kv_cache.clear()
                return_free_memory()

    def _check(self, request: Request) -> None:
        room = self.max_context - request.sampling.max_tokens
        if not len(request.prompt):
            raise UsageError("A prompt is empty: give at least one token.")
        if len(request.prompt) > room:
            raise UsageError(
                f"A prompt of {len(request.prompt)} tokens does not fit: the context of {self.max_context} "
                f"less max_tokens={request.sampling.max_tokens} leaves {room}. Shorten the history, or lower max_tokens."
            )

        if request.sampling.grammar:
            grammars = self._grammars()
            grammars.matcher(request.sampling.grammar)
            if (grammars.end,) not in request.sampling.stops:
                raise UsageError(f"A grammar ends with the tokenizer's end token: add its id, {grammars.end}, to the stops.")

    def _grammars(self) -> Grammars:
        if self.grammars is None:
            self.grammars = Grammars(self.tokenizer, self.model.get_output_embeddings().weight.shape[0])
        return self.grammars

    def _enqueue(self, tickets: Sequence[int], requests: Sequence[Request]) -> None:
        self.waiting += [
            ActiveRequest(ticket, request, request.seed if request.seed is not None else (self.seed, ticket))
            for ticket, request in zip(tickets, requests, strict=True)
        ]

    def _drop(self, tickets: Sequence[int]) -> None:
        dropped = set(tickets)
        self.waiting = deque(active for active in self.waiting if active.ticket not in dropped)
        for row, active in enumerate(self.batch.active):
            if active.ticket in dropped and not self.batch.done[row]:
                self.batch.done[row] = True
                self.kv_cache.tokens[row] = self.batch.valid(row)
        if not self.batch.running:
            self._compact()  # nothing moves, and `release` finds no row at work

    @torch.inference_mode()
    def _advance(self) -> bool:
        """One step of every active row, after admitting the waiting requests that fit."""
        try:
            with torch.autocast(self.device.type, enabled=False):  # the caller's would change what is computed
                entered = self._admit()
                if not entered and self.batch.running:
                    self._step()
            return bool(entered or self.batch.running or self.waiting)
        except BaseException:
            self._restart()  # rows may be half-written
            raise

    def _admit(self) -> bool:
        """Admit waiting requests, if enough fit to be worth a pass over their prompts."""
        chosen = self._fitting()
        if not chosen:
            return False
        self._compact()
        if self._fingerprint() != self._weights_seen:
            if self.batch.n:
                raise InvariantError(
                    f"The model's weights changed while {self.batch.n} requests were running: finish or cancel them before an update."
                )
            self.refresh()
        owned = {active.owner for active in self.batch.active}
        for active in chosen:
            session = active.request.session
            active.keep = session is not None and session not in owned
            active.owner = session if active.keep else ("request", active.ticket)
            owned.add(active.owner)
            active.matcher = self._grammars().matcher(active.request.sampling.grammar) if active.request.sampling.grammar else None
        for row in range(self.batch.n):
            self.kv_cache.tokens[row] = self.batch.valid(row)  # what must survive if the cache grows
        longest = max(active.length for active in (*chosen, *self.batch.active))
        order = self.kv_cache.assign_rows(self.batch.n, [active.owner for active in chosen], longest)
        rows = self.batch.append([chosen[i] for i in order])
        for _ in chosen:
            self.waiting.popleft()  # not before: what fails above leaves them waiting
        self._sample_and_commit(self._prefill(rows), rows)
        return True

    def _fitting(self) -> list[ActiveRequest]:
        """The first waiting requests that the batch size and the memory budget have room for; one alone always has."""
        if not self.waiting:
            return []
        running = self.batch.running
        chosen: list[ActiveRequest] = []
        room = self.max_batch
        longest = max((active.length for active in self.batch.active), default=0)
        for active in self.waiting:
            longest = max(longest, active.length)
            used = running + len(chosen)
            room = min(self.max_batch, self.kv_cache.most_rows(longest))
            if used and used + 1 > room:
                break
            chosen.append(active)
        enough = min(len(self.waiting), max(1, int(room * REFILL)))
        return chosen if len(chosen) >= enough or not running else []

    def _prefill(self, rows: np.ndarray) -> Tensor:
        """Logits [n, V] after the prompts of `rows`, having computed only what no cache holds."""
        kv_cache = self.kv_cache
        prompts = {int(row): self.batch.active[row].prompt for row in rows}
        held = {tokens[:SHARED_PREFIX].tobytes(): row for row, tokens in enumerate(kv_cache.tokens) if len(tokens) >= SHARED_PREFIX}
        leaders: dict[bytes, int] = {}
        waves: tuple[list[int], list[int]] = ([], [])
        source: dict[int, int] = {}
        past: dict[int, int] = {}
        for row, prompt in prompts.items():
            head = prompt[:SHARED_PREFIX].tobytes()
            past[row] = _common(kv_cache.tokens[row], prompt)
            if past[row] < SHARED_PREFIX < len(prompt) and head in held:
                past[row] = self._copy(held[head], row)
            if past[row] < SHARED_PREFIX < len(prompt) and head in leaders:
                source[row] = leaders[head]
            elif past[row] < SHARED_PREFIX:
                leaders.setdefault(head, row)
            waves[row in source].append(row)
        if self.speculator.longest:
            for row, prompt in prompts.items():
                self.speculator.learn(prompt[max(0, past[row] - CONTEXTS[0]) :].tolist())
        out: dict[int, Tensor] = {}
        for wave in waves:
            for row in wave:
                if row in source:
                    past[row] = self._copy(source[row], row)
            for row, logits in self.runner.prefill(wave, [prompts[row][past[row] :] for row in wave], [past[row] for row in wave]):
                out[row] = logits
                kv_cache.tokens[row] = prompts[row]
        return torch.stack([out[int(row)] for row in rows])

    def _copy(self, source: int, row: int) -> int:
        """Let `row` begin with what its prompt shares with row `source`; returns how much that is."""
        prompt = self.batch.active[row].prompt
        shared = _common(self.kv_cache.tokens[source], prompt)
        if source != row:
            self.kv_cache.copy(source, row, shared)
            self.kv_cache.tokens[row] = prompt[:shared]
        return shared

    def _step(self) -> None:
        """The next token of every active row, and those after it that were guessed."""
        batch, n = self.batch, self.batch.n
        guesses = self._guesses() if self.speculator.longest else []
        width = max((len(ids) for ids, _ in guesses), default=0)
        guessed = np.full((n, width), -1)
        for row, (ids, _) in enumerate(guesses):
            guessed[row, : len(ids)] = ids
        real = np.concatenate([np.ones((n, 1), dtype=bool), guessed >= 0], 1)
        fed = np.concatenate([batch.last[:n, None], np.maximum(guessed, 0)], 1)
        logits = self.runner.decode(fed, batch.position[:n, None] + np.arange(1 + width), real if width else None)
        if not width:
            self._sample_and_commit(logits, np.arange(n))
            return
        rows, ahead = np.nonzero(real)
        sampled, scores = np.full((n, 1 + width), -2), np.zeros((n, 1 + width))
        sampled[rows, ahead], scores[rows, ahead] = self._sample(logits, rows, ahead)
        accepted = np.cumprod(sampled[:, :-1] == guessed, 1).sum(1)  # up to the first guess that was not sampled
        self.speculator.score(guesses, accepted)
        for k in range(int(accepted.max()) + 1):
            rows = np.flatnonzero(accepted >= k)
            self._commit(rows, sampled[rows, k], scores[rows, k])
        self._compact_if_sparse()

    def _guesses(self) -> list[tuple[list[int], int]]:
        """The speculator's guess for each running row; empty when it is not worth a wider pass. Grammars are followed token by token."""
        batch = self.batch
        left = np.where(batch.done, 0, batch.limit - batch.made - 1)
        found = [
            self.speculator.guess(batch.tail(row, CONTEXTS[0]), int(left[row])) if batch.active[row].matcher is None else ([], 0)
            for row in range(batch.n)
        ]
        return found if self.speculator.worth(found) else []

    def _sample_and_commit(self, logits: Tensor, rows: np.ndarray) -> None:
        """Sample a token for each of `rows`, and finish those it ends."""
        self._commit(rows, *self._sample(logits, rows, 0))
        self._compact_if_sparse()

    def _sample(self, logits: Tensor, rows: np.ndarray, ahead: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log-probabilities) of the tokens that are `ahead` of the next one of each of `rows`."""
        matchers = [] if self.grammars is None else [self.batch.active[row].matcher for row in rows]
        bias = self._grammars().bias(matchers, logits) if any(matchers) else None
        return sample(self.batch, logits, rows, bias, ahead, self.runner.draw)

    def _commit(self, rows: np.ndarray, sampled: np.ndarray, scores: np.ndarray) -> None:
        """Add a sampled token to each of `rows` that still runs, and finish those it ends."""
        if self.grammars is not None:
            for row, token in zip(rows, sampled.tolist(), strict=True):
                matcher = self.batch.active[row].matcher
                if matcher is not None and not matcher.is_stopped() and not matcher.consume_token(token):
                    raise InvariantError(f"Token {token} was sampled, and the grammar does not allow it. Report this.")
        for row in self.batch.record(rows, sampled, scores):
            self._finish(int(row))

    def _compact_if_sparse(self) -> None:
        """Compact, when enough rows have finished."""
        if self.batch.n - self.batch.running >= COMPACT * self.batch.n:
            self._compact()

    def _finish(self, row: int) -> None:
        batch, active = self.batch, self.batch.active[row]
        made, stop = int(batch.made[row]), batch.stopped(row)
        ids = batch.ids[row, :made].tolist()
        scores = tuple(batch.logprobs[row, :made].tolist())
        text = self.decode(ids[: made - stop])
        if self.speculator.longest:
            self.speculator.learn(active.prompt[-CONTEXTS[0] :].tolist() + ids)
        self.kv_cache.tokens[row] = batch.valid(row)
        self._finished[active.ticket] = Completion(
            tuple(active.prompt.tolist()), tuple(ids), scores, text, "stop" if stop else "length", self.version
        )

    def _compact(self) -> None:
        """Move finished rows behind the running ones, and free those that no session keeps."""
        if self.batch.running == self.batch.n:
            return
        length = max(len(active.prompt) + int(made) for active, made in zip(self.batch.active, self.batch.made, strict=True))
        holes, tails, gone = self.batch.compact()
        self.kv_cache.swap(holes.tolist(), tails.tolist(), length)
        self.kv_cache.release([active.owner for active in gone if not active.keep])

    def _restart(self) -> None:
        """After a failure: forget every cache, and let what was running wait again from its beginning."""
        again = [active for row, active in enumerate(self.batch.active) if not self.batch.done[row]]
        # Each once: what interrupted an admission may have left a request in both places.
        self.waiting = deque({active.ticket: active for active in (*again, *self.waiting)}.values())
        self.batch = RunningBatch()
        self.kv_cache.clear()

    def _fingerprint(self) -> tuple[int, ...]:
        """Changes when a parameter is replaced or written in place."""
        return tuple(itertools.chain.from_iterable((p.data_ptr(), 0 if p.is_inference() else p._version) for p in self.model.parameters()))


def _common(cached: np.ndarray, prompt: np.ndarray) -> int:
    """How many leading tokens of `prompt` are cached; the last one is always computed, because its logits are needed."""
    n = min(len(cached), len(prompt) - 1)
    differ = np.flatnonzero(cached[:n] != prompt[:n])
    return int(differ[0]) if len(differ) else n


@dataclass(frozen=True)
class Plan:
    """How the engine runs a model."""

    fast: bool  # through the functional forward
    dtype: torch.dtype | None  # of the linear layers; None: the model's own
    cache_dtype: torch.dtype
    max_context: int


def plan(model: Any, config: LocalConfig) -> Plan:
    """How the engine runs this model, which may be an outline on the meta device. ConfigError where it cannot."""
    shape, parameter = causal_lm.plain(model).config.get_text_config(), next(model.parameters())
    positions, window = int(getattr(shape, "max_position_embeddings", 4096)), causal_lm.window(model)
    if causal_lm.has_position_table(model) and (config.max_context or 0) > positions:
        raise ConfigError(
            f"max_context={config.max_context} is beyond the model's table of {positions} positions. Lower it, or leave it out for all."
        )
    if window is not None and (config.max_context or 0) > window:
        raise ConfigError(
            f"max_context={config.max_context} is beyond the sliding window of {window} tokens, up to which attention is in full."
        )
    rotary = causal_lm.rotary_limit(model)
    if rotary is not None and (config.max_context or 0) > rotary:
        raise ConfigError(
            f"max_context={config.max_context} is beyond the {rotary} positions up to which the model's rotary frequencies do not change."
        )
    if hasattr(parameter, "device_mesh"):
        raise ConfigError("The model is sharded over several processes, and sampling needs all its weights in one. Use a whole model.")
    fast = llama.supports(model)
    dtype = None if config.dtype in (None, "auto") else getattr(torch, config.dtype)
    if config.dtype == "auto" and fast and llama.computes_in_bfloat16(parameter.device):
        dtype = torch.bfloat16
    if not fast:
        causal_lm.check_cacheable(model)
        if dtype not in (None, parameter.dtype):
            raise ConfigError(
                f"The engine's dtype = '{config.dtype}' differs from the model's {parameter.dtype}: a model with adapters, or of another "
                f"architecture than Llama, is sampled in its own. Set the backbone's dtype to '{config.dtype}', or leave the engine's out."
            )
    kind = dtype or parameter.dtype
    if fast and parameter.device.type == "cpu" and kind == torch.float16:
        kind = torch.float32  # in which CPUs multiply
    cache = kind if config.cache_dtype in (None, "auto") else getattr(torch, config.cache_dtype)
    return Plan(fast, dtype, cache, config.max_context or min(positions, window or positions, rotary or positions))
