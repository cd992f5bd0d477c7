"""What the error of a dream allows it to be wrong by: worked by hand, exact on a toy, and honest about saying nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dreamgym import cli
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import UsageError
from dreamgym.evals.attribution import Attribution, shares
from dreamgym.evals.bound import measure, penalty
from dreamgym.evals.paired_replay import compare, replay, summarise
from dreamgym.recipes.phases.audit import fidelity_json
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

SUITE = corridor.make(length=4)
REAL = EnvPool(SUITE.env, SUITE.rules)
TASK = Task("1-3", corridor.Goal(1, 3).instruction, "corridor", goal={"start": 1, "target": 3, "key": 0})


def room(n: int) -> Observation:
    offered = (("left", n > 1), ("right", n < 4), ("open", True))
    return Observation(f"room {n} of 4\n" + " ".join(f"[{name}]" for name, there in offered if there))


def episode(*steps: tuple[str, Observation, float]) -> Trajectory:
    """A dream from room 1 through these (action, next state, reward); it ends with its last step."""
    state, turns = room(1), []
    for i, (action, after, reward) in enumerate(steps):
        turns.append(Turn(Transition(state, action, after, reward, i == len(steps) - 1)))
        state = after
    return Trajectory("d", TASK, "dream", tuple(turns), turns[-1].transition.reward >= 1)


OPENED = Observation("room 3 of 4\nthe door is open")
TRUE = episode(("right", room(2), 0.0), ("right", room(3), 0.0), ("open", OPENED, 1.0))
STUCK = episode(("right", room(1), 0.0), ("right", room(1), 0.0), ("open", room(1), 0.0))  # the dream does not move; reality does
STINGY = episode(("right", room(2), 0.0), ("right", room(3), 0.0), ("open", OPENED, 0.0))  # right in every state, wrong in the reward


def test_the_theorems_terms_as_worked_by_hand():
    assert penalty(0.1, 0.2, gamma=0.5) == pytest.approx(2 * (0.1 / 0.5 + 2 * 0.5 * 0.2 / 0.25))
    assert penalty(0.0, 0.0, gamma=0.99) == 0.0
    with pytest.raises(UsageError, match=r"gamma=1.*below 1"):
        penalty(0.1, 0.1, gamma=1.0)


@pytest.mark.parametrize(("wrong", "bad"), [(0, STUCK), (3, STUCK), (10, STUCK), (4, STINGY)])
def test_in_the_corridor_the_gap_of_the_dream_is_exactly_the_share_of_episodes_that_part(wrong: int, bad: Trajectory):
    """The policy walks right and opens. Really it always succeeds; in the dream it fails in `wrong` of 10 episodes, each of which parts."""
    replays = replay([bad] * wrong + [TRUE] * (10 - wrong), REAL)
    found = measure(replays)
    assert abs(summarise(replays).gap) == pytest.approx(wrong / 10) == pytest.approx(found.differs.value)
    assert abs(summarise(replays).gap) <= found.success_gap


def test_dreams_that_were_left_out_count_as_parted():
    """The policy's dream success is over them too, and no replay says how far they were from reality."""
    found = measure(replay([TRUE] * 50, REAL), left_out=50)
    assert (found.differs.value, found.differs.n) == (0.5, 100) and found.success_gap > 0.5
    assert found.transition_error.n == 150


def test_errors_are_counted_up_to_the_step_that_parts_and_no_further():
    found = measure(replay([STUCK, STINGY, TRUE], REAL))
    assert (found.transition_error.value, found.transition_error.n) == (1 / 7, 7)  # 1 + 3 + 3 steps compared
    assert (found.reward_error.value, found.reward_error.n) == (pytest.approx(1 / 7), 7)


@pytest.mark.parametrize("wrong", [1, 6, 10])
def test_rewards_beyond_one_are_measured_and_bounded_by_the_range_that_was_seen(wrong: int):
    """Rewards are 10 times the success. The dream calls `wrong` of ten failures a success."""
    lie, true = (replace(TRUE, turns=(replace(TRUE.turns[0], transition=step),)) for step in steps(10.0))
    same = replace(true, source="real")
    found = measure([compare(lie, same)] * wrong + [compare(true, same)] * (10 - wrong))
    assert found.r_max == 10.0 and found.success_gap >= wrong / 10 and found.r_max * found.success_gap >= wrong
    assert found.reward_error.value == wrong and found.reward_error.low <= wrong <= found.reward_error.high <= 10.0
    assert ("success_gap" in found.to_json()["vacuous"]) is (wrong == 10)


def steps(reward: float) -> list[Transition]:
    """A step that ends with this reward, and one that ends with none."""
    return [Transition(room(1), "open", OPENED, paid, True) for paid in (reward, 0.0)]


def test_valid_and_invalid_actions_are_told_apart_by_whether_reality_moved():
    bumps = episode(("left", room(1), 0.0), ("fly", room(2), 0.0))  # the first is refused in both; the second only really
    found = summarise(replay([bumps, TRUE], REAL))
    assert (found.state_exact_invalid.value, found.state_exact_invalid.n) == (1 / 2, 2)
    assert (found.state_exact_valid.value, found.state_exact_valid.n) == (1.0, 3)


def test_a_bound_that_says_nothing_says_so():
    few, many = ([TRUE] * n for n in (1, 200))
    assert measure(replay([STUCK], REAL)).to_json()["vacuous"] == ["theorem", "success_gap"]
    assert measure(replay(few, REAL)).success_gap > 0.5  # one episode proves little
    assert measure(replay(many, REAL)).to_json()["vacuous"] == []


def test_the_command_prints_the_measures_under_the_names_that_programs_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    replays = replay([TRUE, STUCK, replace(TRUE, success=True)], REAL)
    audit: dict[str, Any] = fidelity_json(summarise(replays, left_out=[])) | {
        "unreadable": 0,
        "masked": 0,
        "bound": measure(replays).to_json(),
        "decided_by": shares(Attribution().to_json()),
    }
    audit |= dict.fromkeys(("in_support", "out_of_support"), audit | {"share": audit["state_exact"]})
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run:
        run.mark("audit", {"with_guard": audit, "without_guard": audit})
    for options in (["--json"], []):
        monkeypatch.setattr("sys.argv", ["dreamgym", "fidelity", str(tmp_path / "run"), *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        text = capsys.readouterr().out
        if options:
            found = json.loads(text)
            assert {"with_guard", "without_guard", "reward_error", "transition_error", "bound"} <= found.keys()
            wanted = {
                "state_exact_valid",
                "state_exact_invalid",
                "false_success",
                "false_failure",
                "accepted_false",
                "terminals",
                "consistency_ratio",
            }
            assert wanted | {"first_divergence_step", "state_exact_generated", "decided_by"} <= found["with_guard"].keys()
            assert found["with_guard"]["terminals"] == {"real_failures": 0, "real_successes": 3}
        else:
            assert "differ by at most" in text and "says nothing about success" in text
