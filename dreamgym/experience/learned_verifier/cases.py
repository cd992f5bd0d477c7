"""Claims with labels from logs alone: what ended in success, and what did not or would not have.

True claims are the ends of logged successes. False ones, the most reliable first:

* `failures`: the ends of logged failures;
* `swapped`: a success under another episode's instruction; half of them under one of the most similar instructions;
* `truncated`: a success that was cut before one of its actions, with the claim appended. Where the logs show which actions change later
  answers, the cut is before the last of those, else anywhere;
* `action`: a success in which an action is replaced by another of its kind from the logs, while every answer stays as it was;
* `observation`: a success in which what an action showed is replaced by what another episode saw after an action of that kind.

States are made again from what was shown (`TextRules.encode_delta`): where the rules write what is new in a state that holds all that came
before, as a conversation does, each later one has the change. A made-up claim may happen to be true, so that its label is above 0 where
that is frequent. No environment's rules say what is a success.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from dreamgym.envs.actions import kind_of
from dreamgym.envs.base import TextRules
from dreamgym.experience.learned_verifier.head import LabelledClaim
from dreamgym.replay.encoders.lexical import HashedText
from dreamgym.statistics import difference, wilson
from dreamgym.types import Observation, Trajectory, Transition

Corruption = Literal["swapped", "truncated", "action", "observation"]
LABEL: Mapping[Corruption, float] = {"swapped": 0.05, "truncated": 0.05, "action": 0.1, "observation": 0.1}
"""Labels of made-up claims: about 6 % of truncated successes still succeed in a tool environment where that was counted."""
WEIGHT = 0.05  # of a made-up claim beside a logged one: more made scripted policies of the shop worse known, at every shift that was tried
SIMILAR = 8  # instructions that count as most similar
DRAWS = 8  # of a replacement, until one changes something


def scored_episodes(logs: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes that say something about outcomes: scored, ended by the environment, and whole."""
    return [t for t in logs if t.scored and t.error is None and t.turns and t.transitions[-1].terminated]


def logged_claims(episodes: Sequence[Trajectory]) -> list[LabelledClaim]:
    """The ends of logged episodes."""
    return [LabelledClaim(t.task.instruction, t.transitions, float(t.success)) for t in episodes]


def constructed_claims(
    episodes: Sequence[Trajectory], rules: TextRules, *, seed: int, kinds: Sequence[Corruption] = get_args(Corruption)
) -> list[tuple[str, LabelledClaim]]:
    """False claims made from the episodes of `scored_episodes`, each with the id of its episode."""
    rng = random.Random(f"made-up claims/{seed}")
    successes = [t for t in episodes if t.success]
    make: dict[Corruption, Callable[[Trajectory], LabelledClaim | None]] = {
        "swapped": _swapper(episodes, rng),
        "truncated": partial(_truncated, rules=rules, writes=write_like(episodes, rules), rng=rng),
        "action": _replacer(episodes, rules, rng, of="action"),
        "observation": _replacer(episodes, rules, rng, of="observation"),
    }
    claims = []
    for t in successes:
        for name in kinds:
            for _ in range(2 if name == "swapped" else 1):
                if (case := make[name](t)) is not None:
                    claims.append((t.id, replace(case, label=LABEL[name], weight=WEIGHT)))
    for t in episodes:  # failures too are failures under other instructions, and show that an end alone is no success
        if not t.success and "swapped" in kinds and (case := make["swapped"](t)) is not None:
            claims.append((t.id, replace(case, label=LABEL["swapped"], weight=WEIGHT)))
    return claims


def write_like(episodes: Sequence[Trajectory], rules: TextRules) -> frozenset[str]:
    """The kinds of action after which the same action shows something else more often than otherwise, at 95 % confidence."""
    changed: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # of pairs of equal actions with the kind in between
    total = [0, 0]
    for t in episodes:
        before: dict[str, int] = {}
        for i, step in enumerate(t.transitions):
            if step.action in before:
                start = before[step.action]
                differs = rules.encode_delta(t.transitions[start]) != rules.encode_delta(step)
                total[0] += differs
                total[1] += 1
                for name in {kind_of(between.action) for between in t.transitions[start + 1 : i]}:
                    changed[name][0] += differs
                    changed[name][1] += 1
            before[step.action] = i
    writing_kinds = set()
    for name, (differing, n) in changed.items():
        rest = wilson(total[0] - differing, total[1] - n)
        if rest.n and difference(wilson(differing, n), rest)[1] > 0:
            writing_kinds.add(name)
    return frozenset(writing_kinds)


def _swapper(episodes: Sequence[Trajectory], rng: random.Random) -> Callable[[Trajectory], LabelledClaim | None]:
    """Claims under another instruction, whose own successes took other actions; by turns any other, and one of the most similar."""
    done: dict[str, set[tuple[str, ...]]] = defaultdict(set)  # the actions of the successes of an instruction
    for t in episodes:
        if t.success:
            done[t.task.instruction].add(tuple(sorted(step.action for step in t.transitions)))
    names = sorted({t.task.instruction for t in episodes})
    index_of = {name: i for i, name in enumerate(names)}
    vectors = HashedText(256, pair_weight=0.5, cache=0).encode(names)
    turn = [0]

    def swap(t: Trajectory) -> LabelledClaim | None:
        turn[0] += 1
        own_index = index_of[t.task.instruction]
        if turn[0] % 2:
            near = np.argsort(-(vectors @ vectors[own_index]), kind="stable")[: SIMILAR + 1]
            pool = [names[i] for i in near if i != own_index]
        else:
            pool = [name for name in (rng.choice(names) for _ in range(4)) if name != t.task.instruction]
        actions = tuple(sorted(step.action for step in t.transitions))
        pool = [name for name in pool if actions not in done[name]]
        return LabelledClaim(rng.choice(pool), t.transitions, 0.0) if pool else None

    return swap


def _truncated(t: Trajectory, *, rules: TextRules, writes: frozenset[str], rng: random.Random) -> LabelledClaim | None:
    """The claim of `t` at an earlier state."""
    steps = t.transitions
    if len(steps) < 2:
        return None
    last = [i for i in range(len(steps) - 1) if kind_of(steps[i].action) in writes]
    cut = last[-1] if last else rng.randrange(len(steps) - 1)
    return LabelledClaim(t.task.instruction, (*steps[:cut], *_replayed(steps[cut].state, [(steps[-1], steps[-1])], rules)), 0.0)


def _replacer(
    episodes: Sequence[Trajectory], rules: TextRules, rng: random.Random, *, of: Literal["action", "observation"]
) -> Callable[[Trajectory], LabelledClaim | None]:
    """Claims with the action of a step, or what it showed, as it was in another step of its kind in the logs."""
    pool: dict[str, list[Transition]] = defaultdict(list)
    for t in episodes:
        for step in t.transitions:
            pool[kind_of(step.action)].append(step)

    def corrupt(t: Trajectory) -> LabelledClaim | None:
        steps = t.transitions
        places = len(steps) if of == "action" else len(steps) - 1  # what the end shows claims nothing about the way to it
        for _ in range(DRAWS if places else 0):
            i = rng.randrange(places)
            other = rng.choice(pool[kind_of(steps[i].action)])
            first = (replace(steps[i], action=other.action), steps[i]) if of == "action" else (steps[i], other)
            rest = _replayed(steps[i].state, [first, *((step, step) for step in steps[i + 1 :])], rules)
            if rest != steps[i:]:
                return LabelledClaim(t.task.instruction, (*steps[:i], *rest), 0.0)
        return None

    return corrupt


def _replayed(state: Observation, steps: Sequence[tuple[Transition, Transition]], rules: TextRules) -> tuple[Transition, ...]:
    """The first step of each pair, taken one after the other from a state; each shows what the second one showed. Where the rules cannot
    put that after the state, the whole state that followed the second one."""
    replayed = list[Transition]()
    for step, other in steps:
        after = rules.apply_delta(state, step.action, rules.encode_delta(other)) or other.next_state
        replayed.append(replace(step, state=state, next_state=after))
        state = after
    return tuple(replayed)
