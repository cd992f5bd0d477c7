"""Rules that logs show: what is found, what is used, and what a person may correct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import plugins
from dreamgym.envs import corridor
from dreamgym.envs.actions import parts
from dreamgym.envs.consistency import CarryRule, RepeatRule
from dreamgym.envs.induction import (
    ArgumentRule,
    EndRule,
    NameRule,
    NoopRule,
    Rules,
    Source,
    ValueRule,
    from_toml,
    induce,
    sources,
    to_toml,
    works,
)
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import Tool
from dreamgym.envs.wrappers.induced_rules import InducedRules
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.errors import UsageError
from dreamgym.experience.guard import noop_rule
from dreamgym.logs.demonstrations import collect
from dreamgym.types import Observation, Query, Task, Trajectory, Transition, Turn

SHOP = plugins.make("envs", "webshop")
SHOP_RULES = induce(collect(SHOP, 400, seed=0))


def step(state: str, action: str, after: str, *, end: bool = False, reward: float = 0.0) -> Transition:
    return Transition(Observation(state), action, Observation(after), reward, end)


def episodes(*steps: Transition, n: int = 40, instruction: str = "do it") -> list[Trajectory]:
    return [Trajectory(f"e{i}", Task(f"t{i}", instruction, "toy"), "demo", tuple(map(Turn, steps)), False) for i in range(n)]


def test_actions_are_taken_apart_whatever_their_spelling():
    assert list(parts("click[buy now]")) == [("click", {"": "buy now"})]
    assert list(parts('get_bill(id="L1", month=3)\nrespond(content="ok")')) == [
        ("get_bill", {"id": "L1", "month": "3"}), ("respond", {"content": "ok"})
    ]  # fmt: skip
    assert list(parts("go to drawer 1")) == [("go", {"": "go to drawer 1"})]
    assert list(parts("")) == [("", {"": ""})]


@given(st.text())
def test_any_text_can_be_taken_apart_and_judged(text: str):
    assert list(parts(text))
    rules = InducedRules(StateMapping(SHOP.rules), SHOP_RULES)
    assert rules.admissible(Observation(text), (), text) in (True, False, None)
    assert isinstance(rules.noop_reason(Observation(text), (), text), str)


def test_the_shops_logs_show_that_clicks_name_an_element_and_that_buying_ends():
    assert [(rule.kind, rule.source) for rule in SHOP_RULES.arguments] == [("click", "element")]
    assert [(rule.action, rule.whole) for rule in SHOP_RULES.ends] == [("click[buy now]", True)] and SHOP_RULES.ends_complete
    assert "think" in {rule.kind for rule in SHOP_RULES.noop}


def test_policies_read_numbers_for_names_and_the_words_of_buttons_and_options_as_they_are():
    rules = InducedRules(StateMapping(SHOP.rules), SHOP_RULES)
    (found,) = SHOP_RULES.names
    assert {"buy now", "next >", "red", "large"} <= set(found.words) and not any(word.startswith("b0") for word in found.words)
    page = Observation("results 1\n[b550] $34 red speaker\n[b258] $41 speaker\n[next >][back to search]")
    view = rules.view(page)
    assert view.text == "results 1\n[1] $34 red speaker\n[2] $41 speaker\n[next >][back to search]"
    assert (
        view.refer("click[b258]") == "click[2]"
        and view.resolve("click[2]") == "click[b258]"
        and view.resolve("click[next >]") == "click[next >]"
    )
    off = from_toml(to_toml(SHOP_RULES).replace("used = true", "used = false"), "rules.toml")
    assert InducedRules(StateMapping(SHOP.rules), off).view(page).text == page.text


@given(st.lists(st.text("ab1", min_size=1, max_size=3), max_size=6))
def test_every_listed_element_can_be_chosen_through_what_the_policy_reads(elements: list[str]):
    page = Observation(" ".join(f"[{element}]" for element in elements))
    view = InducedRules(StateMapping(SHOP.rules), SHOP_RULES).view(page)
    for element in elements:
        assert view.resolve(view.refer(f"click[{element}]")) == f"click[{element}]"


def test_a_name_that_instructions_ask_for_is_read_beside_its_number():
    shades = [step(f"[{shade}{i}]", f"click[{shade}{i}]", "chosen") for i in range(20) for shade in ("teal", "plum")]
    found = [one for shade in shades for one in episodes(shade, n=1, instruction=f"in {shade.action[6:-1]}")]
    rules = InducedRules(StateMapping(SHOP.rules), induce(found))
    assert rules.view(Observation("colour: [teal3] [plum99]")).text == "colour: [1] teal3 [2] plum99"


def test_environments_whose_actions_choose_words_or_numbers_have_no_names():
    assert not induce(collect(corridor.make(), 300, seed=0)).names
    numbered = [step(f"[{i}] button", f"click[{i}]", f"{i} clicked") for i in range(400)]
    rules = induce([one for found in numbered for one in episodes(found, n=1)])
    assert not rules.names
    assert InducedRules(StateMapping(SHOP.rules), rules).view(Observation("[12] button")).text == "[12] button"


def test_an_argument_of_a_few_fixed_values_takes_no_others_and_one_of_many_takes_any():
    modes = [step("a desk", f'set_mode(mode="{("fast", "slow")[i % 2]}", note="n{i}")', f"{i}") for i in range(320)]
    found = induce([one for mode in modes for one in episodes(mode, n=1)])
    assert [(rule.kind, rule.key, rule.values, rule.exceptions) for rule in found.values] == [("set_mode", "mode", ("fast", "slow"), 0)]
    rules = InducedRules(StateMapping(SHOP.rules), from_toml(to_toml(found), "here"))
    for action, verdict in (('set_mode(mode="fast", note="new")', None), ('set_mode(mode="4", note="n1")', False)):
        assert rules.admissible(Observation("a desk"), (), action) is verdict
    assert induce([one for mode in modes[:200] for one in episodes(mode, n=1)]).values == (), "too few to tell"


def test_an_episode_that_repeats_its_own_value_says_no_more_of_other_values_than_one_step():
    few = [step("a desk", f'set_mode(mode="m{i}")', f"{j}") for i in range(10) for j in range(60)]
    assert induce([episodes(*few[60 * i : 60 * i + 60], n=1)[0] for i in range(10)]).values == ()


@pytest.mark.parametrize("suite", [SHOP, corridor.make()])
def test_no_held_out_step_that_works_is_refused_and_most_noops_are(suite):  # type: ignore[no-untyped-def]
    rules = InducedRules(StateMapping(suite.rules), induce(collect(suite, 400, seed=0)))
    refused: dict[bool, list[bool]] = {True: [], False: []}
    for episode in collect(suite, 150, seed=99):
        for i, one in enumerate(episode.transitions):
            past = episode.transitions[:i]
            no = rules.admissible(one.state, past, one.action) is False or rules.noop_reason(one.state, past, one.action) != ""
            refused[works(one)].append(no)
    assert len(refused[True]) > 200 and not any(refused[True])
    assert len(refused[False]) > 30 and sum(refused[False]) > 0.6 * len(refused[False])


def test_an_argument_from_an_earlier_state_is_known_from_there():
    logs = episodes(
        step("list", "open(id=1)", "the code is x7"), step("the code is x7", "wait()", "ready"), step("ready", 'enter(code="x7")', "in")
    )
    (rule,) = [rule for rule in induce(logs).arguments if rule.kind == "enter"]
    assert (rule.source, rule.support, rule.exceptions) == ("earlier", 40, 0)
    rules, past = InducedRules(StateMapping(SHOP.rules), induce(logs)), logs[0].transitions[:2]
    assert rules.admissible(Observation("ready"), past, 'enter(code="x7")') is True
    assert rules.admissible(Observation("ready"), past, 'enter(code="z9")') is False


def test_an_identifier_that_no_text_names_changes_nothing_where_the_logged_ones_are_the_instructions():
    logs = [
        one for i in range(40) for one in episodes(step("ok", f'find(order="W{i}", how="fast")', "found"), n=1, instruction=f"find W{i}")
    ]
    rule = next(rule for rule in induce(logs).arguments if rule.key == "order")
    assert (rule.source, rule.identifier, rule.support) == ("instruction", True, 40)
    rules, state = InducedRules(StateMapping(SHOP.rules), induce(logs)), Observation("ok")
    assert rules.unfounded("find W99", state, (), 'find(order="W99", how="fast")') == ""
    assert "No text so far names the order W98" in rules.unfounded("find W99", state, (), 'find(order="W98", how="fast")')
    assert rules.unfounded("find the lamp", Observation("order W98"), (), 'find(order="W98", how="fast")') == "", "the state names it"
    query = Query(Task("t", "find W99", "toy"), (), state, 'find(order="W98")')
    assert noop_rule(rules, query) is not None and noop_rule(rules, replace(query, action='find(order="W99")')) is None


def test_words_from_the_instruction_refuse_nothing():
    assert sources("red mug", "find a red mug", "search page", ()) == {"instruction"}
    rules = InducedRules(
        StateMapping(SHOP.rules), induce(episodes(step("page", "search[red mug]", "results"), instruction="find a red mug"))
    )
    assert rules.admissible(Observation("page"), (), "search[blue hat]") is None


def test_a_rule_with_too_few_cases_or_too_many_exceptions_is_not_found():
    wait = step("a", "wait", "a")
    assert induce(episodes(wait, n=29)).noop == () and induce(episodes(wait, n=30)).noop == (NoopRule("wait", 30, 0), NoopRule("*", 30, 0))
    mixed = [*episodes(wait, n=60), *episodes(step("a", "wait", "b"), n=2)]
    assert induce(mixed).noop == ()


def test_an_end_that_no_log_shows_is_refused_and_others_are_left_to_the_verifier():
    rules = InducedRules(StateMapping(SHOP.rules), SHOP_RULES)
    bought, clicked = (step("item", action, "purchase done", end=True, reward=1.0) for action in ("click[buy now]", "click[large]"))
    assert rules.check_success("", (), bought) is None
    verdict = rules.check_success("", (), clicked)
    assert verdict is not None and verdict.kind == "refused" and "click[large]" in verdict.reasons[0]


def test_a_file_reads_back_and_a_rule_that_a_person_switched_off_is_not_used():
    assert from_toml(to_toml(SHOP_RULES), "rules.toml") == SHOP_RULES
    off = to_toml(SHOP_RULES).replace("used = true", "used = false")
    rules = InducedRules(StateMapping(SHOP.rules), from_toml(off, "rules.toml"))
    assert rules.admissible(Observation("[a]"), (), "click[b]") is not False
    assert InducedRules(StateMapping(SHOP.rules), SHOP_RULES).admissible(Observation("[a]"), (), "click[b]") is False


def test_while_an_end_rule_is_switched_off_or_none_is_left_no_end_is_refused():
    others = (*SHOP_RULES.ends, EndRule("give up", False, 40))
    for ends, refused in ((others, True), ((replace(others[0], used=False), others[1]), False), ((), False)):
        rules = InducedRules(StateMapping(SHOP.rules), replace(SHOP_RULES, ends=ends))
        claims = [step("item", action, "done", end=True, reward=1.0) for action in ("click[buy now]", "click[large]")]
        assert [rules.check_success("", (), claim) is not None for claim in claims] == [False, refused]


words = st.text(max_size=12)
counts = st.integers(0, 10**6)


@given(
    st.lists(st.builds(ArgumentRule, words, words, st.sampled_from(get_args(Source)), counts, counts, st.booleans(), st.booleans())),
    st.lists(st.builds(NoopRule, words, counts, counts, st.booleans())),
    st.lists(st.builds(EndRule, words, st.booleans(), counts, st.booleans())),
    st.booleans(),
    st.lists(words),
    st.lists(st.builds(NameRule, st.lists(words).map(tuple), counts, counts, st.booleans(), st.booleans())),
)  # fmt: skip
def test_any_rules_survive_their_file(
    arguments: list[ArgumentRule], noop: list[NoopRule], ends: list[EndRule], whole: bool, kinds: list[str], names: list[NameRule]
):
    rules = Rules(tuple(arguments), tuple(noop), tuple(ends), whole, tuple(kinds), names=tuple(names))
    assert from_toml(to_toml(rules), "rules.toml") == rules


@pytest.mark.parametrize(
    "text",
    [
        "[[arguments]",
        "[[noop]]\nkind = 1\n",
        "other = 1",
        '[[arguments]]\nkind = "a"\nkey = ""\nsource = "air"\nsupport = 1\nexceptions = 0',
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path):
    with pytest.raises(UsageError, match=r"rules\.toml.*Correct the file"):
        from_toml(text, str(tmp_path / "rules.toml"))


EVERY_RULE = Rules(
    (ArgumentRule("click", "", "element", 40, 0),), (NoopRule("wait", 30, 0),), (EndRule("done", True, 40),), True, ("click",),
    (RepeatRule("click", "anywhere", ("toggle",), 30, 0),), (CarryRule("open", "id", "numbers", 30, 0),),
    (ValueRule("book", "cabin", ("business", "economy"), 400, 0),), (NameRule(("a", "b"), 30, 0, False),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("written", "instead", "named"),
    [
        ('scope = "anywhere"', 'scope = "anywere"', """'repeats[1].scope' is "anywere", where one of "anywhere", "state" must stand"""),
        ('what = "numbers"', 'what = "number"', """'carries[1].what' is "number", where one of "words", "numbers" must stand"""),
        ("whole = true", 'whole = "true"', """'ends[1].whole' is "true", where true or false must stand"""),
        ('= ["business", "economy"]', '= "economy"', """'values[1].values' is "economy", where a list in brackets must stand"""),
        ('changed_by = ["toggle"]', "changed_by = [1]", "'repeats[1].changed_by[1]' is 1, where a text in quotes must stand"),
        ("support = 400", "support = true", "'values[1].support' is true, where a whole number must stand"),
        ("support = 400\n", "", "'values[1]' has no 'support', which each such rule needs"),
        ("support = 400", "suport = 400", "there is no 'values[1].suport'; known: kind, key, values, support"),
        ("ends_complete = true", "ends_complete = 1", "'ends_complete' is 1, where true or false must stand."),
        ("[[carries]]", "[carries]", ", where tables [[carries]] must stand"),
    ],
)
def test_a_rule_that_a_person_mistyped_is_named_with_what_must_stand_there(written: str, instead: str, named: str):
    text = to_toml(EVERY_RULE)
    assert from_toml(text, "rules.toml") == EVERY_RULE and written in text
    with pytest.raises(UsageError, match=r"rules\.toml.*Correct the file") as stop:
        from_toml(text.replace(written, instead), "rules.toml")
    assert named in str(stop.value)


def test_a_turn_of_several_calls_is_refused_only_where_each_of_them_is():
    schema = {"properties": {"id": {"type": "string"}}, "required": ["id"]}
    tools = ToolRules("toy", [Tool("get_user", "", schema), Tool("get_order", "", schema)])
    arguments = (ArgumentRule("get_order", "id", "earlier", 500, 0), ArgumentRule("get_user", "id", "instruction", 500, 0, identifier=True))
    rules = InducedRules(tools, Rules(arguments=arguments, kinds=("get_user", "get_order")))
    said = Observation("user said: my id is u1")

    def answers(action: str) -> tuple[bool | None, bool]:
        turn = tools.canonical(action)
        return rules.admissible(said, (), turn), bool(rules.unfounded("help", said, (), turn))

    assert answers('get_order(id="o9")') == (False, False)
    assert answers('get_user(id="u9")') == (None, True)
    assert answers('get_user(id="u1")\nget_order(id="o9")') == (None, False), "the user is shown all the same"
    assert answers('get_order(id="o8")\nget_order(id="o9")') == (False, False)
    assert answers('get_user(id="u8")\nget_user(id="u9")') == (None, True)
