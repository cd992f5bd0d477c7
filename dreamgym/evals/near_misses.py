"""Actions that almost exist, labelled by the real environment: what a curious policy tries, and logs seldom hold.

Three ways to miss: a name of the page with one letter or digit changed, an action that another page offers, and a right name in the wrong
grammar. The scripted policies that make logs miss in other ways (`envs.webshop.scripted_policies.invalid`), and so does the augmentation of
the training rows (`experience.augmentation.insert_invalid_actions`).
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dreamgym.bracket_actions import ELEMENT, join_action, split_action
from dreamgym.envs.base import TextRules
from dreamgym.protocols import RealEnv
from dreamgym.types import Action, Observation, Trajectory, Transition

Way = Literal["letter", "elsewhere", "grammar"]
WAYS: tuple[Way, ...] = ("letter", "elsewhere", "grammar")


@dataclass(frozen=True)
class NearMiss:
    """An action at step `step` of `episode` that is a no-op in the real environment."""

    episode: int
    step: int
    way: Way
    action: Action


@dataclass(frozen=True)
class Drawn:
    """Near misses, and how many tries the environment took for something else: they are dropped."""

    misses: list[NearMiss]
    took_effect: int  # the action did something after all
    lost: int  # the episode could not be repeated up to that step


def draw(episodes: Sequence[Trajectory], real: RealEnv, rules: TextRules, *, share: float, seed: int) -> Drawn:
    """One near miss at about `share` of the steps of real episodes, each tried in the real environment after the steps before it."""
    rng = random.Random(f"near-misses/{seed}")
    spell = spelling(episodes)
    offered = sorted({spell(name) for episode in episodes for t in episode.transitions for name in ELEMENT.findall(t.state.text)})
    tries: list[NearMiss] = []
    for i, episode in enumerate(episodes):
        for step in range(len(episode.turns)):
            if rng.random() >= share:
                continue
            state = episode.transitions[step].state
            way = WAYS[rng.randrange(len(WAYS))]
            action = rules.canonical(miss(state, episode.transitions[step].action, way, spell, offered, rng))
            tries.append(NearMiss(i, step, way, action))
    walks = real.repeat([(episodes[one.episode].task, _up_to(one, episodes[one.episode])) for one in tries])
    verdicts = [_verdict(one, episodes[one.episode], walk) for one, walk in zip(tries, walks, strict=True)]
    misses = [one for one, verdict in zip(tries, verdicts, strict=True) if verdict == "no-op"]
    return Drawn(misses, verdicts.count("took effect"), verdicts.count("lost"))


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


def miss(
    state: Observation, taken: Action, way: Way, spell: Callable[[str], Action], offered: Sequence[Action], rng: random.Random
) -> Action:
    """An action that `state` does not offer, missed in one of three ways. `taken` stands in where the state lists no element."""
    names = ELEMENT.findall(state.text)
    here = {spell(name) for name in names}
    absent = [action for action in offered if action not in here]
    if way == "elsewhere" and absent:
        return rng.choice(absent)
    name = rng.choice(names) if names else taken
    if way == "grammar":
        verb, _ = split_action(spell(""))
        forms = [
            join_action("press", name),
            f"{verb}({name})",
            f"{verb}[{name}",
            f"{name} {name}",
            f"do {verb or 'it'}: {name}",
            f"{name}]",
        ]
        return rng.choice([form for form in forms if form not in here])
    near = changed(name, rng)
    return spell(near) if names else near


def changed(name: str, rng: random.Random) -> str:
    """The same text with one letter or digit replaced by another of its kind; with a letter behind it where it has neither."""
    places = [i for i, sign in enumerate(name) if sign.isalnum()]
    if not places:
        return name + rng.choice(string.ascii_lowercase)
    i = rng.choice(places)
    kind = string.digits if name[i].isdigit() else string.ascii_lowercase
    return name[:i] + rng.choice([sign for sign in kind if sign != name[i].lower()]) + name[i + 1 :]


def _up_to(one: NearMiss, episode: Trajectory) -> list[Action]:
    """The near miss after the actions before it."""
    return [*(past.action for past in episode.transitions[: one.step]), one.action]


def _verdict(one: NearMiss, episode: Trajectory, walk: Sequence[Transition] | None) -> str:
    """What the near miss did in reality, if the way to it could be repeated."""
    if walk is None or len(walk) <= one.step or walk[one.step].state != episode.transitions[one.step].state:
        return "lost"
    return "no-op" if walk[one.step].is_noop else "took effect"
