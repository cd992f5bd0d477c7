"""Rules of an environment that its logs show, with how often they held and how often not: for a person to read, correct and keep.

Three kinds of rule are looked for; no environment is known here.

* where the argument of an action comes from: the elements that the state lists in brackets, the words of the state, of the instruction, or
  of an earlier state. An action whose argument is from nowhere changes nothing;
* which kinds of action never change anything, those included that no log shows at work;
* which actions end an episode.

A step *works* where it changes the state, pays or ends. A rule is used from `MIN_SUPPORT` cases on, with at most `MAX_EXCEPTIONS` of them
against it.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from dreamgym.config import toml_value
from dreamgym.errors import UsageError
from dreamgym.tool_calls import calls_of
from dreamgym.types import Action, Trajectory, Transition

MIN_SUPPORT = 30
MAX_EXCEPTIONS = 0.01
ELEMENT = re.compile(r"\[([^\[\]\n]+)\]")
BRACKETS = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)
WORD = re.compile(r"\d+(?:\.\d+)?|\w+")

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
    used: bool = True


@dataclass(frozen=True)
class IdleRule:
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
    """What logs show. `ends_complete`: the end rules explain all but `MAX_EXCEPTIONS` of the ends: no other action ends an episode."""

    arguments: tuple[ArgumentRule, ...] = ()
    idle: tuple[IdleRule, ...] = ()
    ends: tuple[EndRule, ...] = ()
    ends_complete: bool = False
    kinds: tuple[str, ...] = field(default=())
    """Kinds of action that some log shows at work."""


def parts(action: Action) -> Iterator[tuple[str, dict[str, str]]]:
    """(kind, arguments by key) of every call of an action: of tool calls, `verb[argument]`, or words as they stand."""
    if match := BRACKETS.fullmatch(action.strip()):
        yield match[1], {"": match[2]}
        return
    try:
        calls = calls_of(action)
    except UsageError:
        calls = []
    if not calls or not all("(" in line for line in action.split("\n") if line.strip()):
        yield (action.split() or [""])[0], {"": action.strip()}
        return
    for call in calls:
        arguments = {"": call.arguments} if isinstance(call.arguments, str) else call.arguments
        yield call.name, {key: value if isinstance(value, str) else _plain(value) for key, value in arguments.items()}


def works(step: Transition) -> bool:
    """Whether a real step did anything."""
    return step.next_state != step.state or bool(step.reward) or step.terminated


def sources(value: str, instruction: str, state: str, earlier: Iterable[str]) -> set[Source]:
    """Where an argument stands."""
    wanted, there = _words(value), _words(state)
    before = there.union(*map(_words, earlier))
    holds = (value in ELEMENT.findall(state), wanted <= there, wanted <= before, wanted <= before | _words(instruction))
    return set(get_args(Source)[holds.index(True) :]) if any(holds) else set()


def induce(episodes: Sequence[Trajectory]) -> Rules:
    """The rules that hold in real episodes. Those that hold too seldom to be used are left out."""
    sound = [t for t in episodes if t.error is None and t.turns]
    working = Counter(kind for t in sound for step in t.transitions if works(step) for kind in {kind for kind, _ in parts(step.action)})
    return Rules(
        tuple(_argument_rules(sound)),
        tuple(_idle_rules(sound, working)),
        *_end_rules(sound),
        tuple(sorted(working)),
    )


def _argument_rules(episodes: Sequence[Trajectory]) -> Iterator[ArgumentRule]:
    found: dict[tuple[str, str], Counter[Source]] = defaultdict(Counter)
    total: Counter[tuple[str, str]] = Counter()
    for t in episodes:
        earlier: list[str] = []
        for step in t.transitions:
            if works(step):
                for kind, arguments in parts(step.action):
                    for key, value in arguments.items():
                        total[kind, key] += 1
                        found[kind, key].update(sources(value, t.task.instruction, step.state.text, earlier))
            earlier.append(step.state.text)
    for (kind, key), n in sorted(total.items()):
        for source in get_args(Source):
            against = n - found[kind, key][source]
            if _holds(n, against):
                yield ArgumentRule(kind, key, source, n, against)
                break


def _idle_rules(episodes: Sequence[Trajectory], working: Counter[str]) -> Iterator[IdleRule]:
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
        if _holds(n, working[kind]):
            yield IdleRule(kind, n, working[kind])
    if _holds(seldom, at_work):
        yield IdleRule("*", seldom, at_work)


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
    return tuple(found), _holds(len(last), len(last) - explained)


def _holds(n: int, exceptions: int) -> bool:
    return n >= MIN_SUPPORT and exceptions <= MAX_EXCEPTIONS * n


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.lower()))


def _plain(value: Any) -> str:
    return " ".join(map(_plain, value)) if isinstance(value, list) else str(value)


HEAD = """\
# What the logs of this run show of its environment. A rule is used while `used` is true; correct, add or delete as you like before the run
# goes on. `support` counts the logged steps that a rule rests on, `exceptions` those against it.
"""


def to_toml(rules: Rules) -> str:
    """The rules as a file that a person can read; `from_toml` reads it back."""
    lines = [HEAD, f"ends_complete = {toml_value(rules.ends_complete)}", f"kinds = {toml_value(list(rules.kinds))}"]
    for name, kind in (("arguments", rules.arguments), ("idle", rules.idle), ("ends", rules.ends)):
        for rule in kind:
            lines += ["", f"[[{name}]]", *(f"{key} = {toml_value(value)}" for key, value in asdict(rule).items())]
    return "\n".join(lines) + "\n"


def from_toml(text: str, where: str) -> Rules:
    """UsageError, with the place, for what is no file of rules."""
    try:
        found = tomllib.loads(text)
        made: dict[str, Any] = {
            name: tuple(kind(**rule) for rule in found.pop(name, ()))
            for name, kind in (("arguments", ArgumentRule), ("idle", IdleRule), ("ends", EndRule))
        }
        wrong = [rule.source for rule in made["arguments"] if rule.source not in get_args(Source)]
        if wrong:
            raise ValueError(f"no source '{wrong[0]}'; known: {', '.join(get_args(Source))}")
        return Rules(**made, ends_complete=bool(found.pop("ends_complete", False)), kinds=tuple(found.pop("kinds", ())), **found)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"Cannot read the induced rules '{where}': {error}. Correct the file, or delete it to have it made anew."
        ) from error
