"""Rollouts on a Ray cluster: workers on environment-bound work, Ray's overhead for each trajectory, what it costs to lose a node.

    python bench/scale.py [--json] [--full | --smoke] [--kills 20]

A local cluster of three nodes, which share this machine's processors. The environment is the telecom domain where its package is here,
else the corridor, with a wait of 50 ms added to every step, as a slow environment has; a scripted policy acts. Efficiency is episodes a
second over those of one worker times the number of workers. The overhead is the time that passes per trajectory for work that takes no
time, with trajectories of the usual size. Memory is the resident set of the driver. `--full` adds 16 workers, 100,000 trajectories, and
the compute-bound work: a small model's forward passes by two workers of one thread beside one process of two threads.

`--kills N` measures something else: N whole trainings over three nodes, of each of which one node gets SIGKILL at a random moment, beside
the same trainings in one process (`common/killed_runs.py`).
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import options as cli
from common.killed_runs import kill_nodes

from dreamgym import plugins
from dreamgym.envs.base import play
from dreamgym.errors import MissingExtra
from dreamgym.exec import JobFunction
from dreamgym.types import Completion, Observation, Task, Trajectory, Transition, Turn

LATENCY_S = 0.05
FAST = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


class Slow:
    """An environment whose steps take a while, which no processor is busy with."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.name = inner, inner.name

    def accepts(self, task: Task) -> bool:
        return bool(self.inner.accepts(task))

    def reset(self, task: Task) -> dict[str, Any]:
        return dict(self.inner.reset(task))

    def step(self, action: str) -> tuple[dict[str, Any], float, bool]:
        time.sleep(LATENCY_S)
        raw, reward, terminated = self.inner.step(action)
        return raw, reward, terminated


def slow_episodes(suite: str) -> JobFunction:
    """One episode in the slow environment: the actions of a scripted agent."""
    made = plugins.make("envs", suite)
    policy = next(iter(made.scripted_policies))
    recorded = [made.demonstrate(task, policy, seed=0) for task in made.tasks("train", 16)]
    env = Slow(made.require_env())

    def work(job: int, shared: Any) -> Trajectory:
        one = recorded[job % len(recorded)]
        actions = iter([step.action for step in one.transitions])
        return play(env, made.rules, one.task, lambda state: next(actions), max_steps=len(one.turns), behaviour=policy, name=str(job))

    return work


def empty_episodes() -> JobFunction:
    """A trajectory of five turns of fifty tokens each, at once."""
    said = Completion(tuple(range(200)), tuple(range(50)), tuple([-0.5] * 50), "click[b835]", "stop")
    state = Observation("Results for red mug\n" + "\n".join(f"[b{i:04}] mug, red, {i}.50" for i in range(8)))
    turns = tuple(Turn(Transition(state, "click[b835]", state, 0.0, False), said) for _ in range(5))

    def work(job: Sequence[int], shared: Any) -> list[Trajectory]:
        return [Trajectory(f"bench/{i}", Task("t", "find a red mug", "bench"), "dream", turns, False) for i in job]

    return work


def passes() -> JobFunction:
    """Forward passes of a small transformer; a job is how many."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2048, **shape)).eval()
    ids = torch.zeros((8, 256), dtype=torch.long)

    def work(job: int, shared: Any) -> int:
        with torch.inference_mode():
            for _ in range(job):
                model(ids)
        return torch.get_num_threads()

    return work


def environment_bound(executor: Callable[..., Any], suite: str, workers: Sequence[int], episodes: int) -> list[dict[str, Any]]:
    """Episodes a second by each number of workers, each with `episodes` of its own, and the efficiency."""
    rows: list[dict[str, Any]] = []
    for n in workers:
        made = executor(workers=n)
        pool = made.pool(partial(slow_episodes, suite), name="bench")
        pool.run(list(range(4 * n)))  # until all workers are there and have loaded what they need
        best = min(_seconds(partial(pool.run, list(range(episodes * n)))) for _ in range(2))
        rows.append({"workers": n, "episodes_per_s": episodes * n / best})
        rows[-1]["efficiency"] = rows[-1]["episodes_per_s"] / (rows[0]["episodes_per_s"] * n)
        pool.close()
    return rows


def overhead(executor: Callable[..., Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Milliseconds a trajectory that two workers hand over in parts of sixteen, over ever more of them, and the driver's memory after."""
    pool = executor(workers=2).pool(empty_episodes, name="bench")
    pool.run([range(16)] * 8)
    rows, done = [], 0
    for size in sizes:
        start, before = time.perf_counter(), done
        while done < size:  # as a training does: an iteration's trajectories, then the next one's
            n = min(512, size - done)
            pool.run([range(i, min(i + 16, n)) for i in range(0, n, 16)])
            done += n
        seconds = time.perf_counter() - start
        rows.append({"trajectories": size, "ms_per_trajectory": 1e3 * seconds / (size - before), "driver_mb": _resident_mb()})
    pool.close()
    return {"overhead_ms": rows[0]["ms_per_trajectory"], "overhead": rows}


def compute_bound(executor: Callable[..., Any], total: int) -> dict[str, Any]:
    """Seconds of `total` passes by two workers of one thread, and in this process by two threads."""
    import torch

    pool = executor(workers=2).pool(passes, name="bench")
    pool.run([1] * 4)
    spread = min(_seconds(lambda: pool.run([total // 8] * 8)) for _ in range(3))
    pool.close()
    before, work = torch.get_num_threads(), passes()
    torch.set_num_threads(2)
    work(1, None)
    alone = min(_seconds(lambda: work(total, None)) for _ in range(3))
    torch.set_num_threads(before)
    return {"compute_two_workers_s": spread, "compute_two_threads_s": alone, "compute_ratio": alone / spread}


def after_a_kill(executor: Callable[..., Any], cluster: Any, node: Any, suite: str, episodes: int) -> dict[str, Any]:
    """How many of the episodes are missing after a node was killed while they were played."""
    pool = executor(workers=3).pool(partial(slow_episodes, suite), name="bench")
    pool.run(list(range(12)))
    killing = threading.Timer(0.5, lambda: cluster.remove_node(node, allow_graceful=False))
    killing.start()
    seconds = time.perf_counter()
    found = pool.run(list(range(episodes)))
    killing.join()
    lost = sum(one is None or not one.turns for one in found) + episodes - len(found)
    result = {"lost_after_kill": lost, "redone_after_kill": pool.redone, "seconds_with_kill": time.perf_counter() - seconds}
    pool.close()
    return result


def killed(runs: int, cluster_class: Any) -> dict[str, Any]:
    """`runs` trainings with a kill each, on a cluster of one processor a node; one row."""
    import ray

    cluster = cluster_class(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": FAST})
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=80_000_000) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)
        found = kill_nodes(cluster, nodes, runs)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(
        f"{found['kills']} trainings with a node killed: {found['lost_after_kill']} of {found['trajectories']:,} trajectories lost, "
        f"{found['differing']} differ from one process, {found['short_groups']} groups short, {found['hung']} hung; "
        f"jobs were redone in {found['runs_with_redone_jobs']}"
    )
    return found


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main() -> None:
    parser = cli.parser(__doc__, full="16 workers, 100,000 trajectories, compute-bound work", smoke="two workers, a few episodes")
    parser.add_argument("--kills", type=int, help="trainings of each of which a node is killed, and nothing else")
    options = parser.parse_args()
    try:
        import ray
        from ray.cluster_utils import Cluster

        from dreamgym.exec.ray import make
    except (ImportError, MissingExtra) as error:
        print(f"ray is missing ({error}): pip install 'dreamgym[ray]'")
        return cli.finish(options, {"missing": "ray"})
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a script
    if options.kills:
        return cli.finish(options, killed(options.kills, Cluster))
    workers = [1, 2] if options.smoke else [1, 2, 4, 8, 16] if options.full else [1, 2, 4, 8]
    sizes = [100] if options.smoke else [1_000, 10_000, 100_000] if options.full else [1_000, 4_000]
    episodes = 2 if options.smoke else 8
    suite = _suite()
    executor = partial(make, cpus_per_worker=1.0)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False, "_system_config": FAST})
    try:
        nodes = [cluster.add_node(num_cpus=8, object_store_memory=80_000_000) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)
        scaling = environment_bound(executor, suite, workers, episodes)
        found: dict[str, Any] = {"environment": suite, "latency_ms": 1e3 * LATENCY_S, **scaling[-1], "scaling": scaling}
        found |= overhead(executor, sizes)
        if options.full:
            found |= compute_bound(executor, 64)
        found |= after_a_kill(executor, cluster, nodes[0], suite, 12 if options.smoke else 60)
    finally:
        ray.shutdown()
        cluster.shutdown()
    for row in scaling:
        print(f"{row['workers']:>3} workers: {row['episodes_per_s']:.2f} episodes a second, efficiency {row['efficiency']:.2f}")
    for row in found["overhead"]:
        print(f"{row['trajectories']:>7,} trajectories: {row['ms_per_trajectory']:.2f} ms each, driver {row['driver_mb']:.0f} MB")
    print(f"after a node was killed: {found['lost_after_kill']} episodes lost, {found['redone_after_kill']} jobs redone")
    if "compute_ratio" in found:
        print(f"compute-bound: two workers {found['compute_two_workers_s']:.2f} s, two threads {found['compute_two_threads_s']:.2f} s")
    cli.finish(options, found)


def _suite() -> str:
    try:
        plugins.make("envs", "telecom").tasks("train", 1)
    except MissingExtra:
        return "corridor"
    return "telecom"


if __name__ == "__main__":
    main()
