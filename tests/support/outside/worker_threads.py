"""An executor from outside the package: workers are objects of this process that do jobs in turn; what they are given is copied."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dreamgym.config import Config as BaseConfig
from dreamgym.exec import JobFunction


class Config(BaseConfig):
    """No settings."""


class Pool:
    """See `dreamgym.exec.Pool`."""

    parts = 2
    replaced = redone = 0

    def __init__(self, build: Callable[[], JobFunction]) -> None:
        self._work, self._shared, self._key = [build(), build()], None, object()

    def run(self, jobs: Sequence[Any], *, shared: Any = None, key: Hashable = None) -> list[Any]:
        if key is None or key != self._key:
            self._shared, self._key = copy.deepcopy(shared), key
        return [self._work[i % 2](copy.deepcopy(job), self._shared) for i, job in enumerate(jobs)]

    def close(self) -> None: ...


class ThreadExecutor:
    """See `dreamgym.exec.Executor`."""

    def pool(self, build: Callable[[], JobFunction], *, name: str) -> Pool:
        return Pool(build)

    def service(self, build: Callable[[], Any], *, name: str) -> Callable[..., Any]:
        made = build()
        return lambda method, *arguments, **options: copy.deepcopy(getattr(made, method)(*arguments, **options))

    def close(self) -> None: ...


def make() -> ThreadExecutor:
    return ThreadExecutor()
