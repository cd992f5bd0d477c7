"""Actions of words and brackets that differ little from a valid one: what a policy in training tries, and logs seldom hold.

Each way of missing has a name. The real environment decides which of them it refuses (`evals.near_misses`). `invalid_action` makes the
mistakes of training rows, in other ways: a model would else be measured by the mistakes that it was trained on.
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from dreamgym.bracket_actions import ELEMENT, join_action, split_action
from dreamgym.types import Action, Trajectory

Miss = Callable[[Trajectory, int, random.Random], Action | None]
"""(episode, step) -> an action in the state before that step; None where this way of missing has none."""


def near_misses(episodes: Sequence[Trajectory]) -> Mapping[str, Miss]:
    """By name: `letter` (a name of the state with one letter or digit changed), `elsewhere` (what another state offers) and `grammar` (a
    right name in the wrong form). Where no state lists elements, names are whole actions of the logs."""
    spell = spelling(episodes)
    steps = [step for episode in episodes for step in episode.transitions]
    offered = sorted({spell(name) for step in steps for name in ELEMENT.findall(step.state.text)}) or sorted({t.action for t in steps})
    usual, _ = split_action(spell(""))

    def letter(episode: Trajectory, step: int, rng: random.Random) -> Action:
        names = _names(episode, step)
        near = changed(rng.choice(names or [episode.transitions[step].action]), rng)
        return spell(near) if names else near

    def elsewhere(episode: Trajectory, step: int, rng: random.Random) -> Action | None:
        here = {*map(spell, _names(episode, step)), episode.transitions[step].action}
        absent = [action for action in offered if action not in here]
        return rng.choice(absent) if absent else None

    def grammar(episode: Trajectory, step: int, rng: random.Random) -> Action:
        names = _names(episode, step)
        name = rng.choice(names or [episode.transitions[step].action])
        verb = usual or "do"
        forms = [join_action("do", name), f"{usual}({name})", f"{usual}[{name}", f"{name} {name}", f"{verb}: {name}", f"{name}]"]
        return rng.choice([form for form in forms if form not in map(spell, names)])

    return {"letter": letter, "elsewhere": elsewhere, "grammar": grammar}


def invalid_action(action: Action, rng: random.Random) -> Action:
    """An action's name cut short, with a word too many, or under a verb that nobody knows."""
    verb, argument = split_action(action)
    name = verb if argument is None else argument
    wrong = rng.choice((name[:-1], f"{name} now", f"the {name}", name[1:]))
    unknown = rng.choice((f"please {name}", join_action("choose", name), "continue", "start over"))
    return rng.choice((wrong if argument is None else join_action(verb, wrong), unknown))


def spelling(episodes: Sequence[Trajectory]) -> Callable[[str], Action]:
    """How an element's name becomes an action here, as the logs show: `click[red]` where they click, `open` where they name it bare."""
    verbs: Counter[str] = Counter()  # "": the bare name
    for episode in episodes:
        for t in episode.transitions:
            names = ELEMENT.findall(t.state.text)
            verb, argument = split_action(t.action)
            if t.action in names:
                verbs[""] += 1
            elif argument in names:
                verbs[verb] += 1
    usual = verbs.most_common(1)[0][0] if verbs else ""
    return lambda name: join_action(usual, name) if usual else name


def changed(name: str, rng: random.Random) -> str:
    """The same text with one letter or digit replaced by another of its kind; with a letter behind it where it has neither."""
    places = [i for i, sign in enumerate(name) if sign.isalnum()]
    if not places:
        return name + rng.choice(string.ascii_lowercase)
    i = rng.choice(places)
    kind = string.digits if name[i].isdigit() else string.ascii_uppercase if name[i].isupper() else string.ascii_lowercase
    return name[:i] + rng.choice([sign for sign in kind if sign != name[i]]) + name[i + 1 :]


def _names(episode: Trajectory, step: int) -> list[str]:
    """The elements that the state before a step lists."""
    return ELEMENT.findall(episode.transitions[step].state.text)
