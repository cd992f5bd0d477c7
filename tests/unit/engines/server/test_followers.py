"""Engines of several processes at the same servers: one publishes, the others follow, and every completion says what sampled it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, logprob, next_tokens

from dreamgym.engines.server.prefix_cache import PrefixCaches, Reading, parsed
from dreamgym.engines.server.weight_sync import publish_weights
from dreamgym.errors import InvariantError, ServerError
from dreamgym.types import Completion, Request, Sampling

METRICS = """# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0",model_name="policy"}} {queries}
vllm:prefix_cache_queries_created{{engine="0",model_name="policy"}} 1.7e+09
vllm:prefix_cache_hits_total{{engine="0",model_name="policy"}} {hits}
vllm:external_prefix_cache_hits_total{{engine="0",model_name="policy"}} 99.0
"""


def requests(n: int) -> list[Request]:
    return [Request([20 + i, 30], Sampling(3), (0, i), f"episode/{i}") for i in range(n)]


def publish(engine: Any, path: Path, version: int, *, lora: bool) -> None:
    publish_weights(engine, path, version, lora=lora, scorer=lambda completion: completion.logprobs)


def assert_sampled_by(completion: Completion, weights: int) -> None:
    assert completion.ids == tuple(next_tokens(completion.prompt_ids, 3, weights))
    assert completion.logprobs == pytest.approx([logprob(i, weights) for i in range(3)])


@pytest.mark.parametrize("lora", [True, False])
def test_an_engine_that_follows_loads_nothing_and_samples_what_the_other_published(
    make: Any, server: FaultServer, tmp_path: Path, lora: bool
) -> None:
    learner, worker = make(), make(external_publisher=True)
    for version in (1, 2):
        publish(learner, tmp_path, version, lora=lora)
        loads = len(server.paths())
        worker.publish(version, lambda: pytest.fail("a follower saves no checkpoint"))
        worker.follow(learner.served)
        assert len(server.paths()) == loads
        for completion in worker.generate(requests(4)):
            assert completion.version == version
            assert_sampled_by(completion, version)


def test_weights_are_not_followed_under_requests(make: Any, server: FaultServer, tmp_path: Path) -> None:
    learner, worker = make(), make(external_publisher=True)
    publish(learner, tmp_path, 1, lora=True)
    server.delay = 0.3
    tickets = worker.submit(requests(2))
    with pytest.raises(InvariantError, match=r"under way \(2\)"):
        worker.follow(learner.served)
    worker.cancel(tickets)
    worker.follow(learner.served)
    assert worker.version == 1


def test_adapters_that_are_replaced_under_load_leave_no_completion_with_a_wrong_version(
    make: Any, server: FaultServer, tmp_path: Path
) -> None:
    """The server finishes what has reached it by the weights of its arrival, and does not know an adapter that was unloaded."""
    learner, worker = make(), make(external_publisher=True, concurrency=4)
    publish(learner, tmp_path, 0, lora=True)
    weights = {0: server.weights[learner.model]}
    found: list[Completion] = []
    refused = 0
    for version in range(1, 6):
        worker.follow(learner.served)
        server.delay = 0.1
        server.arrived.clear()
        tickets = worker.submit(requests(12))  # of which four are at the server, and eight wait here
        server.arrived.wait(5)
        publish(learner, tmp_path, version, lora=True)
        weights[version] = server.weights[learner.model]
        server.delay = 0.0
        done = 0
        while done < len(tickets):
            try:
                arrived = [completion for _, completion in worker.poll()]
            except ServerError as error:
                assert error.status == 404 and "does not exist" in str(error)
                refused, done = refused + 1, done + 1
                continue
            found += arrived
            done += len(arrived)
        assert {completion.version for completion in found if completion.version >= version} == set()
    assert len(weights) == len(set(weights.values())) == 6
    for completion in found:
        assert_sampled_by(completion, weights[completion.version])
    assert {completion.version for completion in found} == {0, 1, 2, 3, 4} and refused > 0
    worker.follow(learner.served)
    assert all(completion.version == 5 for completion in worker.generate(requests(4)))


def test_a_node_that_reaches_no_server_hears_which_address_to_give(make: Any, server: FaultServer) -> None:
    make(external_publisher=True).require_reachable()
    server.dead = True
    with pytest.raises(ServerError, match=f"None of the servers answers here.*{server.url}.*localhost is each node itself"):
        make(external_publisher=True).require_reachable()


def test_the_hit_rate_is_of_the_tokens_that_were_looked_up_since_the_last_reading(make: Any, server: FaultServer) -> None:
    engine, caches = make(), PrefixCaches()
    rates = lambda: caches.hit_rates({"policy": engine, "dream": None})  # noqa: E731
    server.metrics = METRICS.format(queries="1000.0", hits="10.0")
    assert rates() == {}, "nothing to compare with"
    server.metrics = METRICS.format(queries="1.4e+03", hits="310.0")
    assert rates() == {"policy": 0.75}
    assert rates() == {}, "nothing was looked up"
    server.dead = True
    assert rates() == {}
    server.dead, server.metrics = False, METRICS.format(queries="1500.0", hits="360.0")
    assert rates() == {"policy": 0.5}
    server.metrics = METRICS.format(queries="200.0", hits="20.0")
    assert rates() == {"policy": 0.1}, "the server was started again"


def test_servers_without_counters_have_no_hit_rate(make: Any, server: FaultServer) -> None:
    caches = PrefixCaches()
    for engine in (make(), make(dialect="sglang"), object()):
        assert caches.hit_rates({"policy": engine}) == caches.hit_rates({"policy": engine}) == {}
    assert parsed("vllm:prefix_cache_hits_total 3\nvllm:prefix_cache_queries nonsense\n\n{") == Reading(3.0, 0.0)
