"""JobFunction on a Ray cluster: answers in order whatever dies, and clear messages for what cannot be; runs where ray is installed."""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
import ray
from ray.cluster_utils import Cluster

from dreamgym import exec as executors
from dreamgym.errors import ConfigError, InvariantError, PluginError, ServerError, UsageError
from dreamgym.exec import JobFunction
from dreamgym.exec.ray import RayExecutor, make

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
FAST = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


def worker(folder: str = "") -> JobFunction:
    """JobFunction that a job describes: die, raise, sleep, or answer; a `once` happens in the first try only."""

    def work(job: Any, shared: Any) -> Any:
        action, value = job
        first = not folder or not os.path.exists(marker := os.path.join(folder, str(value)))
        if folder and first:
            Path(marker).touch()
        if action == "die" or (action == "die once" and first):
            os._exit(1)
        if action == "hang once" and first:
            time.sleep(600)
        if action == "raise":
            raise UsageError(f"no {value}")
        if action == "sleep":
            time.sleep(value)
        return value, shared

    return work


@pytest.fixture
def executor() -> Iterator[RayExecutor]:
    made = make(workers=2, silent_s=3.0)
    yield made
    made.close()


def test_answers_come_in_order_and_what_is_shared_is_sent_where_its_key_is_new(executor: RayExecutor):
    pool = executor.pool(worker, name="test")
    assert pool.run([("echo", i) for i in range(9)], shared="old", key=1) == [(i, "old") for i in range(9)]
    assert pool.run([("echo", i) for i in range(3)], shared="not sent", key=1) == [(i, "old") for i in range(3)]
    assert pool.run([("echo", i) for i in range(3)], shared="new", key=2) == [(i, "new") for i in range(3)]
    assert (pool.replaced, pool.redone) == (0, 0)


@pytest.mark.parametrize("action", ["die once", "hang once"])
def test_the_job_of_a_worker_that_dies_or_is_silent_is_done_again(action: str, executor: RayExecutor, tmp_path: Path):
    pool = executor.pool(lambda: worker(str(tmp_path)), name="test")
    jobs = [("echo", 0), (action, 1), ("echo", 2), ("echo", 3)]
    assert pool.run(jobs, shared=0) == [(i, 0) for i in range(4)]
    assert (pool.replaced, pool.redone) == (1, 1)


def test_a_job_that_workers_die_of_is_given_up_and_the_pool_goes_on(executor: RayExecutor):
    pool = executor.pool(worker, name="test")
    with pytest.raises(InvariantError, match="3 workers of test in a row died of the same job"):
        pool.run([("echo", 0), ("die", 1)])
    assert pool.run([("echo", 5)], shared=0) == [(5, 0)]


def test_an_exception_is_raised_as_it_is_and_no_late_answer_is_taken_for_another(executor: RayExecutor):
    pool = executor.pool(worker, name="test")
    with pytest.raises(UsageError, match="no idea") as caught:
        pool.run([("sleep", 1.0), ("raise", "idea")])
    assert any("node of the Ray cluster" in note for note in caught.value.__notes__)
    assert pool.run([("echo", i) for i in range(4)], shared=0) == [(i, 0) for i in range(4)]


def test_what_a_node_lacks_is_said_before_work_starts(executor: RayExecutor):
    def lacking() -> JobFunction:
        raise UsageError("A node has no run directory '/nowhere'.")

    def unimportable() -> JobFunction:
        importlib.import_module("no_such_package")
        return worker()

    with pytest.raises(UsageError, match="no run directory '/nowhere'"):
        executor.pool(lacking, name="test")
    with pytest.raises(UsageError, match="lacks a package.*no_such_package"):
        executor.pool(unimportable, name="test")


def test_workers_that_die_before_they_are_ready_are_not_replaced_for_ever(executor: RayExecutor):
    with pytest.raises(ServerError, match="Workers of test die before they are ready"):
        executor.pool(lambda: os._exit(1), name="test")


def test_workers_that_no_node_has_room_for_are_an_error_that_says_what_there_is():
    executor = make(workers=1, cpus_per_worker=1000.0, start_s=2.0)
    try:
        with pytest.raises(ServerError, match=r"each asks for 1000 CPUs, and the cluster has .* CPUs free"):
            executor.pool(worker, name="test")
    finally:
        executor.close()


def test_a_cluster_that_is_not_there_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for wrong in (address, address.replace("127.0.0.1", "[::1]"), "nonsense:port"):
        with pytest.raises(UsageError, match=rf"No Ray cluster at '{re.escape(wrong)}' \((?!.*Name).*ray start --head"):
            make(address=wrong)
        assert not ray.is_initialized()


def test_a_machine_without_a_cluster_is_named(monkeypatch: pytest.MonkeyPatch):
    def alone(**_: Any) -> None:  # a test beside this one may have a cluster here
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", alone)
    with pytest.raises(UsageError, match="No Ray cluster at 'auto'.*ray start --head"):
        make(address="auto")


def test_a_cluster_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch):
    def mismatched(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.9.1")

    monkeypatch.setattr(ray, "init", mismatched)
    with pytest.raises(UsageError, match="cannot be used: Version mismatch.*Ray: 2.1.0"):
        make()


def test_a_machine_that_is_too_busy_to_start_ray_is_said(monkeypatch: pytest.MonkeyPatch):
    def late(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(ServerError, match="Ray did not start in time, 3 times.*too busy"):
        make()


def test_nodes_with_other_code_are_refused(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dreamgym.exec.ray._code", lambda: "other")
    with pytest.raises(UsageError, match="another version of dreamgym"):
        executor.pool(worker, name="test")


def test_a_full_object_store_is_said_and_nothing_is_lost(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch):
    pool = executor.pool(worker, name="test")

    def full(value: Any) -> None:
        raise ray.exceptions.ObjectStoreFullError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(ray, "put", full)
        with pytest.raises(ServerError, match="no room for the weights.*--object-store-memory"):
            pool.run([("echo", 1)], shared="weights", key=1)
    assert pool.run([("echo", 1)], shared="weights", key=1) == [(1, "weights")]


class Counter:
    """A service with state."""

    def __init__(self) -> None:
        self.n = 0

    def add(self, by: int, *, times: int = 1) -> int:
        self.n += by * times
        return self.n

    def fail(self) -> None:
        raise UsageError("refused")

    def die(self) -> None:
        os._exit(1)


def test_a_service_keeps_its_state_raises_its_errors_and_its_loss_is_said(executor: RayExecutor):
    call: Callable[..., Any] = executor.service(Counter, name="counter")
    assert call("add", 2) == 2 and call("add", 3, times=2) == 8
    with pytest.raises(UsageError, match="refused"):
        call("fail")
    with pytest.raises(ServerError, match="The counter is lost.*the run resumes"):
        call("die")


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"workers": 2}, ConfigError, "exec needs a name"),
        ({"name": "rya"}, PluginError, "Did you mean 'ray'"),
        ({"name": "ray", "worker": 2}, ConfigError, "Did you mean 'workers'"),
        ({"name": "ray", "workers": 0}, ConfigError, "exec.workers"),
    ],
)
def test_settings_are_checked_before_ray_is_loaded(settings: dict[str, Any], error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        executors.check_settings(settings)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_a_node_that_is_killed_costs_no_answer(seed: int):
    """Three nodes; one of the two without the driver is killed at some moment of the work."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": FAST})
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=80_000_000) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)
        executor = make(workers=3)
        pool = executor.pool(worker, name="test")
        killing = threading.Timer(0.4 * seed + 0.2, lambda: cluster.remove_node(nodes[seed % 2], allow_graceful=False))
        killing.start()
        jobs = [("sleep", 0.05 + i / 1e6) for i in range(60)]
        assert pool.run(jobs, shared=seed) == [(value, seed) for _, value in jobs]
        killing.join()
        assert pool.run([("echo", i) for i in range(6)], shared=9, key=9) == [(i, 9) for i in range(6)]
    finally:
        ray.shutdown()
        cluster.shutdown()
