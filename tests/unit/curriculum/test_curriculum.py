"""The curriculum: train where outcomes differ, invent tasks like those, and refuse what is not a task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from dreamgym.curriculum import task_curriculum
from dreamgym.curriculum.task_curriculum import Considered, CurriculumConfig, TaskCurriculum
from dreamgym.envs import corridor, webshop
from dreamgym.envs.corridor import Goal
from dreamgym.report.metrics import METRICS
from dreamgym.types import Completion, Memory, Observation, Task, Trajectory, Transition, Turn

SUITE = corridor.make(length=6)
TASKS = SUITE.tasks("train", 60)
SEEN = [Memory(1, "t", 0, "corridor", "i", "real", "room 1 of 6\n[right] [open]", "right", "room 2 of 6", 0.0, False, False)]


def group(task: Task, *rewards: float, errors: int = 0) -> list[Trajectory]:
    state, said = Observation("s"), Completion((1,), (2,), (0.0,), "open", "stop")
    turns = [(Turn(Transition(state, "open", state, reward, True), said),) for reward in (*rewards, *[0.0] * errors)]
    return [
        Trajectory(f"t{i}", task, "dream", turn, turn[0].transition.reward >= 1, error="broken" if i >= len(rewards) else None)
        for i, turn in enumerate(turns)
    ]


def pool(
    vary: Any = None, *, tasks: Sequence[Task] = TASKS, memories: Any = lambda: SEEN, held_out: Sequence[str] = (), seed: int = 0, **config
):
    return TaskCurriculum(tasks, CurriculumConfig(**config), rules=SUITE.rules, vary=vary, memories=memories, held_out=held_out, seed=seed)


def inventor(*texts: str):
    """Proposes these instructions in turn, over and over."""

    def vary(seeds: Sequence[Task], seed: int, level: int) -> list[str]:
        return [texts[(seed * len(seeds) + i) % len(texts)] for i in range(len(seeds))]

    return vary


NEW = Goal(1, 6, key=4).instruction
HELD_OUT = Goal(2, 5, key=3).instruction
WANTED = [t for t in TASKS if t.instruction not in (NEW, HELD_OUT)]


def fresh_texts() -> list[str]:
    """Well-formed instructions that are nobody's task."""
    known = {t.instruction for t in TASKS}
    goals = [Goal(s, t, k) for s in range(1, 7) for t in range(1, 7) for k in range(7) if s != t]
    return [g.instruction for g in goals if g.instruction not in known]


@pytest.mark.parametrize(
    ("rewards", "value"), [((1, 0), 0.25), ((1, 0, 0, 0), 0.1875), ((1, 1), 0.0), ((0, 0, 0), 0.0), ((1.0, 0.5, 0.0), 1 / 6)]
)
def test_a_tasks_value_is_the_variance_of_its_groups_returns(rewards: tuple[float, ...], value: float):
    curriculum = pool()
    curriculum.observe([group(TASKS[0], *rewards)])
    entry = curriculum.pool[TASKS[0].id]
    assert entry.value == pytest.approx(value) and entry.tried == 1  # Eq. 7: (1/n) sum (r - mean)^2


def test_failed_rollouts_do_not_enter_a_tasks_value_and_strangers_are_ignored():
    curriculum = pool()
    stranger = Task("stranger", "?", "corridor")
    curriculum.observe([group(TASKS[0], 1, 1, errors=2), group(stranger, 1, 0), []])
    assert curriculum.pool[TASKS[0].id].value == 0.0 and "stranger" not in curriculum.pool


def test_a_group_whose_rollouts_all_failed_measures_nothing_and_counts_as_tried():
    curriculum = pool(tasks=TASKS[:2])
    assert curriculum.observe([group(TASKS[0], errors=4)]) == {}
    assert curriculum.pool[TASKS[0].id].value is None and curriculum.prior == task_curriculum.INITIAL_PRIOR and not curriculum.success
    assert [task.id for task in curriculum.sample(1)] == [TASKS[1].id], "a task that always fails does not come before all others"
    assert curriculum.observe([group(TASKS[0], 1, 0)]) == {"mixed_fresh": 1.0} and curriculum.prior == 0.25


def test_an_iteration_holds_distinct_tasks_and_every_fresh_task_comes_before_a_tired_one():
    curriculum = pool(replay_fraction=0.0)
    seen: list[str] = []
    for _ in range(6):
        tasks = curriculum.sample(10)
        assert len({t.id for t in tasks}) == 10
        curriculum.observe([group(t, 1, 0) for t in tasks])
        curriculum.expand()
        seen += [t.id for t in tasks]
    assert len(set(seen)) == 60 == len(seen)


def test_the_last_fresh_tasks_come_before_tired_ones_though_they_do_not_fill_an_iteration():
    curriculum = pool(replay_fraction=0.0, tasks=TASKS[:33])
    for _ in range(4):
        curriculum.observe([group(t, 1, 0) for t in curriculum.sample(10)])
        curriculum.expand()
    assert all(entry.tried for entry in curriculum.pool.values()), "33 tasks in four iterations of ten"


def test_a_refill_draws_other_tasks_than_the_iteration_did_and_the_same_each_time():
    curriculum = pool(seed=3)
    first, refill = ([task.id for task in curriculum.sample(4, refill=number)] for number in (0, 1))
    assert first != refill and first == [task.id for task in curriculum.sample(4)]
    assert refill == [task.id for task in pool(seed=3).sample(4, refill=1)]


@pytest.mark.parametrize("seed", range(5))
def test_tasks_that_are_still_played_are_not_drawn_as_fresh_for_the_next_iteration(seed: int):
    curriculum = pool(replay_fraction=0.0, seed=seed)
    first = curriculum.sample(10)
    second = curriculum.sample(10, after=first)
    assert not {t.id for t in first} & {t.id for t in second}
    curriculum.observe([group(t, 1, 0) for t in first])
    curriculum.expand()
    third = curriculum.sample(10, after=second)
    assert len({t.id for t in (*first, *second, *third)}) == 30
    few = pool(replay_fraction=0.0, tasks=TASKS[:3], seed=seed)
    assert {t.id for t in few.sample(3, after=few.sample(3))} == {t.id for t in TASKS[:3]}, "of a small pool each is drawn again"


def test_valuable_tasks_come_back_more_often_than_worthless_ones():
    curriculum = pool(replay_fraction=0.5)
    curriculum.observe([group(t, 1, 0) for t in TASKS[:10]] + [group(t, 0, 0) for t in TASKS[10:20]])
    came: Counter[bool] = Counter()
    for _ in range(30):
        came.update(t in TASKS[:10] for t in curriculum.sample(8) if t in TASKS[:20])
        curriculum.iteration += 1
    assert came[True] == 30 * 4 and came[False] == 0  # half of each iteration, and untried tasks fill the rest


def test_what_was_measured_fades_toward_what_a_fresh_task_is_worth():
    curriculum = pool(decay=0.5)
    curriculum.observe([group(TASKS[0], 1, 0), group(TASKS[1], 1, 1), group(TASKS[2], 1, 1), group(TASKS[3], 1, 1)])
    mixed, solved, untried = (curriculum.pool[TASKS[i].id] for i in (0, 1, 4))
    assert curriculum.prior == pytest.approx(0.25 / 4) == curriculum.value_estimate(untried)
    assert (curriculum.value_estimate(mixed), curriculum.value_estimate(solved)) == (0.25, 0.0)
    curriculum.iteration += 1
    assert curriculum.value_estimate(mixed) == pytest.approx((0.25 + 0.0625) / 2) and curriculum.value_estimate(solved) == pytest.approx(
        0.0625 / 2
    )
    curriculum.iteration += 50
    assert curriculum.value_estimate(mixed) == pytest.approx(0.0625) == pytest.approx(curriculum.value_estimate(solved))


def test_a_task_mixed_now_comes_back_before_one_that_was_mixed_long_ago():
    curriculum = pool(replay_fraction=0.25, decay=0.5)
    curriculum.observe([group(t, 1, 0) for t in TASKS[:10]])
    curriculum.iteration += 20
    curriculum.observe([group(t, 1, 0) for t in TASKS[10:20]] + [group(t, 1, 1) for t in TASKS[20:40]])
    came: Counter[bool] = Counter()
    for _ in range(30):
        came.update(t in TASKS[10:20] for t in curriculum.sample(8) if t in TASKS[:20])
        curriculum.iteration += 1
        curriculum.observe([group(t, 1, 0) for t in TASKS[10:20]])
    assert came[True] == 30 * 2 and came[False] == 0


def test_an_iteration_says_how_often_fresh_repeated_and_invented_tasks_were_mixed():
    curriculum = pool(inventor(NEW), tasks=WANTED, proposals=1)
    assert curriculum.observe([group(WANTED[0], 1, 0), group(WANTED[1], 1, 1)]) == {"mixed_fresh": 0.5}
    curriculum.expand()
    (synthetic,) = [e.task for e in curriculum.pool.values() if e.task.source == "synthetic"]
    found = curriculum.observe([group(WANTED[0], 1, 1), group(synthetic, 0, 1), group(WANTED[2], 0, 0)])
    assert found == {"mixed_fresh": 0.0, "mixed_replayed": 0.0, "mixed_synthetic": 1.0}


def test_a_pool_smaller_than_an_iteration_is_given_whole():
    assert sorted(t.id for t in pool(tasks=TASKS[:3]).sample(8)) == sorted(t.id for t in TASKS[:3])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_lambda_bounds_the_share_of_invented_tasks(share: float):
    curriculum = pool(inventor(*fresh_texts()), synthetic_share=share)
    most = 0
    for _ in range(6):
        tasks = curriculum.sample(16)
        synthetic = sum(t.source == "synthetic" for t in tasks)
        most = max(most, synthetic)
        assert synthetic <= share * 16 and len({t.id for t in tasks}) == 16
        curriculum.observe([group(t, 1, 0) for t in tasks])
        curriculum.expand()
    assert most == share * 16


def test_no_task_is_invented_where_the_share_is_less_than_one_task_and_that_is_said_once(caplog: pytest.LogCaptureFixture):
    def never(seeds: Sequence[Task], seed: int, level: int) -> list[str]:
        raise AssertionError("nobody could draw what is invented")

    curriculum = pool(never)
    for _ in range(3):
        curriculum.observe([group(t, 1, 0) for t in curriculum.sample(8)])
        assert curriculum.expand() == {}
    (said,) = caplog.messages
    assert "at most 8 tasks" in said and "synthetic_share = 0.1" in said and "set synthetic_share = 0" in said


def test_tasks_are_invented_where_a_refill_draws_enough_at_once_after_a_resume_too():
    curriculum = pool(inventor(*fresh_texts()))
    curriculum.observe([group(t, 1, 0) for t in (*curriculum.sample(8), *curriculum.sample(12, refill=1))])
    assert curriculum.expand()["accepted"]
    resumed = pool(inventor(*fresh_texts()))
    resumed.load_state_dict(json.loads(json.dumps(curriculum.state_dict())))
    resumed.sample(8)
    assert resumed.expand() == curriculum.expand() != {}


def test_an_invented_task_has_no_goal_record_and_names_its_parent():
    curriculum = pool(inventor(NEW), tasks=WANTED, proposals=1)
    curriculum.observe([group(WANTED[0], 1, 0)])
    assert curriculum.expand() == {"proposed": 1, "accepted": 1}
    (synthetic,) = [e.task for e in curriculum.pool.values() if e.task.source == "synthetic"]
    assert synthetic.goal is None and synthetic.parents == (WANTED[0].id,) and synthetic.instruction == NEW
    assert not SUITE.env().accepts(synthetic)


def test_variations_are_made_of_the_most_valuable_tasks():
    asked: list[str] = []

    def vary(seeds: Sequence[Task], seed: int, level: int) -> list[str]:
        asked.extend(t.id for t in seeds)
        return [""] * len(seeds)

    curriculum = pool(vary, seed_tasks=2, proposals=4)
    curriculum.expand()
    assert asked == []  # nothing is known to be worth varying
    curriculum.observe([group(TASKS[0], 1, 0, 0, 0), group(TASKS[1], 1, 0), group(TASKS[2], 1, 1), group(TASKS[3], 1, 1, 1, 0, 0)])
    curriculum.expand()
    assert asked == [TASKS[1].id, TASKS[3].id] * 2


def test_proposals_are_refused_by_reason_and_counted():
    texts = ["", "open the window", TASKS[5].instruction, HELD_OUT, Goal(1, 9).instruction, NEW, NEW]
    tasks = [t for t in TASKS if t.instruction not in (NEW, HELD_OUT)]
    curriculum = pool(lambda seeds, seed, level: texts, tasks=tasks, held_out=[HELD_OUT], proposals=7)
    curriculum.observe([group(tasks[0], 1, 0)])
    expected = {"proposed": 7, "malformed": 2, "duplicate": 2, "held_out": 1, "impossible": 1, "accepted": 1}
    assert TASKS[5] in tasks
    assert curriculum.expand() == expected == dict(curriculum.counts)


def test_what_no_memory_shows_possible_is_refused():
    curriculum = pool(inventor(NEW), tasks=WANTED, memories=lambda: [], proposals=1)
    curriculum.observe([group(WANTED[0], 1, 0)])
    assert curriculum.expand() == {"proposed": 1, "impossible": 1}


def test_the_uniform_control_never_invents_and_draws_all_tasks_alike():
    def never(seeds: Sequence[Task], seed: int) -> list[str]:
        raise AssertionError("the control invents nothing")

    curriculum = pool(never, strategy="uniform", synthetic_share=0.5)
    drawn: Counter[str] = Counter()
    for _ in range(60):
        tasks = curriculum.sample(10)
        drawn.update(t.id for t in tasks)
        curriculum.observe([group(t, 1, 0) for t in tasks])
        assert curriculum.expand() == {}
    assert set(drawn) == {t.id for t in TASKS} and all(t.source == "real" for t in curriculum.sample(60))


def test_invented_tasks_that_teach_nothing_are_not_sampled_again_and_the_least_valuable_go_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_curriculum, "POOL_LIMIT", 6)
    curriculum = pool(inventor(*fresh_texts()), synthetic_share=0.5, proposals=8)
    curriculum.observe([group(TASKS[0], 1, 0)])
    curriculum.expand()
    synthetic = [e.task for e in curriculum.pool.values() if e.task.source == "synthetic"]
    assert len(synthetic) == 6
    curriculum.observe([group(t, 0, 0) for t in synthetic[:3]] + [group(t, 1, 0) for t in synthetic[3:]])
    assert {t.id for t in curriculum.sample(20) if t.source == "synthetic"} == {t.id for t in synthetic[3:]}
    curriculum.expand()
    left = [e.task for e in curriculum.pool.values() if e.task.source == "synthetic"]
    assert len(left) == 6 and set(synthetic[3:]) <= set(left) and not set(synthetic[:3]) & set(left)


@pytest.mark.parametrize(("band", "stays"), [((0.0, 1.0), [0.125, 0.5, 0.875]), ((0.2, 0.8), [0.5])])
def test_an_invented_task_is_retired_when_its_success_leaves_the_band_and_is_not_invented_again(
    band: tuple[float, float], stays: list[float]
):
    curriculum = pool(inventor(*fresh_texts()[:5]), tasks=TASKS[:1], proposals=5, success_band=band)
    curriculum.observe([group(TASKS[0], 1, 0)])
    curriculum.expand()
    synthetic = [e.task for e in curriculum.pool.values() if e.task.source == "synthetic"]
    wins = dict(zip((t.id for t in synthetic), (0, 1, 4, 7, 8), strict=True))
    curriculum.observe([group(t, *[1] * wins[t.id], *[0] * (8 - wins[t.id])) for t in synthetic])
    assert [wins[name] / 8 for name in wins if name in curriculum.pool] == stays and TASKS[0].id in curriculum.pool
    assert curriculum.counts["retired"] == 5 - len(stays) == len(curriculum.archive)
    assert curriculum.expand() == {"proposed": 5, "duplicate": 5}  # three or one in the pool, the others in the archive


@pytest.mark.parametrize("paid", [0.5, 10.0])
def test_solve_rates_and_not_returns_retire_tasks_and_set_the_difficulty(paid: float):
    def played(task: Task, wins: int) -> list[Trajectory]:
        return [replace(t, success=i < wins) for i, t in enumerate(group(task, *[paid] * wins, *[0.0] * (8 - wins), errors=1))]

    curriculum = pool(inventor(*fresh_texts()[:3]), tasks=TASKS[:1], proposals=3)
    curriculum.observe([played(TASKS[0], 4)])
    assert curriculum.level == 2
    curriculum.expand()
    first, second, third = (e.task for e in curriculum.pool.values() if e.task.source == "synthetic")
    curriculum.observe([played(first, 4), played(second, 8), played(third, 0)])
    assert first.id in curriculum.pool and second.id not in curriculum.pool and third.id not in curriculum.pool


def test_one_rollout_retires_nothing_and_a_band_must_be_in_order():
    curriculum = pool(inventor(NEW), tasks=WANTED, proposals=1)
    curriculum.observe([group(WANTED[0], 1, 0)])
    curriculum.expand()
    (synthetic,) = [e.task for e in curriculum.pool.values() if e.task.source == "synthetic"]
    curriculum.observe([group(synthetic, 1, errors=3)])
    assert synthetic.id in curriculum.pool
    with pytest.raises(ValueError, match="the lower end first"):
        CurriculumConfig(success_band=(0.9, 0.1))


def test_seeds_of_variations_may_be_asked_to_differ_from_each_other():
    asked: list[str] = []

    def vary(seeds: Sequence[Task], seed: int, level: int) -> list[str]:
        asked.extend(t.instruction for t in seeds)
        return [""] * len(seeds)

    texts = ["a red mug", "a red mug please", "a blue hat"]
    tasks = [Task(f"t{i}", text, "corridor") for i, text in enumerate(texts)]
    for alike, expected in ((1.0, texts[:2]), (0.5, [texts[0], texts[2]])):
        asked.clear()
        curriculum = pool(vary, tasks=tasks, seed_tasks=2, proposals=2, max_similarity=alike)
        curriculum.observe([group(tasks[0], 1, 0), group(tasks[1], 1, 1, 1, 0, 0), group(tasks[2], 1, 0, 0, 0)])
        curriculum.expand()
        assert asked == expected


def life(curriculum: TaskCurriculum, iterations: int) -> list[list[str]]:
    found = []
    for _ in range(iterations):
        tasks = curriculum.sample(8)
        found.append([t.id + t.instruction for t in tasks])
        curriculum.observe([group(t, *((1, 0) if hash_of(t) % 2 else (1, 1))) for t in tasks])
        curriculum.expand()
    return found


def hash_of(task: Task) -> int:
    return sum(task.instruction.encode())


def test_a_curriculum_restored_from_json_gives_the_same_samples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_curriculum, "POOL_LIMIT", 10)

    def new(seed: int = 0) -> TaskCurriculum:
        return pool(inventor(*fresh_texts()), synthetic_share=0.5, seed=seed)

    whole, half = new(), new()
    expected = life(whole, 8)
    first = life(half, 4)
    resumed = new()
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    assert first + life(resumed, 4) == expected
    assert resumed.state_dict() == whole.state_dict() and resumed.counts == whole.counts
    assert life(new(seed=1), 2) != expected[:2]


def test_a_held_out_task_is_refused_in_other_words_too():
    rules = webshop.make().rules
    held_out = "find me a soft warm scarf with color: red, and size: large, and price lower than 40.00 dollars"
    twin = "i need a soft warm scarf with color: red, and size: large, and price lower than 40.00 dollars"
    other = twin.replace("red", "blue")
    assert rules.well_formed(twin) and rules.well_formed(other)
    tasks = [Task("real", "find me a soft scarf", "webshop")]
    curriculum = TaskCurriculum(tasks, CurriculumConfig(), rules=rules, held_out=[held_out])
    assert [curriculum._consider(text, tasks[0], i) for i, text in enumerate((held_out, twin, other))] == [
        "held_out",
        "held_out",
        "accepted",
    ]


def test_by_default_a_task_in_other_spelling_is_the_same_task():
    rules = SUITE.rules
    assert rules.task_key("Go to  door 3!") == rules.task_key("go to door 3") != rules.task_key("go to door 4")


def test_where_no_rule_knows_what_is_feasible_proposals_must_be_worded_like_real_tasks():
    supported = {NEW}
    curriculum = TaskCurriculum(
        WANTED, CurriculumConfig(proposals=2), rules=SUITE.rules, vary=inventor(NEW, HELD_OUT), memories=lambda: SEEN, supported=supported
    )
    curriculum.observe([group(WANTED[0], 1, 0)])
    assert curriculum.expand() == {"proposed": 2, "accepted": 1, "unsupported": 1}


def test_every_reason_of_a_refusal_is_an_explained_metric():
    assert {f"tasks_{reason}" for reason in get_args(Considered)} <= {name for group in METRICS.values() for name in group}


def test_the_difficulty_that_is_asked_for_still_rises_when_every_task_has_been_tried():
    curriculum = pool(tasks=TASKS[:16])
    curriculum.observe([group(task, 0, 0) for task in TASKS[:16]])
    assert curriculum.level == 1
    for _ in range(4):
        curriculum.observe([group(task, 1, 1) for task in TASKS[:16]])
    assert curriculum.level == 3


def test_an_invented_task_that_cannot_be_measured_twice_in_a_row_is_retired():
    curriculum = pool(inventor(NEW), tasks=WANTED[:1], proposals=1)
    curriculum.observe([group(WANTED[0], 1, 0)])
    curriculum.expand()
    (synthetic,) = [e.task for e in curriculum.pool.values() if e.task.source == "synthetic"]
    for rewards, left in (((), True), ((1, 0), True), ((), True), ((), False)):
        curriculum.observe([group(synthetic, *rewards, errors=4)])
        assert (synthetic.id in curriculum.pool) is left


def test_the_difficulty_that_is_asked_for_rises_with_success_and_survives_a_resume():
    asked: list[int] = []

    def vary(seeds: Sequence[Task], seed: int, level: int) -> list[str]:
        asked.append(level)
        return [""] * len(seeds)

    curriculum = pool(vary, proposals=1)
    for i, wins in enumerate((0, 1, 2, 3)):
        curriculum.success = []
        curriculum.observe([group(TASKS[i], *[1] * wins, *[0] * (3 - wins)), group(TASKS[i + 4], *[1] * wins, *[0] * (3 - wins))])
        if i in (1, 2):
            curriculum.expand()
    assert asked == [2, 3] and curriculum.level == 3
    again = pool(vary, proposals=1)
    again.load_state_dict(curriculum.state_dict())
    assert again.level == 3
