"""What every executor promises (`exec.Executor`). Executors are discovered, and so is one outside the package; one whose package is not
installed is skipped.

What a cluster does when workers and nodes die is tested in tests/unit/exec/test_ray.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import pytest
from outside.worker_threads import Pool, ThreadExecutor

from dreamgym import exec as executors
from dreamgym import plugins
from dreamgym.errors import ConfigError, MissingExtra, UsageError
from dreamgym.exec import Executor, JobFunction

EXECUTORS = [*plugins.known("exec"), "outside.worker_threads"]
SETTINGS: dict[str, dict[str, Any]] = {"ray": {"workers": 2}}
"""For small machines."""


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    settings = {"name": request.param, **SETTINGS.get(request.param, {})}
    executors.check_settings(settings)
    try:
        executors.try_out(settings)
        made = executors.executor(settings)
    except MissingExtra as error:
        pytest.skip(str(error))
    yield made
    made.close()


def echo() -> Callable[[], JobFunction]:
    """What workers build: their answer is the job and what is shared. Other processes cannot import this file, so it is no global name."""

    def build() -> JobFunction:
        return lambda job, shared: (job, shared)

    return build


def answers_are_in_the_order_of_the_jobs(executor: Executor) -> None:
    pool = executor.pool(echo(), name="test")
    assert pool.parts >= 1
    for n in (7, 1, 0):
        assert pool.run(list(range(n)), shared="weights") == [(i, "weights") for i in range(n)]
    assert (pool.replaced, pool.redone) == (0, 0)
    pool.close()


def what_is_shared_is_new_where_its_key_is_new_or_none(executor: Executor) -> None:
    pool = executor.pool(echo(), name="test")
    calls = [("old", 1, "old"), ("unsent", 1, "old"), ("new", 2, "new"), ("first", None, "first"), ("second", None, "second")]
    for given, key, expected in calls:
        assert pool.run([0, 1], shared=given, key=key) == [(0, expected), (1, expected)]
    pool.close()


def what_a_worker_does_to_its_job_happens_there_alone(executor: Executor) -> None:
    def build() -> JobFunction:
        def work(job: Any, shared: Any) -> Any:
            job.append("seen")
            shared["seen"] = True
            return len(job)

        return work

    pool, jobs, shared = executor.pool(build, name="test"), [["a"], ["b"]], {"seen": False}
    assert pool.run(jobs, shared=shared) == [2, 2] and jobs == [["a"], ["b"]] and shared == {"seen": False}
    pool.close()


def what_a_worker_lacks_is_raised_before_work_and_what_a_job_raises_leaves_the_pool_whole(executor: Executor) -> None:
    def lacking() -> JobFunction:
        raise UsageError("no run directory")

    def picky() -> JobFunction:
        def work(job: Any, shared: Any) -> Any:
            if job == "bad":
                raise UsageError("no such task")
            return job

        return work

    with pytest.raises(UsageError, match="no run directory"):
        executor.pool(lacking, name="test")
    pool = executor.pool(picky, name="test")
    with pytest.raises(UsageError, match="no such task"):
        pool.run(["good", "bad", "good"])
    assert pool.run(["good", "better"]) == ["good", "better"]
    pool.close()


def a_service_is_one_object_that_keeps_its_state_and_raises_its_errors(executor: Executor) -> None:
    def build() -> Any:
        class Counter:
            total = 0

            def add(self, by: int, *, times: int = 1) -> int:
                self.total += by * times
                return self.total

            def fail(self) -> None:
                raise UsageError("refused")

        return Counter()

    one, other = (executor.service(build, name="counter") for _ in range(2))
    assert (one("add", 2), one("add", 3, times=2), other("add", 1)) == (2, 8, 1)
    with pytest.raises(UsageError, match="refused"):
        one("fail")
    assert one("add", 1) == 9


PROMISES = [
    answers_are_in_the_order_of_the_jobs,
    what_is_shared_is_new_where_its_key_is_new_or_none,
    what_a_worker_does_to_its_job_happens_there_alone,
    what_a_worker_lacks_is_raised_before_work_and_what_a_job_raises_leaves_the_pool_whole,
    a_service_is_one_object_that_keeps_its_state_and_raises_its_errors,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_an_executor_keeps_every_promise(executor: Executor, promise: Callable[[Executor], None]) -> None:
    promise(executor)


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_setting_that_an_executor_does_not_have_is_refused_without_its_package(name: str) -> None:
    with pytest.raises(ConfigError, match=r"exec\.colour"):
        executors.check_settings({"name": name, "colour": 1})


# Executors that break a promise each


class OfPools(ThreadExecutor):
    kind: type[Pool] = Pool

    def pool(self, build: Callable[[], JobFunction], *, name: str) -> Pool:
        return self.kind(build)


class Backwards(OfPools):
    class kind(Pool):
        def run(self, jobs: Sequence[Any], *, shared: Any = None, key: Hashable = None) -> list[Any]:
            return super().run(jobs, shared=shared, key=key)[::-1]


class Remembers(OfPools):
    class kind(Pool):
        def run(self, jobs: Sequence[Any], *, shared: Any = None, key: Hashable = None) -> list[Any]:
            return super().run(jobs, shared=shared, key=key or 1)


class InPlace(OfPools):
    class kind(Pool):
        def run(self, jobs: Sequence[Any], *, shared: Any = None, key: Hashable = None) -> list[Any]:
            return [self._work[0](job, shared) for job in jobs]


class Late(OfPools):
    class kind(Pool):
        def __init__(self, build: Callable[[], JobFunction]) -> None:
            super().__init__(lambda: lambda job, shared: build()(job, shared))


class Forgets(OfPools):
    def service(self, build: Callable[[], Any], *, name: str) -> Callable[..., Any]:
        return lambda method, *arguments, **options: getattr(build(), method)(*arguments, **options)


@pytest.mark.parametrize(("broken", "promise"), list(zip((Backwards, Remembers, InPlace, Late, Forgets), PROMISES, strict=True)))
def test_a_broken_executor_does_not_keep_its_promise(broken: type[ThreadExecutor], promise: Callable[[Executor], None]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        promise(broken())
