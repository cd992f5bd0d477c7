"""Several servers of one model behind one engine: episodes stay where their prefix is, and a server that dies costs no request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, logprob, next_tokens

from dreamgym.engines.server.rate_limit import Clock
from dreamgym.engines.server.servers import PAUSE, Servers
from dreamgym.engines.server.weight_sync import publish_weights
from dreamgym.errors import InvariantError, ServerError
from dreamgym.llm import tiny
from dreamgym.types import Completion, Request, Sampling


@pytest.fixture
def three(tokenizer: Any) -> Iterator[list[FaultServer]]:
    encode = lambda text: tiny.encode(tokenizer, text)  # noqa: E731
    with FaultServer(encode) as a, FaultServer(encode) as b, FaultServer(encode) as c:
        yield [a, b, c]


def prompts_at(server: FaultServer) -> set[int]:
    return {payload["prompt"][0] for payload in server.payloads("/v1/completions")}


def turns(n: int, turn: int) -> list[Request]:
    """The requests of n episodes in one turn; the first id of a prompt names its episode."""
    return [Request([20 + i, *range(30, 31 + turn)], Sampling(2), (0, i, turn), f"episode/{i}") for i in range(n)]


def test_every_turn_of_an_episode_goes_to_the_server_of_its_first(make: Any, three: list[FaultServer]) -> None:
    engine = make(three)
    for turn in range(3):
        completions = engine.generate(turns(9, turn))
        assert [c.ids for c in completions] == [tuple(next_tokens(r.prompt, 2, 0)) for r in turns(9, turn)]
    seen = [prompts_at(server) for server in three]
    assert [len(episodes) for episodes in seen] == [3, 3, 3] and set.union(*seen) == set(range(20, 29))
    engine.release([f"episode/{i}" for i in range(9)])
    assert not engine.servers._of


def test_requests_of_a_server_that_dies_are_redone_elsewhere_with_their_seeds(
    make: Any, three: list[FaultServer], caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(three, retries=1)
    engine.generate(turns(6, 0))
    three[1].dead = True
    lost = prompts_at(three[1])
    completions = engine.generate(turns(6, 1))
    assert [c.ids for c in completions] == [tuple(next_tokens(r.prompt, 2, 0)) for r in turns(6, 1)]
    elsewhere = {p["seed"] for s in (three[0], three[2]) for p in s.payloads("/v1/completions") if p["prompt"][0] in lost}
    single = make([three[0]])
    single.generate([r for r in turns(6, 1) if r.prompt[0] in lost])
    assert elsewhere == {p["seed"] for p in three[0].payloads("/v1/completions")[-len(lost) :]}
    assert len(lost) == 2 and caplog.text.count("is left out, and its requests are sent again to") == 1


def test_without_a_server_left_the_error_says_which_and_what_to_do(make: Any, three: list[FaultServer]) -> None:
    engine = make(three[:2], retries=0)
    engine.generate(turns(2, 0))
    for server in three[:2]:
        server.dead = True
    with pytest.raises(ServerError, match=r"failed after 1 attempt. The last: the connection broke off .* Check that the server is up"):
        engine.generate(turns(4, 1))


def test_chats_are_redone_elsewhere_too(make: Any, three: list[FaultServer]) -> None:
    engine = make(three, dialect="chat", tokenizer=None, retries=0)
    three[0].dead = True
    replies = dict(engine.replies([[{"role": "user", "content": f"n{i}"}] for i in range(7)], max_tokens=4))
    assert [replies[i] for i in range(7)] == [f"You said n{i}" for i in range(7)]


def chats(engine: Any, *texts: str) -> list[str | Exception]:
    replies = dict(engine.replies([[{"role": "user", "content": text}] for text in texts], max_tokens=4))
    return [replies[i] for i in range(len(texts))]


def poisonous(messages: list[dict[str, Any]]) -> str:
    if "poison" in messages[-1]["content"]:
        raise RuntimeError  # the connection breaks off
    return "well"


@pytest.mark.parametrize("fault", ["status", "connection"])
def test_requests_that_every_server_fails_cost_no_server(make: Any, three: list[FaultServer], fault: str) -> None:
    engine = make(three, dialect="chat", tokenizer=None, retries=0, concurrency=1)
    for server in three:
        server.http.handle_error = lambda *_: None
        server.answer = poisonous if fault == "connection" else lambda messages: "well"
    for _ in range(3):
        if fault == "status":
            for server in three:
                server.faults.append(("status", 500))
        (reply,) = chats(engine, "poison")
        assert isinstance(reply, ServerError) and reply.status == (500 if fault == "status" else None)
    assert [len(server.payloads("/v1/chat/completions")) for server in three] == [3, 3, 3] and len(engine.servers.live) == 3
    assert chats(engine, "a", "b") == ["well", "well"]


def test_a_server_is_left_out_when_others_answer_what_it_fails_twice_in_a_row(make: Any, three: list[FaultServer]) -> None:
    engine = make(three[:2], dialect="chat", tokenizer=None, retries=0, concurrency=1)
    for _ in range(2):
        three[0].faults.append(("status", 500))
        assert chats(engine, "a", "b") == ["You said a", "You said b"]
        assert len(engine.servers.live) == 2, "it has answered since"
    three[0].faults.extend([("status", 500)] * 2)
    assert chats(engine, "a", "b") == ["You said a", "You said b"]
    assert engine.servers.live == [three[1].url]


def test_a_server_that_was_left_out_is_used_again_once_it_answers(make: Any, three: list[FaultServer], tokenizer: Any) -> None:
    seconds = [0.0]
    engine = make(three, retries=0, clock=Clock(lambda: seconds[0]))
    engine.generate(turns(3, 0))
    others = [three[0].url, three[2].url]
    three[1].dead = True
    engine.servers.drop(three[1].url, ServerError("no connection"))

    def after(wait: float) -> list[str]:
        seconds[0] += wait
        engine.generate(turns(3, 1))
        while engine._looks:
            time.sleep(0.01)
        engine.generate(turns(3, 2))
        return engine.servers.live

    assert after(PAUSE - 1) == others
    looked = three[1].paths().count("/v1/models")
    assert after(2) == others, "it was tried in vain, and the pause is doubled"
    three[1].dead = False
    assert after(PAUSE) == others and three[1].paths().count("/v1/models") == looked
    asked = three[1].paths().count("/tokenize")
    assert after(PAUSE + 1) == list(engine.servers.apis)
    engine.release([f"episode/{i}" for i in range(3)])
    engine.generate(turns(3, 0))
    assert three[1].paths().count("/tokenize") == asked + 1, "it may have started anew, with another model"


def test_a_server_that_was_left_out_since_weights_were_published_is_not_tried(make: Any, three: list[FaultServer], tmp_path: Path) -> None:
    seconds = [0.0]
    engine, follower = (make(three, retries=0, clock=Clock(lambda: seconds[0])) for _ in range(2))
    follower.follow(engine.served)
    engine.servers.drop(three[0].url, ServerError("no connection"))
    follower.servers.drop(three[0].url, ServerError("no connection"))
    seconds[0] += PAUSE
    assert follower.servers.due() == [three[0].url], "nothing was published yet"
    publish_weights(engine, tmp_path, 1, lora=True)
    follower.follow(engine.served)
    for one in (engine, follower):
        assert len(one.servers.live) == 3
        one.servers.drop(three[0].url, ServerError("no connection"))
    seconds[0] += 100 * PAUSE
    for one in (engine, follower):
        one.generate(turns(3, 0))
        assert not one._looks and one.servers.live == [three[1].url, three[2].url]


def test_no_connection_leaves_a_server_out_at_once_and_keeps_the_last(make: Any, three: list[FaultServer]) -> None:
    engine = make(three, dialect="chat", tokenizer=None, retries=0, concurrency=1, base_url="http://127.0.0.1:9/v1")
    assert chats(engine, "a") == ["You said a"]
    assert engine.servers.live == [three[1].url, three[2].url]
    nowhere = ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"]
    lost = make(dialect="chat", tokenizer=None, retries=0, base_url=nowhere[0], more_urls=nowhere[1:])
    (reply,) = chats(lost, "a")
    assert isinstance(reply, ServerError) and "no connection" in str(reply) and lost.servers.live == nowhere[1:]


def test_a_refusal_is_no_death(make: Any, three: list[FaultServer]) -> None:
    engine = make(three)
    for server in three:
        server.faults.append(("status", 400))
    with pytest.raises(ServerError, match="refused with status 400"):
        engine.generate(turns(1, 0))
    assert len(engine.servers.live) == 3


@pytest.mark.parametrize("lora", [True, False])
def test_weights_go_to_every_server_and_one_that_died_comes_back_with_them(
    make: Any, three: list[FaultServer], tmp_path: Path, lora: bool
) -> None:
    engine = make(three, retries=0)
    publish_weights(engine, tmp_path, 1, lora=lora, scorer=lambda c: c.logprobs)
    assert engine.version == 1
    assert {c.ids for c in engine.generate(turns(3, 0))} == {tuple(next_tokens(r.prompt, 2, 1)) for r in turns(3, 0)}
    three[2].dead = True
    publish_weights(engine, tmp_path, 2, lora=lora, scorer=lambda c: c.logprobs)
    assert [server.url for server in three[:2]] == engine.servers.live and engine.version == 2
    assert {c.version for c in engine.generate(turns(6, 1))} == {2}
    if lora:
        assert all(sorted(server.weights) == sorted(["policy", engine.model]) for server in three[:2])
    three[2].dead = False
    engine.generate(turns(6, 2))
    assert [server.url for server in three[:2]] == engine.servers.live, "not before it has the weights"
    publish_weights(engine, tmp_path, 3, lora=lora, scorer=lambda c: c.logprobs)
    assert engine.servers.live == list(engine.servers.apis)
    engine.release([f"episode/{i}" for i in range(6)])
    engine.generate(turns(6, 2))
    assert len(prompts_at(three[2])) > 1 and {c.version for c in engine.generate(turns(6, 2))} == {3}


def by_weights_1(completion: Completion) -> list[float]:
    """The log-probabilities of a server that took the first weights published to it."""
    return [logprob(i, 1) for i in range(len(completion.ids))]


def test_one_server_that_keeps_its_weights_is_named_and_nothing_is_published(make: Any, three: list[FaultServer], tmp_path: Path) -> None:
    engine = make(three)
    three[1].loads = False
    with pytest.raises(ServerError, match=f"{three[1].url} gives a probe differ from the learner's"):
        publish_weights(engine, tmp_path, 1, lora=True, scorer=by_weights_1, tolerance=1e-4)
    assert engine.version == 0 and engine.model == "policy" and all(list(server.weights) == ["policy"] for server in three)


def test_a_server_that_loads_nothing_must_serve_the_weights_already(make: Any, three: list[FaultServer], tmp_path: Path) -> None:
    engine = make(three[:1], dialect="llama_cpp")
    publish_weights(engine, tmp_path, 3, lora=False, scorer=lambda c: c.logprobs)
    assert engine.version == 3 and "/collective_rpc" not in three[0].paths()
    with pytest.raises(ServerError, match="differ from the learner's by up to 0.5.*cannot load weights as it runs: start it anew"):
        publish_weights(engine, tmp_path, 4, lora=False, scorer=lambda c: [score - 0.5 for score in c.logprobs])
    assert engine.version == 3


def test_an_engine_whose_weights_another_replaced_does_not_sample_from_them(make: Any, three: list[FaultServer], tmp_path: Path) -> None:
    one, other = make(three[:1]), make(three[:1])
    publish_weights(one, tmp_path, 1, lora=False)
    publish_weights(other, tmp_path, 1, lora=False)
    with pytest.raises(InvariantError, match="Another engine has published its weights"):
        one.generate(turns(1, 0))
    other.generate(turns(1, 0))
    publish_weights(one, tmp_path, 2, lora=False)
    assert one.generate(turns(1, 0))[0].version == 2


def test_requests_without_a_session_go_where_least_is_under_way() -> None:
    servers = Servers(["a", "b"])
    assert [servers.take(), servers.take(), servers.take("x")] == ["a", "b", "a"]
    servers.done("b")
    assert servers.take() == "b" and servers.take("x") == "a"
    servers.drop("a", ServerError("gone"))
    assert servers.take("x") == "b" and servers.live == ["b"]
    servers.rejoin(["b", "a"])
    assert servers.live == ["a", "b"]
