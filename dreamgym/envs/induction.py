"""Rules of an environment that its logs show, with how often they held and how often not: for a person to read, correct and keep.

No environment is known here. What is looked for:

* where the argument of an action comes from: the elements that the state lists in brackets, the words of the state, of the instruction, or
  of an earlier state. An action whose argument has no source changes nothing, where the instruction is no source, or the argument is
  always an identifier;
* which elements are words of the environment, such as buttons, and which are names of single things, listed in few episodes;
* which few values a named argument takes, where it has no source;
* which kinds of action never change anything, those included that no log shows at work;
* which actions end an episode;
* what an episode shows twice (`envs.consistency`).

A step *works* where it changes the state, pays or ends. A rule is used from 30 cases on, with at most 1 % of them against it. Values are
used from 300 episodes on, because what comes next may be new, and an episode tends to repeat its own.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dreamgym.bracket_actions import ELEMENT
from dreamgym.config import toml_value
from dreamgym.envs.actions import parts
from dreamgym.envs.consistency import MAX_EXCEPTIONS, MIN_SUPPORT, WORD, CarryRule, RepeatRule, Shown, carry_rules, holds, repeat_rules
from dreamgym.errors import UsageError
from dreamgym.types import Observation, Trajectory, Transition

IDENTIFIER = re.compile(r"(?=\S*\d)\S+")
MAX_VALUES = 20
"""Of an argument that takes a few fixed values."""

WORD_SHARE = 0.1
"""Of the episodes: an element that so many list is a word of the environment, such as a button. Others name single things."""

Source = Literal["element", "state", "earlier", "instruction"]
"""Of an argument: an element in brackets of the present state, the words of that state, those of earlier states too, and those of the
instruction too. Each source contains the ones before it."""


@dataclass(frozen=True)
class ArgumentRule:
    """The argument `key` of an action of this kind stands in `source`; "" is what is in its brackets, or the whole action."""

    kind: str
    key: str
    source: Source
    support: int
    """Steps that work."""
    exceptions: int
    """Those of them whose argument is from elsewhere."""
    identifier: bool = False
    """Whether it has a name and is one word with a digit each time, such as the number of an order. Others than those that the instruction
    names are not known then; a query that is taken from it could have other words."""
    used: bool = True


@dataclass(frozen=True)
class ValueRule:
    """The named argument `key` of an action of this kind takes one of these values, wherever they come from."""

    kind: str
    key: str
    values: tuple[str, ...]
    support: int
    """Episodes with a step that works, each counted once for every value that it has."""
    exceptions: int
    """Those of them whose value no other episode has: an estimate of how often another value would come (Good and Turing)."""
    used: bool = True


@dataclass(frozen=True)
class NameRule:
    """Actions choose elements. These are words of the environment; the others, unless they are numbers, name single things, and policies
    read and write numbers for them. A policy that sees names learns which names were good; one that sees numbers must read the line."""

    words: tuple[str, ...]
    support: int
    """Steps that choose a name."""
    asked: int
    """Those of them whose instruction has the words of the name."""
    shown: bool
    """Whether policies read the name, too, beside its number: where more than 1 % of the chosen ones are asked for."""
    used: bool = True


@dataclass(frozen=True)
class NoopRule:
    """Actions of this kind change nothing; "*": every kind that no log shows at work."""

    kind: str
    support: int
    exceptions: int
    used: bool = True


@dataclass(frozen=True)
class EndRule:
    """Episodes end by this action, or by any of its kind."""

    action: str
    whole: bool
    """Whether the action must be this one word for word, and not only of this kind."""
    support: int
    used: bool = True


@dataclass(frozen=True)
class Rules:
    """What logs show. `ends_complete`: the end rules explain all but 1 % of the ends: no other action ends an episode. It holds while each
    of them is used."""

    arguments: tuple[ArgumentRule, ...] = ()
    noop: tuple[NoopRule, ...] = ()
    ends: tuple[EndRule, ...] = ()
    ends_complete: bool = False
    kinds: tuple[str, ...] = field(default=())
    """Kinds of action that some log shows at work."""
    repeats: tuple[RepeatRule, ...] = ()
    carries: tuple[CarryRule, ...] = ()
    values: tuple[ValueRule, ...] = ()
    names: tuple[NameRule, ...] = ()


def works(step: Transition) -> bool:
    """Whether a real step did anything."""
    return not step.is_noop


def sources(value: str, instruction: str, state: str, earlier: Iterable[str]) -> set[Source]:
    """Where an argument stands."""
    wanted, there = _words(value), _words(state)
    before = there.union(*map(_words, earlier))
    holds = (value in ELEMENT.findall(state), wanted <= there, wanted <= before, wanted <= before | _words(instruction))
    return set(get_args(Source)[holds.index(True) :]) if any(holds) else set()


def whole(state: Observation) -> str:
    """The text of the state."""
    return state.text


def induce(episodes: Sequence[Trajectory], shown: Shown = whole, without_actions: Callable[[Observation], str] = whole) -> Rules:
    """The rules that hold in real episodes. Those that hold too seldom to be used are left out.

    `shown`: what the latest action showed, of a state. `without_actions`: its text less the agent's own actions (`TextRules`).
    """
    sound = [t for t in episodes if t.error is None and t.turns]
    working = Counter(kind for t in sound for step in t.transitions if works(step) for kind in {kind for kind, _ in parts(step.action)})
    arguments = tuple(_argument_rules(sound, without_actions))
    return Rules(
        arguments,
        tuple(_noop_rules(sound, working)),
        *_end_rules(sound),
        tuple(sorted(working)),
        tuple(repeat_rules(sound, shown)),
        tuple(carry_rules(sound)),
        tuple(_value_rules(sound, {(rule.kind, rule.key) for rule in arguments})),
        tuple(_name_rules(sound, {rule.kind for rule in arguments if rule.source == "element" and not rule.key})),
    )


def _argument_rules(episodes: Sequence[Trajectory], without_actions: Callable[[Observation], str]) -> Iterator[ArgumentRule]:
    found: dict[tuple[str, str], Counter[Source]] = defaultdict(Counter)
    total: Counter[tuple[str, str]] = Counter()
    words: set[tuple[str, str]] = set()  # arguments that were no identifier
    for t in episodes:
        earlier: list[str] = []
        for step in t.transitions:
            text = without_actions(step.state)
            if works(step):
                for kind, arguments in parts(step.action):
                    for key, value in arguments.items():
                        total[kind, key] += 1
                        if not IDENTIFIER.fullmatch(value):
                            words.add((kind, key))
                        found[kind, key].update(sources(value, t.task.instruction, text, earlier))
            earlier.append(text)
    for (kind, key), n in sorted(total.items()):
        for source in get_args(Source):
            against = n - found[kind, key][source]
            if holds(n, against):
                yield ArgumentRule(kind, key, source, n, against, bool(key) and (kind, key) not in words)
                break


def _value_rules(episodes: Sequence[Trajectory], sourced: Set[tuple[str, str]]) -> Iterator[ValueRule]:
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for t in episodes:
        calls = [call for step in t.transitions if works(step) for call in parts(step.action)]
        for kind, key, value in {(kind, key, value) for kind, arguments in calls for key, value in arguments.items() if key}:
            if (kind, key) not in sourced:
                found[kind, key][value] += 1
    for (kind, key), counts in sorted(found.items()):
        once = sum(n == 1 for n in counts.values())
        if len(counts) <= MAX_VALUES and once + 3 <= MAX_EXCEPTIONS * counts.total():  # the rule of three: a 95 % bound where none is new
            yield ValueRule(kind, key, tuple(sorted(counts)), counts.total(), once)


def _name_rules(episodes: Sequence[Trajectory], kinds: Set[str]) -> Iterator[NameRule]:
    listed: Counter[str] = Counter()
    chosen = list[tuple[str, str]]()  # elements, each with the instruction
    for t in episodes:
        listed.update({element for step in t.transitions for element in ELEMENT.findall(step.state.text)})
        for step in filter(works, t.transitions):
            chosen += [(arguments[""], t.task.instruction) for kind, arguments in parts(step.action) if kind in kinds]
    words = {element for element, n in listed.items() if n >= WORD_SHARE * len(episodes)}
    named = [(element, instruction) for element, instruction in chosen if element not in words and not element.isdigit()]
    asked = sum(_words(element) <= _words(instruction) for element, instruction in named)
    if len(named) >= MIN_SUPPORT:
        yield NameRule(tuple(sorted(words)), len(named), asked, asked > MAX_EXCEPTIONS * len(named))


def _noop_rules(episodes: Sequence[Trajectory], working: Counter[str]) -> Iterator[NoopRule]:
    uses: Counter[str] = Counter()
    seldom, at_work = 0, 0  # steps of kinds that no other step shows at work, and those of them that work
    for t in episodes:
        for step in t.transitions:
            for kind in {kind for kind, _ in parts(step.action)}:
                uses[kind] += 1
                if working[kind] <= works(step):
                    seldom += 1
                    at_work += works(step)
    for kind, n in sorted(uses.items()):
        if holds(n, working[kind]):
            yield NoopRule(kind, n, working[kind])
    if holds(seldom, at_work):
        yield NoopRule("*", seldom, at_work)


def _end_rules(episodes: Sequence[Trajectory]) -> tuple[tuple[EndRule, ...], bool]:
    last = [t.transitions[-1].action for t in episodes if t.transitions[-1].terminated]
    going_on = {kind for t in episodes for step in t.transitions if not step.terminated and works(step) for kind, _ in parts(step.action)}
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for action in last:
        by_kind[next(parts(action))[0]][action] += 1
    found = []
    for kind, actions in sorted(by_kind.items()):
        if kind in going_on:  # others of its kind do not end an episode: its own words do
            found += [EndRule(action, True, n) for action, n in sorted(actions.items()) if n >= MIN_SUPPORT]
        elif sum(actions.values()) >= MIN_SUPPORT:
            found.append(EndRule(kind, False, sum(actions.values())))
    explained = sum(rule.support for rule in found)
    return tuple(found), holds(len(last), len(last) - explained)


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))


KINDS = ("arguments", "values", "noop", "ends", "repeats", "carries", "names")

HEAD = """\
# What the logs of this run show of its environment. A rule is used while `used` is true; correct, add or delete as you like before the run
# goes on. `support` counts the logged steps that a rule rests on, `exceptions` those against it. Of values, `support` counts episodes, and
# `exceptions` the values that one episode alone has: nothing is against them, but the more there are, the likelier are values yet unseen.
# While one of the `ends` is not used, no end is refused.
"""


def to_toml(rules: Rules) -> str:
    """The rules as a file that a person can read; `from_toml` reads it back."""
    lines = [HEAD, f"ends_complete = {toml_value(rules.ends_complete)}", f"kinds = {toml_value(list(rules.kinds))}"]
    for name in KINDS:
        for rule in getattr(rules, name):
            lines += [
                "",
                f"[[{name}]]",
                *(f"{key} = {toml_value(list(value) if isinstance(value, tuple) else value)}" for key, value in asdict(rule).items()),
            ]
    return "\n".join(lines) + "\n"


def from_toml(text: str, where: str) -> Rules:
    """UsageError, with the place, for what is no file of rules."""
    try:
        rules: Rules = _read(Rules, tomllib.loads(text), "")
    except ValueError as error:
        raise UsageError(
            f"Cannot read the induced rules '{where}': {error}. Correct the file, or delete it to have it made anew."
        ) from error
    return rules


EXPECTED = {str: "a text in quotes", int: "a whole number", bool: "true or false"}


def _read(kind: Any, value: Any, place: str) -> Any:
    """A value of TOML as one of this kind. ValueError, with the place, for what is none."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        known = {one.name: one for one in fields(kind)}
        prefix, hints = f"{place}." if place else "", get_type_hints(kind)
        if unknown := next((key for key in value if key not in known), ""):
            raise ValueError(f"there is no '{prefix}{unknown}'; known: {', '.join(known)}")
        if missing := next((key for key, one in known.items() if key not in value and one.default is MISSING), ""):
            raise ValueError(f"'{place}' has no '{missing}', which each such rule needs")
        return kind(**{key: _read(hints[key], one, f"{prefix}{key}") for key, one in value.items()})
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(get_args(kind)[0], one, f"{place}[{i}]") for i, one in enumerate(value, 1))
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if type(value) is kind or value in choices:
        return value
    if choices:
        expected = f"one of {', '.join(map(toml_value, choices))}"
    elif get_origin(kind) is tuple:
        expected = f"tables [[{place}]]" if is_dataclass(get_args(kind)[0]) else "a list in brackets"
    else:
        expected = EXPECTED.get(kind, "a table")
    counted = " (rules are counted from 1)" if "[" in place else ""
    raise ValueError(f"'{place}' is {toml_value(value)}, where {expected} must stand{counted}")
