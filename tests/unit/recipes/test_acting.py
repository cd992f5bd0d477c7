"""A trained policy outside of its run: it reads chat messages as training laid them out, and answers with tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tool_desk
from toy import shrink
from typer.testing import CliRunner

from dreamgym import cli
from dreamgym.envs import tools
from dreamgym.envs.wrappers.placeholders import Namer
from dreamgym.errors import RunDirError, UsageError
from dreamgym.logs.export import export_episodes
from dreamgym.logs.importing import import_logs
from dreamgym.policy.agent import demonstrations
from dreamgym.recipes.acting import TrainedPolicy
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.runs.files import read_jsonl
from dreamgym.tool_calls import ToolCall
from dreamgym.types import Completion, Request

SMALL = ["model.size=test", "model.vocab_size=512", "rl.iterations=1", "rl.tasks_per_iter=4", "rl.group_size=4", "rl.train_tasks=20"]
SMALL += [f"{name}.{what}" for name in ("experience.training", "warm_start") for what in ("epochs=2", "bf16=false")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run over recorded tool calls, trained for seconds."""
    folder = tmp_path_factory.mktemp("acting")
    write_trajectories(folder / "episodes.jsonl", tool_desk.episodes(60))
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        for arguments in (
            ["init", str(folder / "train.toml"), "--logs", str(folder / "episodes.jsonl")],
            ["train", str(folder / "run"), *SMALL, "--config", str(folder / "train.toml")],
        ):
            done = CliRunner().invoke(cli.app, arguments)
            assert done.exit_code == 0, done.output
        yield folder / "run"


@pytest.fixture
def messages(tmp_path: Path) -> list[dict[str, Any]]:
    """A recorded episode as chat messages: the task, a call with its result, and so on."""
    write_trajectories(tmp_path / "one.jsonl", tool_desk.episodes(1))
    export_episodes(tmp_path / "one.jsonl", tmp_path / "messages.jsonl", "openai")
    return next(iter(read_jsonl(tmp_path / "messages.jsonl")))["messages"]


def test_a_conversation_is_read_as_its_episode_was_in_training(run: Path, messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    policy, asked = TrainedPolicy(run), list[Request]()
    submit = policy.agent.llm.submit
    monkeypatch.setattr(policy.agent.llm, "submit", lambda requests: asked.extend(requests) or submit(requests))
    (episode,) = tool_desk.episodes(1)
    ((ids, weights),) = demonstrations(episode, policy.agent.template, policy.agent.rules)
    replies = [i for i in range(1, len(ids)) if weights[i] and not weights[i - 1]]
    ends = [i for i, one in enumerate(messages) if one["role"] == "assistant"]
    assert len(ends) == len(replies) > 1
    for end in ends:
        try:
            calls = policy.act(messages[:end])
        except UsageError as error:  # two epochs teach no grammar
            assert "is no tool call" in str(error)
        else:
            assert all(isinstance(call, ToolCall) for call in calls)
    assert [list(request.prompt) for request in asked] == [list(ids[:begin]) for begin in replies]


def test_placeholders_in_its_calls_are_the_secrets_again(run: Path, monkeypatch: pytest.MonkeyPatch):
    policy, seen = TrainedPolicy(run), list[str]()
    written = 'send(to="redacted-e-mail-1")'

    def resume(task: Any, steps: Any, *, name: str) -> Any:
        seen.append(task.instruction)
        return type(policy.agent).resume(policy.agent, task, steps, name=name)

    monkeypatch.setattr(policy.agent, "resume", resume)
    monkeypatch.setattr(policy.agent, "poll", lambda: [(0, Completion((), (), (), written, "stop", 0))])
    assert policy.act([{"role": "user", "content": "Write to ann@example.com."}]) == [ToolCall("send", {"to": "ann@example.com"})]
    assert seen == ["Write to redacted-e-mail-1."]


def test_a_policy_that_was_trained_with_placeholders_for_names_reads_and_writes_them(run: Path, monkeypatch: pytest.MonkeyPatch):
    policy, seen = TrainedPolicy(run), list[str]()
    policy.namer = Namer(tools.make(files=[str(run.parent / "episodes.jsonl")]))
    written = iter(['switch(on=true, room="NAME2")', 'switch(on=true, room="NAME9")'])

    def submit(talks: Any, states: Any, **_: Any) -> list[int]:
        seen.extend((talks[0].instruction, states[0].text))
        return [0]

    monkeypatch.setattr(policy.agent, "submit", submit)
    monkeypatch.setattr(policy.agent, "poll", lambda: [(0, Completion((), (), (), next(written), "stop", 0))])
    call = {"id": "1", "type": "function", "function": {"name": "get_lamp", "arguments": '{"room": "A-1234"}'}}
    talk: list[dict[str, Any]] = [{"role": "user", "content": "There must be light in the A-1234."}]
    talk += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "see B-77"}]
    assert policy.act(talk) == [ToolCall("switch", {"on": True, "room": "B-77"})]
    assert "NAME1" in seen[0] and "NAME2" in seen[1] and not any(code in text for code in ("A-1234", "B-77") for text in seen)
    with pytest.raises(UsageError, match="NAME9 stands for nothing"):
        policy.act(talk)


def test_a_policy_that_was_trained_without_placeholders_for_names_reads_identifiers_as_they_are(run: Path, monkeypatch: pytest.MonkeyPatch):
    policy, seen = TrainedPolicy(run), list[str]()

    def submit(talks: Any, states: Any, **_: Any) -> list[int]:
        seen.extend((talks[0].instruction, *(shown for shown, _ in talks[0].turns), states[0].text))
        return [0]

    monkeypatch.setattr(policy.agent, "submit", submit)
    monkeypatch.setattr(policy.agent, "poll", lambda: [(0, Completion((), (), (), 'switch(on=true, room="T-227")', "stop", 0))])
    talk: list[dict[str, Any]] = [{"role": "user", "content": "There must be light in the A-1234."}]
    for i, shown in enumerate(("see T-227", "see HAT136")):
        call = {"id": str(i), "type": "function", "function": {"name": "get_lamp", "arguments": '{"room": "A-1234"}'}}
        talk += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": str(i), "content": shown}]
    assert policy.namer is None and policy.act(talk) == [ToolCall("switch", {"on": True, "room": "T-227"})]
    assert all(code in "".join(seen) for code in ("A-1234", "T-227", "HAT136")) and "NAME" not in "".join(seen)


@pytest.mark.parametrize("redact", [True, False])
@pytest.mark.parametrize("written", ["redacted-e-mail-3", "redacted-e-mail-"])
def test_a_call_with_a_placeholder_that_stands_for_nothing_is_an_error_and_no_call(
    run: Path, monkeypatch: pytest.MonkeyPatch, redact: bool, written: str
):
    policy = TrainedPolicy(run, redact=redact)
    monkeypatch.setattr(policy.agent, "poll", lambda: [(0, Completion((), (), (), f'send(to="{written}")', "stop", 0))])
    with pytest.raises(
        UsageError, match=f"call of send cannot be made: '{written}' stands for nothing in this conversation. Do not make it"
    ):
        policy.act([{"role": "user", "content": "Write to ann@example.com."}])
    asked = [{"role": "user", "content": f"Write to {written}."}]
    assert policy.act(asked) == [ToolCall("send", {"to": written})], "a log that is redacted already"


@pytest.mark.parametrize("system", [True, False])
def test_a_conversation_has_the_placeholders_of_its_import_whether_or_not_its_system_message_is_given(
    run: Path, tmp_path: Path, messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, system: bool
):
    opening = {"role": "system", "content": "Ask admin@example.com."}
    messages[0]["content"] += " Mail ann@example.com."
    messages[1]["content"] = "I am bot@example.com."
    messages[2]["content"] = "bob@example.com"
    (tmp_path / "log.jsonl").write_text(json.dumps({"id": "one", "messages": [opening, *messages]}))
    import_logs([tmp_path / "log.jsonl"], tmp_path / "again.jsonl", system=system)
    (episode,) = read_trajectories(tmp_path / "again.jsonl")
    policy, seen = TrainedPolicy(run, system=system), list[Any]()

    def resume(task: Any, steps: Any, *, name: str) -> Any:
        seen.append((task.instruction, [step.next_state.text for step in steps]))
        return type(policy.agent).resume(policy.agent, task, steps, name=name)

    monkeypatch.setattr(policy.agent, "resume", resume)
    monkeypatch.setattr(policy.agent, "poll", lambda: [(0, Completion((), (), (), 'send(to="redacted-e-mail-2")', "stop", 0))])
    calls = policy.act([opening, *messages[:3]])
    assert seen == [(episode.task.instruction, [episode.transitions[0].next_state.text])]
    assert calls == [ToolCall("send", {"to": "ann@example.com" if system else "bob@example.com"})]
    if not system:
        assert policy.act(messages[:3]) == calls and seen[0] == seen[1]


@pytest.mark.parametrize(
    ("cut", "says"),
    [(slice(0, 0), "hold no instruction"), (slice(0, 2), "has no result")],
)
def test_a_conversation_that_cannot_go_on_is_refused(run: Path, messages: list[dict[str, Any]], cut: slice, says: str):
    with pytest.raises(UsageError, match=says):
        TrainedPolicy(run).act(messages[cut])


TASK = {"role": "user", "content": "Cancel order 17."}


def call(name: str, *, id: str = "call_0") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}]}


@pytest.mark.parametrize("wrong", ["Cancel order 17.", {"content": "Cancel order 17."}, {}])
def test_what_is_no_chat_message_is_named(run: Path, wrong: Any):
    with pytest.raises(UsageError, match=f"{re.escape(repr(wrong))} is no chat message"):
        TrainedPolicy(run).act([wrong])


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([TASK, {"role": "Assistant", "content": "Which one?"}, TASK], "messages of an unknown role"),
        ([TASK, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}], "blocks of another format"),
        ([TASK, call("find"), {"role": "tool", "tool_call_id": "other", "content": "3"}], "The call of find has no result"),
        ([TASK, {"role": "tool", "tool_call_id": "other", "content": "3"}, call("find")], "The call of find has no result"),
        ([TASK, call("find"), {"role": "tool", "tool_call_id": "call_0", "content": "3"}, call("cancel")], "The call of cancel has no"),
        ([TASK, call(""), TASK], "calls without a usable tool name"),
    ],
)
def test_a_conversation_of_which_the_policy_would_not_see_all_is_refused(run: Path, messages: list[dict[str, Any]], says: str):
    with pytest.raises(UsageError, match=says):
        TrainedPolicy(run).act(messages)


def test_a_policy_that_a_run_does_not_have_is_named(run: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="has no policy 'draem'. Did you mean 'dream'"):
        TrainedPolicy(run, "draem")
    with pytest.raises(RunDirError):
        TrainedPolicy(tmp_path)
