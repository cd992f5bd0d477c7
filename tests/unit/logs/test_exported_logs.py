"""Episodes as other tools read them: nothing that an agent saw or did is lost, and an import gives it back."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from log_samples import imported

from dreamgym.envs.tools.schemas import fault, read_tools
from dreamgym.errors import DreamGymError
from dreamgym.logs.export import export_episodes
from dreamgym.logs.importing import import_logs
from dreamgym.logs.tools_file import tools_beside
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.tool_calls import calls_of
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

every_form = pytest.mark.parametrize("form", ["openai", "atif"])


def exported(folder: Path, episodes: list[Trajectory], form: str) -> list[list[tuple[str, Any]]]:
    """Of each episode, who says what, in order."""
    write_trajectories(folder / "made.jsonl", episodes)
    export_episodes(folder / "made.jsonl", folder / "export.jsonl", form)
    records = [json.loads(line) for line in (folder / "export.jsonl").read_text().splitlines()]
    if form == "openai":
        return [[(one["role"], one["content"]) for one in record["messages"]] for record in records]
    return [[(one["source"], one["message"]) for one in record["steps"]] for record in records]


def again(folder: Path, form: str) -> list[Trajectory]:
    """The exported episodes as an import reads them."""
    import_logs([folder / "export.jsonl"], folder / "again.jsonl", form=form, redact=False)
    return read_trajectories(folder / "again.jsonl")


@every_form
def test_the_first_state_of_an_environment_that_is_no_conversation_follows_the_instruction(tmp_path: Path, form: str):
    step = Transition(Observation("You are in room 1."), "go east", Observation("You are in room 2."), 1.0, True)
    episode = Trajectory("a", Task("t", "Reach room 2.", "corridor"), "demo", (Turn(step),), True)
    (said,) = exported(tmp_path, [episode], form)
    assert [text for _, text in said] == ["Reach room 2.", "You are in room 1.", "go east", "You are in room 2."]
    (read,) = again(tmp_path, form)
    assert read.task.instruction == "Reach room 2.\nYou are in room 1."


def talk(*turns: tuple[str, dict[str, Any], str | None]) -> list[dict[str, Any]]:
    """Calls by name with their arguments and what each returned; None for no result, the last one."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for i, (name, arguments, result) in enumerate(turns):
        function = {"name": name, "arguments": json.dumps(arguments)}
        messages.append({"role": "assistant", "tool_calls": [{"id": f"c{i}", "type": "function", "function": function}]})
        messages += [{"role": "tool", "tool_call_id": f"c{i}", "content": result}] if result is not None else []
    return messages


@every_form
def test_a_tool_that_a_log_calls_respond_is_no_message_to_the_user(tmp_path: Path, form: str):
    turns = [
        ("respond", {"message": "Hello", "to": "bob"}, "sent"),
        ("respond", {"content": "Hi."}, "sent"),
        ("respond", {"content": "Hi."}, ""),
    ]
    tools = [{"name": "respond", "parameters": {"type": "object", "properties": {"message": {"type": "string"}}}}]
    (before,), account = imported(tmp_path, [{"messages": talk(*turns), "tools": tools}])
    actions = ['respond_tool(message="Hello", to="bob")', 'respond_tool(content="Hi.")', 'respond(content="Hi.")']
    assert [one.action for one in before.transitions] == actions and account["tools"] == {"respond_tool": 2}
    assert account["notes"] == {"calls of a tool that is called respond, which is respond_tool now": 2}
    tools_file = read_tools(tools_beside(tmp_path / "episodes.jsonl"))
    assert fault({tool.name: tool for tool in tools_file}, calls_of(actions[0])[0]) == ""
    exported(tmp_path, [before], form)
    (after,) = again(tmp_path, form)
    assert after.transitions == before.transitions


@every_form
def test_arguments_and_results_of_a_respond_that_is_more_than_a_text_are_exported(tmp_path: Path, form: str):
    steps = [
        Transition(
            Observation("no calls yet"),
            'respond(content="Hi.", to="bob")',
            Observation('> respond(content="Hi.", to="bob")\nsent'),
            0,
            True,
        )
    ]
    exported(tmp_path, [Trajectory("a", Task("t", "Greet.", "tools"), "demo", (Turn(steps[0]),), True)], form)
    text = (tmp_path / "export.jsonl").read_text()
    assert "bob" in text and "sent" in text


SHELL = "cat << EOF\n<< EOF\n&& make\n>> out\n>>> 1 + 1\n> quote\n(empty)\n& < x\n>>\n>x"


@every_form
def test_lines_that_look_like_those_of_a_state_are_exported_as_the_tool_returned_them(tmp_path: Path, form: str):
    (before,), _ = imported(tmp_path, [{"messages": talk(("cat", {}, SHELL), ("cat", {}, ""), ("cat", {}, "(empty)"), ("cat", {}, SHELL))}])
    exported(tmp_path, [before], form)
    record = json.loads((tmp_path / "export.jsonl").read_text())
    if form == "openai":
        results = [one["content"] for one in record["messages"] if one["role"] == "tool"]
    else:
        results = [one["content"] for step in record["steps"] if "observation" in step for one in step["observation"]["results"]]
    assert results == [SHELL, "", "", SHELL]
    (after,) = again(tmp_path, form)
    assert after.transitions == before.transitions


@every_form
def test_a_shortened_result_is_not_shortened_again(tmp_path: Path, form: str):
    (before,), _ = imported(tmp_path, [{"messages": talk(("cat", {}, "word " * 600), ("cat", {}, None))}])
    exported(tmp_path, [before], form)
    (after,) = again(tmp_path, form)
    assert after.transitions == before.transitions and "characters…" in after.transitions[0].next_state.text


def test_a_full_disk_says_that_a_file_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    imported(tmp_path, [{"messages": talk(("cat", {}, "x"))}])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for again_from in (
        lambda: export_episodes(tmp_path / "episodes.jsonl", tmp_path / "out.jsonl", "openai"),
        lambda: import_logs([tmp_path / "log.jsonl"], tmp_path / "out.jsonl"),
    ):
        with pytest.raises(DreamGymError, match=r"No space left on the disk for '.*out.jsonl'.* a run resumes, a file is written anew\."):
            again_from()
        assert not (tmp_path / "out.jsonl").exists()
