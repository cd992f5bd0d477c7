"""Where an iteration's rollouts are played: a plug-in kind. Without one, they are played in this process.

A plug-in is a module with a `Config` and

    make(**settings) -> Executor     it starts workers, which a function builds where they are, and services beside the driver
    check(**settings) -> None        optional: raises what `make` would raise later, before anything is computed
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.errors import ConfigError

JobFunction = Callable[[Any, Any], Any]
"""(job, shared) -> answer: what a worker does."""


class Pool(Protocol):
    """Workers that do jobs."""

    parts: int
    """Into how many jobs the work of an iteration is best cut."""
    replaced: int
    """Workers lost and replaced so far."""
    redone: int
    """Jobs that lost workers had, done again."""

    def run(self, jobs: Sequence[Any], *, shared: Any = None, key: Hashable = None) -> list[Any]:
        """The answers, in order. `shared` is for all jobs, and is sent where its `key` is new, or None."""
        ...

    def close(self) -> None: ...


class Executor(Protocol):
    """Starts workers and services elsewhere."""

    def pool(self, build: Callable[[], JobFunction], *, name: str) -> Pool:
        """Workers of which each calls `build` once. Whatever it raises is raised here, before work starts."""
        ...

    def service(self, build: Callable[[], Any], *, name: str) -> Callable[..., Any]:
        """One object that lives beside the driver: `call(method, *arguments, **options)`."""
        ...

    def close(self) -> None: ...


def check_settings(settings: Mapping[str, Any]) -> None:
    """PluginError for an unknown executor, ConfigError for a setting that it does not have."""
    name = settings.get("name")
    if not isinstance(name, str):
        raise ConfigError('exec needs a name: exec = {name = "ray"}. Leave exec out to play rollouts in this process.')
    build(plugins.load("exec", name).Config, {key: value for key, value in settings.items() if key != "name"}, prefix="exec.")


def try_out(settings: Mapping[str, Any]) -> None:
    """Whatever would be missing when rollouts begin, before anything is computed."""
    check = getattr(plugins.load("exec", settings["name"]), "check", None)
    if check is not None:
        check(**{key: value for key, value in settings.items() if key != "name"})


def executor(settings: Mapping[str, Any]) -> Executor:
    """The executor of these settings."""
    made: Executor = plugins.make_named("exec", settings)
    return made
