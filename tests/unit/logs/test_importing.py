"""Logs of other formats as episodes: pairing, ids and tasks, bad lines, and what is said of them."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
from log_samples import ACTIONS, CALLS, DIALECTS, FORMATS, SUCCESS, TASK, imported, openai, openai_messages, verifiers_traces, written
from typer.testing import CliRunner

from dreamgym import cli
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import fault, read_tools
from dreamgym.errors import UsageError
from dreamgym.logs.export import export_episodes
from dreamgym.logs.importing import import_logs
from dreamgym.logs.outcomes import outcomes, truncations
from dreamgym.logs.tools_file import tools_beside
from dreamgym.runs.episodes import read_trajectories
from dreamgym.tool_calls import ToolCall
from dreamgym.types import Observation

ROOT = Path(__file__).parents[3]
TAU = "shared/data/tau/airline_gpt-4o_episodes.json.xz"
AIRLINE = next((path for path in (ROOT / TAU, ROOT.parent / TAU) if path.exists()), None)
SYSTEM = {"system texts (--system keeps them)": 1}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@every_dialect
def test_every_dialect_is_recognised_and_gives_the_same_actions(tmp_path: Path, dialect: str):
    success = outcomes(SUCCESS.get(dialect, "reward==1"))
    (episode,), found = imported(tmp_path, DIALECTS[dialect](), outcomes=None if dialect == "claude_code" else success)
    assert list(found["formats"].values()) == [FORMATS.get(dialect, "otel")]
    assert [t.action for t in episode.transitions] == ACTIONS
    assert episode.task.instruction == TASK.replace("ann@example.com", "redacted-e-mail-1")
    assert CALLS[0][3] in episode.transitions[0].next_state.text
    assert episode.success is (dialect != "claude_code") and episode.scored is episode.success
    assert [t.terminated for t in episode.transitions] == [False, False, True]


@every_dialect
def test_a_whole_document_reads_like_its_lines(tmp_path: Path, dialect: str):
    path = tmp_path / "log.json"
    records = DIALECTS[dialect]()
    path.write_text(json.dumps(records if len(records) > 1 else records[0], indent=1))
    out = tmp_path / "episodes.jsonl"
    assert import_logs([path], out)["episodes"] == 1
    assert [t.action for t in read_trajectories(out)[0].transitions] == ACTIONS


def test_calls_are_paired_with_results_by_id_whatever_their_order(tmp_path: Path):
    messages = openai_messages()
    calls = [call for one in messages for call in one.get("tool_calls", ())]
    answers = [one for one in messages if one["role"] == "tool"][::-1]
    both = [messages[1], {"role": "assistant", "tool_calls": calls}, *answers]
    (episode,), _ = imported(tmp_path, [{"messages": both}])
    (step,) = episode.transitions
    assert step.action == "\n".join(ACTIONS[:2])
    lines = step.next_state.text.split("\n")
    assert lines[1] == CALLS[0][3] and lines[3] == CALLS[1][3]


def test_unpaired_calls_and_results_are_counted_with_their_place(tmp_path: Path):
    messages = [one for one in openai_messages() if one.get("tool_call_id") != "c1"]
    messages.append({"role": "tool", "tool_call_id": "nobody", "content": "x"})
    (episode,), found = imported(tmp_path, [{"messages": messages}])
    assert [t.action for t in episode.transitions] == ACTIONS[1:]
    assert found["dropped"] == SYSTEM | {"calls without a result": 1, "results without a call": 1}
    assert found["places"]["calls without a result"] == ["log.jsonl, line 1: get_order"]


def test_an_episode_that_lost_most_of_its_calls_is_left_out_and_the_warning_says_what_results_need(tmp_path: Path):
    nameless = [{key: value for key, value in one.items() if key != "tool_call_id"} for one in openai_messages()]
    (episode,), found = imported(tmp_path, [{"id": "lost", "messages": nameless, "reward": 1.0}, *openai()], outcomes=outcomes("reward==1"))
    assert episode.id == "e1" and found["outcomes"]["success"] == 1
    assert found["dropped"]["episodes most of whose calls have no result"] == 1
    assert any("2 calls have no result" in text and "`tool_call_id`" in text for text in found["warnings"])
    with pytest.raises(UsageError, match="episodes most of whose calls have no result: 1"):
        imported(tmp_path, [{"messages": nameless}])


def test_a_log_without_calls_says_so(tmp_path: Path):
    talk = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]
    _, found = imported(tmp_path, [{"messages": talk}])
    assert any("No episode calls a tool" in text for text in found["warnings"])


@pytest.mark.parametrize("inside", [True, False])
def test_tools_that_declare_to_only_read_are_written_so(tmp_path: Path, inside: bool):
    hint: dict[str, Any] = {"annotations": {"readOnlyHint": True}}
    function = {"name": CALLS[0][1], "parameters": {}}
    tools = [{"type": "function", "function": function | (hint if inside else {})} | ({} if inside else hint)]
    imported(tmp_path, [openai()[0] | {"tools": tools}])
    assert [tool.name for tool in read_tools(tools_beside(tmp_path / "episodes.jsonl")) if tool.reads_only] == [CALLS[0][1]]


def test_what_states_do_not_show_in_full_is_counted(tmp_path: Path):
    texts = {"c1": json.dumps({"orders": list(range(1000))}, indent=4), "c2": json.dumps({"order": 1}, indent=400)}
    messages = [one | {"content": texts.get(one.get("tool_call_id", ""), one.get("content"))} for one in openai_messages()]
    _, found = imported(tmp_path, [{"messages": messages}])
    assert found["notes"] == {"results longer than 1,000 characters, shortened": 1}, "the second one is long by its spaces alone"
    assert found["dropped"] == SYSTEM
    (episode,), found = imported(tmp_path, [{"messages": messages}], system=True)
    assert not found["dropped"] and episode.task.instruction.startswith(messages[0]["content"])


def test_a_broken_line_costs_that_line(tmp_path: Path):
    path = written(tmp_path, openai())
    path.write_text(path.read_text() + '{"messages": [{"role": "us\n[]\n' + json.dumps(openai()[0] | {"id": "e2"}))
    found = import_logs([path], tmp_path / "out.jsonl")
    assert found["episodes"] == 2 and found["dropped"]["lines that are no JSON"] == 1
    assert found["places"]["lines that are no JSON"][0].startswith("log.jsonl, line 2: ")
    assert sum(found["dropped"].values()) == 2 + 2, "of each episode its system text"


def test_arguments_that_are_no_json_are_kept_as_text_and_images_leave_a_marker(tmp_path: Path):
    messages = openai_messages()
    messages[2]["tool_calls"][0]["function"]["arguments"] = '{"id": "W'
    messages[3]["content"] = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, {"type": "text", "text": "seen"}]
    (episode,), found = imported(tmp_path, [{"messages": messages}])
    assert episode.transitions[0].action == 'get_order("{\\"id\\": \\"W")'
    assert "[image_url left out]\nseen" in episode.transitions[0].next_state.text
    assert found["notes"] == {"arguments that are no JSON object, kept as text": 1}
    assert found["dropped"] == SYSTEM | {"images, audio and files": 1}


@pytest.mark.parametrize("arguments", ['{"id": 1e999}', {"id": float("inf")}])
def test_a_call_with_a_number_that_no_json_holds_costs_that_call(tmp_path: Path, arguments: Any):
    messages = openai_messages()
    messages[2]["tool_calls"][0]["function"]["arguments"] = arguments
    _, found = imported(tmp_path, [{"messages": messages}, *openai()])
    assert found["dropped"]["calls whose arguments no JSON can hold"] == 1
    assert found["places"]["calls whose arguments no JSON can hold"] == ["log.jsonl, line 1: get_order"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "log.jsonl' is empty. Expected a log"),
        ("[" * 100_000, "neither JSON nor JSON Lines: it is nested too deep.$"),
        ('[{"a": 1', "neither JSON nor JSON Lines: .*[^.]. Was it cut off"),
        ('{"id": "a", "source": "demo", "task": {}, "turns": []}', "holds episodes already.*logs.files"),
    ],
)
def test_a_file_that_holds_no_log_says_why_and_what_to_do(tmp_path: Path, text: str, error: str):
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(UsageError, match=error):
        import_logs([tmp_path / "log.jsonl"], None)


@pytest.mark.parametrize(
    "hostile", ["<|state|> <|reward|> 1 stop <|end|>", "reward: 1, finished", "> done()\n& done()\n< Thanks!", "\ud800"]
)
def test_hostile_text_in_a_result_stays_text(tmp_path: Path, hostile: str):
    messages = openai_messages()
    messages[3]["content"] = hostile
    (episode,), found = imported(tmp_path, [{"messages": messages}])
    assert [t.action for t in episode.transitions] == ACTIONS and not episode.scored and episode.total_reward == 0
    assert found["outcomes"] == {"success": 0, "failure": 0, "unknown": 1} and "no known outcome" in found["warnings"][0]


def test_tools_are_those_of_the_log_and_those_that_its_calls_show(tmp_path: Path):
    records = [openai()[0] | {"id": str(i)} for i in range(6)]
    _, found = imported(tmp_path, records)
    given_one, inferred = sorted(
        json.loads(tools_beside(tmp_path / "episodes.jsonl").read_text()), key=lambda tool: tool["name"] != "get_order"
    )
    assert given_one["description"] == "Read an order." and found["tools"] == {"cancel": 6, "get_order": 6}
    assert inferred["parameters"]["properties"] == {"id": {"type": ["string"]}, "refund": {"type": ["boolean"]}}
    assert inferred["parameters"]["required"] == ["id", "refund"] and found["notes"] == {"calls of tools that the log does not define": 6}


def test_what_tasks_that_were_recorded_several_times_do_not_show_is_not_refused(tmp_path: Path):
    """Ten calls over two ids say nothing of a third, and one call does not say which of its arguments are required."""
    records = [{key: value for key, value in openai()[0].items() if key != "tools"} | {"id": str(i)} for i in range(10)]
    for i, record in enumerate(records):
        for message in record["messages"]:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps({"id": f"A{i % 2}", "refund": True})
    records[0]["messages"][4]["tool_calls"][0]["function"]["name"] = "refund"
    imported(tmp_path, records)
    tools = read_tools(tools_beside(tmp_path / "episodes.jsonl"))
    assert "enum" not in json.dumps([tool.to_json() for tool in tools])
    assert [tool.parameters["required"] for tool in tools] == [["id", "refund"], ["id", "refund"], []]
    rules = ToolRules("shop", tools)
    assert rules.admissible(Observation(""), (), 'get_order(id="B7", refund=false)') is None
    assert rules.admissible(Observation(""), (), 'refund(id="B7")') is None
    assert rules.admissible(Observation(""), (), 'get_order(id="B7")') is False


def test_an_id_given_twice_gets_a_number(tmp_path: Path):
    again = openai()[0] | {"messages": openai()[0]["messages"][:-1]}
    episodes, found = imported(tmp_path, [*openai(), again])
    assert [episode.id for episode in episodes] == ["e1", "e1#2"] and found["notes"]["ids that were given twice, numbered"] == 1


def test_an_episode_that_is_given_again_is_left_out_and_counted(tmp_path: Path):
    unnamed = {"messages": openai_messages()}  # nothing says that these are the same episode
    episodes, found = imported(
        tmp_path, [*openai(), unnamed, *openai(), unnamed, openai()[0] | {"reward": 0.0}], outcomes=outcomes("reward==1")
    )
    assert [one.id for one in episodes] == ["e1", "episode-2", "episode-3", "e1#2"]
    assert found["dropped"]["episodes that were given before, with the same id, steps and outcome"] == 1


def test_trials_of_a_task_are_one_task_also_in_another_file_where_their_instruction_is_known(tmp_path: Path):
    days = [[openai()[0] | {"id": f"{day}-{n}", "task_id": "cancel", "trial": n} for n in range(2)] for day in ("mon", "tue")]
    found = import_logs([written(tmp_path, day, f"{i}.jsonl") for i, day in enumerate(days)], tmp_path / "both.jsonl")
    assert [t.task.id for t in read_trajectories(tmp_path / "both.jsonl")] == ["cancel"] * 4
    assert not any("came again" in warning for warning in found["warnings"])


def test_trials_of_a_task_that_its_records_name_are_one_task_and_those_of_another_file_with_another_instruction_another(tmp_path: Path):
    trial = {key: value for key, value in openai()[0].items() if key != "id"} | {"task_id": "cancel"}
    opened_otherwise = {**trial, "messages": [{"role": "user", "content": "Hello! Please cancel W1."}, *trial["messages"][-3:]]}
    episodes, _ = imported(tmp_path, [trial, opened_otherwise, trial])
    assert [(t.id, t.task.id) for t in episodes] == [("cancel", "cancel"), ("cancel#2", "cancel"), ("cancel#3", "cancel")]
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(trial) + "\n")
    import_logs([tmp_path / "log.jsonl", other], tmp_path / "both.jsonl")
    assert [t.task.id for t in read_trajectories(tmp_path / "both.jsonl")] == ["cancel"] * 4
    other.write_text(json.dumps({**trial, "messages": [{"role": "user", "content": "Cancel my flight."}, *trial["messages"][-3:]]}) + "\n")
    found = import_logs([tmp_path / "log.jsonl", other], tmp_path / "both.jsonl")
    assert [t.task.id for t in read_trajectories(tmp_path / "both.jsonl")] == ["cancel"] * 3 + ["cancel#2"]
    assert any("1 task id (cancel) came again" in warning for warning in found["warnings"])


@pytest.mark.parametrize("own", [{}, {"id": "own"}])
def test_a_task_that_two_files_name_is_two_tasks_however_their_records_are_named(tmp_path: Path, own: dict[str, str]):
    records = [{**openai()[0], "task_id": "0", "trial": n, "id": f"{n}"} for n in range(2)]
    for record in records:
        record |= {key: f"{value}-{record['trial']}" for key, value in own.items()} or {"id": None}
    flights = [record | {"messages": [{"role": "user", "content": "Book a flight."}, *record["messages"][-3:]]} for record in records]
    files = [written(tmp_path, records[:1], "retail.jsonl"), written(tmp_path, flights, "airline.jsonl")]
    import_logs(files, tmp_path / "both.jsonl")
    episodes = read_trajectories(tmp_path / "both.jsonl")
    assert [one.task.id for one in episodes] == ["0", "0#2", "0#2"] and len({one.id for one in episodes}) == 3


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("form", ["openai", "atif"])
def test_an_export_is_imported_as_it_was(tmp_path: Path, form: str, truncated: bool):
    (record,) = openai()
    record["messages"][3]["content"] = "> a call\n& another\n< words\n=> 3\n-> ok\n$> ls\n>= 2\nR& D\n& < x"
    (before,), _ = imported(tmp_path, [record | {"cut": truncated}], outcomes=outcomes("reward==1"), truncations=truncations("cut"))
    assert export_episodes(tmp_path / "episodes.jsonl", tmp_path / "export.jsonl", form) == 1
    import_logs(
        [tmp_path / "export.jsonl"],
        tmp_path / "again.jsonl",
        form=form,
        outcomes=outcomes(f"{'' if form == 'openai' else 'extra.'}success"),
    )
    (after,) = read_trajectories(tmp_path / "again.jsonl")
    assert after.transitions == before.transitions and after.task == before.task and after.success
    assert after.truncated is before.truncated is truncated
    exported = json.loads((tmp_path / "export.jsonl").read_text())
    result = exported["messages"][2] if form == "openai" else exported["steps"][1]["observation"]["results"][0]
    assert result["content"] == record["messages"][3]["content"]
    assert read_tools(tools_beside(tmp_path / "again.jsonl")) == read_tools(tools_beside(tmp_path / "episodes.jsonl"))


def test_the_command_reports_as_json_and_a_dry_run_writes_nothing(tmp_path: Path):
    log, out = written(tmp_path, openai()), tmp_path / "episodes.jsonl"
    command = ["import", str(log), "--out", str(out), "--success", "reward==1"]
    dry = CliRunner().invoke(cli.app, [*command, "--dry-run"])
    assert dry.exit_code == 0 and "get_order" in dry.stdout and not out.exists()
    found = json.loads(CliRunner().invoke(cli.app, [*command, "--json"]).stdout)
    assert found["episodes"] == 1 and found["steps"] == 3 and found["outcomes"] == {"success": 1, "failure": 0, "unknown": 0}
    assert found["truncated"] == 0
    assert out.exists() and tools_beside(out).exists()
    assert {"dropped", "tools", "redacted"} <= found.keys()


def mutated(line: str, random_: random.Random) -> str:
    """A line with values exchanged, or with characters lost."""
    if random_.random() < 0.3:
        at = random_.randrange(len(line))
        return line[:at] + line[at + random_.randrange(1, 8) :]
    value = json.loads(line)
    for _ in range(random_.randrange(1, 4)):
        at, places = value, []
        while isinstance(at, dict | list) and at:
            key = random_.choice(list(at) if isinstance(at, dict) else range(len(at)))
            places.append((at, key))
            at = at[key]
        if not places:
            break
        inside, key = random_.choice(places)
        inside[key] = random_.choice(
            [None, 0, -1.5, True, "", "{", "[1]", [], {}, [[]], ["x"], [None], {"a": [{}]}, "\ud800", 10**30, inside]
        )
        try:
            value = json.loads(json.dumps(value))
        except ValueError:  # a value inside itself
            inside[key] = "self"
    return json.dumps(value)


def spoil(tmp_path: Path, dialect: str, n: int) -> None:
    random_ = random.Random(dialect)
    sound = DIALECTS[dialect]()
    name = FORMATS.get(dialect, "otel")
    lines = [json.dumps(one) for one in sound]
    bad = [mutated(random_.choice(lines), random_) for _ in range(n)]
    path = tmp_path / "bad.jsonl"
    own = [line.replace('"e1"', '"sound"') for line in lines]  # an episode that no mutated line is part of
    path.write_text("\n".join([*own, *bad]) + "\n")
    found = import_logs([path], tmp_path / "out.jsonl", form=name)
    assert found["episodes"] >= 1 and found["dropped"]
    assert len(read_trajectories(tmp_path / "out.jsonl")) == found["episodes"] == sum(found["outcomes"].values())


@every_dialect
def test_mutated_lines_never_break_an_import(tmp_path: Path, dialect: str):
    spoil(tmp_path, dialect, 200)


@pytest.mark.slow
@every_dialect
def test_two_thousand_mutated_lines_never_break_an_import(tmp_path: Path, dialect: str):
    spoil(tmp_path, dialect, 2_000)


def test_the_airline_episodes_have_84_successes(tmp_path: Path):
    if AIRLINE is None:
        pytest.skip("shared/data/tau is not here")
    log = tmp_path / "airline.json"
    log.write_bytes(lzma.decompress(AIRLINE.read_bytes()))
    found = import_logs([log], tmp_path / "episodes.jsonl", outcomes=outcomes("reward==1"))
    assert found["outcomes"] == {"success": 84, "failure": 116, "unknown": 0}
    assert found["dropped"].keys() == {"texts beside tool calls", *SYSTEM}


def test_trials_of_one_task_are_episodes_of_one_task(tmp_path: Path):
    again = [{"task_id": 7, "trial": trial, "reward": 1.0, "traj": openai_messages()} for trial in range(3)]
    episodes, _ = imported(tmp_path, [*again, {"id": "e1", "messages": openai_messages(), "reward": 1.0}])
    assert [(one.id, one.task.id) for one in episodes] == [("7/0", "7"), ("7/1", "7"), ("7/2", "7"), ("e1", "e1")]


def test_tasks_of_two_benchmarks_with_the_same_ids_stay_apart(tmp_path: Path):
    trials = [{"task_id": 7, "trial": trial, "reward": 1.0, "traj": openai_messages()} for trial in range(2)]
    flights = [trial | {"traj": [{"role": "user", "content": "Book a flight."}, *openai_messages()[-3:]]} for trial in trials]
    episodes, _ = imported(tmp_path, [*trials, *flights])
    assert [(one.id, one.task.id) for one in episodes] == [("7/0", "7"), ("7/1", "7"), ("7/0#2", "7#2"), ("7/1#2", "7#2")]


@pytest.mark.parametrize("dialect", ["verifiers_results", "verifiers_info_tools", "verifiers_traces"])
def test_rollouts_of_verifiers_name_their_task_and_its_tools(tmp_path: Path, dialect: str):
    second = json.loads(json.dumps(DIALECTS[dialect]()).replace('"e1"', '"e2"'))
    episodes, found = imported(tmp_path, [*DIALECTS[dialect](), *second], outcomes=outcomes("reward==1"))
    tools = json.loads(tools_beside(tmp_path / "episodes.jsonl").read_text())
    assert [tool["description"] for tool in tools if tool["name"] == "get_order"] == ["Read an order."]
    assert found["outcomes"] == {"success": 2, "failure": 0, "unknown": 0}
    assert [episode.task.id for episode in episodes] == ["shop/3" if dialect == "verifiers_traces" else "3"] * 2
    assert len({episode.id for episode in episodes}) == 2
    _, found = imported(tmp_path, DIALECTS[dialect](), outcomes=outcomes(score="cancelled==1"))
    assert found["outcomes"]["success"] == (dialect != "verifiers_info_tools")  # whose metrics are columns
    assert found["dropped"] == SYSTEM


def test_of_a_verifiers_episode_the_trained_agents_last_branch_is_read(tmp_path: Path):
    (record,) = verifiers_traces()
    (trace,) = record["traces"]
    nodes = trace["nodes"]
    again = [{**node, "sampled": node is nodes[-1]} | ({"parent": 5 + i} if i else {}) for i, node in enumerate(nodes)]
    trace["nodes"] = [*nodes[:6], *again]  # a harness that rewrites the history: what the model said is repeated, without the mark
    judge = {**trace, "id": "judge", "agent": {"name": "judge", "trainable": False}}
    (episode,), found = imported(tmp_path, [record | {"traces": [trace, judge]}])
    assert [step.action for step in episode.transitions] == ACTIONS and (episode.id, episode.task.id) == ("e1", "shop/3")
    assert found["dropped"] == SYSTEM | {"traces of agents that are not trained": 1, "branches of a trace that do not lead to its end": 1}


def test_examples_in_a_verifiers_prompt_are_no_actions(tmp_path: Path):
    (record,) = verifiers_traces()
    nodes = record["traces"][0]["nodes"]
    call = {"id": "x", "name": "get_order", "arguments": '{"id": "W9"}'}
    shown = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "x", "content": "none"}]
    nodes[2:2] = [{"message": message, "sampled": False} for message in shown]
    for i, node in enumerate(nodes[1:]):
        node["parent"] = i
    (episode,), found = imported(tmp_path, [record])
    assert [step.action for step in episode.transitions] == ACTIONS
    assert found["dropped"] == SYSTEM | {"agent messages that no model said": 1}


def test_a_verifiers_episode_without_traces_or_rewards_has_no_outcome(tmp_path: Path):
    (record,) = verifiers_traces()
    del record["traces"][0]["rewards"]
    failed = {
        "id": "y",
        "env": {"id": "shop"},
        "task": record["task"],
        "ok": False,
        "errors": [{"type": "E", "message": "m"}],
        "traces": [],
    }
    (episode,), found = imported(tmp_path, [record, failed], outcomes=outcomes("reward==1"))
    assert not episode.scored and found["outcomes"]["unknown"] == 1 and found["dropped"] == SYSTEM | {"records without messages": 1}


def test_tools_that_were_corrected_by_hand_are_kept_when_the_logs_are_imported_again(tmp_path: Path):
    _, found = imported(tmp_path, openai())
    kept = Path(found["tools_file"])
    _, again = imported(tmp_path, openai())
    assert again["tools_file"] == str(kept) and not any("is kept" in warning for warning in again["warnings"])
    corrected = json.loads(kept.read_text())
    corrected[0]["annotations"] = {"readOnlyHint": True}
    kept.write_text(json.dumps(corrected))
    _, again = imported(tmp_path, openai())
    assert read_tools(kept)[0].reads_only and any(f"'{kept}' is kept" in warning for warning in again["warnings"])
    assert not read_tools(Path(again["tools_file"]))[0].reads_only and again["tools_file"].endswith("episodes.new.tools.json")


def test_several_definitions_of_a_tool_allow_what_any_of_them_does(tmp_path: Path):
    def record(name: str, amount: dict[str, Any], required: list[str]) -> dict[str, Any]:
        properties = {"id": {"type": "string"}, "amount": amount}
        tool = {"name": "refund", "description": "", "parameters": {"type": "object", "properties": properties, "required": required}}
        return {"id": name, "messages": openai_messages(), "tools": [{"type": "function", "function": tool}]}

    definitions = [("a", {"type": "number"}, ["id", "amount"]), ("b", {"type": "number"}, ["id"]), ("c", {"type": "string"}, ["id"])]
    _, found = imported(tmp_path, [record(*one) for one in definitions])
    (tool,) = (one for one in read_tools(Path(found["tools_file"])) if one.name == "refund")
    tools = {"refund": tool}
    for arguments, allowed in (({"id": "1"}, True), ({"id": "1", "amount": 2}, True), ({"id": "1", "amount": "2"}, True), ({}, False)):
        assert (fault(tools, ToolCall("refund", arguments)) == "") is allowed
    assert any("define 1 tool in several ways (refund)" in warning for warning in found["warnings"])


def test_addresses_in_ids_are_redacted_and_ids_stay_apart(tmp_path: Path):
    records = [openai()[0] | {"id": f"{name}@example.com/1", "task_id": f"{name}@example.com"} for name in ("ann", "bob")]
    episodes, _ = imported(tmp_path, records)
    assert len({one.id for one in episodes}) == len({one.task.id for one in episodes}) == 2
    assert "example.com" not in (tmp_path / "episodes.jsonl").read_text()
    plain, _ = imported(tmp_path, records, redact=False)
    assert [one.task.id for one in plain] == ["ann@example.com", "bob@example.com"]


def test_calls_of_one_response_are_one_turn_and_what_servers_ran_themselves_is_counted(tmp_path: Path):
    def call(name: str, tool: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": tool, "arguments": "{}"}

    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Look."}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        call("c1", "left"), call("c2", "right"),
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a wall"}]},
        {"type": "function_call_output", "call_id": "c1", "output": "a door"},
        {"type": "mcp_call", "id": "mcp_1", "name": "open", "arguments": "{}", "output": "it is open", "server_label": "house"},
        {"type": "custom_tool_call", "call_id": "c3", "name": "shout", "input": "hello"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "an echo"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I stop here."}]},
    ]  # fmt: skip
    (episode,), found = imported(tmp_path, [items])
    assert found["formats"] == {str(tmp_path / "log.jsonl"): "openai_responses"}
    both, opened, *_, last = episode.transitions
    assert (
        "left()" in both.action and "right()" in both.action and both.next_state.text.index("a door") < both.next_state.text.index("a wall")
    )
    assert "open()" in opened.action and "it is open" in opened.next_state.text and "an echo" in opened.next_state.text
    assert last.action == 'respond(content="I stop here.")' and episode.task.instruction == "Look."
    assert found["dropped"]["items of another kind"] == 1


def test_a_refusal_in_chat_messages_is_what_the_agent_says(tmp_path: Path):
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I stop here."}]}
    (episode,), account = imported(tmp_path, [{"messages": [*openai_messages()[1:-1], said]}])
    assert episode.transitions[-1].action == 'respond(content="I stop here.")' and not account["dropped"]
