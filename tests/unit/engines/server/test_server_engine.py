"""The engine over a model server says what the server sampled, as ids with log-probabilities, or refuses to say anything."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fault_server import FaultServer, logprob, next_tokens

from dreamgym.engines.server import engine as server_engine
from dreamgym.engines.server.dialects import seed_of
from dreamgym.engines.server.weight_sync import PROBE_TOKENS, publish_weights
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import ConfigError, InvariantError, ServerError, UsageError
from dreamgym.llm import tiny
from dreamgym.llm.vocabulary import ACT, END, MARKERS, Vocabulary
from dreamgym.policy.agent import Agent
from dreamgym.policy.templates.markers import Markers
from dreamgym.rollout import rollout
from dreamgym.train.batch import sequences_of
from dreamgym.types import Completion, Observation, Request, Sampling, Task

PROMPT = [40, 41, 42]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama_cpp"])
def test_ids_and_logprobs_are_those_the_server_sampled(make: Any, dialect: str) -> None:
    engine = make(dialect=dialect)
    (c,) = engine.generate([Request(PROMPT, Sampling(5))])
    assert c.prompt_ids == tuple(PROMPT) and c.ids == tuple(next_tokens(PROMPT, 5, 0))
    assert c.logprobs == pytest.approx([logprob(i, 0) for i in range(5)])
    assert c.finish_reason == "length" and c.version == 0 and c.text == engine.decode(c.ids)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_stop_ends_the_ids_and_stays_out_of_the_text(make: Any, server: FaultServer, dialect: str) -> None:
    stop = next_tokens(PROMPT, 5, 0)[2]
    engine = make(dialect=dialect)
    (c,) = engine.generate([Request(PROMPT, Sampling(5, stop=(stop,)))])
    assert c.ids == tuple(next_tokens(PROMPT, 3, 0)) and c.finish_reason == "stop" and len(c.logprobs) == 3
    assert c.text == engine.decode(c.ids[:2])


def test_what_a_server_cannot_stop_at_is_cut_here(make: Any, server: FaultServer) -> None:
    server.script = lambda prompt: [20, 21, 22, 21, 23, 24, 25]
    sequence = Request(PROMPT, Sampling(7, stop=((21, 23), 99)))
    for dialect in ("vllm", "llama_cpp"):
        (c,) = make(dialect=dialect).generate([sequence])
        assert c.ids == (20, 21, 22, 21, 23) and c.finish_reason == "stop"
        assert c.text == make().decode([20, 21, 22])
    (c,) = make(dialect="llama_cpp").generate([Request(PROMPT, Sampling(7, stop=(22,)))])
    assert c.ids == (20, 21, 22) and c.finish_reason == "stop" and len(c.logprobs) == 3


def test_a_vllm_without_token_id_lists_spells_them(make: Any, server: FaultServer) -> None:
    server.spells_ids = True
    assert make().generate([Request(PROMPT, Sampling(4))])[0].ids == tuple(next_tokens(PROMPT, 4, 0))


def test_an_array_is_a_prompt_too(make: Any) -> None:
    (c,) = make().generate([Request(np.array(PROMPT), Sampling(2))])
    assert c.prompt_ids == tuple(PROMPT) and all(type(token) is int for token in c.prompt_ids)


def test_every_sampling_option_is_sent(make: Any, server: FaultServer) -> None:
    engine = make(training=False, extra={"priority": 3})
    engine.generate([Request(PROMPT, Sampling(5, stop=(7, (8, 9)), temperature=0.7, top_p=0.9, top_k=11), seed=(1, 2))])
    (sent,) = server.payloads("/v1/completions")
    assert sent["temperature"] == 0.7 and sent["top_p"] == 0.9 and sent["top_k"] == 11 and sent["stop_token_ids"] == [7]
    assert sent["prompt"] == PROMPT and sent["seed"] == seed_of((1, 2)) and sent["priority"] == 3
    assert sent["ignore_eos"] and sent["return_token_ids"] and not sent["add_special_tokens"]


def test_a_seed_is_a_number_of_63_bits_that_stands_for_its_stream() -> None:
    assert seed_of((1, 2)) == seed_of((1, 2)) == 7777801250388762567 != seed_of((2, 1))
    assert all(0 <= seed_of((i,)) < 2**63 for i in range(100))


def test_requests_without_seeds_have_streams_of_their_own(make: Any, server: FaultServer) -> None:
    make().generate([Request(PROMPT, Sampling(1))] * 3)
    assert len({sent["seed"] for sent in server.payloads("/v1/completions")}) == 3


def test_submit_returns_at_once_and_poll_gives_what_is_done(make: Any, server: FaultServer) -> None:
    engine = make()
    server.delay = 0.05
    tickets = engine.submit([Request([i, 5], Sampling(3)) for i in range(4)])
    assert len(server.payloads("/v1/completions")) < 4
    found: dict[int, Any] = {}
    while len(found) < 4:
        found |= dict(engine.poll())
    assert {t: c.prompt_ids[0] for t, c in found.items()} == {t: i for i, t in enumerate(tickets)}
    assert engine.poll() == []


def test_generate_keeps_the_order_and_leaves_others_to_their_poll(make: Any) -> None:
    engine = make()
    (other,) = engine.submit([Request([9, 9], Sampling(2))])
    completions = engine.generate([Request([i], Sampling(2)) for i in range(8)])
    assert [c.prompt_ids for c in completions] == [(i,) for i in range(8)]
    assert [ticket for ticket, _ in engine.poll()] == [other]


def test_logprobs_of_another_temperature_are_refused_for_training(make: Any) -> None:
    warm, narrow = Request(PROMPT, Sampling(2, temperature=0.7)), Request(PROMPT, Sampling(2, top_p=0.9))
    with pytest.raises(UsageError, match="at temperature 1, not 0.7.*processed"):
        make().generate([warm])
    make(server_logprobs="processed").generate([warm])
    with pytest.raises(UsageError, match="top_p=0.9, top_k=0 leave"):
        make(server_logprobs="processed").generate([narrow])
    assert make().generate([narrow])[0].logprobs == pytest.approx([logprob(0, 0), logprob(1, 0)])  # raw ones know no top_p
    make(dialect="sglang").generate([warm, narrow])
    assert all(math.isnan(score) for score in make(training=False).generate([warm])[0].logprobs)
    assert not math.isnan(make(training=False).generate([narrow])[0].logprobs[0])


def test_a_chat_server_gives_replies_and_refuses_to_give_tokens(make: Any, server: FaultServer) -> None:
    engine = make(dialect="chat", tokenizer=None, price_per_million_input=2.0, price_per_million_output=10.0)
    schema = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": {}}}
    chats = [[{"role": "user", "content": f"n{i}"}] for i in range(5)]
    replies = dict(engine.replies(chats, max_tokens=9, temperature=0.2, seeds=[(i,) for i in range(5)], response_format=schema))
    assert [replies[i] for i in range(5)] == [f"You said n{i}" for i in range(5)]
    sent = server.payloads("/v1/chat/completions")[0]
    assert sent["response_format"] == schema and sent["max_tokens"] == 9 and 0 <= sent["seed"] < 2**31
    assert engine.usage.requests == 5 and engine.usage.prompt_tokens == 10 and engine.usage.completion_tokens == 10
    assert engine.usage.cost == pytest.approx((10 * 2 + 10 * 10) / 1e6)
    with pytest.raises(UsageError, match="without token ids, so nothing it says can be trained on"):
        engine.generate([Request(PROMPT, Sampling(2))])
    assert engine.doctor()["tokens"].startswith("text only")


def test_half_a_character_in_one_chat_becomes_a_question_mark_and_all_chats_are_answered(make: Any, server: FaultServer) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("good", "a \ud83d mug")]
    chats += [[{"role": "user", "content": [{"type": "text", "text": "half \ud83d"}]}]]
    replies = dict(make(dialect="chat", tokenizer=None).replies(chats, max_tokens=9))
    assert len(replies) == 3 and all(isinstance(reply, str) for reply in replies.values())
    assert replies[0] == "You said good" and replies[1] == "You said a ? mug"
    sent = [payload["messages"][0]["content"] for payload in server.payloads("/v1/chat/completions")]
    assert [{"type": "text", "text": "half ?"}] in sent


LIMITED = {"type": "object", "properties": {"maxLength": {"type": "string", "maxLength": 90}, "lines": {"type": "array", "maxItems": 3}}}
UNLIMITED = {"type": "object", "properties": {"maxLength": {"type": "string"}, "lines": {"type": "array"}}}


def form_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}


def test_a_server_that_refuses_limits_of_length_gets_schemas_without(
    make: Any, server: FaultServer, caplog: pytest.LogCaptureFixture
) -> None:
    with_limits, without = form_of(LIMITED), form_of(UNLIMITED)

    def sent(engine: Any, *statuses: int) -> tuple[Any, list[Any]]:
        before = len(server.seen)
        server.faults.extend(("status", status) for status in statuses)
        ((_, reply),) = engine.replies([[{"role": "user", "content": "x"}]], max_tokens=9, response_format=with_limits)
        status = reply.status if isinstance(reply, ServerError) else None
        return status or reply, [payload["response_format"] for _, payload in server.seen[before:]]

    engine = make(dialect="chat", tokenizer=None)
    assert sent(engine, 400, 400) == (400, [with_limits, without]), "something else was refused"
    assert sent(engine, 404) == (404, [with_limits]) and not caplog.text
    assert sent(engine, 400) == ("You said x", [with_limits, without]) and "without maxLength and maxItems from now on" in caplog.text
    assert sent(engine) == ("You said x", [without])
    other = make(dialect="chat", tokenizer=None)
    assert sent(other) == ("You said x", [with_limits])
    assert sent(other, 400) == (400, [with_limits]), "it took limits before"


def test_limits_of_length_can_be_switched_off(make: Any, server: FaultServer) -> None:
    engine = make(dialect="chat", tokenizer=None, length_limits=False)
    list(engine.replies([[{"role": "user", "content": "x"}]], max_tokens=9, response_format=form_of(LIMITED)))
    assert server.payloads("/v1/chat/completions")[0]["response_format"] == form_of(UNLIMITED)


def test_a_cut_reply_is_an_error_unless_wanted(make: Any, server: FaultServer) -> None:
    engine = make(dialect="chat", tokenizer=None)
    cut = ("change", lambda reply: reply["choices"][0].update(finish_reason="length"))
    server.faults.extend([cut, cut])
    chat = [[{"role": "user", "content": "x"}]]
    ((_, error),) = engine.replies(chat, max_tokens=4)
    assert isinstance(error, ServerError) and "cut at max_tokens=4" in str(error)
    assert list(engine.replies(chat, max_tokens=4, allow_truncated=True)) == [(0, "You said x")]


def test_the_context_is_asked_of_the_server_and_kept(make: Any) -> None:
    for dialect, context in (("vllm", 128), ("llama_cpp", 96)):
        with pytest.raises(UsageError, match=f"{context + 1} tokens does not fit.*{context} less max_tokens=8 leaves {context - 8}"):
            make(dialect=dialect).generate([Request([5] * (context + 1), Sampling(8))])
    with pytest.raises(UsageError, match="leaves 2"):
        make(max_context=10).generate([Request([5, 5, 5], Sampling(8))])
    with pytest.raises(UsageError, match="empty"):
        make().generate([Request([], Sampling(8))])


def test_a_prompt_is_what_it_was_when_submitted(make: Any) -> None:
    conversation = [40, 41]
    engine = make()
    engine.submit([Request(conversation, Sampling(2))])
    conversation.append(42)
    ((_, c),) = engine.poll()
    assert c.prompt_ids == (40, 41) and c.ids == tuple(next_tokens([40, 41], 2, 0))


def test_an_agent_acts_through_a_server_and_its_episode_is_a_training_row(make: Any, server: FaultServer) -> None:
    suite = corridor.make(length=4)
    goal = corridor.Goal(1, 3)
    task = Task("1-3", goal.instruction, "corridor", goal={"start": 1, "target": 3, "key": 0})
    tokenizer = tiny.train_tokenizer([goal.instruction, "right open room"] * 9, vocab_size=400, special=MARKERS)
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    server.encode = lambda text: tiny.encode(tokenizer, text)
    server.script = lambda prompt: [*server.encode("open" if prompt.count(ids[ACT]) == 3 else "right"), ids[END]]
    engine = make(tokenizer=tokenizer, max_context=512)
    agent = Agent(engine, Markers(Vocabulary(engine.encode, engine.decode, ids)), suite.rules)
    (episode,) = rollout(agent, EnvPool(suite.env, suite.rules), [task], seed=5, max_steps=10)
    assert episode.success and [t.action for t in episode.transitions] == ["right", "right", "open"]
    (row,) = sequences_of(episode, 0)
    assert sum(row.mask) == sum(len(turn.completion.ids) for turn in episode.turns if turn.completion)


def test_of_the_first_prompts_too_the_long_one_alone_fails(make: Any, server: FaultServer) -> None:
    """Before any request, when how long the server's context is has not been asked."""
    tokenizer = tiny.train_tokenizer(["right open room"] * 9, vocab_size=400, special=MARKERS)
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    server.encode = lambda text: tiny.encode(tokenizer, text)
    engine = make(tokenizer=tokenizer)
    agent = Agent(engine, Markers(Vocabulary(engine.encode, engine.decode, ids)), corridor.make().rules, max_reply_tokens=4)
    tasks = [Task(f"t{i}", "right " * n, "corridor") for i, n in enumerate((1, 1000, 2))]
    tickets = agent.submit(agent.begin(tasks, name="n"), [Observation("room")] * 3, temperature=1.0, seeds=[(0,), (1,), (2,)])
    done: dict[int, Completion] = {}
    while len(done) < 3:
        done |= dict(agent.poll())
    assert [done[ticket].finish_reason == "overflow" for ticket in tickets] == [False, True, False]


def test_another_tokenizer_is_found_out_before_anything_is_sampled(make: Any, server: FaultServer, tokenizer: Any) -> None:
    assert make().doctor()["tokenizer"] == "the same ids for a probe text"
    server.encode = lambda text: [0, *tiny.encode(tokenizer, text)]
    with pytest.raises(ServerError, match=r"tokenizer of .* is not ours.*token 0 is \[0\] there"):
        make().generate([Request(PROMPT, Sampling(2))])
    assert server.payloads("/v1/completions") == []
    server.offers_tokenize = False
    assert make().doctor()["tokenizer"].startswith("not offered")
    with pytest.raises(ServerError, match="serves policy, not 'other'"):
        make(model="other").doctor()


def test_text_is_encoded_as_every_engine_does(make: Any) -> None:
    engine = make()
    assert engine.special_id("<|end|>") not in engine.encode("a <|end|> b")
    assert engine.decode([*engine.encode("a <|end|> b"), engine.special_id("<|end|>")]) == "a <|end|> b"


def test_options_are_checked_and_the_key_is_not_shown(make: Any, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Unknown key 'base_ulr'"):
        make(base_ulr="x")
    with pytest.raises(ConfigError, match="set tokenizer"):
        make(tokenizer=None)
    with pytest.raises(UsageError, match="Cannot read a tokenizer at"):
        make(tokenizer="/nowhere")
    monkeypatch.setenv("POLICY_KEY", "sk-secret")
    engine = make(api_key_env="POLICY_KEY")
    engine.generate([Request(PROMPT, Sampling(1))])
    assert set(server.keys) == {"Bearer sk-secret"}
    engine = make(api_key="sk-other")
    assert "sk-" not in f"{engine.config!r} {engine.client.config!r} {engine.config.model_dump(mode='json')}"


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize("lora", [True, False])
def test_published_weights_count_once_the_server_samples_from_them(
    make: Any, server: FaultServer, tmp_path: Path, dialect: str, lora: bool
) -> None:
    engine = make(dialect=dialect)
    before = engine.generate([Request(PROMPT, Sampling(3))])[0]
    publish_weights(engine, tmp_path, 1, lora=lora)
    publish_weights(engine, tmp_path, 2, lora=lora, scorer=lambda c: c.logprobs)
    after = engine.generate([Request(PROMPT, Sampling(3))])[0]
    assert (before.version, after.version, engine.version) == (0, 2, 2)
    assert after.ids == tuple(next_tokens(PROMPT, 3, 2))
    if lora:
        assert sorted(server.weights) == ["policy", engine.model] and engine.model.startswith("policy-v2-")
    elif dialect == "vllm":
        assert server.payloads("/collective_rpc")[0]["kwargs"] == {"weights_path": str(tmp_path)}
        assert server.paths().count("/reset_prefix_cache?reset_running_requests=true") == 2


@pytest.mark.parametrize("lora", [True, False])
def test_a_server_that_keeps_its_first_weights_is_found_out(make: Any, server: FaultServer, tmp_path: Path, lora: bool) -> None:
    engine = make()
    server.loads = False
    with pytest.raises(ServerError, match="differ from the learner's by up to 1"):
        publish_weights(engine, tmp_path, 1, lora=lora, scorer=lambda c: [score - 1 for score in c.logprobs])
    assert engine.version == 0 and engine.model == "policy" and list(server.weights) == ["policy"]


def shifted(by: float) -> Callable[[Completion], list[float]]:
    """A learner whose log-probabilities are so much more than those of the server's first weights."""
    return lambda completion: [logprob(i, 0) + by for i in range(len(completion.ids))]


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "llama_cpp"])
@pytest.mark.parametrize("lora", [True, False])
def test_a_server_that_keeps_its_weights_is_found_though_the_learner_stays_within_the_tolerance(
    make: Any, server: FaultServer, tmp_path: Path, dialect: str, lora: bool
) -> None:
    engine = make(dialect=dialect)
    server.loads = False
    publish_weights(engine, tmp_path, 0, lora=lora, scorer=shifted(0.0))
    publish_weights(engine, tmp_path, 1, lora=lora, scorer=shifted(0.0))  # the same weights again
    with pytest.raises(
        ServerError, match=f"{server.url} have not moved with them.*within tolerance=0.05.*from weights before '{tmp_path}'"
    ):
        publish_weights(engine, tmp_path, 2, lora=lora, scorer=shifted(0.01))
    assert engine.version == 1 and set(server.weights) == {"policy", engine.model}


def test_moves_below_a_servers_rounding_add_up_until_it_is_found_to_stay(make: Any, server: FaultServer, tmp_path: Path) -> None:
    engine = make()
    server.loads = False
    for version in range(6):  # its scores are 0.01 off from the first, and each update moves the learner's by 0.004
        publish_weights(engine, tmp_path, version, lora=True, scorer=shifted(0.01 + 0.004 * version))
    with pytest.raises(ServerError, match="have not moved with them"):
        publish_weights(engine, tmp_path, 6, lora=True, scorer=shifted(0.01 + 0.004 * 6))
    assert engine.version == 5


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1e-2])
def test_a_server_that_loads_is_not_refused_for_how_it_rounds(make: Any, server: FaultServer, tmp_path: Path, step: float) -> None:
    """Its log-probabilities, steps of 0.03 apart, are off by half of one at most, and on average by something too."""
    engine, spread = make(), random.Random(0)
    moves = [0.0] * PROBE_TOKENS
    server.script = lambda prompt: [10, 11] * PROBE_TOKENS  # as where an update changes no greedy token

    def rounded(reply: Any) -> None:
        scores = [round((-1 + moves[i % PROBE_TOKENS]) / 0.03) * 0.03 for i in range(len(reply["choices"][0]["token_ids"]))]
        reply["choices"][0]["logprobs"]["token_logprobs"] = scores

    def learner(completion: Completion) -> list[float]:
        return [-1.02 + move for move in moves]

    for version in range(40):
        server.faults.extend([("change", rounded)] * 2)
        publish_weights(engine, tmp_path, version, lora=False, scorer=learner)
        moves = [min(0.9, max(-3.0, move + spread.gauss(step, step))) for move in moves]
    assert engine.version == 39 and not server.faults


def test_scores_are_compared_as_far_as_the_text_is_the_same(make: Any, server: FaultServer, tmp_path: Path) -> None:
    engine = make()
    ids = [10, 11] * PROBE_TOKENS
    server.script, server.loads = lambda prompt: ids, False
    publish_weights(engine, tmp_path, 0, lora=True, scorer=shifted(0.0))
    ids = [*ids[:4], *[20] * PROBE_TOKENS]
    with pytest.raises(ServerError, match="have not moved with them"):
        publish_weights(engine, tmp_path, 1, lora=True, scorer=shifted(0.01))
    ids = [20] * PROBE_TOKENS  # another text altogether, which old weights would not have written
    publish_weights(engine, tmp_path, 1, lora=True, scorer=shifted(0.01))
    with pytest.raises(ServerError, match="have not moved with them"):
        publish_weights(engine, tmp_path, 2, lora=True, scorer=shifted(0.04))


@pytest.mark.parametrize(
    ("dtype", "tolerance", "fails"),
    [(torch.float32, None, True), (torch.float32, 0.25, False), (torch.bfloat16, None, False), (torch.bfloat16, 0.1, True)],
)
def test_how_far_a_server_may_differ_is_set_or_follows_from_the_learners_precision(
    make: Any,
    server: FaultServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    tolerance: float | None,
    fails: bool,
) -> None:
    monkeypatch.setattr(server_engine, "score", lambda module, completion: shifted(-0.16)(completion))
    engine, server.loads = make(module=torch.nn.Linear(2, 2, dtype=dtype), tolerance=tolerance), False
    if fails:
        with pytest.raises(ServerError, match=r"by up to 0.16, more than tolerance=.*set tolerance = 0.25 in the engine's settings"):
            engine.publish(0, lambda: tmp_path)
    else:
        engine.publish(0, lambda: tmp_path)
    with pytest.raises(ConfigError, match="tolerance"):
        make(tolerance=0.0)


def test_weights_do_not_change_under_requests_nor_where_they_cannot(make: Any, server: FaultServer, tmp_path: Path) -> None:
    engine = make()
    server.delay = 0.2
    tickets = engine.submit([Request(PROMPT, Sampling(1))])
    with pytest.raises(InvariantError, match=r"under way \(1\)"):
        publish_weights(engine, tmp_path, 1, lora=False)
    engine.cancel(tickets)
    server.delay = 0
    with pytest.raises(UsageError, match="No checkpoint at"):
        publish_weights(engine, tmp_path / "missing", 1, lora=False)
    with pytest.raises(UsageError, match="dialect 'llama_cpp' cannot load weights"):
        publish_weights(make(dialect="llama_cpp"), tmp_path, 1, lora=False)
    server.manages_weights = False
    with pytest.raises(ServerError, match="status 404.*VLLM_SERVER_DEV_MODE=1"):
        publish_weights(engine, tmp_path, 1, lora=False)
    with pytest.raises(ServerError, match="status 404.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        publish_weights(engine, tmp_path, 1, lora=True)
    assert engine.version == 0 and engine.model == "policy"
