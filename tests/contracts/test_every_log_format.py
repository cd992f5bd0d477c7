"""What every format of logs promises (`logs.formats.LogFormat`). Formats are discovered; a new one needs a dialect in `log_samples`.

That each dialect is recognised and gives the same actions, and that damaged lines cost those lines, is tested of whole imports in
tests/unit/logs/test_importing.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import CALLS, DIALECTS, DONE, FORMATS, TASK

from dreamgym import plugins
from dreamgym.logs.formats import KIND, LogFormat, recognise
from dreamgym.logs.formats.openai import OpenAIFormat
from dreamgym.logs.records import Account, LoggedEpisode, Role

every_format = pytest.mark.parametrize("name", plugins.known(KIND))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "tool_use", "messages", "role"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "messages", "content", "type", "id", "name", "steps", "attributes", "traceId", "key"]), inner
        )
    ),
    max_leaves=20,
)


def dialects(name: str) -> list[str]:
    """The samples of a format."""
    return [dialect for dialect in DIALECTS if FORMATS.get(dialect, "otel") == name]


def episodes(form: LogFormat, records: Sequence[Any]) -> list[LoggedEpisode]:
    """As an import reads them: units of one key together."""
    by_key: dict[Any, list[dict[str, Any]]] = {}
    for number, unit in enumerate(unit for record in records for unit in form.units(record)):
        key = form.key(unit)
        by_key.setdefault(number if key is None else key, []).append(unit)
    return [episode for units in by_key.values() for episode in form.read(units, Account())]


def recognises_its_own_and_says_so_with_a_bool(form: LogFormat) -> None:
    for dialect in dialects(form.name):
        answers = [form.recognises(record) for record in DIALECTS[dialect]()]
        assert any(answers) and all(isinstance(answer, bool) for answer in answers)


def reads_the_same_twice_and_leaves_the_records_as_they_were(form: LogFormat) -> None:
    for dialect in dialects(form.name):
        records = DIALECTS[dialect]()
        before = copy.deepcopy(records)
        assert episodes(form, records) == episodes(form, records) and records == before


def keeps_every_call_with_its_result_after_it_and_all_texts(form: LogFormat) -> None:
    for dialect in dialects(form.name):
        (episode,) = episodes(form, DIALECTS[dialect]())
        called = dict[str, str]()
        for message in episode.messages:
            assert message.role in get_args(Role) and isinstance(message.text, str)
            assert not message.calls or message.role == "agent"
            called |= {call.id: call.name for call in message.calls}
            assert all(result.call_id in called for result in message.results)
        assert [(call.name, call.arguments) for message in episode.messages for call in message.calls if call.name != "look_at_phone"] == [
            (tool, arguments) for _, tool, arguments, _ in CALLS
        ]
        texts = [episode.instruction, *(message.text for message in episode.messages)]
        assert any(TASK in text for text in texts) and any(DONE in text for text in texts)
        results = [result.text for message in episode.messages for result in message.results]
        assert all(any(text in result for result in results) for *_, text in CALLS)


def takes_any_json_value(form: LogFormat) -> None:
    @given(value=JSON)
    def read(value: Any) -> None:
        assert isinstance(form.recognises(value), bool)
        for unit in form.units(value):
            assert isinstance(unit, dict)
            key = form.key(unit)
            assert key is None or isinstance(key, str)
            assert all(isinstance(one, LoggedEpisode) for one in form.read([unit], Account()))

    read()


PROMISES = [
    recognises_its_own_and_says_so_with_a_bool,
    reads_the_same_twice_and_leaves_the_records_as_they_were,
    keeps_every_call_with_its_result_after_it_and_all_texts,
    takes_any_json_value,
]


@every_format
def test_a_format_has_its_plug_ins_name_and_a_sample(name: str) -> None:
    assert plugins.make(KIND, name).name == name and dialects(name)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@every_format
def test_a_format_keeps_every_promise(name: str, promise: Callable[[LogFormat], None]) -> None:
    promise(plugins.make(KIND, name))


@given(value=JSON)
def test_whatever_a_file_holds_is_of_a_format_or_of_none(value: Any) -> None:
    found = recognise(value)
    assert found is None or found.name in plugins.known(KIND)


# Formats that break a promise each


class Unsure(OpenAIFormat):
    def recognises(self, value: Any) -> bool:
        return value.get("messages")  # type: ignore[no-any-return]


class Consumes(OpenAIFormat):
    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        for unit in units:
            yield from super().read([{"messages": unit.pop("messages", None)}], account)


class LosesResults(OpenAIFormat):
    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        kept = [{**unit, "messages": [one for one in unit.get("messages", ()) if one["role"] != "tool"]} for unit in units]
        return super().read(kept, account)


class Trusts(OpenAIFormat):
    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        return (LoggedEpisode(str(unit["messages"]), ()) for unit in units)


@pytest.mark.parametrize(("broken", "promise"), list(zip((Unsure, Consumes, LosesResults, Trusts), PROMISES, strict=True)))
def test_a_broken_format_does_not_keep_its_promise(broken: type[OpenAIFormat], promise: Callable[[LogFormat], None]) -> None:
    with pytest.raises((AssertionError, AttributeError, KeyError, TypeError)):
        promise(broken())
