"""Everything about household games that reads text: states, commands, goals, the check, the teacher, the housekeepers. No engine needed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from toy_house import random_house

from dreamgym.envs.alfworld import rules
from dreamgym.envs.alfworld.commands import Command, offered, parse
from dreamgym.envs.alfworld.goals import WORDINGS, Goal, read_goal
from dreamgym.envs.alfworld.rules import HouseRules
from dreamgym.envs.alfworld.scripted_policies import MIX, OFFLINE, SCRIPTED_POLICIES, ScriptMemory, scripted_action
from dreamgym.envs.alfworld.state import Place, State, TrackedHouse, read, state_of
from dreamgym.envs.base import play
from dreamgym.errors import UsageError
from dreamgym.evals.revisit_consistency import revisit_rate
from dreamgym.types import Memory, Observation, Task, Trajectory, Transition, Turn

FIRST = """-= Welcome to TextWorld, ALFRED! =-

You are in the middle of a room. Looking quickly around you, you see a shelf 10, a shelf 2, a fridge 1, and a desk 1.

Your task is to: put a cool mug in desk."""
RULES = HouseRules()


def episode(seed: int, behaviour: str, steps: int = 24) -> Trajectory:
    house, task = random_house(seed)
    rng, memo = random.Random(f"{behaviour}/{seed}"), ScriptMemory()
    return play(
        TrackedHouse(house),
        RULES,
        task,
        lambda state: scripted_action(behaviour, task.instruction, state, rng, memo),
        max_steps=steps,
        behaviour=behaviour,
        name=f"{behaviour}/{seed}",
    )


def after(*printed: str) -> str:
    return state_of((("", FIRST), *(("", text) for text in printed))).text


def state(at: str, held: str, **lines: str) -> str:
    """The text of a state: `state("at desk 1", "mug 1", desk_1="nothing", shelf_1="unseen")`."""
    named = {place.replace("_", " "): line for place, line in lines.items()}
    unseen = [place for place, line in named.items() if line == "unseen"]
    shown = [f"{place}: {line}" for place, line in named.items() if line != "unseen" and at != f"at {place}"]
    here = f"{at}: {named[at.removeprefix('at ')]}" if at.startswith("at ") else at
    return "\n".join([*([f"unseen: {' '.join(unseen)}"] if unseen else []), *shown, f"holding {held}", here])


def step(state: str, action: str, next_state: str, *, reward: float = 0.0, terminated: bool = False) -> Transition:
    return Transition(Observation(state), action, Observation(next_state), reward, terminated)


# --- states


def test_a_state_says_where_the_agent_is_what_it_holds_and_the_house_as_far_as_it_was_seen():
    unseen = {"shelf_2": "unseen", "shelf_10": "unseen"}
    assert after() == state("in the room", "nothing", desk_1="unseen", fridge_1="unseen", **unseen)
    closed = "You arrive at fridge 1. The fridge 1 is closed."
    assert after(closed) == state("at fridge 1", "nothing", desk_1="unseen", fridge_1="closed", **unseen)
    cooled = (
        closed,
        "You open the fridge 1. The fridge 1 is open. In it, you see a mug 10, a mug 2, and a apple 1.",
        "You pick up the mug 2 from the fridge 1.",
        "You cool the mug 2 using the fridge 1.",
    )
    assert after(*cooled) == state("at fridge 1", "cool mug 2", desk_1="unseen", fridge_1="open apple 1 mug 10", **unseen)
    # what lies behind a door is remembered when it is shut, and elsewhere
    away = (*cooled, "You close the fridge 1.", "You arrive at desk 1. On the desk 1, you see nothing.")
    assert after(*away) == state("at desk 1", "cool mug 2", desk_1="nothing", fridge_1="closed apple 1 mug 10", **unseen)


def test_things_are_listed_as_they_were_put_and_looking_again_does_not_sort_them():
    put = ["You arrive at desk 1. On the desk 1, you see a pen 1.", "You pick up the pen 1 from the desk 1."]
    put += ["You arrive at shelf 2. On the shelf 2, you see a watch 1, and a book 1.", "You move the pen 1 to the shelf 2."]
    assert "shelf 2: book 1 watch 1 pen 1" in after(*put)
    again = "You arrive at shelf 2. On the shelf 2, you see a watch 1, a pen 1, and a book 1."
    assert after(*put, again) == after(*put)


def test_what_is_put_down_lies_there_and_what_was_heated_is_no_longer_cool():
    printed = [
        "You arrive at desk 1. On the desk 1, you see a desklamp 1, and a cup 1.",
        "You pick up the cup 1 from the desk 1.",
        "You cool the cup 1 using the fridge 1.",
        "You heat the cup 1 using the microwave 1.",
    ]
    assert after(*printed) == state("at desk 1", "hot cup 1", desk_1="desklamp 1", fridge_1="unseen", shelf_2="unseen", shelf_10="unseen")
    put_down = after(*printed, "You move the cup 1 to the desk 1.", "You turn on the desklamp 1.")
    assert put_down.endswith("holding nothing\nat desk 1: lit desklamp 1 hot cup 1")


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ("You arrive at desk 1. On the desk 1, you see mug 1.", "at desk 1: pen 1"),
        ("You arrive at desk 1.", "at desk 1: pen 1"),
        ("The fridge 1 is open. In it, you see mug 1.", "at fridge 1: open apple 1"),
        ("You arrive at shelf 2. On the shelf 2, you see mug 1.", "at shelf 2: mug 1"),
    ],
)
def test_a_dream_that_lists_a_place_anew_does_not_change_it(told: str, line: str):
    """Nothing moves by itself: a place that was seen holds what it held."""
    before = state("at fridge 1", "nothing", desk_1="pen 1", fridge_1="closed apple 1", shelf_2="unseen")
    found = RULES.apply_delta(Observation(before), "", told)
    assert found is not None and found.text.endswith("\n" + line)


@pytest.mark.parametrize(
    "told",
    [
        "You arrive at shelf 2. On the shelf 2, you see pen 1.",  # which lies on the desk
        "You arrive at shelf 2. On the shelf 2, you see cup 1.",  # which is in hand
        "You arrive at shelf 2. On the shelf 2, you see mug 1, mug 1.",
        "You arrive at shelf 2. On the shelf 2, you see fridge 1.",
        "You pick up the pen 1 from the desk 1.",  # with a cup in hand
        "You move the pen 1 to the fridge 1.",  # which is not in hand
        "You move the cup 1 to the bed 1.",  # there is none
        "You heat the pen 1 using the fridge 1.",
        "On the fridge 1, you see mug 1.",  # it has a door
        "The desk 1 is closed.",  # it has none
        "You close the fridge 1.",  # it is closed
        "unseen: bed 1\ndesk 1: pen 1\nholding nothing\nat shelf 2: mug 1",  # another house
    ],
)
def test_what_does_not_fit_what_is_known_is_not_understood(told: str):
    """So a dream's answer that says it is drawn again, and no house holds the same thing twice."""
    before = state("at fridge 1", "cup 1", desk_1="pen 1", fridge_1="closed", shelf_2="unseen")
    assert RULES.apply_delta(Observation(before), "", told) is None


def test_a_pickup_that_does_not_fit_is_not_understood_either():
    here = Observation(state("at desk 1", "nothing", desk_1="pen 1", shelf_2="mug 1"))
    assert RULES.apply_delta(here, "", "You pick up the mug 1 from the desk 1.") is None
    assert RULES.apply_delta(here, "", "You pick up the pen 1 from the desk 1.") is not None


def test_official_games_that_list_a_thing_in_two_places_are_told_as_they_are():
    """Burners share a spot: what is on one is listed on its neighbour. The state says what was printed, and the delta restores it."""
    first = "You arrive at desk 1. On the desk 1, you see a pot 1."
    second = "You arrive at shelf 2. On the shelf 2, you see a pot 1."
    before, then = after(first), after(first, second)
    assert "\ndesk 1: pot 1\n" in then and then.endswith("\nat shelf 2: pot 1")
    told = RULES.encode_delta(step(before, "go to shelf 2", then))
    assert told == then and RULES.apply_delta(Observation(before), "", told) == Observation(then)


def test_what_tells_nothing_new_leaves_the_state_as_it_was():
    here = "You arrive at shelf 2. On the shelf 2, you see nothing."
    for text in ("Nothing happens.", "You are not carrying anything.", "You are facing the shelf 2. Next to it, you see nothing."):
        assert after(here, text) == after(here)


def test_every_state_of_every_walk_reads_back_as_what_it_says():
    for seed in range(12):
        for transition in episode(seed, "random").transitions:
            for text in (transition.state.text, transition.next_state.text):
                seen = read(text)
                assert seen is not None and seen.text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "at desk 1",
        "holding nothing\nin the room",  # of no house
        "desk 1: pen 1\nholding nothing\nin the room\n",
        "desk 1:\nholding nothing\nin the room",
        "desk 1: open\nholding nothing\nin the room",
        "desk 1: pen\nholding nothing\nin the room",
        "desk 1 pen 1\nholding nothing\nin the room",
        "desk 1: pen 1\nholding two pens\nin the room",
        "desk 1: pen 1\nholding nothing\nin the roommate",
        "desk 1: pen 1\nholding nothing\nat shelf 1",  # where nothing is known
        "desk 1: pen 1\nholding nothing\nat unseen: shelf 1",
        "unseen: desk 1\ndesk 1: pen 1\nholding nothing\nin the room",  # both unseen and seen
        "desk 1: pen 1\nunseen: bed 1\nholding nothing\nin the room",
    ],
)
def test_a_text_that_describes_no_state_reads_as_none(text: str):
    assert read(text) is None


def test_a_story_that_begins_otherwise_is_refused_with_what_was_expected():
    with pytest.raises(UsageError, match="Looking quickly around you"):
        RULES.abstract({"won": False, "story": (("", "Welcome to the shop."),)})


# --- state deltas


def test_what_a_step_told_leads_to_the_state_that_followed():
    """`apply_delta` inverts `encode_delta` on every step of every walk, in a sentence or two, and not by repeating the state."""
    told: Counter[bool] = Counter()
    for seed in range(24):
        for behaviour in SCRIPTED_POLICIES.keys() - {"planner"}:
            for one in episode(seed, behaviour).transitions:
                said = RULES.encode_delta(one)
                assert RULES.apply_delta(one.state, "", said) == one.next_state
                told[read(said) is None] += 1
    assert told[True] > 1500 and not told[False]


def test_the_news_is_in_the_games_own_sentences_and_lists_no_place_twice():
    seen = state("at desk 1", "nothing", desk_1="mug 1 pen 1", drawer_1="unseen")
    closed = state("at drawer 1", "nothing", desk_1="mug 1 pen 1", drawer_1="closed")
    opened = state("at drawer 1", "nothing", desk_1="mug 1 pen 1", drawer_1="open nothing")
    back = state("at desk 1", "nothing", desk_1="mug 1 pen 1", drawer_1="open nothing")
    taken = state("at desk 1", "mug 1", desk_1="pen 1", drawer_1="open nothing")
    replaced = state("at desk 1", "nothing", desk_1="pen 1 mug 1", drawer_1="open nothing")
    lamp = state("at desk 1", "nothing", desk_1="lit desklamp 1", drawer_1="unseen")
    dark = state("at desk 1", "nothing", desk_1="desklamp 1", drawer_1="unseen")
    assert RULES.encode_delta(step(state("in the room", "nothing", desk_1="unseen", drawer_1="unseen"), "go to desk 1", seen)) == (
        "You arrive at desk 1. On the desk 1, you see mug 1, pen 1."
    )
    assert RULES.encode_delta(step(seen, "go to drawer 1", closed)) == "You arrive at drawer 1. The drawer 1 is closed."
    assert RULES.encode_delta(step(closed, "open drawer 1", opened)) == "The drawer 1 is open. In it, you see nothing."
    assert RULES.encode_delta(step(opened, "go to desk 1", back)) == "You arrive at desk 1."
    assert RULES.encode_delta(step(back, "take mug 1 from desk 1", taken)) == "You pick up the mug 1 from the desk 1."
    assert RULES.encode_delta(step(dark, "use desklamp 1", lamp)) == "You turn on the desklamp 1."
    assert RULES.encode_delta(step(taken, "look", taken)) == "Nothing happens."
    assert (
        RULES.encode_delta(step(taken, "move mug 1 to desk 1", replaced, reward=1.0, terminated=True))
        == "You move the mug 1 to the desk 1."
    )


@pytest.mark.parametrize(
    "told",
    [
        "",
        "What a lovely house.",
        "You arrive at cellar 1.",
        "You arrive at desk 1",
        "holding nothing",
        "You arrive at desk 1. On the desk 1, you",
    ],
)
def test_news_that_cannot_be_understood_is_none(told: str):
    here = Observation(state("at shelf 1", "nothing", desk_1="unseen", shelf_1="nothing"))
    assert RULES.apply_delta(here, "", told) is None


def test_a_step_that_no_sentence_tells_is_told_by_its_state():
    """Other people's logs: a house that was tidied behind the agent's back."""
    before, after_ = (
        state("at shelf 1", "nothing", desk_1="pen 1", shelf_1="nothing"),
        state("at shelf 1", "nothing", desk_1="nothing", shelf_1="pen 1"),
    )
    odd = step(before, "look", after_)
    assert RULES.encode_delta(odd) == after_ and RULES.apply_delta(odd.state, "look", after_) == odd.next_state


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
    assert RULES.canonical("Put  mug 1 in/on desk 1") == "move mug 1 to desk 1"
    assert RULES.canonical("put mug 1 in desk 1") == "move mug 1 to desk 1"
    assert RULES.canonical("put it away") == "put it away"


@pytest.mark.parametrize(
    ("here", "held", "action", "verdict"),
    [
        ("desk 1: mug 1", "nothing", "take mug 1 from desk 1", True),
        ("desk 1: mug 1", "pen 1", "take mug 1 from desk 1", False),  # one hand
        ("desk 1: desklamp 1", "nothing", "take desklamp 1 from desk 1", False),
        ("desk 1: desklamp 1", "nothing", "use desklamp 1", True),
        ("drawer 1: closed pen 2", "nothing", "take pen 2 from drawer 1", False),  # behind its door
        ("drawer 1: closed", "pen 1", "move pen 1 to drawer 1", False),
        ("drawer 1: open nothing", "pen 1", "move pen 1 to drawer 1", True),
        ("drawer 1: open nothing", "mug 1", "move mug 1 to drawer 1", False),  # no drawer of theirs holds a mug
        ("fridge 1: closed", "mug 1", "cool mug 1 with fridge 1", True),  # with its door closed, as in the engine
        ("fridge 1: closed", "pen 1", "cool pen 1 with fridge 1", False),
        ("desk 1: nothing", "nothing", "open desk 1", False),
        ("desk 1: nothing", "nothing", "go to desk 1", False),
        ("desk 1: nothing", "nothing", "go to shelf 2", True),
        ("desk 1: nothing", "nothing", "go to bed 1", False),
        ("desk 1: nothing", "nothing", "take book 1 from shelf 2", False),  # it was seen there, and is not here
    ],
)
def test_a_command_is_admitted_when_what_it_names_is_here_and_fits(here: str, held: str, action: str, verdict: bool):
    place, _, line = here.partition(": ")
    there = state(f"at {place}", held, **{place: line, "shelf_2": "book 1"})
    assert RULES.admissible(Observation(there), (), action) is verdict


def test_nothing_can_be_done_when_all_is_done():
    won = step(state("at desk 1", "mug 1", desk_1="nothing"), "move mug 1 to desk 1", state("at desk 1", "nothing", desk_1="mug 1"))
    for ended in (True, False):
        history = (replace(won, reward=float(ended), terminated=ended),)
        assert RULES.admissible(won.next_state, history, "take mug 1 from desk 1") is not ended


def test_a_crowded_house_leaves_open_what_its_text_does_not_say():
    """Official games have places that share a spot: from the coffee machine one can reach the countertop."""
    there = Observation(state("at fridge 1", "mug 1", desk_1="unseen", fridge_1="closed"))
    assert HouseRules(crowded=True).admissible(there, (), "move mug 1 to desk 1") is None
    assert HouseRules(crowded=True).admissible(there, (), "move mug 1 to bed 1") is False
    assert RULES.admissible(there, (), "move mug 1 to desk 1") is False


def test_the_rule_offers_exactly_what_the_house_accepts():
    """On random walks, against the house's own list; looks at single things are left out, which the toy house does not list."""
    for seed in range(24):
        house, task = random_house(seed)
        env, rng = TrackedHouse(house), random.Random(seed)
        raw = env.reset(task)
        for _ in range(30):
            state = read(RULES.abstract(raw).text)
            if state is None:
                break
            rule = [action for action in offered(state) if not action.startswith("examine")]
            assert rule == raw["admissible"]
            raw, _, _ = env.step(rng.choice([action for action in rule if action != "look"]))


# --- goals


@pytest.mark.parametrize(("kind", "wording"), WORDINGS)
def test_each_wording_is_read_as_its_kind(kind: str, wording: str):
    goal = read_goal(wording.format(thing="mug", place="desk"))
    assert goal == Goal(kind, "mug", "desk")  # type: ignore[arg-type]


def test_an_instruction_is_well_formed_when_its_goal_can_exist():
    assert RULES.well_formed("put a clean mug in cabinet")
    assert RULES.well_formed("look at book under the desklamp")
    for text in (
        "put a hot pillow in bed",
        "put a mug in drawer",
        "look at book under the bed",
        "put a mug",
        "find two dreams and keep them",
    ):
        assert not RULES.well_formed(text)


def test_an_invented_task_is_feasible_when_what_was_seen_fits_together():
    def seen(state: str, action: str, next_state: str) -> Memory:
        return Memory(0, "t", 0, "alfworld", "i", "real", state, action, next_state, 0.0, False, False)

    desk = after("You arrive at desk 1. On the desk 1, you see a desklamp 1, and a mug 1.")
    memories = [seen(after(), "go to desk 1", desk)]
    assert RULES.feasible("put a cool mug in shelf", memories) is True
    assert RULES.feasible("examine the mug with the desklamp", memories) is True
    assert RULES.feasible("put two mug in shelf", memories) is None  # one was seen
    assert RULES.feasible("put a clean mug in shelf", memories) is None  # no sink was
    assert RULES.feasible("put a cool pan in fridge", memories) is None
    assert RULES.feasible("put a mug in drawer", memories) is False


def test_pages_are_read_once_for_all_proposals_and_anew_when_others_are_remembered(monkeypatch: pytest.MonkeyPatch):
    def seen(thing: str) -> Memory:
        desk = after(f"You arrive at desk 1. On the desk 1, you see a {thing} 1.")
        return Memory(0, "t", 0, "alfworld", "i", "real", after(), "go to desk 1", desk, 0.0, False, False)

    asked, parsed = list[str](), rules.read
    monkeypatch.setattr(rules, "read", lambda text: asked.append(text) or parsed(text))
    one, two = [seen("pillow")], [seen("pillow"), seen("candle")]
    assert [RULES.feasible(f"put a {thing} in shelf", one) for thing in ("candle", "statue")] == [None, None]
    assert len(asked) == 2, "the page before and the page after"
    assert RULES.feasible("put a candle in shelf", two) is True and len(asked) == 5


# --- the check


def test_the_check_grants_success_exactly_where_the_house_does():
    """Every step of every behaviour, claimed to be the last: the check says yes to those that won and to no other."""
    confusion: Counter[tuple[bool, bool]] = Counter()
    for seed in range(36):
        for behaviour in MIX:
            trajectory = episode(seed, behaviour)
            for t, transition in enumerate(trajectory.transitions):
                claim = replace(transition, reward=1.0, terminated=True)
                verdict = RULES.check_success(trajectory.task.instruction, trajectory.transitions[:t], claim)
                confusion[transition.terminated, verdict.passed] += 1
    assert confusion[True, True] > 60 and confusion[False, False] > 2000
    assert not confusion[True, False] and not confusion[False, True]


def kitchen(at: str, held: str, cabinet: str = "unseen", shelf: str = "unseen") -> str:
    """A state of a kitchen of three places: `kitchen("shelf 1", "mug 1", shelf="nothing")`."""
    return state(f"at {at}" if at else "in the room", held, cabinet_1=cabinet, shelf_1=shelf, sinkbasin_1="unseen")


def walked(*steps: tuple[str, str]) -> list[Transition]:
    states = [kitchen("", "nothing"), *(state for _, state in steps)]
    return [step(before, action, then) for before, (action, then) in zip(states, steps, strict=False)]


def fetched(mug: str) -> tuple[list[Transition], Transition]:
    """A walk that puts mug 1 into the cabinet, the states calling it what they like, and the claim that this was the task."""
    steps = walked(
        ("go to shelf 1", kitchen("shelf 1", "nothing", shelf=mug)),
        ("take mug 1 from shelf 1", kitchen("shelf 1", mug, shelf="nothing")),
        ("go to cabinet 1", kitchen("cabinet 1", mug, shelf="nothing", cabinet="nothing")),
        ("move mug 1 to cabinet 1", kitchen("cabinet 1", "nothing", shelf="nothing", cabinet=mug)),
    )
    return steps[:-1], replace(steps[-1], reward=1.0, terminated=True)


def test_a_success_must_have_been_worked_for():
    history, claim = fetched("mug 1")
    assert RULES.check_success("put a mug in cabinet", history, claim).passed
    assert RULES.check_success("put a clean mug in cabinet", history, claim).reasons == ("mug 1 was never made clean",)
    assert not RULES.check_success("put a mug in shelf", history, claim).passed
    assert not RULES.check_success("put two mug in cabinet", history, claim).passed
    assert not RULES.check_success("put a mug in cabinet", history, replace(claim, terminated=False)).passed


def test_a_state_that_calls_a_mug_clean_does_not_make_it_clean():
    """In a dream the model writes the state; what the check believes is what was done."""
    assert RULES.check_success("put a clean mug in cabinet", *fetched("clean mug 1")).reasons == ("mug 1 was never made clean",)


def test_no_success_stands_on_a_thing_that_came_from_nowhere():
    """A dream that is asked often enough may show what was not there. Coming back until it does is no way to find a mug."""
    dreamt = walked(
        ("go to shelf 1", kitchen("shelf 1", "nothing", shelf="nothing")),
        ("go to cabinet 1", kitchen("cabinet 1", "nothing", shelf="nothing", cabinet="nothing")),
        ("go to shelf 1", kitchen("shelf 1", "nothing", shelf="mug 1", cabinet="nothing")),
        ("take mug 1 from shelf 1", kitchen("shelf 1", "mug 1", shelf="nothing", cabinet="nothing")),
        ("go to cabinet 1", kitchen("cabinet 1", "mug 1", shelf="nothing", cabinet="nothing")),
        ("move mug 1 to cabinet 1", kitchen("cabinet 1", "nothing", shelf="nothing", cabinet="mug 1")),
    )
    verdict = RULES.check_success("put a mug in cabinet", dreamt[:-1], replace(dreamt[-1], reward=1.0, terminated=True))
    assert verdict.reasons == ("mug 1 came from nowhere",)


def test_a_lamp_lit_before_gives_light_on_return():
    lit = "lit desklamp 1"
    states = [
        state("in the room", "nothing", bed_1="unseen", desk_1="unseen"),
        state("at desk 1", "nothing", bed_1="unseen", desk_1="desklamp 1"),
        state("at desk 1", "nothing", bed_1="unseen", desk_1=lit),
        state("at bed 1", "nothing", bed_1="book 1", desk_1=lit),
        state("at bed 1", "book 1", bed_1="nothing", desk_1=lit),
    ]
    actions = ["go to desk 1", "use desklamp 1", "go to bed 1", "take book 1 from bed 1"]
    steps = [step(before, action, then) for (before, then), action in zip(pairwise(states), actions, strict=True)]
    back = state("at desk 1", "book 1", bed_1="nothing", desk_1=lit)
    claim = step(states[-1], "go to desk 1", back, reward=1.0, terminated=True)
    assert RULES.check_success("look at book under the desklamp", steps, claim).passed
    assert not RULES.check_success("look at pen under the desklamp", steps, claim).passed
    assert not RULES.check_success("look at book under the desklamp", steps[:1] + steps[2:], claim).passed


# --- the teacher, the housekeepers, the house


def test_the_teacher_says_what_the_next_state_must_carry():
    trajectory = episode(3, "expert")
    said = [t.info.reasoning for t in trajectory.transitions]
    assert trajectory.task.instruction == "find two potato and put them in sinkbasin"
    assert "microwave 1 is closed." in said and "potato 2 is in hand now." in said
    assert said[-1] == "potato 2 is at sinkbasin 1 now: thing yes, place yes, two yes, success."
    assert "sinkbasin 1 for the first time, none yet, many left: potato 1." in said
    assert "countertop 1 for the first time, potato 1, many left: not what we want." in said and "sinkbasin 1 again, as it was." in said


def test_the_teacher_counts_what_is_left_to_look_into():
    """Of the last place it can say whether the thing is there before it looks: where it never was seen, it must be."""
    closed = state("at drawer 1", "nothing", bed_1="pillow 1", desk_1="pen 1", drawer_1="closed")
    opened = state("at drawer 1", "nothing", bed_1="pillow 1", desk_1="pen 1", drawer_1="open mug 1")
    task = Task("t", "put a mug in desk", "alfworld")
    assert RULES.explain(task, (), step(closed, "open drawer 1", opened)) == ("drawer 1 for the first time, none yet, none left: mug 1.")


def test_the_expert_wins_the_noisy_one_mostly_and_aimless_ones_hardly_ever():
    wins = {name: sum(episode(seed, name).success for seed in range(36)) / 36 for name in MIX}
    assert wins["expert"] >= 0.95
    assert wins["expert"] > wins["noisy"] > wins["invalid"] > max(wins["random"], wins["wrong_goal"])


def test_shares_sum_to_one_and_the_default_mix_has_no_oracle():
    assert sum(MIX.values()) == pytest.approx(1.0) and sum(OFFLINE.values()) == pytest.approx(1.0)
    assert set(MIX) | set(OFFLINE) == set(SCRIPTED_POLICIES) and "planner" not in MIX


def test_a_real_house_stays_the_same_house_and_a_forgetful_dream_does_not():
    walks = [episode(seed, behaviour) for seed in range(12) for behaviour in MIX]
    real = revisit_rate(walks, RULES)
    assert real.n > 100 and real.value == 1.0
    shelf = ("go to shelf 1", kitchen("shelf 1", "nothing", shelf="mug 1", cabinet="nothing"))
    cabinet = ("go to cabinet 1", kitchen("cabinet 1", "nothing", shelf="mug 1", cabinet="nothing"))
    forgotten = ("go to shelf 1", kitchen("shelf 1", "nothing", shelf="nothing", cabinet="nothing"))
    steps = walked(shelf, cabinet, shelf, cabinet, forgotten)
    task = Task("t", "put a mug in cabinet", "alfworld")
    dream = Trajectory("d", task, "dream", tuple(Turn(one) for one in steps), success=False)
    found = revisit_rate([dream], RULES)
    assert (found.value, found.n) == (pytest.approx(2 / 3), 3)


def test_a_state_is_a_plain_record_of_its_text():
    house = (Place("desk 1", things=()), Place("drawer 1", "open", ("pen 1",)), Place("safe 1", "closed"), Place("shelf 1"))
    there = State("drawer 1", "mug 1", house, frozenset({("mug 1", "clean"), ("mug 1", "hot")}))
    text = state("at drawer 1", "clean hot mug 1", desk_1="nothing", drawer_1="open pen 1", safe_1="closed", shelf_1="unseen")
    assert there.text == text and read(text) == there
    assert there.seen == ("pen 1",) and there.homes == {"pen 1": "drawer 1"} and there.visited("desk 1") and not there.visited("safe 1")
