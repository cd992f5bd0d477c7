"""Rollouts on a Ray cluster: a plug-in of `exec`. Importing it does not load ray.

Workers are actors. A worker that dies, or whose node does, costs the job that it had, which another one does again: a job names all its
random streams, so the answer is the same. A new actor takes its place as soon as the cluster has room. Nothing stays on the driver but
the answers of the present call.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from dreamgym.config import Config as BaseConfig
from dreamgym.config import build as build_config
from dreamgym.errors import DreamGymError, InvariantError, MissingExtra, ServerError, UsageError
from dreamgym.exec import JobFunction

TRIES = 3
"""Workers that may die of the same job before it is given up."""
TICK_S = 1.0
log = logging.getLogger(__name__)


class RayConfig(BaseConfig):
    """A cluster, and the workers on it."""

    address: str = ""
    """`host:port` of a running cluster, or "auto" for the one of this machine. Empty: a cluster of this machine alone, for this run."""
    workers: int = Field(default=2, ge=1, le=4096)
    cpus_per_worker: float = Field(default=1.0, gt=0)
    gpus_per_worker: float = Field(default=0.0, ge=0)
    """A share such as 0.25 puts four workers on one GPU. Every worker holds the policy and the experience model."""
    jobs_per_worker: int = Field(default=1, ge=1)
    """Into how many jobs a worker's part of an iteration is cut: more are lost less with a worker, and share fewer batches."""
    silent_s: float = Field(default=900.0, gt=0)
    """A worker that needs longer for a job counts as dead."""
    start_s: float = Field(default=300.0, gt=0)
    """How long to wait for the first worker, and for any worker while there is none."""


Config = RayConfig


def make(**settings: Any) -> RayExecutor:
    """UsageError where no cluster can be reached, or one of other versions; MissingExtra without ray."""
    return RayExecutor(build_config(RayConfig, settings, prefix="exec."))


def check(**settings: Any) -> None:
    """UsageError where nobody answers at the address of the cluster; MissingExtra without ray."""
    _ray()
    _knock(build_config(RayConfig, settings, prefix="exec."))


class RayExecutor:
    """See `exec.Executor`. It connects when it is made, and disconnects with `close` unless the process was connected before."""

    def __init__(self, config: RayConfig) -> None:
        self.config = config
        self.ray = _ray()
        self._ours = not self.ray.is_initialized()
        if self._ours:
            _connect(self.ray, config)
        self._actors: list[Any] = []

    def pool(self, build: Callable[[], JobFunction], *, name: str) -> RayPool:
        return RayPool(self.ray, self.config, build, name=name)

    def service(self, build: Callable[[], Any], *, name: str) -> Callable[..., Any]:
        """An actor on the driver's node. Its errors are raised as they are; ServerError when it is lost."""
        ray = self.ray
        beside = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(_Service).options(num_cpus=0, scheduling_strategy=beside).remote(build)
        self._actors.append(actor)

        def call(method: str, *arguments: Any, **options: Any) -> Any:
            try:
                return ray.get(actor.call.remote(method, arguments, options))
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from error
            except ray.exceptions.RayError as error:
                raise ServerError(f"The {name} is lost ({_line(error)}). Give the same command again: the run resumes.") from error

        call("ready")
        return call

    def close(self) -> None:
        for actor in self._actors:
            self.ray.kill(actor)
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()


class _Service:
    """One object behind a line of calls."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build, self._made = build, None

    def call(self, method: str, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
        self._made = self._made if self._made is not None else self._build()
        return None if method == "ready" else getattr(self._made, method)(*arguments, **options)


class _Worker:
    """One worker, in a process of its own."""

    def __init__(self, build: bytes) -> None:
        self._build, self._shared = build, (0, None)

    def ready(self) -> str:
        """Build what does the work; the digest of the code here."""
        import ray.cloudpickle

        self._work = ray.cloudpickle.loads(self._build)()
        return _code()

    def run(self, job: Any, number: int, shared: Sequence[Any]) -> Any:
        """`shared` holds a reference, so that it is fetched where its number is new only."""
        if shared and self._shared[0] != number:
            import ray

            self._shared = (number, ray.get(shared[0]))
        return self._work(job, self._shared[1])


@dataclass
class _WorkerHandle:
    """An actor, what it is doing (the place of a job; None: it is getting ready, or idle), and since when."""

    actor: Any
    under_way: Any = None
    job: int | None = None
    since_s: float = field(default_factory=time.monotonic)
    is_ready: bool = False


class RayPool:
    """See `exec.Pool`."""

    def __init__(self, ray: Any, config: RayConfig, build: Callable[[], JobFunction], *, name: str) -> None:
        self.ray, self.config, self.name = ray, config, name
        self.parts = config.workers * config.jobs_per_worker
        self.replaced = self.redone = 0
        self._build = ray.put(ray.cloudpickle.dumps(build))  # opened by `ready`, which says what is missing
        self._stillborn = 0  # workers in a row that died before they were ready
        self._closed = False  # no worker is started any more, also by a thread that still waits for answers
        self._workers: list[_WorkerHandle] = []
        self._wanted = config.workers
        self._key: Hashable = None
        self._put: tuple[int, list[Any]] = (0, [])  # its number, and a reference to what is shared
        try:
            self._wait_for_one()
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Sequence[Any], *, shared: Any = None, key: Hashable = None) -> list[Any]:
        """See `exec.Pool`. InvariantError for a job that workers die of; ServerError when no worker is left and none can be placed."""
        if shared is not None and (key is None or key != self._key):
            self._put, self._key = (self._put[0] + 1, [self._stored(shared)]), key
        found: dict[int, Any] = {}
        try:
            self._run(jobs, found)
        except BaseException:  # an answer that nobody hears must not be taken for a later one
            for worker in [worker for worker in self._workers if worker.job is not None]:
                self._drop(worker)
            raise
        return [found[place] for place in range(len(jobs))]

    def close(self) -> None:
        self._closed = True
        for worker in self._workers:
            self.ray.kill(worker.actor)
        self._workers, self._put = [], (self._put[0], [])

    def _run(self, jobs: Sequence[Any], found: dict[int, Any]) -> None:
        """Fill `found` with the answers by place."""
        waiting, deaths, alone_since = deque(range(len(jobs))), Counter[int](), time.monotonic()
        while len(found) < len(jobs):
            self._start_workers()
            for worker in self._workers:
                if worker.is_ready and worker.job is None and waiting:
                    worker.job, worker.since_s = waiting.popleft(), time.monotonic()
                    worker.under_way = worker.actor.run.remote(jobs[worker.job], self._put[0], self._put[1])
            if any(worker.is_ready for worker in self._workers):
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > self.config.start_s:
                raise ServerError(self._nobody())
            for worker in self._finished():
                job, lost = worker.job, self._take(worker, found)
                if lost and job is not None:
                    self.redone, deaths[job] = self.redone + 1, deaths[job] + 1
                    waiting.appendleft(job)
                    if deaths[job] == TRIES:
                        raise InvariantError(f"{TRIES} workers of {self.name} in a row died of the same job, the last by {lost}")

    def _wait_for_one(self) -> None:
        """Until a worker is ready: whatever is wrong with the nodes is found before work starts."""
        since = time.monotonic()
        while not any(worker.is_ready for worker in self._workers):
            self._start_workers()
            for worker in self._finished():
                self._take(worker, {})
            if time.monotonic() - since > self.config.start_s:
                raise ServerError(self._nobody())

    def _start_workers(self) -> None:
        if self._closed:
            raise ServerError(f"The workers of {self.name} were sent away while they worked.")
        while len(self._workers) < self._wanted:
            made = self.ray.remote(_Worker).options(
                num_cpus=self.config.cpus_per_worker, num_gpus=self.config.gpus_per_worker, scheduling_strategy="SPREAD", max_restarts=0
            )
            actor = made.remote(self._build)
            self._workers.append(_WorkerHandle(actor, actor.ready.remote()))

    def _finished(self) -> list[_WorkerHandle]:
        """The workers that have something to say, waiting a moment for it; and those that were silent for too long."""
        busy = {worker.under_way: worker for worker in self._workers if worker.under_way is not None}
        if not busy:
            return []
        done, _ = self.ray.wait(list(busy), timeout=TICK_S)
        now = time.monotonic()
        silent = [one for one in busy.values() if one.job is not None and now - one.since_s > self.config.silent_s]
        for worker in silent:
            self.ray.kill(worker.actor)
        return [busy[reference] for reference in done]

    def _take(self, worker: _WorkerHandle, found: dict[int, Any]) -> str:
        """Take what a worker says: note its answer, or see to it that another one takes its place. What it died of, or ""."""
        errors = self.ray.exceptions
        reference, worker.under_way = worker.under_way, None
        try:
            answer = self.ray.get(reference)
        except errors.RayTaskError as error:
            if worker.is_ready or not any(other.is_ready for other in self._workers):
                raise _cause(error) from error
            self._drop(worker)  # a replacement on a node that lacks something: the others go on
            self._wanted -= 1
            log.warning("a replaced worker of %s cannot work on its node and is left out: %s", self.name, _line(error))
            return ""
        except errors.RayError as error:
            log.warning("a worker of %s died (%s) and is replaced", self.name, _line(error))
            self._drop(worker)
            self.replaced += 1
            self._stillborn += not worker.is_ready
            if self._stillborn >= TRIES * self.config.workers:
                raise ServerError(f"Workers of {self.name} die before they are ready: {_line(error)}") from error
            return _line(error)
        if not worker.is_ready:
            worker.is_ready, self._stillborn = True, 0
            self._check_version(answer)
        elif worker.job is not None:
            found[worker.job], worker.job = answer, None
        return ""

    def _drop(self, worker: _WorkerHandle) -> None:
        self._workers.remove(worker)
        self.ray.kill(worker.actor)  # one that only cannot be reached must not go on

    def _check_version(self, found: str) -> None:
        if found != _code():
            raise UsageError("A node of the Ray cluster has another version of dreamgym than the driver. Install the same on every node.")

    def _stored(self, shared: Any) -> Any:
        try:
            return self.ray.put(shared)
        except (self.ray.exceptions.ObjectStoreFullError, self.ray.exceptions.OutOfDiskError) as error:
            raise ServerError(
                f"The object store of the driver's node has no room for the weights ({_line(error)}). Start Ray with a larger one: "
                "ray start --object-store-memory=BYTES. Nothing is lost: the same command resumes."
            ) from error

    def _nobody(self) -> str:
        have, free = self.ray.cluster_resources(), self.ray.available_resources()
        asked = f"{self.config.cpus_per_worker:g} CPUs" + (
            f" and {self.config.gpus_per_worker:g} GPUs" if self.config.gpus_per_worker else ""
        )
        shown = ", ".join(f"{free.get(name, 0):g} of {have.get(name, 0):g} {name}s free" for name in ("CPU", "GPU"))
        return (
            f"No worker of {self.name} could be placed in {self.config.start_s:g} s: each asks for {asked}, and the cluster has {shown}. "
            "Add a node, or lower exec.workers, exec.cpus_per_worker or exec.gpus_per_worker. The same command resumes."
        )


@cache
def _code() -> str:
    """A digest of dreamgym's source on this machine."""
    root, found = Path(__file__).parents[1], hashlib.blake2b(digest_size=16)
    for file in sorted(root.rglob("*.py")):
        found.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return found.hexdigest()


def _ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingExtra("exec ray needs ray. Install it with: pip install 'dreamgym[ray]'") from error
    return ray


def _knock(config: RayConfig) -> None:
    host, _, port = config.address.rpartition(":")
    if host:
        try:
            # ray itself waits for a minute, and then ends the process
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"No Ray cluster at '{config.address}' ({error}). Start one with `ray start --head`, or correct exec.address."
            ) from error


def _connect(ray: Any, config: RayConfig) -> None:
    _knock(config)
    try:
        _start(ray, config)
    except ConnectionError as error:
        raise UsageError(f"No Ray cluster at '{config.address}': {_line(error)}. Start one with `ray start --head`.") from error
    except (RuntimeError, ValueError) as error:
        if "ersion" not in str(error) and not config.address:
            raise
        raise UsageError(
            f"The Ray cluster at '{config.address or 'this machine'}' cannot be used: {' '.join(str(error).split())}"
        ) from error


def _start(ray: Any, config: RayConfig) -> None:
    """Connect, or start a cluster of this machine, for which Ray waits 30 s. ServerError when the machine was too busy `TRIES` times."""
    for attempt in range(1, TRIES + 1):
        try:
            dashboard = None if config.address else False
            ray.init(address=config.address or "local", log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
            return
        except Exception as error:  # a bare one for a node that is late
            ray.shutdown()
            if "timed out" not in str(error):
                raise
            if attempt == TRIES:
                raise ServerError(f"Ray did not start in time, {TRIES} times: {_line(error)} Is this machine too busy?") from error


def _cause(error: Any) -> BaseException:
    """The exception that was raised on a node; a DreamGymError as it is, with where it came from."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, DreamGymError):
        cause.add_note(f"On a node of the Ray cluster:\n{error}")
        return cause
    if isinstance(cause, ModuleNotFoundError):
        return UsageError(f"A node of the Ray cluster lacks a package: {cause}. Install the same environment on every node.")
    return error if isinstance(error, BaseException) else InvariantError(str(error))


def _line(error: BaseException) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:300]
