"""Names of single tasks as placeholders: nothing else changes, and nothing is lost."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.wrappers.placeholders import (
    PLACEHOLDER,
    Namer,
    Names,
    PlaceholderSuite,
    is_identifier,
    make,
    names_of,
    show_task,
    words_of,
)
from dreamgym.errors import ConfigError
from dreamgym.types import Action, Observation, Task, Trajectory, Transition, Turn


class Hall:
    """A hall with three guests. The task is to greet one of them."""

    name = "hall"

    def accepts(self, task: Task) -> bool:
        return task.env == self.name

    def reset(self, task: Task) -> dict[str, Any]:
        guest = task.instruction.split()[1]
        return {"text": f"guests: {guest}, user-{task.id}, {guest.title()}", "asked": guest}

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        return {"text": f"{action} was said."}, float(action.startswith("greet[user")), True


class HallRules(TextRules):
    """Its texts."""

    name = "hall"

    def abstract(self, raw: dict[str, Any]) -> Observation:
        return Observation(raw["text"])


class HallSuite(EnvSuite):
    """Tasks that differ in a guest, a room and an order."""

    name, rules, max_steps = "hall", HallRules(), 3
    scripted_policies = {"expert": 0.5, "shouter": 0.5}

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        return [Task(str(i), f"Greet user{i} in room {i % 7}, order {10_000 + i}.", self.name) for i in range(n)]

    def env(self) -> Hall:
        return Hall()

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        guest = state.text.split()[1].strip(",")
        return f"greet[{guest if policy == 'expert' else guest.title()}]"


@pytest.fixture
def suite() -> PlaceholderSuite:
    return PlaceholderSuite(HallSuite())


@given(text=st.text(), words=st.lists(st.from_regex(r"\w+", fullmatch=True), unique=True))
def test_what_is_hidden_is_shown_again(text: str, words: list[str]):
    whole = " ".join([text, *words])
    names = Names({f"NAME{i}": word for i, word in enumerate(words, 1)})
    if not PLACEHOLDER.search(whole):
        assert names.show(names.hide(whole)) == whole
        assert all(map(PLACEHOLDER.fullmatch, names.hide(" ".join(words)).split()))


def test_an_identifier_is_a_name_from_where_it_is_first_shown():
    names = Names({"NAME1": "zoe"})
    assert names.hide("zoe, user zoe_9620, since 2024, has orders #W2378156 and 4g: 99.95") == (
        "NAME1, user NAME2, since 2024, has orders #NAME3 and 4g: 99.95"
    )
    assert names.hide('get_order("#W2378156", "#W0000001")') == 'get_order("#NAME3", "#NAME4")'
    assert names.hide("flight HAT045 of JMO1MG, 15T15 NASA address1") == "flight NAME5 of NAME6, 15T15 NASA address1"
    assert names.hide("[b07dkgjr74] a 15t15 mp3player for iphone12pro, 5ghz2ghz") == "[NAME7] a 15t15 mp3player for iphone12pro, 5ghz2ghz"
    assert names.show("NAME4 of NAME2, NAME9") == "W0000001 of zoe_9620, NAME9"
    assert names.show("RENAME1 NAME1x") == "RENAME1 NAME1x", "a placeholder is a whole word"


@pytest.mark.parametrize(
    "code", ["A-3437", "P-953", "WEB-03-03-1400", "ord-482-x", "112-3456789-01", "550e8400-e29b-41d4-a716-446655440000"]
)
def test_a_code_with_hyphens_is_one_name(code: str):
    names = Names()
    assert names.hide(f'book(id="{code}"), {code}.') == 'book(id="NAME1"), NAME1.' and names.show("NAME1-NAME1") == f"{code}-{code}"


@pytest.mark.parametrize(
    "text", ["2026-03-02", "2026-03-02T10:00", "555-1234", "half-open", "3-bedroom", "5-10", "-3", "a-", "NAME1-NAME2"]
)
def test_dates_ranges_and_compounds_are_no_names(text: str):
    assert Names().hide(text) == text
    assert not any(map(is_identifier, words_of(text)))


def test_logs_without_any_name_are_doubted_and_others_are_not(suite: PlaceholderSuite):
    logs = [suite.demonstrate(task, "expert", seed=0) for task in suite.tasks("train", 3)]
    plain = [replace(one, task=replace(one.task, instruction="Greet."), turns=()) for one in logs]
    assert not suite.doubts(logs) and not suite.doubts([])
    assert "placeholders hides nothing" in suite.doubts(plain) and "3 episodes" in suite.doubts(plain)


def test_words_of_few_instructions_are_names_and_short_numbers_are_not(suite: PlaceholderSuite):
    namer = Namer(suite.inner)
    assert namer.names("Greet zoe in room 812, order 98765.").words == {"NAME1": "zoe", "NAME2": "98765"}
    assert namer.names("Greet user7 or zoe or user7 in room 5.").words == {"NAME1": "user7", "NAME2": "or", "NAME3": "zoe"}
    assert not namer.names("Greet NAME1 in room 3.").words, "what is hidden stays as it is"


def test_the_world_is_the_inner_one_with_other_words(suite: PlaceholderSuite):
    for task, other in zip(suite.inner.tasks("train", 3), suite.tasks("train", 3), strict=True):
        names = names_of(other)
        assert other.instruction == f"Greet NAME1 in room {task.id}, order NAME2."
        assert show_task(other) == task and suite.task_key(other) == suite.inner.task_key(task) and suite.knows_task(other)
        known, found = suite.inner.demonstrate(task, "expert", seed=1), suite.demonstrate(other, "expert", seed=1)
        (step,) = found.transitions
        assert step.state.text == f"guests: NAME1, user-{task.id}, User{task.id}" and step.action == "greet[NAME1]" and found.success
        assert names.show(step.next_state.text) == known.transitions[0].next_state.text
        assert suite.recorded(known) == found == suite.recorded(found)
        (walk,) = EnvPool(suite.require_env, suite.rules).repeat([(other, ["greet[NAME1]"])])
        assert walk is not None and walk[0].next_state == step.next_state and walk[0].reward == 1.0


def test_every_task_is_acted_in_with_its_own_names(suite: PlaceholderSuite):
    env = suite.require_env()
    first, second = suite.tasks("train", 2)
    assert env.accepts(first)
    env.reset(first)
    assert suite.rules.abstract(env.reset(second)).text == "guests: NAME1, user-1, User1"
    raw, reward, _ = env.step("greet[NAME1]")
    assert raw["named"] == "greet[NAME1] was said." and reward == 1.0


def test_words_of_one_instruction_are_names_however_few_instructions_there_are():
    class Few(HallSuite):
        def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
            return super().tasks(split, min(n, 14), seed=seed)

    tasks = PlaceholderSuite(Few()).tasks("train", 20)
    assert [task.instruction for task in tasks][:2] == ["Greet NAME1 in room 0, order NAME2.", "Greet NAME1 in room 1, order NAME2."]


def test_what_an_action_names_before_any_state_did_stays_as_it_is(suite: PlaceholderSuite):
    (task,) = suite.inner.tasks("train", 1)
    steps = [
        Transition(Observation("a hall"), "ring 99999", Observation("the bell of C55555"), 0.0, False),
        Transition(Observation("the bell of C55555"), "take C55555 to 99999", Observation("taken"), 1.0, True),
    ]
    whole = suite.recorded(Trajectory("t", task, "demo", tuple(map(Turn, steps)), True))
    assert [step.action for step in whole.transitions] == ["ring 99999", "take NAME3 to 99999"], "the policy could write it no other way"
    assert whole.transitions[0].next_state.text == "the bell of NAME3"


def test_the_share_of_instructions_that_makes_a_word_common_can_be_set():
    (task,) = PlaceholderSuite(HallSuite(), rare=0.5).tasks("train", 100)[:1]
    assert task.instruction == "Greet NAME1 in room 0, order NAME2."
    (task,) = PlaceholderSuite(HallSuite(), rare=1.0).tasks("train", 100)[:1]
    assert task.instruction == "NAME1 NAME2 NAME3 NAME4 0, NAME5 NAME6."
    with pytest.raises(ConfigError, match="rare = 5 is no share"):
        make(suite="corridor", rare=5)
