"""A format from outside of this package, with its answers checked: a wrong one, or an error in its code, is a PluginError that names the
method."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from dreamgym.envs.tools.schemas import Tool
from dreamgym.errors import DreamGymError, PluginError
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message, Result, Role

METHODS = ("recognises", "units", "key", "read")
PARTS: Mapping[str, type] = {"messages": Message, "tools": Tool}
HELP = "docs/tutorials/logs.md shows a whole format."


class Checked:
    """The format `inner` that `plugin` made."""

    def __init__(self, plugin: str, inner: Any) -> None:
        """PluginError for what lacks a method of `LogFormat`."""
        if lacking := [method for method in METHODS if not callable(getattr(inner, method, None))]:
            raise PluginError(
                f"make() of '{plugin}' gives {_kind(inner)}, which has no {lacking[0]}(). Expected a format with {', '.join(METHODS)}. "
                f"{HELP}"
            )
        name = getattr(inner, "name", plugin)
        self.plugin, self.inner, self.name = plugin, inner, name if isinstance(name, str) else plugin

    def recognises(self, value: Any) -> bool:
        with self._running("recognises"):
            return bool(self.inner.recognises(value))

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        with self._running("units"):
            for unit in self._each("units", self.inner.units(value), "dicts"):
                if not isinstance(unit, dict):
                    raise self._wrong("units", _kind(unit), "dicts")
                yield unit

    def key(self, unit: dict[str, Any]) -> str | None:
        with self._running("key"):
            key = self.inner.key(unit)
        if key is None or isinstance(key, str):
            return key
        raise self._wrong("key", _kind(key), "a text, or None for an episode of its own")

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        with self._running("read", account):
            for episode in self._each("read", self.inner.read(units, account), "LoggedEpisodes"):
                if wrong := _fault(episode):
                    raise self._wrong("read", wrong, "LoggedEpisodes of dreamgym.logs.records")
                yield episode

    @contextmanager
    def _running(self, method: str, account: Account | None = None) -> Iterator[None]:
        """PluginError for an error in the format's code, with the place there and in the log: whoever writes episodes meanwhile would take
        one of the system for an error of that file."""
        try:
            yield
        except (DreamGymError, MemoryError):
            raise
        except Exception as error:
            of_log = f" at {account.here}" if account and account.here else ""
            raise PluginError(
                f"{method}() of the log format '{self.plugin}' failed{of_log}: {type(error).__name__}: {str(error)[:300]} "
                f"({self._place(error)}). Correct the format. {HELP}"
            ) from error

    def _place(self, error: Exception) -> str:
        """The line of the format's module that an error came through last, or the one that raised it."""
        frames = traceback.extract_tb(error.__traceback__)
        own = getattr(sys.modules.get(type(self.inner).__module__), "__file__", None)
        frame = next((one for one in reversed(frames) if one.filename == own), frames[-1])
        return f"{Path(frame.filename).name}, line {frame.lineno}"

    def _each(self, method: str, answer: Any, expected: str) -> Iterable[Any]:
        if not isinstance(answer, Iterable):
            raise self._wrong(method, _kind(answer), f"an iterator of {expected}")
        return answer

    def _wrong(self, method: str, what: str, expected: str) -> PluginError:
        return PluginError(f"{method}() of the log format '{self.plugin}' gives {what}. Expected {expected}. {HELP}")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of the type {type(value).__name__}"


def _fault(episode: Any) -> str:
    """What of an episode is of a wrong type; "" where nothing is."""
    if not isinstance(episode, LoggedEpisode):
        return _kind(episode)
    texts: dict[str, Any] = {name: getattr(episode, name) for name in ("id", "instruction", "agent", "task")}
    if wrong := next((name for name, text in texts.items() if not isinstance(text, str)), ""):
        return f"an episode whose {wrong} is {_kind(texts[wrong])}"
    if wrong := next((name for name, kind in PARTS.items() if not _holds(getattr(episode, name), kind)), ""):
        return f"an episode whose {wrong} are no tuple of {PARTS[wrong].__name__}"
    if not all(isinstance(one, Mapping) for one in (episode.record, episode.scores)):
        return "an episode whose record or scores are no mapping"
    return next((wrong for one in episode.messages if (wrong := _message_fault(one))), "")


def _holds(value: Any, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, kind) for one in value)


def _message_fault(message: Any) -> str:
    if message.role not in get_args(Role):
        return f"a message of the role {message.role!r:.40} (known: {', '.join(get_args(Role))})"
    if not isinstance(message.text, str):
        return f"a message whose text is {_kind(message.text)}"
    if not _holds(message.calls, Call) or not _holds(message.results, Result):
        return "a message whose calls and results are no tuples of Call and Result"
    texts = [text for call in message.calls for text in (call.id, call.name)]
    texts += [text for result in message.results for text in (result.call_id, result.text, result.name)]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        return f"a call or result with {_kind(wrong[0])} in the place of a text"
    call = next((call for call in message.calls if not isinstance(call.arguments, str | Mapping)), None)
    return f"a call of {call.name} whose arguments are {_kind(call.arguments)}" if call else ""
