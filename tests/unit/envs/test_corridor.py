"""The corridor: a world small enough to know by heart."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from corridor_dynamics import Outcome, transition_table

from dreamgym.envs import corridor
from dreamgym.envs.corridor import Goal, read_goal
from dreamgym.errors import ConfigError, UsageError
from dreamgym.types import Memory, Observation, Task, Transition


def task(start: int, target: int, key: int = 0) -> Task:
    goal = Goal(start, target, key)
    return Task("t", goal.instruction, "corridor", goal={"start": start, "target": target, "key": key})


def walk(actions: str, on: Task, **config: object) -> list[tuple[str, float, bool]]:
    """(state, reward, terminated) after the start and after each action."""
    suite = corridor.make(**config)
    env = suite.env()
    steps = [(suite.rules.abstract(env.reset(on)).text, 0.0, False)]
    for action in actions.split():
        raw, reward, terminated = env.step(action)
        steps.append((suite.rules.abstract(raw).text, reward, terminated))
    return steps


def memory(state: str, action: str, next_state: str, *, reward: float = 0.0, terminated: bool = False) -> Memory:
    return Memory(0, "t", 0, "corridor", "i", "real", state, action, next_state, reward, terminated, reward > 0)


def test_an_episode_reads_like_this():
    assert walk("right take open", task(1, 2, key=2)) == [
        ("room 1 of 6\n[right] [open]", 0.0, False),
        ("room 2 of 6\na key lies here\n[left] [right] [take] [open]", 0.0, False),
        ("room 2 of 6\nyou carry the key\n[left] [right] [open]", 0.0, False),
        ("room 2 of 6\nyou carry the key\nthe door is open", 1.0, True),
    ]
    assert task(1, 2, key=2).instruction == "start in room 1, take the key in room 2, go to room 2 and open the door"


@pytest.mark.parametrize(
    ("actions", "on", "reward"),
    [
        ("right right open", task(1, 3), 1.0),
        ("right open", task(1, 3), 0.0),  # the wrong door
        ("right right open", task(1, 3, key=2), 0.0),  # the right door without its key
        ("right take right open", task(1, 3, key=2), 1.0),
        ("right take open", task(1, 3, key=2), 0.0),  # the key, and the wrong door
    ],
)
def test_only_the_right_door_with_its_key_is_rewarded_and_every_door_ends_the_episode(actions: str, on: Task, reward: float):
    *before, last = walk(actions, on)
    assert last[1:] == (reward, True)
    assert all(step[1:] == (0.0, False) for step in before)


def test_walls_and_a_key_that_is_not_there_change_nothing():
    states = [state for state, _, _ in walk("left take jump", task(1, 3, key=2))]
    assert len(set(states)) == 1


def test_actions_may_be_spelt_as_the_state_shows_them():
    assert corridor.CorridorRules().canonical(" [Right]\n") == "right"
    env = corridor.make().env()
    env.reset(task(1, 3))
    assert env.step("[RIGHT]")[0]["room"] == 2


def test_a_step_after_the_end_or_before_the_start_is_a_mistake_of_the_caller():
    env = corridor.make().env()
    with pytest.raises(UsageError, match="reset"):
        env.step("left")
    env.reset(task(1, 2))
    env.step("open")
    with pytest.raises(UsageError, match="reset"):
        env.step("left")


def test_a_task_of_a_longer_corridor_is_refused():
    with pytest.raises(UsageError, match="greater length"):
        corridor.make(length=4).env().reset(task(1, 6))


def test_the_three_splits_hold_every_task_once():
    suite = corridor.make(length=6)
    ids = [t.id for split in ("train", "dev", "test") for t in suite.tasks(split, 10_000, seed=0)]
    assert len(ids) == len(set(ids)) == 6 * 5 * 7
    assert len(corridor.make(length=6, keys=False).tasks("train", 10_000, seed=0)) == 6 * 5 * 0.6
    with pytest.raises(UsageError, match="train, dev, test"):
        suite.tasks("validation", 1, seed=0)


def test_a_wrong_option_is_explained():
    with pytest.raises(ConfigError, match="Did you mean 'length'"):
        corridor.make(lenght=3)
    with pytest.raises(ConfigError, match="slip"):
        corridor.make(slip=1.5)


def test_the_transition_table_is_what_the_corridor_does():
    suite = corridor.make(length=4)
    table = transition_table(suite)
    for goal_task in [t for split in ("train", "dev", "test") for t in suite.tasks(split, 100, seed=0)]:
        env, rng = suite.env(), random.Random(goal_task.id)
        state, terminated = suite.rules.abstract(env.reset(goal_task)).text, False
        while not terminated:
            action = rng.choice(corridor.ACTIONS)
            (expected,) = table[goal_task.instruction, state, action]
            raw, reward, terminated = env.step(action)
            state = suite.rules.abstract(raw).text
            assert Outcome(1.0, state, reward, terminated) == expected


def test_a_table_of_given_tasks_holds_those_only_and_probabilities_sum_to_one():
    table = transition_table(corridor.make(length=5, slip=0.25), [task(1, 3)])
    assert {instruction for instruction, _, _ in table} == {task(1, 3).instruction}
    assert all(sum(outcome.probability for outcome in outcomes) == pytest.approx(1.0) for outcomes in table.values())
    assert table[task(1, 3).instruction, "room 2 of 5\n[left] [right] [open]", "right"] == (
        Outcome(0.75, "room 3 of 5\n[left] [right] [open]", 0.0, False),
        Outcome(0.25, "room 2 of 5\n[left] [right] [open]", 0.0, False),
    )


def test_steps_slip_as_often_as_the_table_says_and_the_same_episode_slips_the_same_way():
    suite = corridor.make(length=9, slip=0.3, keys=False)
    moved: Counter[bool] = Counter()
    for on in suite.tasks("train", 60, seed=0):
        env = suite.env()
        room = env.reset(on)["room"]
        for action in ["right", "left"] * 6:
            before, room = room, env.step(action)[0]["room"]
            if 1 < before < 9:
                moved[room != before] += 1
    assert moved[True] / moved.total() == pytest.approx(0.7, abs=0.06)
    assert walk("right right left right right", task(2, 4), slip=0.5) == walk("right right left right right", task(2, 4), slip=0.5)


def test_an_instruction_is_read_back_as_the_goal_that_wrote_it():
    for goal in (Goal(1, 6), Goal(3, 1, 5), Goal(12, 40, 7)):
        assert read_goal(goal.instruction) == goal
    assert read_goal("go somewhere nice") is None
    assert read_goal(Goal(1, 2).instruction + " quickly") is None


def test_the_check_finds_a_dreamed_success_that_the_text_does_not_support():
    rules = corridor.CorridorRules()
    at_the_door = Transition(
        Observation("room 3 of 6\nyou carry the key\n[left] [right] [open]"),
        "open",
        Observation("room 3 of 6\nthe door is open"),
        1.0,
        True,
    )
    took = Transition(Observation("room 2 of 6\na key lies here\n[take] [open]"), "take", Observation("..."), 0.0, False)
    assert rules.check_success(Goal(1, 3).instruction, [], at_the_door).passed
    assert rules.check_success(Goal(1, 3, key=2).instruction, [took], at_the_door).passed
    assert rules.check_success(Goal(1, 4).instruction, [], at_the_door).reasons == ("this is not room 4",)
    assert rules.check_success(Goal(1, 3, key=2).instruction, [], at_the_door).reasons == ("the key was never taken",)
    wandered = Transition(at_the_door.state, "left", Observation("room 2 of 6\n[open]"), 1.0, True)
    assert rules.check_success(Goal(1, 3).instruction, [], wandered).reasons == ("an end without an open door", "no door was opened")
    assert not rules.check_success("buy a scarf", [], at_the_door).passed


def test_what_is_not_a_corridor_state_is_left_undecided():
    assert corridor.CorridorRules().admissible(Observation("shop home\n[search]"), [], "search[x]") is None


def test_an_invented_task_is_feasible_when_memories_show_its_rooms():
    rules, seen = corridor.CorridorRules(), [memory("room 1 of 6\n[right] [open]", "right", "room 2 of 6\n[left] [right] [open]")]
    assert rules.feasible(Goal(2, 6).instruction, seen) is True
    assert rules.feasible(Goal(2, 7).instruction, seen) is False
    assert rules.feasible(Goal(2, 7).instruction, []) is None
    assert rules.feasible("go home", seen) is False


def test_a_memory_is_told_in_two_lines():
    rules = corridor.CorridorRules()
    key = memory("room 1 of 6\na key lies here\n[right] [take] [open]", "take", "room 1 of 6\nyou carry the key\n[right] [open]")
    door = memory("room 2 of 6\n[left] [right] [open]", "open", "room 2 of 6\nthe door is open", reward=1.0, terminated=True)
    assert rules.memory_text(key) == "room 1 of 6, a key lies here: take\nroom 1 of 6, you carry the key"
    assert rules.memory_text(door) == "room 2 of 6: open\nreward 1"


def test_the_walkers_differ_in_skill_and_the_invalid_one_tries_the_impossible():
    suite = corridor.make()
    tasks = suite.tasks("train", 60, seed=0)
    success = {name: sum(suite.demonstrate(on, name, seed=0).success for on in tasks) / len(tasks) for name in suite.scripted_policies}
    assert success["expert"] == 1.0 > success["noisy"] > success["random"]
    steps = [t for on in tasks for t in suite.demonstrate(on, "invalid", seed=0).transitions]
    impossible = [t for t in steps if not suite.rules.admissible(t.state, [], t.action)]
    assert 0.3 < len(impossible) / len(steps) < 0.7
    assert all(t.next_state == t.state and t.info.reasoning == "no such element, so nothing changes." for t in impossible)
    with pytest.raises(UsageError, match="expert, noisy, random, invalid"):
        suite.demonstrate(tasks[0], "clever", seed=0)
