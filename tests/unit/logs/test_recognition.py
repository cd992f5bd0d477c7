"""Which format a file is read in, and what happens to records that look like another one's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_samples import ACTIONS, TASK, anthropic, anthropic_messages, claude_code, imported, openai, openai_messages, sharegpt, written

from dreamgym.errors import UsageError
from dreamgym.logs.importing import import_logs

PLAIN = {"id": "plain", "messages": [{"role": "user", "content": TASK}, {"role": "assistant", "content": "No."}]}
USED = {"id": "used", "messages": anthropic_messages()}


def test_records_of_another_format_in_the_same_file_are_counted(tmp_path: Path):
    _, found = imported(tmp_path, [*openai(), *claude_code()])
    assert list(found["formats"].values()) == ["claude_code"], "the more specific one"
    assert found["episodes"] == 1 and found["dropped"]["records of another format (openai)"] == 1


def test_a_format_that_a_file_is_not_of_is_refused_with_the_one_it_is(tmp_path: Path):
    with pytest.raises(UsageError, match="not of the format 'atif': it looks like 'openai'"):
        import_logs([written(tmp_path, openai())], tmp_path / "o.jsonl", form="atif")
    with pytest.raises(UsageError, match="in no format that is known"):
        import_logs([written(tmp_path, [{"a": 1}])], tmp_path / "o.jsonl")
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize("records", [[PLAIN, USED], [USED, PLAIN]])
@pytest.mark.parametrize("form", ["auto", "anthropic"])
def test_conversations_without_tools_are_read_in_the_format_of_the_others_of_their_file(tmp_path: Path, records: list[object], form: str):
    episodes, found = imported(tmp_path, records, form=form)
    assert list(found["formats"].values()) == ["anthropic"] and not found["dropped"]
    assert {one.id: [step.action for step in one.transitions] for one in episodes} == {
        "plain": ['respond(content="No.")'], "used": ACTIONS,
    }  # fmt: skip


def test_a_system_field_does_not_hide_that_the_calls_of_a_file_are_openais(tmp_path: Path):
    episodes, found = imported(tmp_path, [PLAIN | {"system": "Be kind."}, *openai()])
    assert list(found["formats"].values()) == ["openai"] and len(episodes) == 2


def test_a_file_without_tools_is_read_in_the_format_that_is_given(tmp_path: Path):
    episodes, found = imported(tmp_path, [PLAIN], form="anthropic")
    assert len(episodes) == 1 and not found["dropped"]
    with pytest.raises(UsageError, match="not of the format 'anthropic': it looks like 'openai'"):
        imported(tmp_path, openai(), form="anthropic")


def test_calls_and_results_that_a_format_cannot_read_are_counted(tmp_path: Path):
    (episode,), found = imported(tmp_path, [USED], form="openai")
    assert [step.action for step in episode.transitions] == ACTIONS[2:]
    assert found["dropped"] == {"blocks of another format (tool_use)": 2, "blocks of another format (tool_result)": 2}
    _, found = imported(tmp_path, [*anthropic(), {"messages": openai_messages()}], form="anthropic")
    counted = {name: n for name, n in found["dropped"].items() if "another format" in name}
    assert counted == {"calls of another format (tool_calls)": 2, "results of another format (tool_call_id)": 2}


@pytest.mark.parametrize("text", ["Question: Cancel order W1.\nAction: cancel\n", "id,reward\n1,0\n"])
def test_a_log_that_is_text_is_said_to_be_text(tmp_path: Path, text: str):
    (tmp_path / "log.txt").write_text(text)
    with pytest.raises(UsageError, match="log.txt' is text, and a log is JSON.*docs/tutorials/logs.md"):
        import_logs([tmp_path / "log.txt"], None)


def test_an_unknown_format_points_to_formats_of_ones_own(tmp_path: Path):
    with pytest.raises(UsageError, match="in no format that is known: .*docs/tutorials/logs.md shows how to write a format of your own"):
        import_logs([written(tmp_path, [{"run_type": "llm"}])], None)


def test_whatever_a_file_holds_beside_records_is_counted(tmp_path: Path):
    _, account = imported(tmp_path, [*openai(), None, 3, "text", [None, 3], [*openai(), None, "text"]])
    dropped = account["dropped"]
    assert dropped["values that are no record of the format openai"] == 4 and dropped["values that are no JSON object"] == 2
    assert account["places"]["values that are no record of the format openai"][0] == "log.jsonl, line 2: null"


@pytest.mark.parametrize("record", [openai, anthropic, sharegpt])
def test_messages_that_are_no_objects_are_counted(tmp_path: Path, record: Callable[[], list[Any]]):
    (one,) = record()
    one["conversations" if record is sharegpt else "messages"] += [None, "text"]
    _, account = imported(tmp_path, [one])
    assert account["dropped"]["messages that are no JSON object"] == 2
