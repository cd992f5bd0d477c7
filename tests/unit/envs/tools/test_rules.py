"""What the schemas of tools rule out, and which answers follow from earlier ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest

from dreamgym import plugins
from dreamgym.envs import tools
from dreamgym.envs.connect.tools import ToolBox, ToolConnection
from dreamgym.envs.consistency import RepeatRule
from dreamgym.envs.induction import ArgumentRule, Rules
from dreamgym.envs.tools.changes import says_reading, tools_that_change
from dreamgym.envs.tools.conversation import Exchange, conversation_state, latest_turn
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import Tool, fault, inferred_tools, read_tools, tools_of
from dreamgym.envs.wrappers.induced_rules import InducedRules
from dreamgym.errors import UsageError
from dreamgym.experience.augmentation import insert_invalid_actions
from dreamgym.experience.guard import Guard
from dreamgym.runs.episodes import write_trajectories
from dreamgym.tool_calls import ToolCall, action_of, calls_of, respond
from dreamgym.types import Observation, Query, Task, Trajectory, Transition, Turn
from tests.support import tool_desk

PAY = Tool(
    "pay",
    parameters={
        "properties": {
            "amount": {"type": "number"},
            "n": {"type": "integer"},
            "by": {"anyOf": [{"$ref": "#/$defs/Way"}, {"type": "null"}]},
            "items": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["amount"],
        "additionalProperties": False,
        "$defs": {"Way": {"type": "string", "enum": ["card", "cash"]}},
    },
)
TOOLS = [PAY, Tool("check", reads_only=True), Tool("toggle")]
RULES = ToolRules("desk", TOOLS)
START = conversation_state([])


def steps(*exchanges: Exchange) -> list[Transition]:
    states = [conversation_state(exchanges[:i]) for i in range(len(exchanges) + 1)]
    return [
        Transition(before, action_of(one.calls), after, 0.0, False)
        for before, one, after in zip(states, exchanges, states[1:], strict=False)
    ]


def one(name: str, result: str) -> Exchange:
    return Exchange((ToolCall(name, {}),), (result,))


def episode(i: int, *exchanges: Exchange) -> Trajectory:
    transitions = steps(*exchanges)
    transitions[-1] = Transition(transitions[-1].state, transitions[-1].action, transitions[-1].next_state, 1.0, True)
    return Trajectory(
        id=f"e{i}",
        task=Task(f"t{i}", f"Fix line L{i}.", "desk"),
        source="demo",
        turns=tuple(map(Turn, transitions)),
        success=True,
        truncated=False,
        behaviour="log",
    )


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("pay(amount=2)", ""),
        ('pay(amount=2.5, by="card", n=3.0, items=["a"])', ""),
        ("pay(amount=1, by=null)", ""),
        ('respond(content="Done.")', ""),
        ("pay()", "amount is missing"),
        ('pay(amount="2")', "amount: expected number"),
        ("pay(amount=true)", "amount: expected number"),
        ("pay(amount=1, n=1.5)", "n: expected integer"),
        ('pay(amount=1, by="cheque")', "by: of another form"),
        ("pay(amount=1, items=[1])", "items, item 0: expected string"),
        ("pay(amount=1, tip=2)", "tip is unknown"),
        ('pay("half a")', "no JSON object"),
        ("steal()", "no tool steal"),
        ("respond(text=1)", "content is missing"),
        ("pay()\nsteal()", "amount is missing"),
        ("just words", "no tool call"),
    ],
)
def test_calls_that_the_schemas_exclude_are_answered_by_rule_and_no_others(action: str, why: str):
    assert why in RULES.fault(action) and bool(why) == bool(RULES.fault(action))
    assert RULES.admissible(START, (), action) is (False if why else None)


def test_other_calls_of_a_turn_are_made_where_one_comes_back_as_an_error():
    action = "check()\nsteal()"
    assert RULES.admissible(START, (), action) is None and RULES.fault(action)
    assert ToolRules("desk", TOOLS, refusals="unchanged").admissible(START, (), action) is False


def test_an_action_has_one_spelling():
    assert RULES.canonical("pay(n=1,  amount=2)\n\ncheck( )".replace("( )", "()")) == "pay(amount=2, n=1)\ncheck()"
    assert RULES.canonical(" no call ") == "no call"


def test_the_experience_model_writes_what_the_calls_returned_and_the_state_follows():
    two = Exchange((ToolCall("check", {}), ToolCall("toggle", {})), ("ok", "> off\nnow"), "thanks")
    for step in steps(one("check", "on"), two, Exchange((respond("Bye."),), ("",))):
        text = RULES.encode_delta(step)
        assert "no calls yet" not in text and len(text) < len(step.next_state.text)
        assert RULES.apply_delta(step.state, step.action, text) == step.next_state
    assert RULES.apply_delta(START, "check()\ntoggle()", "ok") is None  # the second call's result is missing
    assert RULES.apply_delta(START, "check()", "  ") is None


@pytest.mark.parametrize("action", ["just words", 'pay("half a")', "steal()", "check()\nsteal()", "pay(amount=true)"])
def test_what_is_refused_comes_back_as_an_error_or_changes_nothing_where_the_environment_is_so(action: str):
    state = conversation_state([one("check", "on")])
    refused = RULES.refusal(state, action)
    step = Transition(state, action, refused, 0.0, False)
    assert refused.text.startswith(state.text + "\n> ") and RULES.refused(step) and RULES.fault(action) in latest_turn(refused)
    assert RULES.apply_delta(state, action, RULES.encode_delta(step)) == refused and len(RULES.encode_delta(step)) < len(refused.text)
    silent = ToolRules("desk", TOOLS, refusals="unchanged")
    assert silent.refusal(state, action) == state and silent.apply_delta(state, "no call", "ok") is None


@pytest.mark.parametrize("action", ["just words", 'pay("half a")'])
def test_a_connected_environment_shows_the_same_error(action: str):
    raw, *_ = ToolConnection(Mock(spec=ToolBox), ()).step(action)
    assert RULES.abstract(raw) == RULES.refusal(START, action)


def test_inserted_mistakes_are_shown_by_all_later_states():
    episode = next(e for e in map(tool_desk.episode, range(20)) if len(e.turns) == 3)
    rules = ToolRules("desk", tool_desk.TOOLS)
    [copy] = insert_invalid_actions([episode], rules, 1.0, seed=0)
    steps = copy.transitions
    assert len(steps) == 6 and [step.action for step in steps[1::2]] == [step.action for step in episode.transitions]
    assert all(a.next_state == b.state for a, b in pairwise(steps)) and all(rules.refused(step) for step in steps[::2])
    assert steps[-1].next_state.text.count("Error: ") == 3 and steps[-1].reward == episode.transitions[-1].reward


def test_the_policy_reads_the_latest_results_or_the_whole_state():
    state = conversation_state([one("check", "on"), one("toggle", "off")])
    assert RULES.view(state).text == "off" and ToolRules("desk", TOOLS, shown="whole").view(state).text == state.text
    assert RULES.view(START).text == START.text


def test_what_was_read_and_not_changed_since_is_not_new():
    history = steps(one("check", "on"))
    assert RULES.reveals_new(START, (), "check()") is True and RULES.reveals_new(START, history, "check()") is False
    history = steps(one("check", "on"), one("toggle", "off"))
    assert RULES.reveals_new(START, history, "check()") is None and RULES.reveals_new(START, history, "pay(amount=1)") is True
    assert ToolRules("desk", [PAY]).reveals_new(START, (), "pay(amount=1)") is None  # nobody knows what reads


def test_a_repeated_read_is_consistent_where_nothing_changed_in_between():
    same, other = steps(one("check", "on"), one("check", "on")), steps(one("check", "on"), one("check", "off"))
    changed = steps(one("check", "on"), one("toggle", "off"), one("check", "off"))
    assert RULES.revisit_consistency(same) == [True] and RULES.revisit_consistency(other) == [False]
    assert RULES.revisit_consistency(changed) == []


def test_induced_rules_judge_returns_by_the_schemas_too_and_each_return_once():
    twice = steps(one("check", "on"), one("check", "off"), one("toggle", "off"), one("check", "on"))
    assert RULES.revisit_consistency(twice) == [False]
    assert InducedRules(RULES, Rules()).revisit_consistency(twice) == [False]
    shows = RepeatRule("check", "anywhere", (), 40, 0)
    assert InducedRules(RULES, Rules(repeats=(shows,))).revisit_consistency(twice) == [False, False], "the last one by the logs alone"


def test_the_tool_that_changes_something_is_told_from_those_that_stand_beside_it():
    logs = [
        episode(i, one("check", "on"), one("look", "x"), one("check", "on"), one("toggle", "t"), one("look", "x"), one("check", "off"))
        for i in range(80)
    ]
    assert tools_that_change(logs) == {"toggle"}


def test_a_name_says_that_a_tool_reads_unless_the_logs_show_that_it_changes_something(tmp_path: Path):
    def reading(logs: list[Trajectory]) -> set[str]:
        write_trajectories(tmp_path / "logs.jsonl", logs)
        suite = plugins.make("envs", "tools", files=[tmp_path / "logs.jsonl"])
        return {name for name, tool in suite.rules.schemas.items() if tool.reads_only}

    closed = [episode(i, one("look", "x"), one("get_ticket", "1"), one("look", "x"), one("close_ticket", "closed")) for i in range(80)]
    assert reading(closed) == {"look", "get_ticket"}, "nothing was asked after the ticket was closed"
    drawn = [episode(i, one("look", "1 free"), one("get_ticket", "1"), one("look", "0 free"), one("look", "0 free")) for i in range(80)]
    assert reading(drawn) == {"look"}


@pytest.mark.parametrize("name", ["get_order", "mcp__shop__get_order", "shop.orders/list", "searchOrders", "GET", "isOpen", "look-up"])
def test_names_that_begin_with_a_word_for_reading(name: str):
    assert says_reading(name)


@pytest.mark.parametrize("name", ["cancel_order", "getaway", "reset", "order_get", "", "_", "42", "toggle_roaming", "checkout"])
def test_names_that_do_not_begin_with_a_word_for_reading(name: str):
    assert not says_reading(name)


def test_two_episodes_of_one_task_show_what_a_tool_changes_that_no_episode_asks_about_twice():
    def trial(i: int, *exchanges: Exchange) -> Trajectory:
        found = episode(i, *exchanges)
        return replace(found, task=replace(found.task, id=f"task {i // 2}"))

    logs = [trial(i, one("look", "x"), *([one("toggle", "t")] * (i % 2)), one("check", "off" if i % 2 else "on")) for i in range(80)]
    without = [replace(log, task=replace(log.task, id=log.id)) for log in logs]
    assert tools_that_change(logs) == {"toggle"} and not tools_that_change(without)


def test_answers_that_differ_by_themselves_are_laid_to_no_tool():
    logs = [episode(i, one("check", "on"), one("look", f"{i}"), one("look", f"{-i}"), one("check", "on")) for i in range(200)]
    assert "check" not in tools_that_change(logs)


def test_tools_are_read_in_every_usual_form(tmp_path: Path):
    forms = [
        {"type": "function", "function": {"name": "a", "parameters": {"required": ["x"]}}},
        {"type": "function", "function": None, "name": "b", "input_schema": {"required": ["y"]}},
        {"name": "c", "inputSchema": {}, "annotations": {"readOnlyHint": True}},
    ]
    (tmp_path / "tools.json").write_text(json.dumps(forms))
    found = read_tools(tmp_path / "tools.json")
    assert [tool.name for tool in found] == ["a", "b", "c"] and [tool.reads_only for tool in found] == [False, False, True]
    assert found[0].parameters == {"required": ["x"]} and found[1].parameters == {"required": ["y"]}


@pytest.mark.parametrize("text", ["{", "3", '[{"no": "name"}]', '[{"name": "a", "parameters": []}]', '[{"name": "a"}, {"name": "a"}]'])
def test_a_file_that_holds_no_tools_is_refused(tmp_path: Path, text: str):
    (tmp_path / "tools.json").write_text(text)
    with pytest.raises(UsageError, match=r"tools\.json"):
        read_tools(tmp_path / "tools.json")


def test_inferred_schemas_accept_every_call_they_were_inferred_from():
    calls: Sequence[ToolCall] = [ToolCall("f", {"id": "a", "n": i, **({"tags": ["x"]} if i % 2 else {})}) for i in range(6)]
    found = {tool.name: tool for tool in inferred_tools([*calls, respond("hi")])}
    assert set(found) == {"f"} and not any(fault(found, call) for call in calls)
    assert "id is missing" in fault(found, ToolCall("f", {"n": 1})) and "expected" in fault(found, ToolCall("f", {"id": 1, "n": 1}))
    assert not fault({tool.name: tool for tool in inferred_tools(calls[:2])}, ToolCall("f", {}))  # two calls require nothing


def test_an_argument_that_was_only_null_may_be_anything_and_a_tool_called_with_text_alone_is_known():
    found = {tool.name: tool for tool in inferred_tools([ToolCall("f", {"id": None}), ToolCall("g", "half a")])}
    assert found["f"].parameters["properties"] == {"id": {}} and not fault(found, ToolCall("f", {"id": "a"}))
    assert not fault(found, ToolCall("g", {"id": "a"}))


def test_a_property_whose_schema_is_true_may_be_anything():
    rules = ToolRules("desk", [Tool("f", parameters={"properties": {"any": True, "n": {"type": "number"}}, "required": ["n"]})])
    assert '{"any?": "any", "n": "number"}' in rules.about and not rules.fault('f(any="x", n=1)')


def test_a_suite_is_made_from_logs_alone(tmp_path: Path):
    write_trajectories(tmp_path / "e.jsonl", [episode(i, one("check", "on"), one("toggle", "off")) for i in range(30)])
    suite = tools.make(files=(tmp_path / "e.jsonl",))
    assert set(suite.rules.schemas) == {"check", "toggle"} and suite.max_steps == 2 and suite.env() is None
    assert "check" in suite.rules.about and suite.rules.abstract({"exchanges": [one("check", "on")]}) == Observation("> check()\non")
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "check"}]))
    assert set(tools.make(files=(tmp_path / "e.jsonl",), tools=tmp_path / "tools.json").rules.schemas) == {"check"}


def test_logs_without_a_call_belong_to_the_suite_of_plain_text(tmp_path: Path):
    plain = episode(0, one("check", "on"))
    turn = Turn(Transition(Observation("a"), "go left", Observation("b"), 1.0, True))
    write_trajectories(tmp_path / "e.jsonl", [Trajectory(plain.id, plain.task, "demo", (turn,), True, False, "log")])
    with pytest.raises(UsageError, match="suite 'logs'"):
        tools.make(files=(tmp_path / "e.jsonl",))


def test_tools_of_one_name_are_refused():
    with pytest.raises(UsageError, match="several tools"):
        tools_of([{"name": "a"}, {"name": "a"}])
    assert calls_of("check()") == [ToolCall("check", {})]


def test_what_the_agent_wrote_itself_names_nothing_that_it_knows_and_a_refusal_answers_nothing():
    rules = ToolRules("desk", [Tool("find", parameters={"properties": {"id": {"type": "string"}}}, reads_only=True)])
    repeats = (RepeatRule("find", "anywhere", (), 100, 0),)
    for source in ("state", "instruction"):
        known = InducedRules(rules, Rules((ArgumentRule("find", "id", source, 100, 0, True),), kinds=("find",), repeats=repeats))
        guard, state, past, action = Guard(known), START, list[Transition](), 'find(id="W9")'
        for mistake in (action, "find id W9", action, "W9()", action):
            answer = guard.before(query := Query(Task("t", "Find W1.", "desk"), tuple(past), state, mistake))
            assert answer is not None and "Error: " in latest_turn(answer.next_state), "neither the call nor the error makes W9 known"
            past.append(query.transition(answer))
            state = answer.next_state
        assert known.reveals_new(state, past, action) is True
        state = conversation_state([Exchange((ToolCall("find", {"id": "W1"}),), ("see W9",))])
        assert guard.before(Query(Task("t", "Find W1.", "desk"), (), state, action)) is None
        answered = Transition(state, action, conversation_state([one("find", "W9 is red")]), 0.0, False)
        assert known.contradictions(past, answered) == []
