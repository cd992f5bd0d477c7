"""Where the model and the state disagree about a failure, neither is believed."""

from __future__ import annotations

from dataclasses import replace

from predictions import predicted

from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.envs.webshop.states import DONE
from dreamgym.experience.guard import DISPUTED, Guard, GuardConfig
from dreamgym.types import Observation, Query, Task, Transition, Verdict

ITEM = Observation("item $24 soft plain scarf\ncolor: [red][blue]\nchosen [red]\n[buy now][< prev][back to search]")
FAILURE = predicted(DONE, 0.0, True, "buy, failure.")


OPENED = Observation("item $24 soft plain scarf\ncolor: [red][blue]\n[buy now][< prev]")
CLICKED = (Transition(OPENED, "click[red]", ITEM, 0.0, False),)


def buy(instruction: str, history: tuple[Transition, ...] = CLICKED) -> Query:
    return Query(Task("t", instruction, "webshop"), history, ITEM, "click[buy now]")


def test_an_option_that_a_page_shows_as_chosen_but_nobody_clicked_grounds_no_success():
    claim = predicted(DONE, 1.0, True, "buy, success.")
    found = Guard(ShopRules()).after(buy("find me a soft scarf with color: red", ()), claim)
    assert found.reward == 0.0 and found.info.verdict == Verdict("refused", ("nobody clicked red",))
    assert Guard(ShopRules()).after(buy("find me a soft scarf with color: red"), claim).reward == 1.0


def test_a_failure_that_the_state_shows_to_be_a_success_is_masked_and_stays_without_reward():
    guard = Guard(ShopRules())
    found = guard.after(buy("find me a soft scarf with color: red"), FAILURE)
    assert found.info.verdict == Verdict("masked", (DISPUTED,)) and found.reward == 0.0 and guard.counts["failure_disputed"] == 1


def test_a_failure_that_the_state_confirms_is_believed():
    by_rule = replace(FAILURE, info=replace(FAILURE.info, reward_by="rule"))
    assert Guard(ShopRules()).after(buy("find me a soft scarf with color: blue"), FAILURE) == by_rule


def test_disputes_can_be_left_to_the_model():
    guard = Guard(ShopRules(), GuardConfig(mask_disputed=False))
    assert guard.after(buy("find me a soft scarf with color: red"), FAILURE) == FAILURE
