"""The rollouts of an RL phase on remote workers (`exec`): the same episodes as in this process.

A worker holds the policy and the environments of the phase, made from the run directory, and takes the policy's weights where their
version is new to it. It plays a shard of a rollout: its episodes keep their numbers, which name their random streams.

Where a server samples, a worker is a client of it and holds no weights: the driver publishes them, and each shard names what it published.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from dreamgym import exec as executors
from dreamgym.engines.server.engine import ServerEngine
from dreamgym.engines.server.servers import Served
from dreamgym.envs.batch import AsyncBatchEnv
from dreamgym.errors import InvariantError, RunDirError
from dreamgym.exec.replay_service import RemoteReplay, ReplayService, State
from dreamgym.llm import memory
from dreamgym.policy.agent import Agent
from dreamgym.protocols import LLM, BatchEnv
from dreamgym.recipes import factory, plan
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.context import RunContext, open_context
from dreamgym.recipes.phases.collect import Environments, RolloutFunction
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.rollout import rollout
from dreamgym.types import Action, Observation, StepResult, Task, Trajectory


@dataclass(frozen=True)
class ContextSpec:
    """What a remote process makes the context of a phase from. The run directory must be there."""

    path: Path
    config: SharedConfig
    experience_checkpoint: str
    verifier_checkpoint: str

    def open(self) -> RunContext:
        if not self.path.is_dir():
            raise RunDirError(f"A node has no run directory '{self.path}'. Put it where every node sees it, such as on a network drive.")
        return replace(
            open_context(self.path),
            config=self.config,
            experience_checkpoint=self.experience_checkpoint,
            verifier_checkpoint=self.verifier_checkpoint,
            external_publisher=True,
        )


@dataclass(frozen=True)
class RolloutShard:
    """A job: some of a rollout's episodes, their numbers among its tasks, and in which state of everything they are played."""

    tasks: tuple[Task, ...]
    numbers: tuple[int, ...]
    source: str
    seed: int
    temperature: float
    name: str
    version: int  # of the policy
    dream: tuple[int, str]  # refreshes of the experience model, and the verifier's checkpoint
    served: tuple[Served | None, Served | None]  # what servers sample the policy and the dream from; None: the worker holds the weights
    replay: State


class RemoteRollouts:
    """The driver's side: workers, and the replay service beside the driver."""

    def __init__(self, context: RunContext, loop: plan.Loop) -> None:
        self.context, self.block = context, loop.block
        self.executor = executors.executor(context.config.exec)
        try:
            spec = ContextSpec(context.path, context.config, context.experience_checkpoint, context.verifier_checkpoint)
            self.replay = RemoteReplay(self.executor.service(partial(_service, spec, loop.name), name="replay service"))
            self.pool = self.executor.pool(partial(_Worker, spec, loop, self.replay), name=f"'{loop.name}'")
        except BaseException:
            self.executor.close()
            raise

    def rollout_fn(self, agent: Agent, model: Any, envs: Environments) -> RolloutFunction:
        """`rollout.rollout` of the policy `agent` of `model` in the phase's dream or real environment, with everything as it is now: also
        where it is called in another thread while the learner changes `model`. InvariantError for an episode by other weights."""
        dream, served = (envs.refreshes, envs.verifier_checkpoint), (_served(agent.llm), _served(envs.engine))
        version, state = agent.llm.version, self.replay.state
        key: Hashable = (version, sum(p._version for p in model.parameters() if p.requires_grad))  # also where weights were brought back
        trained = [] if served[0] else [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        weights = {name: p.detach().to("cpu", copy=self.block.async_rollouts) for name, p in trained}

        def play(tasks: Sequence[Task], source: str, seed: int, name: str) -> list[Trajectory]:
            shards = [
                RolloutShard(tuple(tasks), numbers, source, seed, self.block.learner.temperature, name, version, dream, served, state)
                for numbers in split_into_shards(len(tasks), self.block.group_size, self.pool.parts)
            ]
            trajectories = [episode for shard in self.pool.run(shards, shared=weights, key=key) for episode in shard]
            if staleness := max((abs(version - episode.policy_version) for episode in trajectories if episode.turns), default=0):
                raise InvariantError(f"Workers sampled from weights that are {staleness} versions away. Report this.")
            return trajectories

        return play

    def close(self) -> None:
        self.pool.close()
        self.executor.close()


def split_into_shards(episodes: int, group: int, parts: int) -> list[tuple[int, ...]]:
    """The numbers 0 to `episodes` - 1 in at most `parts` runs of about the same length; of whole groups where there are enough."""
    unit = group if episodes % group == 0 and episodes // group >= parts else 1
    units = episodes // unit
    parts = max(1, min(parts, units))
    bounds = [unit * (units * i // parts) for i in range(parts + 1)]
    return [tuple(range(low, high)) for low, high in pairwise(bounds)]


class RolloutShardEnv(AsyncBatchEnv):
    """Some episodes of a batch environment that all episodes begin in: a dream draws first states for a whole rollout."""

    def __init__(self, inner: BatchEnv, tasks: Sequence[Task], numbers: Sequence[int]) -> None:
        self.inner, self.tasks, self.numbers, self.source = inner, tasks, list(numbers), inner.source
        self._slots = {number: slot for slot, number in enumerate(numbers)}

    @property
    def version(self) -> int:
        return self.inner.version

    @property
    def concurrent(self) -> bool:
        return self.inner.concurrent

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """The first observations of this shard; `tasks` are its own."""
        observations = self.inner.start(self.tasks, seed=seed)
        return [observations[number] for number in self.numbers]

    def submit(self, slots: Sequence[int], actions: Sequence[Action]) -> None:
        self.inner.submit([self.numbers[slot] for slot in slots], actions)

    def end(self) -> None:
        self.inner.end()

    def poll(self) -> list[tuple[int, StepResult]]:
        return [(self._slots[number], result) for number, result in self.inner.poll()]


def _service(spec: ContextSpec, name: str) -> ReplayService:
    context = spec.open()
    return ReplayService(partial(_buffer, context, name), context.path / "replay" / f"{name}.lock")


def _buffer(context: RunContext, name: str) -> ReplayBuffer:
    return factory.replay_buffer(context, name)


def _served(engine: LLM | None) -> Served | None:
    """What servers sample from; None for an engine without any."""
    return engine.served if isinstance(engine, ServerEngine) else None


class _Worker:
    """A worker's side: `exec.JobFunction`."""

    def __init__(self, spec: ContextSpec, loop: plan.Loop, replay: RemoteReplay) -> None:
        self.replay, context = replay, spec.open()
        memory.require_memory(plan.worker_models(context.config))  # the driver can look at its own node alone
        self.envs = Environments(context, replay, loop.name, loop.source)
        self.model = None if context.config.policy_served else context.load_policy(loop.init_policy)
        self.agent = context.agent(self.model, full_precision=not loop.block.learner.bf16)
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad} if self.model is not None else {}
        self.weights: Any = None
        self.served: tuple[Served | None, Served | None] = (None, None)
        for engine in (self.agent.llm, self.envs.engine):
            if isinstance(engine, ServerEngine):
                engine.require_reachable()

    def __call__(self, shard: RolloutShard, weights: dict[str, Any]) -> list[Trajectory]:
        import torch

        if weights is not self.weights:
            with torch.no_grad():
                for name, value in weights.items():
                    self.trained[name].copy_(value)
            self.weights = weights
        self.agent.llm.version, self.replay.state = shard.version, shard.replay
        refreshes, verifier = shard.dream
        if self.envs.dream is not None and self.envs.refreshes != refreshes:
            self.envs.load_dream(refreshes)
            self.served = (self.served[0], None)  # the new dream has an engine of its own
        if self.envs.dream is not None and self.envs.verifier_checkpoint != verifier:
            self.envs.load_verifier(verifier)
        self._sync_weights(shard.served)
        tasks, suite = [shard.tasks[number] for number in shard.numbers], self.envs.context.suite
        env: BatchEnv = self.envs.real
        max_parallel: int | None = suite.max_parallel
        if shard.source == "dream":
            assert self.envs.dream is not None
            env, max_parallel = RolloutShardEnv(self.envs.dream, shard.tasks, shard.numbers), None
        return rollout(
            self.agent,
            env,
            tasks,
            max_parallel=max_parallel,
            seed=shard.seed,
            max_steps=suite.max_steps,
            temperature=shard.temperature,
            name=shard.name,
            episode_indices=shard.numbers,
        )

    def _sync_weights(self, served: tuple[Served | None, Served | None]) -> None:
        """Sample from what the driver has published since. A server that this worker has left out is used again from then on."""
        for engine, before, now in zip((self.agent.llm, self.envs.engine), self.served, served, strict=True):
            if isinstance(engine, ServerEngine) and now is not None and now != before:
                engine.follow(now)
        self.served = served
