"""What is read out of the shop's pages when they are less tidy than generated ones: price ranges, odd titles, options without a name."""

from __future__ import annotations

from typing import Any

import pytest
from scarf_shop import product

from dreamgym.envs.webshop import products, search
from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.envs.webshop.states import elements, read_item
from dreamgym.experience.augmentation import near_miss_goals_of, relabel_goals
from dreamgym.types import Memory, Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict

NARROW, WIDE = ShopRules(), ShopRules(wide=True)
BUTTONS = "[description][features][reviews][buy now][< prev][back to search]"
RANGED = f"item $12 to $20 soft scarf\ncolor: [red][blue]\n{BUTTONS}"


def states(raw: dict[str, Any], *actions: str) -> list[str]:
    """The abstract states of a shop that sells this one product, after each action."""
    loaded = products.load([raw], {}, seed=0)
    shop = WebShop(loaded, search.Index(loaded))
    shop.reset(Task("t", "i need a scarf", "webshop", goal={"asin": "any"}))
    return [NARROW.abstract(shop.step(action)[0]).text for action in actions]


def bought(state: str, reward: float = 1.0, reasoning: str = "") -> Transition:
    return Transition(Observation(state), "click[buy now]", Observation("purchase done"), reward, True, StepInfo(reasoning))


def explained(rules: ShopRules, instruction: str, state: str, reward: float, *clicked: str) -> str:
    here = Observation(state)
    history = [Transition(here, f"click[{value}]", here, 0.0, False) for value in clicked]
    return rules.explain(Task("t", instruction, "webshop"), history, bought(state, reward))


# --- price ranges -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [NARROW, WIDE], ids=["generated", "wide"])
def test_a_price_range_is_within_a_bound_only_by_its_upper_end(rules: ShopRules):
    def verdict(bound: int) -> Verdict:
        return rules.check_success(f"i need a soft scarf, and price lower than {bound}.00 dollars", (), bought(RANGED))

    assert verdict(20).passed and rules.check_success("i need a soft scarf", (), bought(RANGED)).passed
    assert verdict(15) == Verdict("undecided", ("price 12.0 to 20.0 may be above 15.0",))
    assert verdict(10) == Verdict("refused", ("price 12.0 to 20.0 is above 10.0",))


def test_the_same_page_of_a_price_range_pays_in_one_shop_and_not_in_another_so_its_text_grounds_nothing():
    instruction = "i need a soft scarf, and price lower than 15.00 dollars"
    goal = {"asin": "B1", "query": "scarf", "name": "Soft Scarf", "product_category": "Fashion › Scarfs", "attributes": ["soft"]}
    ends = set()
    for seed in range(12):
        loaded = products.load([product("B1", "Soft Scarf", pricing="$12 to $20")], {}, seed=seed)
        shop = WebShop(loaded, search.Index(loaded))
        shop.reset(Task("t", instruction, "webshop", goal={**goal, "goal_options": {}, "price_upper": 15.0}))
        shop.step("search[scarf]")
        state = NARROW.abstract(shop.step("click[b1]")[0]).text
        ends.add((state, shop.step("click[buy now]")[1]))
    assert ends == {(f"item $12 to $20 soft scarf\n{BUTTONS}", 0.0), (f"item $12 to $20 soft scarf\n{BUTTONS}", 1.0)}
    assert not NARROW.check_success(instruction, (), bought(state)).passed


@pytest.mark.parametrize("rules", [NARROW, WIDE], ids=["generated", "wide"])
def test_an_invented_task_is_feasible_by_the_upper_end_of_a_price_range(rules: ShopRules):
    seen = [Memory(1, "t", 0, "webshop", "i", "real", "results 1", "click[b1]", RANGED, 0.0, False, False)]
    assert rules.feasible("i need a soft scarf, and price lower than 20.00 dollars", seen) is True
    assert rules.feasible("i need a soft scarf, and price lower than 15.00 dollars", seen) is None


@pytest.mark.parametrize("rules", [NARROW, WIDE], ids=["generated", "wide"])
def test_the_teacher_tells_both_ends_of_a_price_range_and_never_more_than_they_say(rules: ShopRules):
    def said(bound: int, reward: float) -> str:
        return explained(rules, f"i need a soft scarf, and price lower than {bound}.00 dollars", RANGED, reward)

    assert said(20, 1.0) == "buy $12 to $20 soft scarf. soft yes, scarf yes, $12 to $20 under 20 yes, success."
    assert said(15, 1.0) == "buy $12 to $20 soft scarf. soft yes, scarf yes, $12 to $20 under 15 maybe, success."
    assert said(15, 0.0) == "buy $12 to $20 soft scarf. soft yes, scarf yes, $12 to $20 under 15 maybe, failure."
    assert said(10, 0.0) == "buy $12 to $20 soft scarf. soft yes, scarf yes, $12 to $20 under 10 no, failure."
    results = Observation("results 1\n[b1] $12 to $20 soft scarf\n[next >][back to search]")
    opened = Transition(results, "click[b1]", Observation(RANGED), 0.0, False)
    assert rules.explain(Task("t", "i", "webshop"), (), opened) == "open [b1] $12 to $20 soft scarf, so its page."


@pytest.mark.parametrize("rules", [NARROW, WIDE], ids=["generated", "wide"])
def test_a_copy_under_another_bound_is_made_only_where_the_price_range_settles_its_outcome(rules: ShopRules):
    def episode(name: str, bound: int, success: bool) -> Trajectory:
        task = Task(name, f"i need a soft scarf, and price lower than {bound}.00 dollars", "webshop")
        return Trajectory(name, task, "demo", (Turn(bought(RANGED, float(success))),), success)

    cheap, middle, dear = episode("cheap", 10, False), episode("middle", 30, True), episode("dear", 15, True)
    copies = [copy for seed in range(8) for copy in near_miss_goals_of([cheap, middle, dear], rules, 1.0, seed=seed)]
    made = {(copy.id.partition("/as/")[0], copy.task.instruction.split()[-2], copy.success) for copy in copies}
    assert made == {("cheap", "30.00", True), ("middle", "10.00", False), ("dear", "10.00", False)}
    assert relabel_goals([middle], rules, [dear.task], 1.0, seed=0) == []
    assert len(relabel_goals([middle], rules, [cheap.task], 1.0, seed=0)) == 1


# --- the state mapping ------------------------------------------------------------------------------------------------------------------


def test_a_description_that_begins_with_page_is_a_description():
    raw = product("B1", "Scarf", full_description="Page 3 of our catalogue (new).")
    results, _, details = states(raw, "search[scarf]", "click[b1]", "click[description]")
    assert results.startswith("results 1\n")
    assert details == "details page 3 of our catalogue (new).\n[< prev][back to search]"


def test_a_page_beyond_the_first_is_still_a_results_page():
    assert states(product("B1", "Scarf"), "search[scarf]", "click[next >]")[1] == "results 2\n[next >][< prev][back to search]"


def test_a_result_with_a_number_for_an_asin_has_a_place_like_any_other():
    raw = product("0743271327", "Great Scarf", pricing="$12 to $20")
    (state,) = states(raw, "search[scarf]")
    view = NARROW.view(Observation(state))
    assert view.text == "results 1\n[1] $12 to $20 great scarf\n[next >][back to search]"
    assert view.resolve("click[1]") == "click[0743271327]"
    assert NARROW.action_kind(Observation(state), "click[0743271327]") == "open item"


def test_a_title_that_begins_with_to_is_read_whole():
    results, item = states(product("B1", "To Wear: a Scarf"), "search[scarf]", "click[b1]")
    read = read_item(item)
    assert read and (read.title, read.prices) == ("to wear: a scarf", (20.0, 20.0))
    assert WIDE.check_success("a scarf to wear", (), bought(item)).passed
    opened = Transition(Observation(results), "click[b1]", Observation(item), 0.0, False)
    assert NARROW.explain(Task("t", "i", "webshop"), (), opened) == "open [b1] $20 to wear: a scarf, so its page."


def test_options_without_a_name_are_kept_under_a_placeholder():
    nameless = {"": [{"value": "Small"}, {"value": "Large"}], "Color": [{"value": "Red"}]}
    *_, item = states(product("B1", "Scarf", customization_options=nameless), "search[scarf]", "click[b1]", "click[large]")
    assert item.split("\n")[1:4] == ["unnamed: [small][large]", "color: [red]", "chosen [large]"]
    read = read_item(item)
    assert read and read.offered == {"unnamed": ("small", "large"), "color": ("red",)} and read.chosen == {"unnamed": "large"}
    assert {"small", "large", "red", "buy now"} <= set(elements(item))


# --- the teacher of people's sentences --------------------------------------------------------------------------------------------------


def test_the_teacher_of_a_sentence_takes_its_facts_from_what_the_check_looks_at():
    item = f"item $20 steel travel mug\ncolor: [blue][red]\nchosen [blue]\n{BUTTONS}"
    instruction = "i would like blue mugs of steel"
    assert explained(WIDE, instruction, item, 1.0, "blue") == "buy $20 steel travel mug [blue]. blue yes, mugs yes, steel yes, success."
    # marked on the page, but nobody clicked it: that is what the check says too
    assert explained(WIDE, instruction, item, 0.0) == "buy $20 steel travel mug [blue]. blue no, mugs yes, steel yes, failure."
    assert WIDE.check_success(instruction, (), bought(item)).reasons == ("no evidence for 'blue'",)


def test_the_teacher_of_a_sentence_counts_what_was_read_on_sub_pages_and_values_that_no_page_can_mark():
    item = Observation(f'item $20 pillow\nsize: [9" x 9"][8" x 8"]\n{BUTTONS}')
    details = Observation("details a washable cover.\n[< prev][back to search]")
    history = [
        Transition(item, "click[description]", details, 0.0, False),
        Transition(details, "click[< prev]", item, 0.0, False),
        Transition(item, 'click[9" x 9"]', item, 0.0, False),
    ]
    instruction = 'a washable pillow with size: 9" x 9", and price lower than 30.00 dollars'
    said = WIDE.explain(Task("t", instruction, "webshop"), history, bought(item.text))
    assert said == 'buy $20 pillow [9" x 9"]. washable yes, pillow yes, [9" x 9"] yes, $20 under 30 yes, success.'
    assert WIDE.check_success(instruction, history, bought(item.text)).passed


def test_the_teacher_of_a_generated_instruction_looks_at_the_item_page_alone():
    item = f"item $20 plain mug\ncolor: [blue][red]\nchosen [blue]\n{BUTTONS}"
    said = explained(NARROW, "i need a blue mug with color: blue", item, 0.0, "blue")
    assert said == "buy $20 plain mug [blue]. blue no, mug yes, [blue] yes, failure."
