"""How messages are worded."""

from __future__ import annotations

from dreamgym.errors import counted


def test_one_of_a_thing_is_named_in_the_singular_and_any_other_number_in_the_plural():
    assert [counted(n, "iteration") for n in (0, 1, 2, 1200)] == ["0 iterations", "1 iteration", "2 iterations", "1,200 iterations"]
    assert [counted(n, "row has", "rows have") for n in (1, 3)] == ["1 row has", "3 rows have"]
