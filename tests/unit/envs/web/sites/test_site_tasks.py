"""A site's tasks: an answer must hold what is asked for and nothing else that could be asked for; a check reads the world."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.web.sites.tasks import SiteTask, says


@pytest.mark.parametrize(
    ("answer", "right"),
    [("It costs £13.99, UPC 71085904.", True), ("13.99 71085904", True), ("13.99", False), ("113.99 71085904", False),
     ("13.999 71085904", False), ("13.99 or 14.99, 71085904", False), ("", False)],
)  # fmt: skip
def test_an_answer_must_hold_what_is_asked_for_and_no_other_number(answer: str, right: bool):
    assert says(answer, "13.99", "71085904") is right


@pytest.mark.parametrize(
    ("asked", "answer", "right"),
    [("What was the total of order 100033, and what is its status?", "Order 100033: total £13.92, Complete", True),
     ("What was the total of order 100033, and what is its status?", "Order 100034: total £13.92, Complete", False),
     ("What does the basket cost in all with 4 of them in it?", "4 of them cost £13.92; complete.", True),
     ("What does the basket cost in all with 4 of them in it?", "3 of them cost £13.92; complete.", False)],
)  # fmt: skip
def test_an_answer_may_hold_the_numbers_of_its_question(asked: str, answer: str, right: bool):
    assert SiteTask("total", asked, "x", "member", ("13.92", "Complete")).solved(lambda *_: [], answer) is right


@pytest.mark.parametrize("date", ["1 Aug 2025", "1 August", "Aug. 1, 2025", "August 1st", "01 Aug 2025", "2025-08-01"])
def test_the_date_of_a_question_is_no_number_of_its_answer(date: str):
    task = SiteTask("quantity", "How many tray did I order on 1 Aug 2025, and what did they cost together?", "x", "member", (1, "37.64"))
    assert not task.solved(lambda *_: [], f"On {date} they cost £37.64 together.")
    assert task.solved(lambda *_: [], f"On {date} I ordered 1, for £37.64.") and task.solved(lambda *_: [], "1 for 37.64")
    assert not task.solved(lambda *_: [], f"On {date} I ordered 2, for £37.64.")


@given(st.lists(st.integers(0, 9999), min_size=2, max_size=4, unique=True))
def test_an_answer_that_lists_guesses_is_wrong(numbers: list[int]):
    assert not says(" ".join(map(str, numbers)), numbers[0])
    assert says(f"there are {numbers[0]}", numbers[0])


def test_an_answer_that_lists_every_name_is_wrong():
    task = SiteTask("who", "Who?", "x", "member", ("ada", 3), others=("ben", "cleo"))
    assert task.answered and task.solved(lambda *_: [], "ada 3")
    assert not task.solved(lambda *_: [], "ada ben cleo 3")
    assert task.solved(lambda *_: [], "definitely ada, a benefit: 3")  # Ben is no word of it


def test_a_task_with_a_check_is_decided_by_the_rows_and_not_by_the_answer():
    task = SiteTask("set", "Set it.", "x", "member", ("a", 2), lambda query, name, count: query("SELECT", name) == [(count,)])
    assert not task.answered and task.solved(lambda *_: [(2,)], "") and not task.solved(lambda *_: [(1,)], "a 2")
