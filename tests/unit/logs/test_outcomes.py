"""Whether an episode succeeded: from a field, ids or a score, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from log_samples import imported, openai, openai_messages, written
from typer.testing import CliRunner

from dreamgym import cli
from dreamgym.errors import UsageError
from dreamgym.logs.outcomes import condition, outcomes


def test_outcomes_come_from_a_field_a_file_of_ids_or_a_score(tmp_path: Path):
    records = [openai()[0] | {"id": f"e{i}", "reward": i, "scores": [{"name": "judge", "value": i / 2}]} for i in range(3)]
    (tmp_path / "ids").write_text("e2\nnobody\n")
    for how, expected in [
        (outcomes("reward>=1"), [False, True, True]),
        (outcomes("reward"), [False, True, None]),
        (outcomes("nothing==1"), [None] * 3),
        (outcomes(ids=tmp_path / "ids"), [False, False, True]),
        (outcomes(score="judge>=0.5"), [False, True, True]),
    ]:
        episodes, _ = imported(tmp_path, records, outcomes=how)
        assert [episode.success if episode.scored else None for episode in episodes] == expected
    with pytest.raises(UsageError, match="Give one of"):
        outcomes("a", score="b")


def test_a_table_of_ids_and_outcomes_says_which_are_unknown(tmp_path: Path):
    records = [openai()[0] | {"id": f"e{i}"} for i in range(4)]
    (tmp_path / "outcomes.csv").write_text('\ufeffconversation_id,resolved\ne0,1\n"e1",FALSE,left early\n\ne2, yes\nnobody,0\n', "utf-8")
    episodes, found = imported(tmp_path, records, outcomes=outcomes(ids=tmp_path / "outcomes.csv"))
    assert [episode.success if episode.scored else None for episode in episodes] == [True, False, True, None]
    assert any(
        "1 id of --success-ids no episode has: nobody. Episodes that are not named have no known" in one for one in found["warnings"]
    )
    assert any("1 episode has no known outcome" in one and "does not list them" in one for one in found["warnings"])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ids.txt", "", "holds no id"),
        ("ids.csv", "id,ok\n", "holds no id"),
        ("ids.csv", "id,ok\ne0,perhaps\n", "Row 2 of .* is 'e0,perhaps'"),
        ("ids.csv", "e0\ne1\n", "Row 2 of .* is 'e1'"),
        ("ids.csv", "e0,1\ne1,0\n", "Row 1 of .* is 'e0,1', which is no header"),
        ("ids.txt", "id,ok\ne0,1\ne1,0\n", "No episode has one of the 3 ids of --success-ids, such as 'e0,1'; the log's are such as 'e0'"),
    ],
)
def test_a_file_of_ids_that_no_episode_has_is_refused_with_the_form_that_is_expected(tmp_path: Path, name: str, text: str, says: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=f"{says}.*Expected the ids of the episodes that succeeded, one a line"):
        imported(tmp_path, [openai()[0] | {"id": "e0"}], outcomes=outcomes(ids=tmp_path / name))


def test_a_table_that_gives_an_episode_two_outcomes_is_refused_and_equal_rows_are_one(tmp_path: Path):
    (tmp_path / "same.csv").write_text("id,ok\ne0,1\ne0,yes\n")
    assert outcomes(ids=tmp_path / "same.csv").ids == {"e0"}
    (tmp_path / "both.csv").write_text("id,ok\ne0,1\ne1,0\ne0,0\n")
    with pytest.raises(UsageError, match="Row 4 of .* gives 'e0' another outcome than a row before it"):
        outcomes(ids=tmp_path / "both.csv")


@pytest.mark.parametrize("text", ["", "==1", "[" * 3000, "rewards[0]==1", "{}"])
def test_a_text_that_names_no_field_is_no_condition(text: str):
    with pytest.raises(UsageError, match="is no condition. Expected a field"):
        condition(text)


def test_a_condition_never_guesses():
    assert condition("status == done").holds("done") is True
    assert condition("status==done").holds("failed") is False
    assert condition("ok==true").holds(1) is None
    assert condition("reward>0").holds("high") is None
    assert condition("reward").holds(0.7) is None
    for text in ("==1", "reward===1"):
        with pytest.raises(UsageError, match="no condition"):
            condition(text)
    for asked in ("reward==1", "reward!=1", "reward>=1", "reward"):
        assert condition(asked).holds(float("nan")) is None, "a grader that broke says nothing"


def test_a_condition_that_no_record_meets_says_what_they_have_instead(tmp_path: Path):
    flags = [openai()[0] | {"id": str(i), "reward": True} for i in range(3)]
    _, found = imported(tmp_path, flags, outcomes=outcomes("reward==1"))
    assert found["outcomes"]["unknown"] == 3
    assert "--success asks for 'reward==1', and there they have the value true (3)" in found["warnings"][0]
    _, found = imported(tmp_path, flags, outcomes=outcomes("rewrd"))
    assert "they have no 'rewrd' among id, " in found["warnings"][0] and "reward" in found["warnings"][0]
    scores = [openai()[0] | {"id": str(i), "reward": 0.7} for i in range(3)]
    _, found = imported(tmp_path, scores, outcomes=outcomes("reward==1"))
    assert "No episode is a known success" in found["warnings"][0]
    assert "asks for 'reward==1', and there they have the value 0.7 (3)." in found["warnings"][0]
    _, found = imported(tmp_path, flags)
    assert "Give --success, --success-ids or --success-score." in found["warnings"][0]


@pytest.mark.parametrize(
    ("asked", "written", "holds"),
    [
        ("ok==true", "true", True), ("ok==true", "False", False), ("ok!=false", "true", True), ("ok!=true", "TRUE", False),
        ("ok==true", "1", None), ("ok==true", "yes", None), ("ok!=true", "yes", None), ("reward==1", "1.0", True),
        ("reward==1.0", "1", True), ("reward!=1", "0.5", True), ("reward==1", "true", None), ("reward==1", "high", None),
        ("reward!=1", "high", None), ("reward>=0.5", "1.0", True), ("reward<0.5", "1.0", False), ("ok", "true", True), ("ok", "0", False),
        ("ok", "done", None), ("status==done", "done", True), ("status=='1'", "1", True), ("error!=null", "timeout", True),
    ],
)  # fmt: skip
def test_a_string_counts_as_the_truth_value_or_number_that_it_holds(asked: str, written: str, holds: bool | None):
    assert condition(asked).holds(written) is holds


def test_ids_of_successes_are_those_of_the_log_or_those_that_import_writes(tmp_path: Path):
    def judged(records: list[dict[str, Any]], *ids: str) -> tuple[dict[str, bool], int]:
        (tmp_path / "ids").write_text("\n".join(ids))
        episodes, found = imported(tmp_path, records, outcomes=outcomes(ids=tmp_path / "ids"))
        unknown = [re.match(r"(\d+) ids? of --success-ids no episode has", warning) for warning in found["warnings"]]
        return {one.id: one.success for one in episodes}, sum(int(match[1]) for match in unknown if match)

    one = {"messages": openai_messages()}
    assert judged([one, one], "episode-2", "episode-3") == ({"episode-1": False, "episode-2": True}, 1)
    assert judged([one | {"id": "x"}, {"id": "x", "messages": openai_messages()[:-1]}], "x#2") == ({"x": False, "x#2": True}, 0)
    assert judged([one | {"id": "a/as/b"}], "a/as/b") == ({"a/b": True}, 0)
    assert judged([one | {"id": "run-17", "task_id": "cancel-3", "trial": 0}], "run-17") == ({"run-17": True}, 0)
    assert judged([one | {"task_id": "cancel-3", "trial": n} for n in (0, 1)], "cancel-3/1", "cancel-3") == (
        {"cancel-3/0": False, "cancel-3/1": True}, 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "reward!=0 and status!=failure", "reward==1==2", "reward==1 or solved", "solved and reward==1", "reward>0.5<0.9",
        "reward==1 && solved",
        "reward==1 || solved", "status=='a' and status=='b'", "status==a AND b",
    ],
)  # fmt: skip
def test_more_than_one_comparison_is_refused_and_not_taken_for_a_value(text: str):
    with pytest.raises(UsageError, match="is more than one comparison, and one is expected.*--success-ids"):
        condition(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("status=='a and b'", "a and b"), ('status=="a or b==c"', "a or b==c"), ("status==band", "band"), ("status==not good", "not good")],
)
def test_a_text_in_quotes_may_hold_what_a_second_comparison_has(text: str, value: str):
    assert condition(text).holds(value) is True and condition(text).holds(f"{value}.") is False


@pytest.mark.parametrize("value", [[1], {"total": 1}, [], {}])
@pytest.mark.parametrize("asked", ["reward==1", "reward!=1", "reward==high", "reward"])
def test_a_value_of_another_kind_than_is_asked_for_is_no_outcome(asked: str, value: Any):
    assert condition(asked).holds(value) is None
    assert condition("status==done").holds(3) is None and condition("status!=done").holds(3) is None


@pytest.mark.parametrize("option", ["--success", "--success-ids", "--success-score", "--truncated"])
def test_an_option_that_is_given_twice_is_refused(tmp_path: Path, option: str):
    log = written(tmp_path, openai())
    done = CliRunner().invoke(cli.app, ["import", str(log), "--dry-run", option, "reward", option, "solved"])
    assert isinstance(done.exception, UsageError) and f"{option} is given 2 times" in str(done.exception)
