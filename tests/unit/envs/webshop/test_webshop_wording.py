"""Instructions as people write them: what is read of them, and what the guard then asks for."""

from __future__ import annotations

from typing import Any

import pytest

from dreamgym.envs.webshop import wording
from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.types import Memory, Observation, Transition


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i'm looking for a dairy-free tea that comes in a tin", (("dairy-free", "tea", "tin"), (), None)),
        ("i need a blue mug, and price lower than 40.00 dollars", (("blue", "mug"), (), 40.0)),
        ("find me a steel mug under $25", (("steel", "mug"), (), 25.0)),
        (
            "Find me long sleeve shirts with snaps with color: red, white, and fit type: big & tall, and price lower than 30.00 dollars",
            (("long", "sleeve", "shirts", "snaps"), (("color", "red, white"), ("fit type", "big & tall")), 30.0),
        ),
    ],
)
def test_a_sentence_is_read_by_its_content_words_options_and_bound(text: str, expected: Any):
    wanted = wording.read(text)
    assert wanted and (wanted.words, wanted.options, wanted.bound) == expected


@pytest.mark.parametrize(
    "text",
    [
        "i need a tea without sugar", "a mug in red or blue", "i dont want a steel mug", "a disk of at least 5 gigabytes", "buy it", "",
        "a cheap steel mug for my budget", "a steel mug, price above 5 dollars", "mug mug", " ".join(f"w{i}" for i in range(60)),
    ],
)  # fmt: skip
def test_what_words_alone_cannot_settle_is_not_read(text: str):
    assert wording.read(text) is None
    assert not ShopRules(wide=True).well_formed(text)


ITEM = "item $20 soft steel travel mug\ncolor: [red][blue]\nchosen [red]\n[description][features][reviews][buy now][< prev][back to search]"


def bought(instruction: str, *clicked: str) -> Any:
    history = [Transition(Observation(ITEM), f"click[{name}]", Observation(ITEM), 0.0, False) for name in clicked]
    return ShopRules(wide=True).check_success(
        instruction, history, Transition(Observation(ITEM), "click[buy now]", Observation("purchase done"), 1.0, True)
    )


def test_the_guard_asks_evidence_for_options_price_and_half_of_the_words():
    assert bought("i would like red mugs made of steel, and price lower than 30.00 dollars", "red").passed
    assert bought("i would like red mugs made of steel").reasons == ("no evidence for 'red'",)  # marked, but nobody clicked it
    assert bought("find me a travel mug with color: red", "red").passed
    assert bought("find me a travel mug with color: red").reasons == ("nobody clicked red",)
    assert bought("find me a travel mug with color: blue", "blue").reasons == ("color is not blue",)
    assert bought("a steel mug under 10 dollars").reasons == ("price 20.0 is above 10.0",)
    assert bought("a steel mug with a lid").passed  # two of three words are in the title; a lid no option could have given
    assert bought("a glass cup of steel").reasons == ("no evidence for 'glass'", "no evidence for 'cup'")
    assert bought("a steel mug or a cup").reasons == ("the instruction cannot be read",)


def test_an_original_task_is_feasible_when_a_remembered_item_could_meet_it():
    seen = [Memory(1, "t", 0, "webshop", "i", "real", "results 1", "click[b1]", ITEM, 0.0, False, False)]
    wide = ShopRules(wide=True)
    assert wide.feasible("a blue steel mug", seen) is True
    assert wide.feasible("a green steel mug", seen) is None
    assert wide.feasible("a mug without steel", seen) is False


def test_a_value_that_the_page_cannot_mark_counts_by_its_last_click():
    page = 'item $20 steel pillow\nsize: [9" x 9"][8" x 8"]\n[description][features][reviews][buy now][< prev][back to search]'
    here = Observation(page)

    def passes(*clicked: str) -> bool:
        history = [Transition(here, f"click[{value}]", here, 0.0, False) for value in clicked]
        claim = Transition(here, "click[buy now]", Observation("purchase done"), 1.0, True)
        return ShopRules(wide=True).check_success('a steel pillow with size: 9" x 9"', history, claim).passed

    assert passes('9" x 9"') and passes('8" x 8"', '9" x 9"')
    assert not passes() and not passes('9" x 9"', '8" x 8"')
