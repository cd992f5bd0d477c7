"""The commands of the tutorial from logs to an agent run as they are printed, one after the other, on a small log."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import tool_desk
from documents import DOCS, bash_lines, python_of
from toy import SIZE, command

import dreamgym
from dreamgym.llm import sizes
from dreamgym.logs.conversion import exchanges
from dreamgym.logs.export import export_episodes
from dreamgym.logs.formats.openai import messages_of
from dreamgym.logs.records import Account
from dreamgym.recipes import init_logs, log_survey
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir
from dreamgym.tool_calls import ToolCall, action_of, respond

PAGE = (DOCS / "tutorials/from_logs.md").read_text("utf-8")


def test_the_commands_of_the_tutorial_lead_from_a_log_to_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write_trajectories(tmp_path / "made.jsonl", tool_desk.episodes(80))
    export_episodes(tmp_path / "made.jsonl", tmp_path / "logs.jsonl", "openai")
    records = [json.loads(line) for line in (tmp_path / "logs.jsonl").read_text().splitlines()]
    (tmp_path / "logs.jsonl").write_text("".join(json.dumps(one | {"reward": float(one["success"])}) + "\n" for one in records))
    monkeypatch.setitem(sizes.SIZES, "1m", SIZE)  # the page's own commands, with a model that trains in seconds
    monkeypatch.setattr(init_logs, "ITERATIONS", 2)
    monkeypatch.setattr(log_survey, "VOCABULARIES", (512, 600))
    monkeypatch.setattr("builtins.input", lambda _: "")
    ran = list[str]()
    for line in bash_lines(PAGE):
        program, name, *rest = shlex.split(line)
        assert program == ".venv/bin/dreamgym", line
        code, out, err = command(monkeypatch, capsys, name, *rest)
        assert code == 0, f"{line}\n{out}\n{err}"
        ran.append(name)
    assert ran[:3] == ["import", "init", "train"] and {"fidelity", "report", "play", "label"} <= set(ran)
    summary = RunDir.view(tmp_path / "runs" / "mine").summary()
    assert summary and summary["fidelity"]["held_out"]["with_guard"]["state_exact_valid"]["n"] > 0
    assert summary["fidelity"]["no_model"] and "dream" in summary["uncertified"]
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    (snippet,) = python_of("tutorials/from_logs.md")
    capsys.readouterr()
    exec(snippet, {})
    assert capsys.readouterr().out, "an answer, or why there is none"


def test_the_loop_of_the_tutorial_makes_calls_and_gives_their_results_back_until_the_policy_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    seen = list[list[dict[str, Any]]]()

    class Scripted:
        def __init__(self, run: str) -> None:
            assert run == "runs/mine"

        def act(self, messages: list[dict[str, Any]]) -> list[ToolCall]:
            seen.append(list(messages))
            turns = [[ToolCall("find", {"id": 17}), ToolCall("look", {})], [ToolCall("cancel", {"id": 17})], [respond("Cancelled.")]]
            return turns[len(seen) - 1]

    monkeypatch.setattr(dreamgym, "TrainedPolicy", Scripted, raising=False)
    (snippet,) = python_of("tutorials/from_logs.md")
    exec(snippet, {})
    assert "Cancelled." in capsys.readouterr().out and [len(messages) for messages in seen] == [1, 4, 6]
    turns = exchanges(list(messages_of(seen[-1], Account()))[1:], account := Account())
    assert [action_of(turn.calls) for turn in turns] == ["find(id=17)\nlook()", "cancel(id=17)"] and not account.dropped
    assert all(result == "ok" for turn in turns for result in turn.results)
