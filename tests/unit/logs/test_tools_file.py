"""The file of tools beside episodes: what a person wrote there stays, and what it lacks is added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_samples import imported, openai

from dreamgym.envs.tools.schemas import read_tools
from dreamgym.logs.tools_file import tools_beside, write_tools

STALE = {"name": "lookup", "description": "By hand.", "parameters": {"required": ["id"]}, "note": "kept"}


def again(tmp_path: Path, text: str) -> tuple[Path, dict[str, Any]]:
    """The file and the account of an import over a file of tools that was there."""
    kept = tools_beside(tmp_path / "episodes.jsonl")
    kept.write_text(text)
    _, account = imported(tmp_path, openai())
    return kept, account


@pytest.mark.parametrize("wrapped", [True, False])
def test_tools_that_a_kept_file_lacks_are_added_and_named_and_its_own_stay(tmp_path: Path, wrapped: bool):
    kept, account = again(tmp_path, json.dumps({"tools": [STALE], "version": 2} if wrapped else [STALE]))
    assert [tool.name for tool in read_tools(kept)] == ["lookup", "cancel", "get_order"]
    document = json.loads(kept.read_text())
    assert (document["tools"] if wrapped else document)[0] == STALE and (not wrapped or document["version"] == 2)
    assert account["tools_file"] == str(kept) and not list(tmp_path.glob("*.new.tools.json"))
    (warning,) = (text for text in account["warnings"] if str(kept) in text)
    assert "lacked 2 tools (cancel, get_order), which are added. It still has 1 tool (lookup), of which these logs say nothing." in warning


def test_a_correction_stays_while_what_is_missing_is_added(tmp_path: Path):
    corrected = {"name": "get_order", "description": "Read an order.", "parameters": {"required": []}}
    kept, account = again(tmp_path, json.dumps([corrected]))
    assert json.loads(kept.read_text())[0] == corrected and [tool.name for tool in read_tools(kept)] == ["get_order", "cancel"]
    new = tmp_path / "episodes.new.tools.json"
    assert [tool.name for tool in read_tools(new)] == ["cancel", "get_order"] and account["tools_file"] == str(new)
    assert any("lacked 1 tool (cancel), which is added" in text for text in account["warnings"])
    assert any(f"'{kept}' is kept where it says something else" in text and "(get_order)" in text for text in account["warnings"])


@pytest.mark.parametrize("text", ["{", "3", '[{"no": "name"}]', '[{"name": "a"}, {"name": "a"}]'])
def test_a_kept_file_that_cannot_be_read_stays_as_it_is(tmp_path: Path, text: str):
    kept, account = again(tmp_path, text)
    assert kept.read_text() == text and len(read_tools(Path(account["tools_file"]))) == 2
    assert any(f"'{kept}' is kept as it is, and cannot be read: " in warning for warning in account["warnings"])


def test_an_empty_list_is_filled(tmp_path: Path):
    kept, account = again(tmp_path, "[]")
    assert [tool.name for tool in read_tools(kept)] == ["cancel", "get_order"] == list(account["tools"])


def test_the_same_tools_in_another_order_or_spelling_change_nothing(tmp_path: Path):
    tools = [{"name": "a", "description": "", "parameters": {}}, {"name": "b", "description": "", "parameters": {}}]
    path = tmp_path / "x.tools.json"
    path.write_text(text := json.dumps([{"type": "function", "function": one} for one in reversed(tools)]))
    written = write_tools(tools, path)
    assert path.read_text() == text and written.path == path and not written.warnings()
