"""Episodes that were cut off: which formats say so, where a user can say so, and that a cut is no end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_samples import ACTIONS, DIALECTS, imported, openai, written
from typer.testing import CliRunner

from dreamgym import cli
from dreamgym.experience.learned_verifier.cases import scored_episodes
from dreamgym.logs.outcomes import outcomes, truncations


def stopped(dialect: str, key: str, value: Any) -> list[Any]:
    """The records of a dialect with one field of the episode set."""
    (record,) = DIALECTS[dialect]()
    inner = {"tau2": "simulations", "verifiers_traces": "traces"}.get(dialect)
    (record[inner][0] if inner else record)[key] = value
    return [record]


@pytest.mark.parametrize(
    ("dialect", "key", "value", "truncated"),
    [
        ("tau2", "termination_reason", "max_steps", True),
        ("tau2", "termination_reason", "too_many_errors", True),
        ("tau2", "termination_reason", "agent_stop", False),
        ("tau2", "termination_reason", "user_stop", False),
        ("tau2", "termination_reason", None, False),
        ("verifiers_traces", "stop_condition", "max_turns", True),
        ("verifiers_traces", "stop_condition", "context_length", True),
        ("verifiers_traces", "stop_condition", "agent_completed", False),
        ("verifiers_traces", "stop_condition", "order_is_cancelled", False),  # a task's own
        ("verifiers_results", "stop_condition", "prompt_too_long", True),
        ("verifiers_results", "stop_condition", "max_turns_reached", False),  # also how a rollout of one turn ends
        ("verifiers_results", "is_truncated", True, False),  # some reply was
        ("atif", "continued_trajectory_ref", "part-2.json", True),
        ("openai", "finish_reason", "length", False),
        ("openenv", "done", False, False),
    ],
)
def test_a_format_that_says_how_an_episode_ended_is_believed_and_nothing_is_guessed(
    tmp_path: Path, dialect: str, key: str, value: Any, truncated: bool
):
    (episode,), found = imported(tmp_path, stopped(dialect, key, value))
    assert [step.action for step in episode.transitions] == ACTIONS and episode.truncated is truncated
    assert [step.terminated for step in episode.transitions] == [False, False, not truncated] and found["truncated"] == truncated


def test_a_truncated_failure_is_a_known_failure_whose_last_call_ends_nothing(tmp_path: Path):
    records = stopped("tau2", "termination_reason", "max_steps")
    records[0]["simulations"][0]["reward_info"]["reward"] = 0.0
    (episode,), found = imported(tmp_path, records, outcomes=outcomes("reward_info.reward==1"))
    assert episode.scored and not episode.success and not scored_episodes([episode])
    assert found["outcomes"] == {"success": 0, "failure": 1, "unknown": 0} and found["truncated"] == 1


def test_a_record_says_in_a_field_of_its_own_that_its_episode_was_truncated(tmp_path: Path):
    records = [openai()[0] | {"id": str(i), "stop": stop} for i, stop in enumerate(["limit", "done", None])]
    episodes, found = imported(tmp_path, records, outcomes=outcomes("reward==1"), truncations=truncations("stop==limit"))
    assert [(one.truncated, one.success, one.total_reward) for one in episodes] == [
        (True, True, 0.0),
        (False, True, 1.0),
        (False, True, 1.0),
    ]
    assert found["truncated"] == 1 and found["notes"]["successes that were truncated"] == 1
    _, found = imported(tmp_path, records, truncations=truncations("cut"))
    assert found["truncated"] == 0
    assert any("No record says whether" in text and "--truncated asks for 'cut', and there they have no 'cut' among id" in text
               for text in found["warnings"])  # fmt: skip


def test_what_the_format_says_holds_where_the_option_says_nothing(tmp_path: Path):
    logs = stopped("tau2", "termination_reason", "max_steps")
    assert [imported(tmp_path, logs, truncations=truncations(text))[0][0].truncated for text in ("cut", "reward_info.reward==7")] == [
        True,
        False,
    ]


def test_the_command_takes_the_field_and_prints_the_count(tmp_path: Path):
    log = written(tmp_path, [openai()[0] | {"cut": True}])
    command = ["import", str(log), "--dry-run", "--truncated", "cut"]
    assert json.loads(CliRunner().invoke(cli.app, [*command, "--json"]).stdout)["truncated"] == 1
    assert "truncated" in CliRunner().invoke(cli.app, command).stdout
    wrong = CliRunner().invoke(cli.app, [*command[:-1], "==1"])
    assert wrong.exit_code != 0 and "is no condition" in str(wrong.exception)
