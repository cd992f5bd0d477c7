"""Rules that hold for any tools: schemas rule out calls, answers that were read before stay, deltas are exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tool_desk

from dreamgym import plugins
from dreamgym.envs import tools
from dreamgym.envs.base import in_split
from dreamgym.envs.logs import FEW_TASKS
from dreamgym.envs.tools.changes import tools_that_change
from dreamgym.envs.tools.conversation import Exchange, conversation_state
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import Tool, fault, inferred_tools, read_tools, tools_of
from dreamgym.errors import UsageError
from dreamgym.runs.episodes import write_trajectories
from dreamgym.tool_calls import ToolCall, respond
from dreamgym.types import Observation, Trajectory

TOOLS = tools_of(
    [
        {
            "type": "function",
            "function": {
                "name": "refuel",
                "description": "Adds data.",
                "parameters": {
                    "properties": {
                        "gb": {"type": "number"},
                        "plan": {"enum": ["S", "L"]},
                        "tags": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["gb"],
                    "additionalProperties": False,
                },
            },
        },
        {"name": "check", "inputSchema": {"properties": {}}, "annotations": {"readOnlyHint": True}},
    ]
)
RULES = ToolRules("desk", TOOLS)
START = conversation_state([])


@pytest.mark.parametrize(
    ("action", "allowed"),
    [
        ("refuel(gb=2.0)", True),
        ('refuel(gb=2, plan="S", tags=["a"])', True),
        ("check()", True),
        ('respond(content="hello")', True),
        ("refuel()", False),
        ('refuel(gb="2")', False),
        ("refuel(gb=true)", False),
        ('refuel(gb=2, plan="M")', False),
        ("refuel(gb=2, tags=[1])", False),
        ("refuel(gb=2, colour=1)", False),
        ("explode()", False),
        ('refuel("half an obj")', False),
        ("please refuel", False),
        ("", False),
    ],
)
def test_a_call_that_its_schema_excludes_is_inadmissible_and_of_others_nothing_is_known(action: str, allowed: bool):
    assert RULES.admissible(START, (), action) is (None if allowed else False)
    assert bool(RULES.fault(action)) is not allowed


def test_an_action_has_one_spelling():
    assert RULES.canonical(' refuel(plan="S",gb=2.0) ') == 'refuel(gb=2.0, plan="S")'
    assert RULES.canonical(" no call ") == "no call"


def test_a_delta_of_every_recorded_step_gives_its_next_state_back(tmp_path: Path):
    rules = ToolRules("desk", inferred_tools([]))
    for episode in tool_desk.episodes(40):
        for step in episode.transitions:
            text = rules.encode_delta(step)
            assert rules.apply_delta(step.state, step.action, text) == step.next_state
    assert RULES.apply_delta(START, "check()", " ") is None


def test_results_and_the_users_words_are_told_apart_for_a_policy_that_calls_tools():
    calls = (ToolCall("check", {}), respond("All well?"))
    state = conversation_state([Exchange(calls, ("2G", ""), user_text="It works.")])
    results, user = RULES.tool_results(state)
    assert results[0] == "2G" and len(results) == 2 and user == "It works."
    assert RULES.tool_results(START) == ((START.text,), "")
    assert [tool["name"] for tool in RULES.tools] == ["refuel", "check"]


def test_schemas_are_inferred_from_calls_and_which_tools_only_read_from_repeated_ones():
    calls = [ToolCall("get", {"id": "a", "deep": True}), *(ToolCall("get", {"id": "b"}) for _ in range(5)), respond("x")]
    (tool,) = inferred_tools(calls)
    assert tool.name == "get" and tool.parameters["required"] == ["id"]
    assert tool.parameters["properties"] == {"deep": {}, "id": {"type": ["string"]}}, "one call says nothing of what else `deep` could be"
    assert fault({"get": tool}, ToolCall("get", {"id": 3})) and not fault({"get": tool}, ToolCall("get", {"id": "z"}))
    assert not tools_that_change(tool_desk.episodes(5))


@pytest.mark.parametrize("n", [60, 19])
def test_which_tools_only_read_is_learned_from_episodes_that_no_run_holds_out(n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = list[Trajectory]()
    monkeypatch.setattr(tools, "tools_that_change", lambda episodes: asked.extend(episodes) or tools_that_change(episodes))
    write_trajectories(tmp_path / "logs.jsonl", tool_desk.episodes(n))
    suite = plugins.make("envs", "tools", files=[tmp_path / "logs.jsonl"])
    held = {suite.task_key(task) for split in ("dev", "test") for task in suite.tasks(split, n)}
    assert 0 < len(asked) < n and bool(held) is (n > FEW_TASKS)
    assert not held & {suite.task_key(episode.task) for episode in asked}
    assert held or not any(in_split(episode.id, "dev") for episode in asked), "few tasks are held out by their episodes"


def test_a_call_that_was_read_before_shows_nothing_new():
    state = conversation_state([Exchange((ToolCall("check", {}),), ("2G",))])
    step = next(iter(tool_desk.episode(0).transitions))
    read = step.__class__(START, "check()", state, 0.0, False)
    assert RULES.reveals_new(START, (), "check()") is True and RULES.reveals_new(state, (read,), "check()") is False
    again = step.__class__(state, "check()", Observation(state.text + "\n> check()\n4G"), 0.0, False)
    assert RULES.revisit_consistency((read, again)) == [False]


@pytest.mark.parametrize("text", ["{", "[1]", '[{"name": 3}]', '[{"name": "a", "parameters": 3}]', '[{"name": "a"}, {"name": "a"}]', '"x"'])
def test_a_file_that_holds_no_tools_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "tools.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="tool"):
        read_tools(path)


def test_a_suite_is_made_from_recorded_calls_alone_or_with_their_schemas(tmp_path: Path):
    write_trajectories(tmp_path / "episodes.jsonl", tool_desk.episodes(60))
    suite = plugins.make("envs", "tools", files=[tmp_path / "episodes.jsonl"])
    assert suite.name == "desk" and sorted(suite.rules.schemas) == ["done", "get_lamp", "switch"] and not suite.has_env
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "get_lamp", "parameters": {"required": ["room"], "properties": {}}}]))
    known = plugins.make("envs", "tools", files=[tmp_path / "episodes.jsonl"], tools=tmp_path / "tools.json")
    assert known.rules.admissible(START, (), "switch(on=true)") is False
    assert Tool("a").parameters == {}
