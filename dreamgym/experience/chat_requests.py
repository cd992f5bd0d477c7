"""Asking an instruct model many questions whose answers must have a form: at once, within a budget, with nothing paid for lost.

    replies = ask(chat, conversations, read, how, properties, note=ledger_of_the_replies)

Each reply is read as it comes. One that cannot be read is asked for once more with the error named; one that still cannot, and a
request that the server failed for good, are results too (`Reply.kind`), for the caller to count. The server's errors end the asking when
they would befall every request: a wrong key or address, ten failures in a row, or nothing but failures.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field

from dreamgym.config import Config
from dreamgym.engines import check_settings
from dreamgym.errors import RunDirError, UsageError, explain_errors
from dreamgym.experience.json_replies import BadReply, Format, Message, escape_markers, response_format, tokens_of
from dreamgym.protocols import Chat
from dreamgym.runs.files import append_jsonl, read_jsonl, without_lone_surrogates
from dreamgym.usage import Usage

T = TypeVar("T")
Kind = Literal["clean", "repaired", "unreadable", "failed", "unaffordable"]
FOR_ALL = frozenset({401, 403, 404})  # statuses that every other request would get too
OF_ONE = frozenset({200, 400, 413, 422})  # statuses that are about what was asked: too long, filtered, refused


def _complete(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of an engine that answers chats, checked: a server's by default."""
    engine = {"name": "server", **settings}
    if engine["name"] == "server":
        engine = {"dialect": "chat", **engine}
    check_settings(engine)
    return engine


ChatEngine = Annotated[dict[str, Any], AfterValidator(_complete)]
"""Settings of an engine that answers chats, in the configuration of a model or verifier."""


class AskConfig(Config):
    """How an instruct model is asked."""

    max_tokens: int = Field(default=4096, ge=16, le=10_000_000)
    """Tokens of one reply, thinking included."""
    temperature: float = Field(default=0.0, ge=0)
    format: Format = "json_schema"
    send_seed: bool = True
    """Whether requests carry a seed: some hosts refuse the field."""
    give_up_after: int = Field(default=10, ge=1)
    """Failures in a row, each after the engine's own retries, that end the asking."""
    max_cost: float | None = Field(default=None, gt=0)
    """Cost of all that the model was used for, in the currency of its prices: no request is sent that might exceed it. What a server
    does not tell, and answers that were lost, count as the most they may cost. Only the engine's own retries of requests under way can
    exceed it, when the answers before them were lost and are billed all the same."""


@dataclass(frozen=True)
class Reply(Generic[T]):
    """What became of one question: `value` is what was read (None unless clean or repaired), `raw` the model's last words."""

    value: T | None
    kind: Kind
    raw: str = ""
    problem: str = ""


Note = Callable[[int, int, Reply[T]], None]
"""Called with (question, attempt, reply) as each reply comes, in the caller's thread."""


def ask(
    chat: Chat,
    conversations: Sequence[Sequence[Message]],
    read: Callable[[int, str], T],
    how: AskConfig,
    properties: Mapping[str, Any],
    *,
    name: str = "answer",
    seeds: Sequence[tuple[int, ...]] | None = None,
    note: Note[T] | None = None,
    again: bool = True,
) -> list[Reply[T]]:
    """One reply per conversation, in order. `read(i, text)` gives the value or raises BadReply; `properties` are the JSON object's.

    Without `again`, what cannot be read is not asked for once more.
    """
    asking = _Asking(chat, read, how, response_format(how.format, name, properties, how.max_tokens), seeds, note)
    talks = {i: list(talk) for i, talk in enumerate(conversations)}
    results = asking.round(1, talks)
    unread = {i: [*talks[i], *_correction(reply)] for i, reply in results.items() if again and reply.kind == "unreadable"}
    results |= {i: reply for i, reply in asking.round(2, unread).items() if reply.kind != "unaffordable"}
    if asking.last_error is not None and all(reply.kind == "failed" for reply in results.values()):
        raise asking.last_error
    return [results[i] for i in range(len(talks))]


def require_budget(replies: Iterable[Reply[Any]], whose: str) -> None:
    """UsageError where a question was not sent because the budget is spent: what waits for the answer must not go on without it."""
    if unsent := next((reply for reply in replies if reply.kind == "unaffordable"), None):
        raise UsageError(f"The {whose} has spent its budget: {unsent.problem}. Raise max_cost and resume.")


class _Asking(Generic[T]):
    """One call of `ask`."""

    def __init__(
        self,
        chat: Chat,
        read: Callable[[int, str], T],
        how: AskConfig,
        form: Mapping[str, Any] | None,
        seeds: Sequence[tuple[int, ...]] | None,
        note: Note[T] | None,
    ) -> None:
        self.chat, self.read, self.how, self.form, self.seeds, self.note = chat, read, how, form, seeds, note
        self.budget = Budget(chat.usage, how)
        self.failures = 0  # in a row
        self.last_error: Exception | None = None  # the last that says something about the server

    def round(self, attempt: int, talks: Mapping[int, list[Message]]) -> dict[int, Reply[T]]:
        """Ask everything once. As money that was held back for longer replies comes free, what had to wait is asked too."""
        results: dict[int, Reply[T]] = {}
        todo = list(talks)
        while todo:
            sent: list[int] = []
            replies = self.chat.replies(
                self._affordable(todo, talks, sent),
                max_tokens=self.how.max_tokens,
                temperature=self.how.temperature,
                seeds=[(*self.seeds[i], attempt) for i in todo] if self.seeds and self.how.send_seed else None,
                response_format=self.form,
                allow_truncated=True,  # what was cut is kept, and read as far as it goes
            )
            with closing(replies):  # whatever ends the asking ends what is under way
                for position, answer in replies:
                    i = sent[position]
                    self.budget.release(i)
                    results[i] = self._result(i, attempt, answer)
                    if self.note is not None:
                        self.note(i, attempt, results[i])
            if not sent:
                return results | {i: Reply(None, "unaffordable", problem=f"max_cost={self.how.max_cost} is spent") for i in todo}
            todo = todo[len(sent) :]
        return results

    def _affordable(self, todo: Sequence[int], talks: Mapping[int, list[Message]], sent: list[int]) -> Iterator[list[Message]]:
        for i in todo:
            if not self.budget.reserve(i, talks[i]):
                return
            sent.append(i)
            yield talks[i]

    def _result(self, i: int, attempt: int, answer: str | Exception) -> Reply[T]:
        if isinstance(answer, Exception):
            self.failures += 1
            status = getattr(answer, "status", None)
            if status not in OF_ONE:
                self.last_error = answer
            if status in FOR_ALL or self.failures >= self.how.give_up_after:
                raise answer
            return Reply(None, "failed", problem=str(answer))
        self.failures = 0
        try:
            return Reply(self.read(i, answer), "clean" if attempt == 1 else "repaired", answer)
        except BadReply as error:
            return Reply(None, "unreadable", answer, str(error))


def _correction(reply: Reply[Any]) -> list[Message]:
    """The model's own words and what is wrong with them."""
    demand = f"That could not be used: {reply.problem}. Answer again, with the whole JSON object and nothing else."
    return [{"role": "assistant", "content": escape_markers(reply.raw)}, {"role": "user", "content": escape_markers(demand)}]


class Budget:
    """Owns the limit of what may be spent: what is under way counts as if it cost all that it may."""

    def __init__(self, usage: Usage, how: AskConfig) -> None:
        self.usage, self.how = usage, how
        self._held: dict[int, float] = {}
        if how.max_cost is not None and not usage.price_per_million_output:
            raise UsageError(
                "A limit of money needs prices: give the model's price_per_million_input and price_per_million_output "
                "(--price-input, --price-output), or no limit."
            )

    def reserve(self, i: int, talk: Sequence[Message]) -> bool:
        """Whether this request may be sent; its greatest cost is held back until `release`."""
        if self.how.max_cost is None:
            return True
        price_in, price_out = self.usage.price_per_million_input, self.usage.price_per_million_output
        cost = (tokens_of(talk, bytes_per_token=2.0) * price_in + self.how.max_tokens * price_out) / 1e6
        spent = self.usage.cost + self.usage.lost_cost  # answers that never came: a host may bill them
        if spent + sum(self._held.values()) + cost > self.how.max_cost:
            return False
        self._held[i] = cost
        return True

    def release(self, i: int) -> None:
        """Free what `reserve` held back: the request is answered, and its true cost is in the usage."""
        self._held.pop(i, None)


class ReplyLog:
    """Owns a file of replies, one line each, that only grows: what it has accepted need not be paid for again.

    Its lines hold `key` (a hash of everything that was asked, and of the model), `name`, `attempt`, `kind`, `problem`, `raw` and `value`.
    A torn last line is dropped. Without a path it remembers, and writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.accepted: dict[str, Any] = {}
        self.attempts: Counter[str] = Counter()
        self._read()

    def _read(self) -> None:
        if self.path is not None:
            self.attempts.clear()
            for record in read_jsonl(self.path):
                self._take(record)

    def note(self, key: str, name: str, attempt: int, reply: Reply[Any], value: Any) -> None:
        """Write one reply down. `value` is what was read, as JSON; None when it could not be."""
        record = {"key": key, "name": name, "attempt": attempt, "kind": reply.kind, "problem": reply.problem, "raw": reply.raw}
        record["value"] = value
        if self.path is not None:
            append_jsonl(self.path, _writable(record))
        self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        try:
            self.attempts[record["key"]] += 1
            if record["value"] is not None:
                self.accepted[record["key"]] = record["value"]
        except (KeyError, TypeError) as error:
            raise RunDirError(
                f"'{self.path}' holds a line that is no reply: {str(record)[:80]}. Give another file, or move that one away."
            ) from error

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Keep other processes out: two of them would pay for the same replies."""
        if self.path is None:
            yield
            return
        with explain_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunDirError(f"Another process is filling '{self.path}'. Wait for it, stop it, or choose another file.") from error
            self._read()  # what another process has added meanwhile
            yield
        finally:
            os.close(lock)


def _writable(record: dict[str, Any]) -> dict[str, Any]:
    """Half characters in a model's words would not go into a file."""
    return {name: without_lone_surrogates(value) if isinstance(value, str) else value for name, value in record.items()}
