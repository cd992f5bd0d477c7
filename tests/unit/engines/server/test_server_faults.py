"""A server that fails costs time, never truth: requests recover, or end in an error that says what happened and what to do."""

from __future__ import annotations

import asyncio
import gc
import gzip
import math
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fault_server import FaultServer, Handler, next_tokens

from dreamgym import plugins
from dreamgym.engines.server import http_client
from dreamgym.engines.server.engine import ServerEngine
from dreamgym.engines.server.rate_limit import Clock, RateLimiter, backoff, retry_after
from dreamgym.errors import ConfigError, ServerError, UsageError
from dreamgym.llm import tiny
from dreamgym.types import Request, Sampling

TOKENIZER = tiny.train_tokenizer(["red mug"], vocab_size=300)
PROMPT = [40, 41, 42]
ASK = Request(PROMPT, Sampling(4))
EXPECTED = tuple(next_tokens(PROMPT, 4, 0))


class FastClock:
    """A minute passes at once; what was slept is recorded."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []
        self.clock = Clock(lambda: self.time, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer(lambda text: tiny.encode(TOKENIZER, text)) as server:
        yield server


@pytest.fixture
def clock() -> FastClock:
    return FastClock()


@pytest.fixture
def make(server: FaultServer, clock: FastClock) -> Iterator[Any]:
    made: list[ServerEngine] = []

    def make(**options: Any) -> ServerEngine:
        settings = {"base_url": server.url, "model": "policy", "dialect": "vllm", "tokenizer": TOKENIZER, "max_context": 128}
        made.append(plugins.make("engines", "server", clock=clock.clock, **settings | options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize("fault", [("status", 500), ("status", 503), ("busy", 7), "cut", "json", "hang"])
def test_a_failure_that_passes_is_not_seen(make: Any, server: FaultServer, clock: FastClock, fault: Any) -> None:
    engine = make(timeout_s=0.6 if fault == "hang" else 5.0)
    server.faults.extend([fault, fault])
    assert engine.generate([ASK])[0].ids == EXPECTED
    usage = engine.usage
    assert (usage.requests, usage.attempts, usage.retries, usage.failures) == (1, 3, 2, 0)
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 4)
    assert (usage.lost_tokens, usage.lost_completion_tokens) == ((6, 8) if fault in ("cut", "json", "hang") else (0, 0))
    if fault == ("busy", 7):
        assert clock.slept == [7.0, 7.0]
    else:
        first, second = clock.slept[-2:]  # on a busy machine a request before it, for the server's models, may have timed out as well
        assert 0.25 <= first <= 0.5 <= second <= 1.0
    assert server.payloads("/v1/completions")[0] == server.payloads("/v1/completions")[2]  # the same seed


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        (("status", 503), 503, r"failed after 3 attempts.*status 503: .*no luck.*lower concurrency.*stay valid"),
        (("busy", 1), 429, "failed after 3 attempts.*status 429.*slow down"),
        ("cut", None, "failed after 3 attempts.*connection broke off"),
        ("json", 200, "failed after 3 attempts.*not JSON"),
        ("hang", None, r"failed after 3 attempts.*no whole answer within timeout_s=0.2 seconds"),
    ],
)
def test_a_failure_that_stays_is_told_whole(make: Any, server: FaultServer, fault: Any, status: int | None, says: str) -> None:
    engine = make(retries=2, timeout_s=0.2 if fault == "hang" else 5.0)
    server.faults.extend([fault] * 3)
    with pytest.raises(ServerError, match=says) as caught:
        engine.generate([ASK])
    assert f"{server.url}/completions" in str(caught.value)
    assert caught.value.status == status
    assert (engine.usage.requests, engine.usage.attempts, engine.usage.failures) == (0, 3, 1)


def test_no_server_is_told_with_its_address(make: Any) -> None:
    engine = make(base_url="http://127.0.0.1:9/v1", retries=1)
    with pytest.raises(ServerError, match="http://127.0.0.1:9/tokenize failed after 2 attempts.*no connection") as caught:
        engine.generate([ASK, ASK])
    assert caught.value.status is None


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refusal_is_not_asked_again(make: Any, server: FaultServer, status: int) -> None:
    engine = make()
    server.faults.append(("status", status))
    with pytest.raises(ServerError, match=f"refused with status {status}"):
        engine.generate([ASK])
    assert engine.usage.attempts == 1 and engine.usage.failures == 1


def test_a_server_that_sends_requests_on_names_the_address_for_base_url(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"Location": "https://other:8000/v1/completions"}
    monkeypatch.setattr(Handler, "do_POST", lambda handler: handler.raw(b"", 307, headers))
    with pytest.raises(ServerError, match="refused with status 307.* on to https://other:8000/v1/completions: set base_url"):
        make().generate([ASK])
    headers.clear()
    with pytest.raises(ServerError, match="refused with status 307.*Set base_url"):
        make().generate([ASK])


def test_a_wrong_key_names_the_variable_and_hides_the_key(make: Any, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLICY_KEY", raising=False)
    server.faults.extend([("status", 401), ("status", 403)])
    with pytest.raises(ServerError, match="status 401.*variable POLICY_KEY; none was sent: POLICY_KEY is not set"):
        make(api_key_env="POLICY_KEY").generate([ASK])
    with pytest.raises(ServerError, match=r"status 403.*Bearer \*\*\*.*not accepted") as caught:
        make(api_key="sk-secret").generate([ASK])
    assert "sk-secret" not in str(caught.value)


def test_a_key_that_no_header_takes_is_refused_without_being_shown_and_blanks_around_one_are_left_out(
    make: Any, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(api_key=" sk-secret\n").generate([ASK])
    assert set(server.keys) == {"Bearer sk-secret"}
    for wrong in ("sk-sec\nret", "sk-secr\u00e9t"):
        with pytest.raises(ConfigError, match="The key in api_key holds a character") as caught:
            make(api_key=wrong)
        assert "sk-" not in str(caught.value)
    monkeypatch.setenv("POLICY_KEY", "sk-sec\tret")
    with pytest.raises(ConfigError, match="The key in POLICY_KEY"):
        make(api_key_env="POLICY_KEY")


@pytest.mark.parametrize("url", ["localhost:8000/v1", "http://host:port/v1", "http:///v1", "ftp://host/v1", ""])
def test_an_address_that_is_none_is_refused_before_anything_is_asked(make: Any, url: str) -> None:
    with pytest.raises(ConfigError, match=r"'base_url' in engine.*such as http://localhost:8000/v1"):
        make(base_url=url)


def test_the_length_of_the_context_is_asked_for_again_and_of_another_server_where_one_is_gone(
    make: Any, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, failures = Handler.do_GET, iter([True, True, False])
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.send_error(503) if next(failures, False) else answer(handler))
    engine = make(max_context=None)
    assert engine.generate([ASK])[0].ids == EXPECTED and engine.max_context
    assert make(base_url="http://127.0.0.1:9/v1", more_urls=(server.url,), max_context=None).generate([ASK])[0].ids == EXPECTED


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b'{"data": null}', b'{"data": [{"name": "policy"}]}', b""])
def test_a_server_that_lists_no_models_is_no_crash(make: Any, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.raw(body))
    with pytest.raises(ServerError, match=r"/v1/models answered .*Expected an object with a list 'data'"):
        make(max_context=None).generate([ASK])
    with pytest.raises(ServerError, match="is it an OpenAI-compatible server"):
        make().doctor()


@pytest.mark.parametrize(
    "body", [b"[]", b'"text"', b'{"default_generation_settings": 3}', b'{"default_generation_settings": {"n_ctx": 0}}']
)
def test_a_server_that_does_not_tell_its_context_says_what_to_set(make: Any, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.raw(body))
    with pytest.raises(ConfigError, match="Set max_context"):
        make(dialect="llama_cpp", max_context=None).generate([ASK])


@pytest.mark.parametrize("charset", ["nonsense", "rot13", "base64", "utf-16", "undefined"])
def test_an_answer_in_no_charset_that_is_known_is_read_as_utf_8(make: Any, monkeypatch: pytest.MonkeyPatch, charset: str) -> None:
    def do_POST(handler: Any) -> None:
        handler.send_response(400)
        handler.send_header("Content-Type", f"text/plain; charset={charset}")
        handler.send_header("Content-Length", "7")
        handler.end_headers()
        handler.wfile.write(b"broken\xff")

    monkeypatch.setattr(Handler, "do_POST", do_POST)
    with pytest.raises(ServerError, match="refused with status 400: broken"):
        make().generate([ASK])


@pytest.mark.parametrize("compressed", [False, True])
def test_an_answer_without_end_is_given_up_and_not_kept(make: Any, monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    monkeypatch.setattr(http_client, "LARGEST_ANSWER", 3 << 20)
    body = b" " * (4 << 20)
    headers = {"Content-Encoding": "gzip"} if compressed else {}
    monkeypatch.setattr(Handler, "do_POST", lambda handler: handler.raw(gzip.compress(body) if compressed else body, headers=headers))
    with pytest.raises(ServerError, match="/tokenize was answered with more than 3 MiB"):
        make().generate([ASK])


def test_a_prompt_counted_otherwise_is_not_trained_on(make: Any, server: FaultServer) -> None:
    server.faults.append("count")
    engine = make()
    with pytest.raises(ServerError, match="counted 4 prompt tokens where 3 were sent"):
        engine.generate([ASK])
    assert engine.usage.lost_tokens == 3


def drop_ids(reply: Any) -> None:
    del reply["choices"][0]["token_ids"]
    reply["choices"][0]["logprobs"]["tokens"] = ["red", "mug", "!", "?"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (drop_ids, "no sampled token ids.*dialect='chat'"),
        (lambda r: r["choices"][0].update(logprobs=None), "no sampled token ids with log-probabilities"),
        (lambda r: r["choices"][0]["logprobs"]["token_logprobs"].pop(), "4 token ids and 3 log-probabilities"),
        (lambda r: r["choices"][0]["logprobs"]["token_logprobs"].__setitem__(0, 12.5), "12.5 as a log-probability"),
        (lambda r: r["choices"][0]["logprobs"]["token_logprobs"].__setitem__(2, None), "no log-probability for token 2"),
        (lambda r: r["choices"][0]["logprobs"]["token_logprobs"].__setitem__(2, "much"), "no sampled token ids with log-prob"),
        (lambda r: r["choices"][0]["logprobs"]["token_logprobs"].__setitem__(1, -math.inf), "no log-probability for token 1"),
        (lambda r: r["choices"][0].update(token_ids=[10.7, 11, 12, 13]), "no sampled token ids.*10.7 is no token id"),
        (lambda r: r["choices"][0].update(token_ids=[-5, 11, 12, 13]), "-5 is no token id"),
        (lambda r: r["choices"][0].update(token_ids=[math.inf] * 4), "inf is no token id"),
        (lambda r: r.update(choices="abc"), "no sampled token ids"),
        (lambda r: r.update(usage=[1]), "no sampled token ids"),
        (lambda r: r["choices"][0].update(finish_reason="stop", stop_reason=77), "stopped at token 77, which is no stop of the request"),
        (lambda r: [r["choices"][0]["token_ids"].pop(), r["choices"][0]["logprobs"]["token_logprobs"].pop()], "ended after 3 of 4 tokens"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_refused(make: Any, server: FaultServer, change: Any, says: str) -> None:
    server.faults.append(("change", change))
    with pytest.raises(ServerError, match=says):
        make().generate([ASK])


def test_a_stop_that_the_server_leaves_out_of_the_ids_is_put_back(make: Any, server: FaultServer) -> None:
    stop = EXPECTED[2]
    server.faults.append(("change", lambda r: r["choices"][0]["token_ids"].pop()))
    (c,) = make().generate([Request(PROMPT, Sampling(4, stop=(stop,)))])
    assert c.ids == EXPECTED[:3] and c.finish_reason == "stop" and len(c.logprobs) == 3


def test_a_missing_logprob_is_nan_for_those_who_do_not_train(make: Any, server: FaultServer) -> None:
    inside_a_character = ("change", lambda r: r["completion_probabilities"].pop(1))
    server.faults.extend([inside_a_character, inside_a_character])
    with pytest.raises(ServerError, match="no log-probability for token 1 of its answer.*training=False"):
        make(dialect="llama_cpp").generate([ASK])
    (c,) = make(dialect="llama_cpp", training=False).generate([ASK])
    assert c.ids == EXPECTED and [math.isnan(score) for score in c.logprobs] == [False, True, False, False]


def test_closing_aborts_what_is_under_way_and_a_later_request_begins_anew(make: Any, server: FaultServer) -> None:
    engine = make()
    server.faults.append("hang")
    engine.submit([ASK])
    assert server.arrived.wait(30)
    engine.close()
    assert server.disconnected.wait(30) and engine.poll() == []
    assert engine.generate([ASK])[0].ids == EXPECTED


def test_neither_closing_nor_forgetting_an_engine_leaves_a_thread_or_an_open_loop(make: Any, server: FaultServer) -> None:
    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "dreamgym-http"]

    engine = make()
    engine.generate([ASK])
    (thread,), loop = threads(), engine.client._loop
    engine.close()
    assert not thread.is_alive() and loop.is_closed()
    forgotten = plugins.make("engines", "server", base_url=server.url, model="policy", dialect="chat")
    list(forgotten.replies([[{"role": "user", "content": "hello"}]], max_tokens=3))
    (thread,), loop = threads(), forgotten.client._loop
    loop.call_soon_threadsafe(gc.collect)
    del forgotten
    gc.collect()
    thread.join(10)
    assert not thread.is_alive() and loop.is_closed()


def test_an_aborted_request_is_asked_again(make: Any, server: FaultServer) -> None:
    server.faults.append(("change", lambda r: r["choices"][0].update(finish_reason="abort")))
    assert make().generate([ASK])[0].ids == EXPECTED


def test_one_failure_leaves_the_others_valid(make: Any, server: FaultServer) -> None:
    engine = make(concurrency=1)
    server.faults.extend([None, ("status", 400), None, ("status", 400)])
    first = engine.submit([Request([i], Sampling(2)) for i in range(3)])
    found, failed = {}, []
    while len(found) + len(failed) < 3:
        try:
            found |= dict(engine.poll())
        except ServerError as error:
            failed.append(error.ticket)
    assert failed == [first[1]] and sorted(found) == [first[0], first[2]]
    (other,) = engine.submit([ASK])  # takes the last fault: it fails while somebody else generates
    assert engine.generate([ASK])[0].ids == EXPECTED
    with pytest.raises(ServerError) as caught:
        engine.poll()
    assert caught.value.ticket == other and engine.poll() == []


def test_cancelling_aborts_the_request_and_frees_its_place(make: Any, server: FaultServer) -> None:
    engine = make(concurrency=1)
    server.faults.append("hang")
    tickets = engine.submit([ASK, ASK, ASK])
    assert server.arrived.wait(30)
    engine.cancel(tickets[:2])
    assert server.disconnected.wait(30)
    assert [ticket for ticket, _ in engine.poll()] == [tickets[2]]
    assert engine.poll() == [] and engine.usage.cancelled == 1 and engine.usage.requests == 1
    assert (engine.usage.lost_tokens, engine.usage.lost_completion_tokens) == (3, 4)  # it may be billed, though nobody read it
    engine.cancel([*tickets, 999])


def test_no_more_requests_are_under_way_than_allowed(make: Any, server: FaultServer) -> None:
    server.delay = 0.2  # long enough that requests meet on a busy machine too
    engine = make(concurrency=3)
    assert len(engine.generate([ASK] * 12)) == 12
    assert server.most_in_flight == 3
    wide = make(concurrency=12)
    wide.generate([ASK] * 12)
    assert server.most_in_flight > 6


def test_requests_keep_the_pace_of_a_minute(make: Any, clock: FastClock) -> None:
    engine = make(requests_per_minute=5)
    engine.generate([ASK] * 12)
    assert 120 <= clock.time < 121 and len(clock.slept) == 2
    engine = make(tokens_per_minute=20)  # 7 tokens each: two a minute
    began = clock.time
    engine.generate([ASK] * 4)
    assert 60 <= clock.time - began < 61
    with pytest.raises(UsageError, match="up to 28 tokens never fits tokens_per_minute=20"):
        engine.generate([Request(PROMPT, Sampling(25))])


def test_a_retry_counts_as_a_request_and_a_deadline_ends_it(make: Any, server: FaultServer, clock: FastClock) -> None:
    server.faults.extend([("busy", 2), ("busy", 500)])
    with pytest.raises(ServerError, match="failed after 2 attempts; waiting longer would pass deadline_s=60"):
        make(deadline_s=60.0).generate([ASK])
    assert clock.slept == [2.0]


def test_no_attempt_begins_past_the_deadline_because_the_pace_held_it_back(make: Any, server: FaultServer, clock: FastClock) -> None:
    server.faults.append(("busy", 1))
    with pytest.raises(ServerError, match="failed after 1 attempt; waiting longer would pass deadline_s=30"):
        make(deadline_s=30.0, requests_per_minute=1).generate([ASK])
    assert len(server.payloads("/v1/completions")) == 1 and clock.time >= 60
    patient = make(deadline_s=30.0, requests_per_minute=1)
    assert len(patient.generate([ASK] * 3)) == 3  # waiting for one's turn is no part of a request


def test_a_long_wait_that_a_server_asks_for_is_told(
    make: Any, server: FaultServer, clock: FastClock, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.append(("busy", 3600))
    assert make().generate([ASK])[0].ids == EXPECTED
    assert clock.slept == [3600.0] and "a pause of 3600 seconds" in caplog.text


def test_the_pace_forgets_what_is_a_minute_old_and_takes_corrections() -> None:
    clock = FastClock()

    async def run() -> None:
        limiter = RateLimiter(None, 100, clock.clock)
        first = await limiter.acquire(90)
        first.tokens = 10  # it used less than it might have
        await limiter.acquire(90)
        assert clock.time == 0
        await limiter.acquire(1)
        assert clock.time == 60

    asyncio.run(run())


def test_waits_double_up_to_a_limit_and_headers_are_read_both_ways() -> None:
    random.seed(0)
    assert [round(max(backoff(n, 0.5) for _ in range(500))) for n in (2, 3, 4, 20)] == [1, 2, 4, 30]
    assert retry_after("3") == 3 and retry_after(None) is None and retry_after("soon") is None
    assert retry_after("inf") is None and retry_after("nan") is None and retry_after("-5") == 0
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 30))
    assert 25 < (retry_after(date) or 0) < 31
