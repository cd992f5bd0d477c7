"""What every engine promises (`protocols.LLM` or `protocols.Chat`). Engines are discovered; the server's is a scripted one of this process.

Caches, batches and precision of the local engine and faults of servers are tested in tests/unit/engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from chat_model import save_instruct_model
from fault_server import FaultServer

from dreamgym import plugins
from dreamgym.engines.scripted import ScriptedLLM
from dreamgym.llm import tiny
from dreamgym.protocols import LLM, Chat
from dreamgym.types import Completion, Request, Sampling

PROMPTS = ([65, 66, 67], [70], [80, 81, 82, 83, 84], [65, 66, 67, 68])
EVERY_ID = tuple(range(300))
Open = Callable[[], Any]
"""The engine in a `with` block."""


@cache
def tokenizer() -> Any:
    return tiny.train_tokenizer(["red mug"], vocab_size=300, special=("<|act|>",))


@contextmanager
def served() -> Iterator[LLM]:
    with FaultServer(lambda text: tiny.encode(tokenizer(), text)) as server:
        settings = {"base_url": server.url, "model": "policy", "dialect": "vllm", "backoff_s": 0.01}
        with closing(plugins.make("engines", "server", tokenizer=tokenizer(), **settings)) as engine:
            yield engine


@contextmanager
def local() -> Iterator[LLM]:
    yield plugins.make("engines", "local", module=tiny.build(tokenizer(), "100k", seed=0).eval(), tokenizer=tokenizer())


@contextmanager
def scripted() -> Iterator[LLM]:
    yield plugins.make("engines", "scripted", answer=lambda prompt: f"after {prompt[-3:]}")


@contextmanager
def served_chat() -> Iterator[Chat]:
    with FaultServer(lambda text: [0] * len(text)) as server:
        settings = {"base_url": server.url, "model": "policy", "dialect": "chat", "backoff_s": 0.01}
        with closing(plugins.make("engines", "server", **settings)) as engine:
            yield engine


@contextmanager
def instruct() -> Iterator[Chat]:
    with TemporaryDirectory() as folder:
        yield plugins.make("engines", "instruct", model=str(save_instruct_model(Path(folder) / "blank")))


WAYS: dict[str, Open] = {"server": served, "local": local, "scripted": scripted}
CHATS: dict[str, Open] = {"server": served_chat, "instruct": instruct}
"""How the built-in engines are made, those that sample tokens and those that answer chats. A new one needs an entry in one of them."""


def asked(max_tokens: int = 6, *, stop: tuple[int, ...] = (), temperature: float = 1.0, sessions: bool = False) -> list[Request]:
    how = Sampling(max_tokens, stop=stop, temperature=temperature)
    return [Request(prompt, how, (7, i), f"s{prompt[0]}" if sessions else None) for i, prompt in enumerate(PROMPTS)]


def completions_are_in_order_with_a_log_probability_a_token(opened: Open) -> None:
    with opened() as engine:
        found = engine.generate(asked())
        assert [one.prompt_ids for one in found] == [tuple(prompt) for prompt in PROMPTS]
        for one in found:
            assert 1 <= len(one.ids) == len(one.logprobs) <= 6 and all(type(token) is int for token in one.ids)
            assert all(math.isfinite(score) and score <= 0 for score in one.logprobs)
            assert one.finish_reason == "length" and one.text == engine.decode(one.ids)
        assert engine.generate([]) == []


def a_stop_is_the_last_id_and_no_part_of_the_text(opened: Open) -> None:
    with opened() as engine:
        stopped = engine.generate(asked(stop=EVERY_ID))
        assert [(len(one.ids), one.finish_reason, one.text) for one in stopped] == [(1, "stop", "")] * len(PROMPTS)


def a_seed_names_its_stream_whatever_else_is_asked_and_a_session_changes_nothing(opened: Open) -> None:
    with opened() as engine:
        together = [one.ids for one in engine.generate(asked())]
        assert [engine.generate([request])[0].ids for request in asked()[::-1]][::-1] == together
    with opened() as engine:
        assert [one.ids for one in engine.generate(asked(sessions=True))] == together
        engine.release(["s65", "nobody"])
        assert [one.ids for one in engine.generate(asked(sessions=True))] == together


def every_ticket_is_answered_once_to_whom_it_belongs_and_a_dropped_one_never(opened: Open) -> None:
    with opened() as engine:
        tickets, (mine,) = engine.submit(asked()), engine.submit(asked()[:1])
        assert len({*tickets, mine}) == len(PROMPTS) + 1
        engine.cancel([tickets[1], 12345])
        assert [ticket for ticket, _ in engine.poll([mine])] == [mine]
        found: list[tuple[int, Completion]] = []
        while more := engine.poll():
            found += more
        assert sorted(ticket for ticket, _ in found) == [ticket for ticket in tickets if ticket != tickets[1]]
        assert all(one.prompt_ids == tuple(PROMPTS[tickets.index(ticket)]) for ticket, one in found)
        assert engine.poll() == []


def completions_carry_the_version_that_was_published(opened: Open) -> None:
    with opened() as engine:
        before = [one.version for one in engine.generate(asked())]
        assert before == [engine.version] * len(PROMPTS)
        engine.publish(5, lambda: Path(__file__).parent)
        assert engine.version == 5 and [one.version for one in engine.generate(asked())] == [5] * len(PROMPTS)


def a_text_is_encoded_and_decoded_as_it_was(opened: Open) -> None:
    with opened() as engine:
        for text in ("a red mug", "", "12.50\n[buy now]"):
            ids = engine.encode(text)
            assert all(type(token) is int for token in ids) and engine.decode(ids) == text


PROMISES = [
    completions_are_in_order_with_a_log_probability_a_token,
    a_stop_is_the_last_id_and_no_part_of_the_text,
    a_seed_names_its_stream_whatever_else_is_asked_and_a_session_changes_nothing,
    every_ticket_is_answered_once_to_whom_it_belongs_and_a_dropped_one_never,
    completions_carry_the_version_that_was_published,
    a_text_is_encoded_and_decoded_as_it_was,
]


def test_every_engine_samples_tokens_or_answers_chats() -> None:
    assert set(plugins.known("engines")) == WAYS.keys() | CHATS.keys()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", WAYS)
def test_an_engine_keeps_every_promise(name: str, promise: Callable[[Open], None]) -> None:
    promise(WAYS[name])


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_answers_each_conversation_in_its_place_and_counts_what_it_used(name: str) -> None:
    with CHATS[name]() as engine:
        talks = [[{"role": "user", "content": text}] for text in ("One?", "Two?", "Three?")]
        found = dict(engine.replies(talks, max_tokens=5, seeds=[(i,) for i in range(3)], allow_truncated=True))
        assert found.keys() == {0, 1, 2} and all(isinstance(reply, str) for reply in found.values())
        assert engine.usage.requests == 3 and engine.usage.completion_tokens > 0 and engine.model
        assert list(engine.replies([], max_tokens=5)) == []


# Engines that break a promise each


class Broken(ScriptedLLM):
    def __init__(self) -> None:
        super().__init__(lambda prompt: f"after {prompt[-3:]}")


class Backwards(Broken):
    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return super().generate(requests)[::-1]


class ShowsStops(Broken):
    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids) or "?"


class Counts(Broken):
    calls = 0

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.calls += 1
        self.answer = lambda prompt: str(self.calls)
        return super().generate(requests)


class GivesAll(Broken):
    def poll(self, tickets: Collection[int] | None = None) -> list[tuple[int, Completion]]:
        return super().poll()


class Stays(Broken):
    def publish(self, version: int, save: Callable[[], Path]) -> None:
        """Nothing."""


class Lowers(Broken):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.strip())[:8]


@pytest.mark.parametrize(("broken", "promise"), list(zip((Backwards, ShowsStops, Counts, GivesAll, Stays, Lowers), PROMISES, strict=True)))
def test_a_broken_engine_does_not_keep_its_promise(broken: Callable[[], LLM], promise: Callable[[Open], None]) -> None:
    @contextmanager
    def opened() -> Iterator[LLM]:
        yield broken()

    with pytest.raises(AssertionError):
        promise(opened)
