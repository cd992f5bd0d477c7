"""Sessions of Claude Code: the chain to the last entry, and the parallel calls beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from log_samples import imported


def entry(name: str, parent: str | None, role: str, content: Any, reply: str = "") -> dict[str, Any]:
    message = {"role": role, "content": content} | ({"id": reply} if reply else {})
    return {"type": role, "uuid": name, "parentUuid": parent, "isSidechain": False, "sessionId": "s", "message": message}


def use(call: str, file: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": call, "name": "Write", "input": {"file": file}}]


def result(call: str, text: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call, "content": text}]


ASKED = entry("u", None, "user", "Write two files.")
CALLS = [entry("a1", "u", "assistant", use("t1", "a.md"), "m1"), entry("a2", "a1", "assistant", use("t2", "b.md"), "m1")]
RESULTS = [entry("r1", "a1", "user", result("t1", "wrote a")), entry("r2", "a2", "user", result("t2", "wrote b"))]
TURN = ['Write(file="a.md")\nWrite(file="b.md")', 'respond(content="Both are there.")']


@pytest.mark.parametrize("results", [RESULTS, RESULTS[::-1]], ids=["the chain leads through the last call", "through the first"])
def test_parallel_calls_are_one_turn_whichever_the_chain_leads_through(tmp_path: Path, results: list[Any]):
    done = entry("d", results[-1]["uuid"], "assistant", [{"type": "text", "text": "Both are there."}], "m2")
    (episode,), found = imported(tmp_path, [ASKED, *CALLS, *results, done])
    assert [step.action for step in episode.transitions] == TURN and not found["dropped"]
    shown = episode.transitions[0].next_state.text
    assert shown.index("wrote a") < shown.index("wrote b")


def test_abandoned_branches_stay_out_and_are_counted(tmp_path: Path):
    other = [
        entry("x1", "u", "assistant", use("t3", "c.md"), "m3"), entry("x2", "x1", "user", result("t3", "wrote c")),
        entry("x3", "a1", "user", result("t1", "a second answer")), entry("x4", "a1", "assistant", CALLS[0]["message"]["content"], "m1"),
    ]  # fmt: skip
    done = entry("d", "r2", "assistant", [{"type": "text", "text": "Both are there."}], "m2")
    (episode,), found = imported(tmp_path, [ASKED, *CALLS, *RESULTS, *other, done])
    assert [step.action for step in episode.transitions] == TURN
    assert found["dropped"] == {"entries of abandoned branches": len(other)}
    assert "a second answer" not in episode.transitions[-1].next_state.text
