"""Scripted policies of mixed skill, so that logs cover what agents do: good, sloppy, aimless, and impossible actions.

They read the abstract state and the instruction only, as an agent would. `noisy` is like the agent of typical logs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from dreamgym.envs.webshop import wording
from dreamgym.envs.webshop.rules import requirements
from dreamgym.envs.webshop.states import Item, Row, elements, ends, read_item, rows
from dreamgym.envs.webshop.wording import Requirements
from dreamgym.types import Action

ScriptedPolicy = Callable[[str, str, random.Random, "ScriptMemory"], Action]
"""(instruction, state, rng, memory) -> action"""


class ScriptMemory:
    """What a scripted policy remembers within an episode."""

    def __init__(self, other: str = "") -> None:
        self.rejected: set[str] = set()
        self.current = ""
        self.searches = 0
        self.pages = 0
        self.clicked: set[str] = set()  # option values on the open item: one with a quote in it never shows as chosen
        self.titles: list[list[str]] = []  # of the products that results have listed
        self.values: set[str] = set()  # of the options that pages have offered
        self.opened: set[str] = set()
        self.other = other  # another task's instruction, for `wrong_goal`

    def look(self, state: str) -> None:
        """Remember what a page says of products."""
        self.titles += [words for row in rows(state) if (words := row.title.split()) and words not in self.titles]
        if item := read_item(state):
            self.values.update(value for values in item.offered.values() for value in values)


def expert(instruction: str, state: str, rng: random.Random, memory: ScriptMemory, slip: float = 0.0) -> Action:
    """Search for what is asked, open the first match that is not yet rejected, choose the options, buy."""
    wanted = requirements(instruction)
    if wanted is None:
        return _by_content(instruction, state, rng, memory, slip)
    if state.startswith("results"):
        return _from_results(wanted, state, rng, memory, slip)
    item = read_item(state)
    if item is None:
        return _query(wanted, rng, memory, slip)
    return _from_item(wanted, item, rng, memory, slip)


def noisy(instruction: str, state: str, rng: random.Random, memory: ScriptMemory) -> Action:
    """An expert that makes mistakes: vague searches, wrong picks, forgotten options, detours."""
    if rng.random() < 0.12 and not state.startswith("shop home"):
        return wander(instruction, state, rng, memory)
    return expert(instruction, state, rng, memory, slip=0.3)


def wander(instruction: str, state: str, rng: random.Random, memory: ScriptMemory) -> Action:
    """Anything the page allows, all alike."""
    choices = [name for name in elements(state) if name != "search"]
    words = [word for word in instruction.split() if word.isalpha()]
    if not choices or rng.random() < 0.1:
        return f"search[{' '.join(rng.sample(words, min(len(words), rng.randint(1, 3))))}]"
    return f"click[{rng.choice(choices)}]"


def invalid(instruction: str, state: str, rng: random.Random, memory: ScriptMemory) -> Action:
    """Half the time something the page does not offer: another page's element, a near miss, or no action at all."""
    if rng.random() < 0.5:
        return noisy(instruction, state, rng, memory)
    shown = elements(state)
    other = [
        "buy now",
        "next >",
        "< prev",
        "red",
        "blue",
        "black",
        "small",
        "large",
        "description",
        "back to search",
        f"b{rng.randint(0, 999):03d}",
    ]
    near = [name[:-1] for name in shown if len(name) > 2] + [f"{name} {rng.choice(('one', 'now', 'x'))}" for name in shown]
    absent = [name for name in other + near + instruction.split() if name not in shown]
    return rng.choice(
        (f"click[{rng.choice(absent)}]", f"click[{rng.choice(absent)}]", rng.choice(absent), "search", "think[hard]", "click[search]")
    )


def wrong_goal(instruction: str, state: str, rng: random.Random, memory: ScriptMemory) -> Action:
    """The expert with another task's instruction."""
    return expert(memory.other or instruction, state, rng, memory, slip=0.15)


def curious(instruction: str, state: str, rng: random.Random, memory: ScriptMemory) -> Action:
    """Looks around: opens what it has not opened, and searches in words that it has seen, of one product or of two. It never buys."""
    memory.look(state)
    new = [row.asin for row in rows(state) if row.asin not in memory.opened]
    roll = rng.random()
    if new and roll < 0.45:
        memory.opened.add(chosen := rng.choice(new))
        return f"click[{chosen}]"
    if roll < 0.4 and read_item(state):
        return "click[< prev]"
    if roll < 0.55 and rows(state):
        return "click[next >]"
    return f"search[{' '.join(_mixture(instruction, rng, memory))}]"


SCRIPTED_POLICIES: Mapping[str, ScriptedPolicy] = {
    "expert": expert,
    "noisy": noisy,
    "random": wander,
    "invalid": invalid,
    "wrong_goal": wrong_goal,
    "curious": curious,
}
MIX: Mapping[str, float] = {"expert": 0.1, "noisy": 0.45, "random": 0.15, "invalid": 0.15, "wrong_goal": 0.15, "curious": 0.0}


def _by_content(instruction: str, state: str, rng: random.Random, memory: ScriptMemory, slip: float) -> Action:
    """The expert for instructions in anybody's words: the result whose title says most of what is asked, its options, the purchase."""
    wanted = wording.read(instruction)
    if wanted is None:
        return "search[nothing]" if state.startswith("shop home") else wander(instruction, state, rng, memory)
    if state.startswith("results"):
        return _best_result(wanted, state, rng, memory, slip)
    item = read_item(state)
    if item is None:
        return _query(wanted, rng, memory, slip)
    for name, values in item.offered.items():
        value = dict(wanted.options).get(name) or next((v for v in values if set(v.split()) <= set(wanted.words)), None)
        if value not in values and name in dict(wanted.options) and len(memory.rejected) < 3:
            memory.rejected.add(memory.current)
            return "click[< prev]"
        if value in values and value not in memory.clicked and "[" not in value and rng.random() >= slip / 2:
            memory.clicked.add(value)
            return f"click[{value}]"
    return "click[buy now]"


def _best_result(wanted: Requirements, state: str, rng: random.Random, memory: ScriptMemory, slip: float) -> Action:
    new = [row for row in rows(state) if row.asin not in memory.rejected]
    fitting = [row for row in new if _affordable(wanted, row)] or new
    if not fitting:
        memory.pages += 1
        return "click[next >]" if memory.pages < 3 else "click[back to search]"
    memory.clicked = set()
    best = max(fitting, key=lambda row: len(set(row.title.split()) & set(wanted.words)))
    memory.current = (rng.choice(fitting) if rng.random() < slip / 2 else best).asin
    return f"click[{memory.current}]"


def _query(wanted: Requirements, rng: random.Random, memory: ScriptMemory, slip: float) -> Action:
    memory.searches += 1
    memory.pages = 0
    words = [word for word in wanted.words[:-1] if rng.random() >= slip] + [wanted.words[-1]]
    if rng.random() >= 0.3 + slip:
        words += [value for _, value in wanted.options]
    return f"search[{' '.join(words)}]"


def _mixture(instruction: str, rng: random.Random, memory: ScriptMemory) -> list[str]:
    """Words to search for: a product's, seen or asked for, with one of another's and with options, none of which it may have."""
    wanted = requirements(instruction) or wording.read(instruction)
    asked = [list(wanted.words)] if wanted else [instruction.split()]
    values = sorted(memory.values.union(value for _, value in wanted.options)) if wanted else sorted(memory.values)
    titles = memory.titles if memory.titles and rng.random() < 0.7 else asked
    *qualities, noun = rng.choice(titles)
    words = [word for word in qualities if rng.random() < 0.7]
    words += [rng.choice(rng.choice(titles))] if rng.random() < 0.3 else []
    words += [noun] + [rng.choice(values) for often in (0.5, 0.2) if values and rng.random() < often]
    return [word for word in dict.fromkeys(words) if not set("[]") & set(word)]


def _from_results(wanted: Requirements, state: str, rng: random.Random, memory: ScriptMemory, slip: float) -> Action:
    """Open the first result that fits, by a slip any; else turn the page, ask again, and at last take what there is."""
    found = rows(state)
    if found and rng.random() < slip / 2:
        memory.current = rng.choice(found).asin
        return f"click[{memory.current}]"
    for row in found:
        if _fits(wanted, row, rng, slip) and row.asin not in memory.rejected:
            memory.current = row.asin
            return f"click[{row.asin}]"
    memory.pages += 1
    if found and memory.pages < 3:
        return "click[next >]"
    if memory.searches < 3:
        return _query(wanted, rng, memory, slip)
    return f"click[{rng.choice(found).asin}]" if found else "click[back to search]"


def _fits(wanted: Requirements, row: Row, rng: random.Random, slip: float) -> bool:
    """Whether a result is what was asked for, as far as its line tells; a slip overlooks the price."""
    words = row.title.split()
    return all(word in words for word in wanted.words) and (_affordable(wanted, row) or rng.random() < slip)


def _affordable(wanted: Requirements, row: Row) -> bool:
    """Whether the price may be within the bound: the lower end of a range counts."""
    return wanted.bound is None or ends(row.price)[0] <= wanted.bound


def _from_item(wanted: Requirements, item: Item, rng: random.Random, memory: ScriptMemory, slip: float) -> Action:
    for name, value in wanted.options:
        if value not in item.offered.get(name, ()):
            if rng.random() < slip:
                continue
            memory.rejected.add(memory.current)
            return "click[< prev]"
        if item.chosen.get(name) != value and rng.random() >= slip / 2:
            return f"click[{value}]"
    return "click[buy now]"
