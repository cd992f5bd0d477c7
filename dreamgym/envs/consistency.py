"""What an episode shows twice must agree: rules of consistency that logs show, and the check of an episode against them.

Two kinds of rule are looked for; no environment is known here.

* `RepeatRule`: the same action shows the same again, anywhere in an episode or in the same state, unless an action of certain kinds lies
  between. Which kinds change an answer is itself mined: those after which it changed most often, until what is left holds.
* `CarryRule`: the line of the present state that has an action's argument, such as a search result, agrees with the state that the action
  leads to: its words, or its numbers at least, stand there.

A dream invents what no log can tell, so no log refutes it. That it contradicts itself can be seen without any.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dreamgym.envs.actions import parts
from dreamgym.types import Action, Observation, Trajectory, Transition

MIN_SUPPORT = 30
MAX_EXCEPTIONS = 0.01
WORD = re.compile(r"\d+(?:\.\d+)?|\w+")

Scope = Literal["anywhere", "state"]
Carried = Literal["words", "numbers"]
Shown = Callable[[Observation], str]
"""What the latest action showed, of a state."""


@dataclass(frozen=True)
class RepeatRule:
    """An action of this kind shows what it showed before in the episode: `scope` "state" asks for the same state as well."""

    kind: str
    scope: Scope
    changed_by: tuple[str, ...]
    """Kinds of action after which it may show something else."""
    support: int
    """Repetitions without such an action between."""
    exceptions: int
    used: bool = True


@dataclass(frozen=True)
class CarryRule:
    """What stands beside the argument of such an action in its line, stands in the next state too: all words, or the numbers."""

    kind: str
    key: str
    what: Carried
    support: int
    exceptions: int
    used: bool = True


@dataclass(frozen=True)
class _Repeat:
    """An action that an episode has had before."""

    kind: str
    same_state: bool
    between: frozenset[str]
    agrees: bool


def repeat_rules(episodes: Sequence[Trajectory], shown: Shown) -> Iterator[RepeatRule]:
    """The rules that hold in real episodes, for each kind of action the one of the widest scope."""
    found: dict[str, list[_Repeat]] = defaultdict(list)
    for t in episodes:
        for i in range(len(t.transitions)):
            for one in _repeats(t.transitions, i, shown):
                found[one.kind].append(one)
    for kind, repeats in sorted(found.items()):
        for scope in get_args(Scope):
            rule = _repeat_rule(kind, scope, [one for one in repeats if scope == "anywhere" or one.same_state])
            if rule is not None:
                yield rule
                break


def carry_rules(episodes: Sequence[Trajectory]) -> Iterator[CarryRule]:
    """The rules that hold in real episodes, for each argument the stricter one."""
    total: Counter[tuple[str, str, Carried]] = Counter()
    against: Counter[tuple[str, str, Carried]] = Counter()
    for t in episodes:
        for step in t.transitions:
            for kind, key, what, agrees in _carried(step):
                total[kind, key, what] += 1
                against[kind, key, what] += not agrees
    known: set[tuple[str, str]] = set()
    for kind, key, what in sorted(total, key=lambda name: (name[:2], get_args(Carried).index(name[2]))):
        n, exceptions = total[kind, key, what], against[kind, key, what]
        if (kind, key) not in known and holds(n, exceptions):
            known.add((kind, key))
            yield CarryRule(kind, key, what, n, exceptions)


def checks(
    steps: Sequence[Transition], repeats: Sequence[RepeatRule], carries: Sequence[CarryRule], shown: Shown
) -> Iterator[tuple[int, bool, str]]:
    """(step, whether it agrees, why not) for everything in an episode that a used rule speaks of."""
    by_kind = {rule.kind: rule for rule in repeats if rule.used}
    by_argument = {(rule.kind, rule.key, rule.what) for rule in carries if rule.used}
    for i, step in enumerate(steps):
        for one in _repeats(steps, i, shown):
            rule = by_kind.get(one.kind)
            if rule and (rule.scope == "anywhere" or one.same_state) and not one.between & set(rule.changed_by):
                yield i, one.agrees, f"{step.action[:80]} showed something else before"
        for kind, key, what, agrees in _carried(step):
            if (kind, key, what) in by_argument:
                yield i, agrees, f"{step.action[:80]} leads to a state without the {what} of its line"


def holds(n: int, exceptions: int) -> bool:
    """Whether a rule with that many cases, and exceptions among them, may be used."""
    return n >= MIN_SUPPORT and exceptions <= MAX_EXCEPTIONS * n


def _repeat_rule(kind: str, scope: Scope, repeats: Sequence[_Repeat]) -> RepeatRule | None:
    """The rule that is left when the kinds of action that change the answer are excepted."""
    found = changing_kinds([(one.between, one.agrees) for one in repeats])
    return RepeatRule(kind, scope, *found) if found else None


def changing_kinds(cases: Sequence[tuple[frozenset[str], bool]]) -> tuple[tuple[str, ...], int, int] | None:
    """Of (kinds of action between two answers, whether the answers agree): the kinds to except, one after the other those after which most
    changed, until what is left holds; with the number of cases left and of exceptions among them. None where too few are left."""
    left, excepted = list(cases), list[str]()
    while len(left) >= MIN_SUPPORT:
        exceptions = sum(not agrees for _, agrees in left)
        if holds(len(left), exceptions):
            return tuple(sorted(excepted)), len(left), exceptions
        total = Counter(name for between, _ in left for name in between)
        changed = Counter(name for between, agrees in left if not agrees for name in between)
        if not changed:
            return None
        worst = max(sorted(changed), key=lambda name: (changed[name] / total[name], changed[name]))
        excepted.append(worst)
        left = [(between, agrees) for between, agrees in left if worst not in between]
    return None


def _repeats(steps: Sequence[Transition], i: int, shown: Shown) -> Iterator[_Repeat]:
    """Step `i` beside the latest earlier one with the same action, and beside the latest one with the same state too."""
    step, between, known = steps[i], set[str](), False
    for earlier in reversed(steps[:i]):
        if earlier.action == step.action:
            same = earlier.state == step.state
            if not known or same:
                kind = next(parts(step.action))[0]
                yield _Repeat(kind, same, frozenset(between), shown(earlier.next_state) == shown(step.next_state))
            known = True
            if same:
                return
        between |= {kind for kind, _ in parts(earlier.action)}


def _carried(step: Transition) -> Iterator[tuple[str, str, Carried, bool]]:
    """(kind, argument, what, whether it is in the next state) for the one line of the state that has the argument, if it has more than it
    and does not simply stay."""
    after = step.next_state.text
    if after == step.state.text:
        return
    for kind, key, value in _arguments(step.action):
        lines = [line for line in step.state.text.split("\n") if value in line]
        if len(lines) != 1 or lines[0] in after.split("\n"):
            continue
        rest = set(WORD.findall(lines[0].lower())) - set(WORD.findall(value.lower()))
        there = set(WORD.findall(after.lower()))
        if rest:
            yield kind, key, "words", rest <= there
        if numbers := {word for word in rest if word[0].isdecimal()}:
            yield kind, key, "numbers", numbers <= there


def _arguments(action: Action) -> Iterator[tuple[str, str, str]]:
    for kind, arguments in parts(action):
        for key, value in arguments.items():
            if len(value.strip()) > 1:
                yield kind, key, value
