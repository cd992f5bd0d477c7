"""Everything about household games that reads text: states, commands, goals, the check, the teacher, the housekeepers. No engine needed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from _toy_house import random_house

from dreamgym.envs.alfworld.behaviours import HOUSEKEEPERS, MIX, OFFLINE, Memo, keep_house
from dreamgym.envs.alfworld.commands import Command, offered, parse
from dreamgym.envs.alfworld.domain import HouseDomain
from dreamgym.envs.alfworld.goals import WORDINGS, Goal, read_goal
from dreamgym.envs.alfworld.state import DONE, State, Told, read, state_of
from dreamgym.errors import UsageError
from dreamgym.evals.revisits import revisits
from dreamgym.playing import play
from dreamgym.types import Memory, Observation, Task, Trajectory, Transition, Turn

FIRST = """-= Welcome to TextWorld, ALFRED! =-

You are in the middle of a room. Looking quickly around you, you see a shelf 10, a shelf 2, a fridge 1, and a desk 1.

Your task is to: put a cool mug in desk."""
DOMAIN = HouseDomain()


def episode(seed: int, behaviour: str, steps: int = 24) -> Trajectory:
    house, task = random_house(seed)
    rng, memo = random.Random(f"{behaviour}/{seed}"), Memo()
    return play(
        Told(house),
        DOMAIN,
        task,
        lambda state: keep_house(behaviour, task.instruction, state, rng, memo),
        max_steps=steps,
        behaviour=behaviour,
        name=f"{behaviour}/{seed}",
    )


def after(*printed: str) -> str:
    return state_of((("", FIRST), *(("", text) for text in printed))).text


def step(state: str, action: str, next_state: str, *, reward: float = 0.0, terminated: bool = False) -> Transition:
    return Transition(Observation(state), action, Observation(next_state), reward, terminated)


# --- states


def test_the_first_state_lists_where_one_can_go_and_later_ones_what_is_here_and_in_hand():
    assert after() == "in the room\nholding nothing\naround: desk 1 fridge 1 shelf 2 shelf 10"
    assert after("You arrive at fridge 1. The fridge 1 is closed.") == "at closed fridge 1\nholding nothing"
    assert (
        after(
            "You arrive at fridge 1. The fridge 1 is closed.",
            "You open the fridge 1. The fridge 1 is open. In it, you see a mug 10, a mug 2, and a apple 1.",
            "You pick up the mug 2 from the fridge 1.",
            "You cool the mug 2 using the fridge 1.",
        )
        == "at open fridge 1: apple 1 mug 10\nholding cool mug 2"
    )


def test_what_is_put_down_lies_there_and_what_was_heated_is_no_longer_cool():
    printed = [
        "You arrive at desk 1. On the desk 1, you see a desklamp 1, and a cup 1.",
        "You pick up the cup 1 from the desk 1.",
        "You cool the cup 1 using the fridge 1.",
        "You heat the cup 1 using the microwave 1.",
    ]
    assert after(*printed) == "at desk 1: desklamp 1\nholding hot cup 1"
    assert after(*printed, "You move the cup 1 to the desk 1.", "You turn on the desklamp 1.") == (
        "at desk 1: cup 1 lit desklamp 1\nholding nothing"
    )


def test_what_tells_nothing_new_leaves_the_state_as_it_was():
    here = "You arrive at shelf 2. On the shelf 2, you see nothing."
    for text in ("Nothing happens.", "You are not carrying anything.", "You are facing the shelf 2. Next to it, you see nothing."):
        assert after(here, text) == after(here) == "at shelf 2: nothing\nholding nothing"


def test_every_state_of_every_walk_reads_back_as_what_it_says():
    for seed in range(12):
        for transition in episode(seed, "random").transitions:
            for text in (transition.state.text, transition.next_state.text):
                seen = read(text)
                assert text == DONE or (seen is not None and seen.text == text)


@pytest.mark.parametrize(
    "text", ["", DONE, "at desk 1", "at desk 1: pen\nholding nothing", "in the room", "at desk 1: pen 1\nholding two pens"]
)
def test_a_text_that_describes_no_state_reads_as_none(text: str):
    assert read(text) is None


def test_a_story_that_begins_otherwise_is_refused_with_what_was_expected():
    with pytest.raises(UsageError, match="Looking quickly around you"):
        DOMAIN.abstract({"won": False, "story": (("", "Welcome to the shop."),)})


# --- commands


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ("go to desk 1", Command("go to", place="desk 1")),
        ("take mug 1 from desk 1", Command("take", "mug 1", "desk 1")),
        ("use desklamp 1", Command("use", "desklamp 1")),
        ("look", Command("look")),
        ("take mug 1 to desk 1", None),
        ("go to the moon", None),
        ("open", None),
    ],
)
def test_a_command_is_taken_apart_and_typed_again(action: str, command: Command | None):
    assert parse(action) == command
    assert command is None or command.action == action


def test_the_older_wording_of_move_is_understood():
    assert DOMAIN.canonical("Put  mug 1 in/on desk 1") == "move mug 1 to desk 1"
    assert DOMAIN.canonical("put mug 1 in desk 1") == "move mug 1 to desk 1"
    assert DOMAIN.canonical("put it away") == "put it away"


@pytest.mark.parametrize(
    ("state", "action", "verdict"),
    [
        ("at desk 1: mug 1\nholding nothing", "take mug 1 from desk 1", True),
        ("at desk 1: mug 1\nholding pen 1", "take mug 1 from desk 1", False),  # one hand
        ("at desk 1: desklamp 1\nholding nothing", "take desklamp 1 from desk 1", False),
        ("at desk 1: desklamp 1\nholding nothing", "use desklamp 1", True),
        ("at closed drawer 1\nholding pen 1", "move pen 1 to drawer 1", False),
        ("at open drawer 1: nothing\nholding pen 1", "move pen 1 to drawer 1", True),
        ("at open drawer 1: nothing\nholding mug 1", "move mug 1 to drawer 1", False),  # no drawer of theirs holds a mug
        ("at closed fridge 1\nholding mug 1", "cool mug 1 with fridge 1", True),  # with its door closed, as in the engine
        ("at closed fridge 1\nholding pen 1", "cool pen 1 with fridge 1", False),
        ("at desk 1: nothing\nholding nothing", "open desk 1", False),
        ("at desk 1: nothing\nholding nothing", "go to desk 1", False),
        ("at desk 1: nothing\nholding nothing", "go to shelf 2", True),
        ("at desk 1: nothing\nholding nothing", "go to bed 1", False),
        (DONE, "look", False),
    ],
)
def test_a_command_is_admitted_when_what_it_names_is_here_and_fits(state: str, action: str, verdict: bool):
    history = [step(after(), "go to desk 1", state)]
    assert DOMAIN.admissible(Observation(state), history, action) is verdict


def test_a_crowded_house_leaves_open_what_its_text_does_not_say():
    """Official games have places that share a spot: from the coffee machine one can reach the countertop."""
    state, history = (
        Observation("at closed fridge 1\nholding mug 1"),
        [step(after(), "go to fridge 1", "at closed fridge 1\nholding nothing")],
    )
    assert HouseDomain(crowded=True).admissible(state, history, "move mug 1 to desk 1") is None
    assert HouseDomain(crowded=True).admissible(state, history, "move mug 1 to bed 1") is False
    assert DOMAIN.admissible(state, history, "move mug 1 to desk 1") is False


def test_the_rule_offers_exactly_what_the_house_accepts():
    """On random walks, against the house's own list; looks at single things are left out, which the toy house does not list."""
    for seed in range(24):
        house, task = random_house(seed)
        env, rng = Told(house), random.Random(seed)
        raw = env.reset(task)
        places = DOMAIN.abstract(raw).text and read(DOMAIN.abstract(raw).text)
        assert places
        for _ in range(30):
            state = read(DOMAIN.abstract(raw).text)
            if state is None:
                break
            rule = [action for action in offered(replace(state, places=places.places)) if not action.startswith("examine")]
            assert rule == raw["admissible"]
            raw, _, _ = env.step(rng.choice([action for action in rule if action != "look"]))


# --- goals


@pytest.mark.parametrize(("kind", "wording"), WORDINGS)
def test_each_wording_is_read_as_its_kind(kind: str, wording: str):
    goal = read_goal(wording.format(thing="mug", place="desk"))
    assert goal == Goal(kind, "mug", "desk")  # type: ignore[arg-type]


def test_an_instruction_is_well_formed_when_its_goal_can_exist():
    assert DOMAIN.well_formed("put a clean mug in cabinet")
    assert DOMAIN.well_formed("look at book under the desklamp")
    for text in (
        "put a hot pillow in bed",
        "put a mug in drawer",
        "look at book under the bed",
        "put a mug",
        "find two dreams and keep them",
    ):
        assert not DOMAIN.well_formed(text)


def test_an_invented_task_is_feasible_when_what_was_seen_fits_together():
    def seen(state: str, action: str, next_state: str) -> Memory:
        return Memory(0, "t", 0, "alfworld", "i", "real", state, action, next_state, 0.0, False, False)

    memories = [seen(after(), "go to desk 1", "at desk 1: desklamp 1 mug 1\nholding nothing")]
    assert DOMAIN.feasible("put a cool mug in shelf", memories) is True
    assert DOMAIN.feasible("examine the mug with the desklamp", memories) is True
    assert DOMAIN.feasible("put two mug in shelf", memories) is None  # one was seen
    assert DOMAIN.feasible("put a clean mug in shelf", memories) is None  # no sink was
    assert DOMAIN.feasible("put a cool pan in fridge", memories) is None
    assert DOMAIN.feasible("put a mug in drawer", memories) is False


# --- the check


def test_the_check_grants_success_exactly_where_the_house_does():
    """Every step of every behaviour, claimed to be the last: the check says yes to those that won and to no other."""
    confusion: Counter[tuple[bool, bool]] = Counter()
    for seed in range(36):
        for behaviour in MIX:
            trajectory = episode(seed, behaviour)
            for t, transition in enumerate(trajectory.transitions):
                claim = replace(transition, reward=1.0, terminated=True)
                verdict = DOMAIN.check(trajectory.task.instruction, trajectory.transitions[:t], claim)
                confusion[transition.terminated, verdict.passed] += 1
    assert confusion[True, True] > 60 and confusion[False, False] > 2000
    assert not confusion[True, False] and not confusion[False, True]


KITCHEN = "in the room\nholding nothing\naround: cabinet 1 shelf 1 sinkbasin 1"


def clean_mug(*steps: tuple[str, str]) -> list[Transition]:
    states = [KITCHEN, *(state for _, state in steps)]
    return [step(before, action, then) for before, (action, then) in zip(states, steps, strict=False)]


def test_a_success_must_have_been_worked_for():
    dirty = clean_mug(
        ("go to shelf 1", "at shelf 1: mug 1\nholding nothing"),
        ("take mug 1 from shelf 1", "at shelf 1: nothing\nholding mug 1"),
        ("go to cabinet 1", "at cabinet 1: nothing\nholding mug 1"),
        ("move mug 1 to cabinet 1", DONE),
    )
    claim = replace(dirty[-1], reward=1.0, terminated=True)
    assert DOMAIN.check("put a mug in cabinet", dirty[:-1], claim).passed
    assert DOMAIN.check("put a clean mug in cabinet", dirty[:-1], claim).reasons == ("mug 1 was never made clean",)
    assert not DOMAIN.check("put a mug in shelf", dirty[:-1], claim).passed
    assert not DOMAIN.check("put two mug in cabinet", dirty[:-1], claim).passed
    assert not DOMAIN.check("put a mug in cabinet", dirty[:-1], replace(claim, terminated=False)).passed


def test_no_success_stands_on_a_thing_that_came_from_nowhere():
    """A dream that is asked often enough may show what was not there. Coming back until it does is no way to find a mug."""
    dreamt = clean_mug(
        ("go to shelf 1", "at shelf 1: nothing\nholding nothing"),
        ("go to cabinet 1", "at cabinet 1: nothing\nholding nothing"),
        ("go to shelf 1", "at shelf 1: mug 1\nholding nothing"),
        ("take mug 1 from shelf 1", "at shelf 1: nothing\nholding mug 1"),
        ("go to cabinet 1", "at cabinet 1: nothing\nholding mug 1"),
        ("move mug 1 to cabinet 1", DONE),
    )
    verdict = DOMAIN.check("put a mug in cabinet", dreamt[:-1], replace(dreamt[-1], reward=1.0, terminated=True))
    assert verdict.reasons == ("mug 1 came from nowhere",)


def test_a_lamp_lit_before_gives_light_on_return():
    desk = "in the room\nholding nothing\naround: bed 1 desk 1"
    steps = [
        step(desk, "go to desk 1", "at desk 1: desklamp 1\nholding nothing"),
        step("at desk 1: desklamp 1\nholding nothing", "use desklamp 1", "at desk 1: lit desklamp 1\nholding nothing"),
        step("at desk 1: lit desklamp 1\nholding nothing", "go to bed 1", "at bed 1: book 1\nholding nothing"),
        step("at bed 1: book 1\nholding nothing", "take book 1 from bed 1", "at bed 1: nothing\nholding book 1"),
    ]
    claim = step("at bed 1: nothing\nholding book 1", "go to desk 1", DONE, reward=1.0, terminated=True)
    assert DOMAIN.check("look at book under the desklamp", steps, claim).passed
    assert not DOMAIN.check("look at pen under the desklamp", steps, claim).passed
    assert not DOMAIN.check("look at book under the desklamp", steps[:1] + steps[2:], claim).passed


# --- the teacher, the housekeepers, the house


def test_the_teacher_says_what_the_next_state_must_carry():
    trajectory = episode(3, "expert")
    said = [t.reasoning for t in trajectory.transitions]
    assert trajectory.task.instruction == "find two potato and put them in sinkbasin"
    assert "microwave 1 is closed." in said and "potato 2 is in hand now." in said
    assert said[-1] == "potato 2 is at sinkbasin 1 now: thing yes, place yes, two yes, success."


def test_the_expert_wins_the_noisy_one_mostly_and_aimless_ones_hardly_ever():
    wins = {name: sum(episode(seed, name).success for seed in range(36)) / 36 for name in MIX}
    assert wins["expert"] >= 0.95
    assert wins["expert"] > wins["noisy"] > wins["invalid"] > max(wins["random"], wins["wrong_goal"])


def test_shares_sum_to_one_and_the_default_mix_has_no_oracle():
    assert sum(MIX.values()) == pytest.approx(1.0) and sum(OFFLINE.values()) == pytest.approx(1.0)
    assert set(MIX) | set(OFFLINE) == set(HOUSEKEEPERS) and "planner" not in MIX


def test_a_real_house_stays_the_same_house_and_a_forgetful_dream_does_not():
    walks = [episode(seed, behaviour) for seed in range(12) for behaviour in MIX]
    real = revisits(walks, DOMAIN)
    assert real.faithful.n > 100 and real.faithful.value == real.sound_episodes.value == 1.0
    shelf, cabinet = ("go to shelf 1", "at shelf 1: mug 1\nholding nothing"), ("go to cabinet 1", "at cabinet 1: nothing\nholding nothing")
    steps = clean_mug(shelf, cabinet, shelf, cabinet, ("go to shelf 1", "at shelf 1: nothing\nholding nothing"))
    task = Task("t", "put a mug in cabinet", "alfworld")
    dream = Trajectory("d", task, "dream", tuple(Turn(one) for one in steps), success=False)
    found = revisits([dream], DOMAIN)
    assert (found.faithful.value, found.faithful.n) == (pytest.approx(2 / 3), 3)
    assert found.by_half[0].value == 1.0 and found.by_half[1].value == 0.0 and found.sound_episodes.value == 0.0


def test_a_state_is_a_plain_record_of_its_text():
    state = State("drawer 1", "open", ("pen 1",), frozenset(), "mug 1", ("clean",))
    assert state.text == "at open drawer 1: pen 1\nholding clean mug 1" and read(state.text) == state
