"""Near misses of words and brackets: how names are changed and spelt, and what a world without elements offers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dreamgym.bracket_actions import ELEMENT
from dreamgym.envs import alfworld, corridor, webshop
from dreamgym.envs.near_misses import changed, near_misses, spelling
from dreamgym.logs.demonstrations import collect

SHOP, CORRIDOR = webshop.make(), corridor.make(length=4)


def test_a_changed_name_differs_in_one_letter_or_digit_of_its_kind() -> None:
    for seed in range(50):
        near = changed("b017 Red", random.Random(seed))
        [(old, new)] = [(a, b) for a, b in zip("b017 Red", near, strict=True) if a != b]
        assert (old.isdigit(), old.isupper()) == (new.isdigit(), new.isupper())
    assert changed("<", random.Random(0))[0] == "<" and len(changed("<", random.Random(0))) == 2


def test_elements_are_spelt_as_the_logs_spell_them() -> None:
    assert spelling(collect(SHOP, 20, seed=0))("red") == "click[red]"
    assert spelling(collect(CORRIDOR, 20, seed=0))("left") == "left"


@pytest.mark.parametrize("suite", [SHOP, CORRIDOR], ids=["webshop", "corridor"])
def test_what_another_state_offers_is_not_offered_here_and_a_wrong_form_names_what_is(suite: Any) -> None:
    episodes, rng = collect(suite, 20, seed=0), random.Random(0)
    ways, spell = suite.rules.near_misses(episodes), spelling(episodes)
    others = set()
    for episode in episodes:
        for step, transition in enumerate(episode.transitions):
            here = ELEMENT.findall(transition.state.text)
            others.add(other := ways["elsewhere"](episode, step, rng))
            form = ways["grammar"](episode, step, rng) or ""
            assert other not in map(spell, here) and form not in map(spell, here) and any(name in form for name in here)
    assert len(others - {None}) > 1


def test_where_no_state_lists_elements_names_are_actions_of_the_logs() -> None:
    pytest.importorskip("alfworld", reason="the extra alfworld is not installed")
    suite = alfworld.make()
    episodes = collect(suite, 6, seed=0)
    found = {near_misses(episodes)["elsewhere"](episode, 0, random.Random(seed)) for seed, episode in enumerate(episodes)}
    assert found <= {step.action for episode in episodes for step in episode.transitions}
    assert all(way(episodes[0], 0, random.Random(0)) for way in suite.rules.near_misses(episodes).values())
