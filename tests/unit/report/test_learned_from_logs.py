"""What the report says of recorded episodes."""

from __future__ import annotations

from dreamgym.report.logs import tool_uses
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn


def episode(name: str, user: str, *, success: bool, order: str = "o9") -> Trajectory:
    states = ["no calls yet", f"order {order}x {order}", "done"]
    actions = [f'find(user="{user}", limit=5)', f'cancel(id="{order}", why="z")']
    turns = [
        Turn(Transition(Observation(states[i]), actions[i], Observation(states[i + 1]), float(success and i == 1), i == 1))
        for i in range(2)
    ]
    return Trajectory(name, Task(name, f"I am {user}.", "desk"), "demo", tuple(turns), success)


def test_argument_values_are_traced_to_the_first_text_that_has_them():
    found = {use.name: use for use in tool_uses([episode("a", "ann", success=True), episode("b", "bob", success=False, order="o8")], {})}
    assert found["find"].sources == {"instruction": 0.5, "an earlier state": 0, "constant": 0.5, "unseen": 0}
    assert found["cancel"].sources == {"instruction": 0, "an earlier state": 0.5, "constant": 0.5, "unseen": 0}
    assert found["cancel"].last == 2 and found["find"].last == 0
    assert found["find"].success_with is not None and found["find"].success_with.value == 0.5 and found["find"].success_without is None


def test_a_value_that_no_text_and_no_other_episode_has_is_unseen():
    (use, *_) = tool_uses([episode("a", "ann", success=True)], {})
    assert use.sources == {"instruction": 0.5, "an earlier state": 0, "constant": 0, "unseen": 0.5}
