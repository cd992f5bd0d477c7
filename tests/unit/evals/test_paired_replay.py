"""Measures: intervals against published values, and dreams against the world they claim to describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dreamgym.envs import corridor, webshop
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import EnvironmentFailure
from dreamgym.evals.gap import GapMeter
from dreamgym.evals.paired_replay import Replay, by_support, compare, masked_episodes, paired_episodes, replay, summarise
from dreamgym.evals.success import evaluate, success
from dreamgym.evals.synthetic_tasks import measure_synthetic_tasks
from dreamgym.statistics import Rate, wilson
from dreamgym.types import REAL_STEP, Completion, Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict, VerdictKind

SUITE = corridor.make(length=4)
SHOP = webshop.make()
REAL = EnvPool(SUITE.env, SUITE.rules)


def task(start: int, target: int) -> Task:
    goal = corridor.Goal(start, target)
    return Task(f"{start}-{target}", goal.instruction, "corridor", goal={"start": start, "target": target, "key": 0})


def room(n: int) -> Observation:
    offered = (("left", n > 1), ("right", n < 4), ("open", True))
    return Observation(f"room {n} of 4\n" + " ".join(f"[{name}]" for name, there in offered if there))


def opened(n: int) -> Observation:
    return Observation(f"room {n} of 4\nthe door is open")


def dreamed(on: Task, *steps: tuple[str, Observation], reward: float, raw: float | None = None, ends: bool = True) -> Trajectory:
    """An episode of a dream that goes through these (action, next state)."""
    state, turns = room(1), []
    for i, (action, after) in enumerate(steps):
        last = i == len(steps) - 1
        info = StepInfo(raw_reward=reward if raw is None else raw) if last else REAL_STEP
        turns.append(Turn(Transition(state, action, after, reward if last else 0.0, last and ends, info)))
        state = after
    return Trajectory("d", on, "dream", tuple(turns), ends and reward >= 1, truncated=not ends)


TRUE = dreamed(task(1, 3), ("right", room(2)), ("right", room(3)), ("open", opened(3)), reward=1.0)
LIE = dreamed(task(1, 3), ("right", room(3)), ("open", opened(3)), reward=1.0)  # skips a room: really the door of room 2
REFUSED = replace(dreamed(task(1, 4), ("right", room(2)), ("open", opened(2)), reward=0.0, raw=1.0))  # the guard caught it
TOO_SAD = dreamed(task(1, 2), ("right", room(2)), ("open", opened(2)), reward=0.0)
ENDLESS = dreamed(task(1, 2), ("right", room(2)), ("right", room(2)), reward=0.0, ends=False)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (5, 10, 0.2366, 0.7634),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilsons_interval_has_the_published_values(k: int, n: int, low: float, high: float):
    rate = wilson(k, n)
    assert (rate.value, rate.n) == (k / n, n)
    assert (rate.low, rate.high) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


def test_no_trials_say_nothing():
    assert wilson(0, 0) == Rate(0.0, 0.0, 1.0, 0) and str(wilson(0, 0)) == "-"
    assert str(wilson(5, 10)) == "0.500 [0.237, 0.763]"


def test_an_episode_that_broke_is_not_counted_as_a_failure():
    assert success([TRUE, TOO_SAD, replace(TOO_SAD, error="broken")]).value == 0.5


def test_a_true_dream_replays_without_a_difference():
    assert replay([TRUE], REAL) == [Replay(True, True, True, 3, 3, False, True, False, 0.0, valid=(3, 3))]


def test_a_dream_that_skips_a_room_is_found_out():
    (found,) = replay([LIE], REAL)
    assert (found.dreamed_success, found.real_success, found.diverged, found.agreeing_steps) == (True, False, True, 0)


def test_only_the_steps_that_the_world_took_are_charged():
    dreams_on = dreamed(task(1, 3), ("open", room(1)), ("right", room(2)), ("open", opened(2)), reward=0.0)
    assert replay([dreams_on], REAL) == [Replay(False, False, True, 0, 1, True, False, True, 0.0, valid=(0, 1))]


def test_the_steps_of_a_replay_that_the_world_fails_in_are_charged_too():
    class Gone(corridor.Corridor):
        def step(self, action: str) -> tuple[dict[str, Any], float, bool]:
            if action == "open":
                raise EnvironmentFailure("the corridor is gone")
            return super().step(action)

    real = EnvPool(lambda: Gone(SUITE.config), SUITE.rules)
    assert replay([TRUE, TRUE], real) == [] and real.steps == 2 * 3


def test_the_rates_of_a_set_of_dreams_as_worked_by_hand():
    found = summarise(replay([TRUE, LIE, REFUSED, TOO_SAD, ENDLESS], REAL))
    # Dreamed successes: TRUE and LIE. Really: TRUE, and TOO_SAD, whose door was the right one.
    assert (found.dream_success.value, found.real_success.value) == (2 / 5, 2 / 5)
    # Dreams that ended and really fail: LIE and REFUSED; one is called a success, both were before the guard.
    assert (found.false_success.value, found.false_success.n, found.raw_false_success.value) == (1 / 2, 2, 1.0)
    assert (found.false_failure.value, found.false_failure.n) == (1 / 2, 2)
    assert (found.consistency.value, found.consistency.n) == (1 / 2, 2)
    # LIE parts at step 1 and ENDLESS at step 2: steps compared are 3 + 1 + 2 + 2 + 2, of which 8 are equal.
    assert (found.state_exact.value, found.state_exact.n) == (8 / 10, 10)
    assert found.first_divergence == 1.5 and found.gap == 0.0


def test_dreams_that_end_as_a_failure_while_reality_goes_on_do_not_dilute_false_success():
    """Of ten real failures and claims that reality does not confirm, each is called a success, whatever ends too early beside them."""
    gives_up = dreamed(task(1, 3), ("right", room(2)), reward=0.0)  # really the episode goes on
    claims = dreamed(task(1, 3), ("right", room(2)), reward=1.0)
    found = summarise(replay([gives_up] * 90 + [LIE] * 5 + [claims] * 5, REAL))
    assert (found.false_success.value, found.false_success.n) == (1.0, 10)
    assert (found.raw_false_success.value, found.raw_false_success.n) == (1.0, 10)
    assert (found.premature_failure.value, found.premature_failure.n) == (1.0, 90)
    assert (summarise(replay([REFUSED, TOO_SAD], REAL)).premature_failure.value) == 0.0


def test_a_dream_that_its_horizon_cuts_where_reality_goes_on_differs_though_every_step_agrees():
    cut = dreamed(task(1, 3), ("right", room(2)), ("right", room(3)), reward=0.0, ends=False)
    ((_, real),) = paired_episodes([cut], REAL)
    assert not compare(cut, real).differs and not compare(cut, real, horizon=3).differs, "the policy's context may cut both alike"
    assert compare(cut, real, horizon=2).differs
    ((_, real),) = paired_episodes([TRUE], REAL)
    assert not compare(TRUE, real, horizon=3).differs, "it has come to an end"


def test_a_dream_that_goes_on_where_the_environment_cut_its_episode_differs():
    ((_, real),) = paired_episodes([TRUE], REAL)
    assert compare(TRUE, replace(real, turns=real.turns[:2], success=False, truncated=True)).differs


def test_dreams_are_told_apart_by_whether_some_step_was_a_guess():
    first, *rest = LIE.turns
    guess = replace(LIE, turns=(replace(first, transition=replace(first.transition, info=StepInfo(out_of_support=True))), *rest))
    found = by_support(replay([TRUE, guess, guess, TOO_SAD], REAL), masked_episodes([masked(REFUSED), masked(guess)], REAL))
    known, share = found["in_support"]
    assert (share.value, share.n) == (3 / 6, 6) and known.dream_success.n == 2  # TRUE and TOO_SAD, and REFUSED among those left out
    assert (known.false_success.n, known.consistency.value, known.masked_share) == (0, 1.0, wilson(1, 3))
    guessed, share = found["out_of_support"]
    assert (guessed.false_success.value, guessed.false_success.n, guessed.consistency.value) == (1.0, 2, 0.0)
    assert (share.value, guessed.masked_share) == (3 / 6, wilson(1, 3))


def masked(episode: Trajectory, kind: VerdictKind = "masked") -> Trajectory:
    """The episode as the guard leaves it out: its last step has the verdict, and it carries the error."""
    *before, last = episode.turns
    turn = replace(last, transition=replace(last.transition, info=StepInfo(verdict=Verdict(kind))))
    return replace(episode, turns=(*before, turn), error="left out")


def test_episodes_that_the_guard_left_out_are_counted_and_bound_the_false_failures():
    dreams = [TRUE, LIE, TOO_SAD, masked(TOO_SAD), masked(REFUSED), masked(TOO_SAD)]
    unlike = [
        replace(masked(TOO_SAD), task=replace(TOO_SAD.task, goal=None)),  # synthetic: nobody can repeat it
        replace(TRUE, error="broken"),
        replace(TRUE, error="no step was taken", turns=()),
        masked(TOO_SAD, "refused"),  # refused, not left out
    ]
    replays = replay(dreams + unlike, REAL)
    left_out = masked_episodes(dreams + unlike, REAL)
    assert [one.real_success for one in left_out] == [True, False, True] and len(replays) == 3
    found = summarise(replays, left_out)
    assert (found.masked_share.value, found.masked_share.n) == (3 / 6, 6)
    assert (found.false_failure.value, found.false_failure.n) == (1 / 2, 2)  # TRUE and TOO_SAD really succeed
    assert (found.false_failure_at_most.value, found.false_failure_at_most.n) == (3 / 4, 4)  # and so do two of those left out
    bare = summarise(replays)
    assert bare.masked_share is None and bare.false_failure_at_most is None
    assert replace(found, masked_share=None, false_failure_at_most=None) == bare


def test_a_claim_whose_end_the_guard_took_back_is_still_the_models_claim():
    went_on = dreamed(task(1, 4), ("right", room(2)), ("open", opened(2)), reward=0.0, ends=False)
    *before, last = went_on.turns
    claimed = replace(last.transition, info=StepInfo(raw_reward=1.0, raw_terminated=True))
    (found,) = replay([replace(went_on, turns=(*before, replace(last, transition=claimed)))], REAL)
    assert (found.raw_success, found.dreamed_success, found.ended) == (True, False, False)
    rates = summarise([found])
    assert (rates.raw_false_success.value, rates.raw_false_success.n, rates.false_success.n) == (1.0, 1, 0)


def test_a_claim_that_the_guard_took_back_and_the_episode_went_on_after_is_still_the_models_claim():
    went_on = dreamed(task(1, 4), ("right", room(2)), ("right", room(3)), ("left", room(2)), reward=0.0, raw=0.0, ends=False)
    first, *rest = went_on.turns
    claimed = replace(first.transition, info=StepInfo(raw_reward=1.0, raw_terminated=True))
    (found,) = replay([replace(went_on, turns=(replace(first, transition=claimed), *rest))], REAL)
    rates = summarise([found])
    assert found.raw_success and not found.ended and (rates.raw_false_success.value, rates.raw_false_success.n) == (1.0, 1)


def test_a_dream_that_begins_elsewhere_differs_whatever_follows():
    first, *rest = TRUE.turns
    elsewhere = replace(first, transition=replace(first.transition, state=room(4)))
    (found,) = replay([replace(TRUE, turns=(elsewhere, *rest))], REAL)
    assert found.differs and not found.diverged and found.real_success


def test_dreams_without_a_real_twin_are_left_out():
    synthetic = replace(TRUE, task=replace(TRUE.task, goal=None))
    assert replay([synthetic, replace(TRUE, error="broken")], REAL) == []
    assert summarise([]).first_divergence is None and summarise([]).gap == 0.0


class Opener:
    """Opens whatever door it stands at."""

    concurrent = False

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.begun: list[str] = []
        self.asked: list[int] = []
        self.drawn: list[tuple[float, tuple[int, ...]]] = []

    def begin(self, tasks: list[Task], *, name: str) -> list[str]:
        self.begun += [t.id for t in tasks]
        return [t.id for t in tasks]

    def submit(self, conversations: list[str], observations: list[Observation], *, temperature: float, seeds: Any) -> list[int]:
        self.batches.append(len(conversations))
        self.drawn += [(temperature, tuple(seed)) for seed in seeds]
        self.asked = list(range(len(conversations)))
        return self.asked

    def poll(self) -> list[tuple[int, Completion]]:
        asked, self.asked = self.asked, []
        return [(ticket, Completion((1,), (2,), (0.0,), "open", "stop")) for ticket in asked]

    def end(self, conversations: list[str]) -> None: ...


def test_an_evaluation_plays_every_task_once_in_batches():
    policy, env = Opener(), EnvPool(SUITE.env, SUITE.rules)
    tasks = SUITE.tasks("train", 10)
    episodes = evaluate(policy, env, tasks, max_steps=3, temperature=0.0, seed=0, batch=4)
    assert [t.task for t in episodes] == tasks and policy.batches == [4, 4, 2] and env.steps == 10
    assert len({t.id for t in episodes}) == 10


def test_the_gap_meter_compares_the_dream_with_the_world_and_counts_what_that_cost():
    meter = GapMeter(SUITE, REAL)
    synthetic = replace(TRUE, task=replace(TRUE.task, goal=None, source="synthetic"))
    gap = meter.measure(Opener(), [TRUE, synthetic, LIE, replace(LIE, error="broken")], n=10, seed=0)
    assert (gap.dream.value, gap.dream.n, gap.real.value, gap.real.n) == (1.0, 2, 0.0, 2)
    assert gap.real_steps == meter.real_steps == 2 + (3 + 2)  # two fresh episodes of a step, two replays of three and two
    found = gap.metrics()
    assert (found["gap"], found["false_success"], found["first_divergence"]) == (1.0, 1.0, 1.0)
    assert found["probe_real_low"] <= found["probe_real_success"] <= found["probe_real_high"]


def test_a_probe_of_fewer_episodes_is_spread_over_all_of_them():
    meter = GapMeter(SUITE, REAL)
    many = [replace(TRUE, id=str(i), task=replace(TRUE.task, id=str(i))) for i in range(20)]
    gap = meter.measure(Opener(), many, n=5, seed=0)
    assert gap.dream.n == gap.real.n == 5 and gap.real_steps == 5 + 15
    for n, places in (
        (5, [0, 4, 8, 12, 16]),
        (12, [0, 1, 3, 5, 6, 8, 10, 11, 13, 15, 16, 18]),
        (20, list(range(20))),
        (99, list(range(20))),
    ):
        policy = Opener()
        meter.measure(policy, many, n=n, seed=0)
        assert policy.begun == [str(i) for i in places]
    assert meter.measure(Opener(), [], n=5, seed=0).real_steps == 0


def test_a_probe_samples_like_the_dreams_and_opens_no_more_episodes_than_the_environment_keeps():
    suite = corridor.make(length=4)
    suite.max_parallel, policy = 2, Opener()
    gap = GapMeter(suite, REAL).measure(policy, [TRUE] * 5, n=5, seed=7, temperature=0.5)
    assert policy.batches == [2, 2, 1] and policy.drawn == [(0.5, (7, i, 0)) for i in range(5)]
    assert [t.id for t in gap.episodes[:5]] == [f"probe/7/{i}" for i in range(5)]


class SometimesBroken(corridor.Corridor):
    """Fails where an episode begins in room 2."""

    def reset(self, task: Task) -> dict[str, Any]:
        if (task.goal or {})["start"] == 2:
            raise EnvironmentFailure("the corridor is closed")
        return super().reset(task)


def test_a_probe_compares_only_tasks_whose_fresh_episode_has_an_outcome():
    closed = replace(TRUE, id="closed", task=task(2, 3))
    fails = replace(REFUSED, id="fails")
    real = EnvPool(lambda: SometimesBroken(SUITE.config), SUITE.rules)
    gap = GapMeter(SUITE, real).measure(Opener(), [closed, closed, fails], n=3, seed=0)
    assert (gap.dream.value, gap.dream.n, gap.real.value, gap.real.n) == (0.0, 1, 0.0, 1) and gap.gap == 0.0
    assert [episode.error is None for episode in gap.episodes[:3]] == [False, False, True]
    assert GapMeter(SUITE, real).measure(Opener(), [closed], n=3, seed=0).gap is None


def test_a_probe_of_nothing_says_nothing():
    gap = GapMeter(SUITE, REAL).measure(Opener(), [replace(TRUE, error="broken")], n=5, seed=0)
    assert gap.gap is None and set(gap.metrics().values()) == {None}


# --- synthetic tasks


def test_synthetic_tasks_are_judged_by_the_expert_in_the_real_shop():
    """Two of four can be done; one is worded well and nothing on the shelf meets it, and one is no task."""
    known = SHOP.tasks("train", 30, seed=1)
    can_be_done = [task.instruction for task in SHOP.tasks("train", 2, seed=2)]
    counts = {"proposed": 10, "malformed": 1, "duplicate": 2, "held_out": 1, "impossible": 2, "accepted": 4}

    def demonstrate(jobs: Sequence[tuple[Task, str, int]]) -> list[Trajectory]:
        return [SHOP.demonstrate(task, behaviour, seed=seed) for task, behaviour, seed in jobs]

    found = measure_synthetic_tasks(counts, [*can_be_done, "find me a soft spaceship", "dream"], known, SHOP, demonstrate)
    assert (found.new.value, found.accepted.value, found.new.n) == (0.6, 0.4, 10)
    assert (found.solved.value, found.solved.n) == (0.5, 4)
    assert found.real_solved.value > 0.9 and found.real_solved.n == 30 and found.real_steps > 90


def test_of_many_synthetic_tasks_a_few_are_tried_evenly_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dreamgym.evals.synthetic_tasks.TRIED", 4)
    tried: list[str] = []

    def demonstrate(jobs: Sequence[tuple[Task, str, int]]) -> list[Trajectory]:
        tried.extend(task.instruction for task, _, attempt in jobs if attempt == 0)
        return [Trajectory("", task, "demo", (), success=False) for task, _, _ in jobs]

    instructions = [task.instruction for task in SHOP.tasks("train", 40, seed=2)]
    found = measure_synthetic_tasks({"proposed": 40, "accepted": 40}, instructions, SHOP.tasks("train", 3, seed=1), SHOP, demonstrate)
    assert tried[:4] == instructions[::10] and found.solved.n == 4 and found.solved.value == 0.0


def test_a_task_that_the_environment_fails_in_at_every_attempt_counts_neither_as_solved_nor_as_missed():
    def demonstrate(jobs: Sequence[tuple[Task, str, int]]) -> list[Trajectory]:
        lost = {jobs[0][0].id}
        return [SHOP.demonstrate(task, behaviour, seed=seed) for task, behaviour, seed in jobs if task.id not in lost and seed]

    tasks = SHOP.tasks("train", 5, seed=1)
    instructions = [*(task.instruction for task in SHOP.tasks("train", 3, seed=2)), "find me a soft spaceship"]
    found = measure_synthetic_tasks({"proposed": 4, "accepted": 4}, instructions, tasks, SHOP, demonstrate)
    assert (found.solved.n, found.real_solved.n) == (3, 4)
