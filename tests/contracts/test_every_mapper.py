"""What every learned state mapping promises (`envs.mapping.StateMapper`). Mappings are discovered; a new one needs an entry in `NEEDED`.

What single mappings keep, and what a failing server does, is tested in tests/unit/experience/test_mappers.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer

from dreamgym import plugins
from dreamgym.envs.mapping import StateMapper, mapped, shorten
from dreamgym.errors import ConfigError
from dreamgym.experience.mappers import fitted
from dreamgym.types import Action, Observation, Task, Trajectory, Transition, Turn

KIND = "experience.mappers"
MENU = ("[1] link 'Home'", "Imprint and terms", "newsletter: write to us")
PAGE = ["page: the shop", *MENU, "[9] link 'red scarf' | in stock", "UPC | 12345"]
ODD = [["", "", ""], [" ", "\u0000", "naïve 茶碗 [3]"], ["lone \ud800", "[] {}", "x" * 5000], ["the only line"], []]
"""States that a page may be."""
ASKED = ("What is the code of the red scarf?", ["click [9]"])
Made = Callable[[], StateMapper]
Open = Callable[[Path], Any]


def episode(i: int) -> Trajectory:
    """A success that clicks the product that the task names, among pages like `PAGE`."""
    thing = ("red scarf", "blue mug", "green lamp", "amber kettle")[i % 4]
    first = Observation("\n".join(PAGE).replace("red scarf", thing).replace("12345", str(10_000 + i)))
    steps = Transition(first, "click [9]", first, 0.0, False), Transition(first, f"stop [{10_000 + i}]", Observation("the end"), 1.0, True)
    return Trajectory(f"e{i}", Task(f"t{i}", f"What is the code of the {thing}?", "shop"), "demo", tuple(map(Turn, steps)), True)


@contextmanager
def from_a_file(folder: Path) -> Iterator[dict[str, Any]]:
    """Settings of a mapping that was fitted to logs."""
    fitted.fit([episode(i) for i in range(150)]).save(folder / "mapper.json")
    yield {"file": folder / "mapper.json"}


@contextmanager
def from_a_server(folder: Path) -> Iterator[dict[str, Any]]:
    """Settings of a mapping by a model that keeps codes, and the lines with a word of the task."""

    def answer(messages: Sequence[Any]) -> str:
        asked = json.loads(messages[-1]["content"])
        words = set(asked["task"].lower().strip("?").split()) - {"what", "is", "the", "of"}
        kept = [int(i) for i, line in asked["lines"].items() if words & set(line.lower().replace("'", " ").split()) or "UPC" in line]
        return json.dumps({"reasoning": "so it is.", "lines": kept})

    with FaultServer() as server:
        server.answer = answer
        yield {"engine": {"base_url": server.url, "model": "policy", "backoff_s": 0.01}}


NEEDED: dict[str, Open] = {"fitted": from_a_file, "prompted": from_a_server}
"""What a mapping cannot be made without."""


@pytest.fixture(params=plugins.known(KIND))
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    with NEEDED[request.param](tmp_path) as found:
        yield {"name": request.param, **found}


def only_places_of_the_state_are_kept_whatever_it_holds(make: Made) -> None:
    mapper = make()
    for lines in (PAGE, *ODD):
        for actions in ([], ["click [9]"] * 20, ["\ud800"]):
            kept = mapper.keep("find it \ud800", actions, lines)
            assert isinstance(kept, set) and kept <= set(range(len(lines)))


def the_same_state_is_the_same_text_in_any_order_and_instance_and_nothing_given_is_changed(make: Made) -> None:
    one, other = make(), make()
    lines, actions = list(PAGE), list(ASKED[1])
    kept = one.keep(ASKED[0], actions, lines)
    assert (lines, actions) == (PAGE, ASKED[1])
    one.keep("another task", [], ODD[0])
    assert one.keep(ASKED[0], actions, lines) == kept == other.keep(ASKED[0], tuple(actions), tuple(lines))


def what_the_task_names_is_kept_and_the_menu_is_left_out(make: Made) -> None:
    short = shorten(make(), *ASKED, "\n".join(PAGE)).split("\n")
    assert short[0] == PAGE[0] and {"[9] link 'red scarf' | in stock", "UPC | 12345"} <= set(short)
    assert not set(MENU) & set(short) and [line for line in PAGE if line in short] == short[:-1]


def an_episode_keeps_its_actions_rewards_and_ends(make: Made) -> None:
    whole = episode(2)
    short = mapped(make(), whole)
    for before, after in zip(whole.transitions, short.transitions, strict=True):
        assert (before.action, before.reward, before.terminated) == (after.action, after.reward, after.terminated)
        assert "[9] link" in after.state.text and len(after.state.text) < len(before.state.text)
    assert short.transitions[0].next_state == short.transitions[1].state, "as it was after a step it is before the next"


PROMISES = [
    only_places_of_the_state_are_kept_whatever_it_holds,
    the_same_state_is_the_same_text_in_any_order_and_instance_and_nothing_given_is_changed,
    what_the_task_names_is_kept_and_the_menu_is_left_out,
    an_episode_keeps_its_actions_rewards_and_ends,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_mapping_keeps_every_promise(settings: dict[str, Any], promise: Callable[[Made], None]) -> None:
    promise(lambda: plugins.make_named(KIND, settings))


def test_a_setting_that_a_mapping_does_not_have_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"mapper\.colour"):
        plugins.make_named(KIND, settings | {"colour": 1})


# Mappings that break a promise each


class Broken:
    """Keeps what it should, in the way of the subclass."""

    kept = frozenset({0, 4, 5})

    def keep(self, instruction: str, actions: Sequence[Action], lines: Sequence[str]) -> set[int]:
        return {i for i in self.kept if i < len(lines)}


class Beyond(Broken):
    def keep(self, instruction: str, actions: Sequence[Action], lines: Sequence[str]) -> set[int]:
        return {0, len(lines)}


class Wavers(Broken):
    calls = 0

    def keep(self, instruction: str, actions: Sequence[Action], lines: Sequence[str]) -> set[int]:
        self.calls += 1
        return super().keep(instruction, actions, lines) | {min(self.calls, 3)}


class KeepsAll(Broken):
    kept = frozenset(range(6))


class LosesLinks(Broken):
    kept = frozenset({0, 5})


@pytest.mark.parametrize(("broken", "promise"), list(zip((Beyond, Wavers, KeepsAll, LosesLinks), PROMISES, strict=True)))
def test_a_broken_mapping_does_not_keep_its_promise(broken: Made, promise: Callable[[Made], None]) -> None:
    with pytest.raises(AssertionError):
        promise(broken)
