"""A file of tools goes with its episodes: one that lacks their tools is refused, by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tool_desk
from toy import command

from dreamgym import plugins
from dreamgym.envs.tools import recorded_calls
from dreamgym.envs.tools.schemas import inferred_tools
from dreamgym.errors import UsageError
from dreamgym.recipes.init_logs import settings
from dreamgym.recipes.log_survey import examine
from dreamgym.recipes.phases.logs import read_logs
from dreamgym.runs.episodes import write_trajectories
from dreamgym.types import Trajectory, Turn

EPISODES = tool_desk.episodes(40)
KNOWN = inferred_tools(recorded_calls(EPISODES))


def written(folder: Path, names: list[str], episodes: list[Trajectory] = EPISODES) -> Path:
    """Episodes with a file of tools that has those names."""
    write_trajectories(folder / "logs.jsonl", episodes)
    (folder / "logs.tools.json").write_text(json.dumps([{"name": name} for name in names]))
    return folder / "logs.jsonl"


@pytest.mark.parametrize("names", [["x"], ["get_lamp"], ["get_lamp", "done"]])
def test_a_file_of_tools_that_lacks_tools_of_the_episodes_is_refused_by_init_and_by_train(tmp_path: Path, names: list[str]):
    file = written(tmp_path, names)
    lacking = [tool.name for tool in KNOWN if tool.name not in names]
    says = rf"logs\.tools\.json' lacks {len(lacking)} tools? \(.*{lacking[-1]}: \d+ calls.*a dream would refuse these calls"
    with pytest.raises(UsageError, match=says):
        examine([file])
    for rules in ("tools", "dreamgym.envs.wrappers.without_rules"):
        options = {"files": [file], "tools": tmp_path / "logs.tools.json"}
        suite = plugins.make("envs", rules, **(options if rules == "tools" else {"suite": "tools", "options": options}))
        with pytest.raises(UsageError, match=says):
            read_logs([file], suite)


def test_a_name_that_an_agent_made_up_now_and_then_may_be_missing_and_is_named(tmp_path: Path):
    episodes = tool_desk.episodes(150)
    made_up = replace(episodes[0].transitions[0], action="get_lmap()")
    episodes[0] = replace(episodes[0], turns=(Turn(made_up), *episodes[0].turns[1:]))
    file = written(tmp_path, [tool.name for tool in KNOWN], episodes)
    account = examine([file])
    assert any("lacks 1 tool (get_lmap: 1 call), which the episodes call" in text for text in account.warnings())
    assert "get_lmap" in settings([file], account)


def test_an_empty_file_of_tools_says_that_it_lists_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = written(tmp_path, [])
    code, _, err = command(monkeypatch, capsys, "init", "--logs", file)
    assert code != 0 and f"'{tmp_path / 'logs.tools.json'}' lists no tools, and the episodes call done, get_lamp, switch." in err
    assert examine([file], env="logs").env == "logs", "the suite of texts needs no tools"
