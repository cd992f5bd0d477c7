"""Playing ALFWorld games: the stock engine of textworld, and a fast path over the same rules whose every word is the same.

Both are given a `Game` and return an episode, which says what the engine printed, which commands it admits and whether the game is won.
The fast path keeps the planner's library for what follows from an action, and replaces only how texts are written (`_grammar.py`); it
shares a few copies of the library between all episodes of the process (`_downward.py`). Neither may be used from several threads.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol

from dreamgym.envs.alfworld import _downward, games
from dreamgym.envs.alfworld._downward import Copies, Copy, Tape
from dreamgym.envs.alfworld._facts import Arguments, Binding, Facts, Slot
from dreamgym.envs.alfworld._grammar import Grammar, Node, Scope
from dreamgym.envs.alfworld.games import Game
from dreamgym.errors import DreamGymError, UsageError

EngineName = Literal["fast", "stock"]
KEPT = 512
"""Games that stay translated, some 0.4 MB each of generated ones; the one played longest ago is forgotten first. An evaluation passes over
the same few hundred for every policy: if they are more than are kept, each is translated anew every time."""
MENUS = 128
"""Lists of admissible commands that a game remembers."""
LOGICS = 64
"""Grammars that stay read: games share one unless the words of their goals mean something in it."""
NOTHING = "Nothing happens."
PLAIN = re.compile(r"[\w ,'-]+")
"""Goals that mean themselves in a grammar, so that games that differ in nothing else share one."""


@dataclass(frozen=True, slots=True)
class GameObservation:
    """What the engine shows after a reset or a step."""

    text: str
    admissible: tuple[str, ...]  # sorted
    won: bool


class Episode(Protocol):
    """One game being played."""

    @property
    def observation(self) -> GameObservation: ...
    def step(self, command: str) -> GameObservation: ...


def starter(engine: EngineName) -> Callable[[Game], Episode]:
    """What begins an episode of a game. A stock engine plays one episode at a time."""
    if engine not in ("fast", "stock"):
        raise UsageError(f"No ALFWorld engine '{engine}'. Known: fast, stock.")
    return fast().start if engine == "fast" else StockEngine().start


@lru_cache(maxsize=1)
def fast() -> FastEngine:
    """The fast engine of this process."""
    return FastEngine()


@dataclass(frozen=True, slots=True)
class Operator:
    """A ground action of a game, such as going to one place from another."""

    binding: Binding
    command: str | None  # None: it depends on what happened, and is written anew
    template: tuple[Node, ...]
    feedback: tuple[Node, ...]
    effects: int
    changes: list[tuple[str, Arguments]] = field(default_factory=list)  # filled when it is first applied


@dataclass(frozen=True, slots=True)
class Menu:
    """What can be done in a state: commands, sorted, and the operator that each stands for."""

    commands: tuple[str, ...]
    operators: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Logic:
    """What games of one domain and grammar share."""

    grammar: Grammar
    actions: Mapping[str, tuple[str, tuple[Node, ...], tuple[Node, ...]]]  # name -> (template's text, template, feedback)


class Loaded:
    """A game, translated and ready: everything that its episodes share."""

    def __init__(self, logic: Logic, task: Any, sas: bytes, goal: str, copies: Copies) -> None:
        self.logic, self.sas, self.copies = logic, _downward.compressed(sas), copies
        self.parameters = _parameters(task)
        self.moving = {effect.literal.predicate for action in task.actions for effect in action.effects}
        facts = [*_initial(task), *self._reached()]
        self.start = Facts({thing.name: thing.type_name for thing in task.objects}, self.moving, facts)
        self.things = _named(facts, self.start.types)
        self.operators: dict[int, Operator] = {}
        self.menus: dict[tuple[int, ...], Menu] = {}
        self.opening = self._write(logic.grammar.read("#intro#"), self.start, {}).replace(games.BLANK, goal)

    @property
    def copy(self) -> Copy:
        """A copy of the library with this game inside."""
        return self.copies.holding(self.sas)

    def menu(self, copy: Copy, facts: Facts) -> Menu:
        """What can be done in the copy's state."""
        numbers = copy.applicable()
        if numbers in self.menus:
            return self.menus[numbers]
        commands: dict[str, int] = {}
        changing = False
        for place, number in enumerate(numbers):
            if number not in self.operators:
                self.operators[number] = self._operator(*copy.described(place))
            operator = self.operators[number]
            changing |= operator.command is None
            commands.setdefault(operator.command or self._write(operator.template, facts, operator.binding), number)
        menu = Menu(tuple(sorted(commands)), commands)
        if not changing:
            if len(self.menus) >= MENUS:
                self.menus.clear()
            self.menus[numbers] = menu
        return menu

    def feedback(self, operator: Operator, facts: Facts) -> str:
        """What the engine prints after an action."""
        return self._write(operator.feedback, facts, operator.binding)

    def _reached(self) -> list[tuple[str, Arguments]]:
        copy = self.copy
        copy.enter(Tape())
        return [fact for fact in map(_downward.atom, copy.facts()) if not fact[0].startswith("not_")]

    def _operator(self, name: str, effects: int) -> Operator:
        action, *arguments = name.split()
        binding = dict(zip(self.parameters[action], arguments, strict=False))  # quantified variables are parameters without arguments
        _, template, feedback = self.logic.actions[action]
        fixed = not self.logic.grammar.mentions(template, self.moving)
        return Operator(binding, self._write(template, self.start, binding) if fixed else None, template, feedback, effects)

    def _write(self, nodes: Sequence[Node], facts: Facts, binding: Binding) -> str:
        return self.logic.grammar.write(nodes, Scope.of(facts, self.things, binding))


class FastEpisode:
    """One game being played on the fast path."""

    def __init__(self, game: Loaded) -> None:
        self.game, self.facts, self.tape = game, game.start.copy(), Tape()
        copy = game.copy
        copy.enter(self.tape)
        self.menu = game.menu(copy, self.facts)
        self.observation = GameObservation(game.opening, self.menu.commands, copy.won())

    def step(self, command: str) -> GameObservation:
        """Do what the command says; one that is not admissible changes nothing."""
        number = self.menu.operators.get(command.strip())
        if number is None:
            self.observation = GameObservation(NOTHING, self.menu.commands, self.observation.won)
            return self.observation
        operator = self.game.operators[number]
        copy = self.game.copy
        copy.enter(self.tape)
        atoms = copy.apply(self.tape, number, operator.effects)
        if not operator.changes:
            operator.changes.extend(map(_downward.atom, atoms))
        for name, arguments in operator.changes:
            self.facts.change(name, arguments)
        text = self.game.feedback(operator, self.facts)
        self.menu = self.game.menu(copy, self.facts)
        self.observation = GameObservation(text, self.menu.commands, copy.won())
        return self.observation


class FastEngine:
    """Keeps translated games and the copies of the library that their episodes share."""

    def __init__(self, kept: int = KEPT, copies: int = _downward.COPIES) -> None:
        self.kept, self.copies = kept, Copies(copies)
        self._games: OrderedDict[str, Loaded] = OrderedDict()
        self._logics: dict[tuple[str, str], Logic] = {}

    def start(self, game: Game) -> FastEpisode:
        """A fresh episode."""
        return FastEpisode(self.load(game))

    def plan(self, domain: str, grammar: str, problem: str, names: Mapping[str, str]) -> tuple[str, ...]:
        """The planner's commands from a problem's start to its goal, few and cheap ones; empty when it finds none.

        The planner searches blindly: give it what matters and no more. `names` says what things are called (see `numbered`).
        """
        task, sas = _downward.translate(domain, problem, to_plan=True)
        actions = self._logic(domain, _without_goal(grammar)[0], task).actions
        parameters, commands = _parameters(task), []
        for step in self.copies.any().solve(sas):
            action, *arguments = step.split()
            words = {name: names[thing] for (name, _), thing in zip(parameters[action], arguments, strict=False) if thing in names}
            commands.append(("go to {r}" if action == "gotolocation" else actions[action][0]).format(**words))
        return tuple(commands)

    def load(self, game: Game) -> Loaded:
        """The translated game: from memory if it was played lately, otherwise in about half a second for an official one."""
        loaded = self._games.get(game.text)
        if loaded is None:
            try:
                loaded = self._games[game.text] = self._translated(json.loads(game.text))
            except DreamGymError:
                raise
            except (Exception, SystemExit) as error:  # translator and parsers have no error of their own; the first may exit
                raise UsageError(
                    f"Game '{game.id}' cannot be played: its 'pddl_domain', 'pddl_problem' or 'grammar' is broken "
                    f"({type(error).__name__}: {error}). Copy the file again."
                ) from error
            while len(self._games) > self.kept:
                self._games.popitem(last=False)
        self._games.move_to_end(game.text)
        return loaded

    def _translated(self, data: Mapping[str, str]) -> Loaded:
        task, sas = _downward.translate(data["pddl_domain"], data["pddl_problem"])
        grammar, goal = _without_goal(data["grammar"])
        return Loaded(self._logic(data["pddl_domain"], grammar, task), task, sas, goal, self.copies)

    def _logic(self, domain: str, grammar: str, task: Any) -> Logic:
        if (domain, grammar) not in self._logics:
            if len(self._logics) >= LOGICS:
                self._logics.clear()
            self._logics[domain, grammar] = _read_logic(domain, grammar, task)
        return self._logics[domain, grammar]


class StockEngine:
    """textworld's PddlEnv with ALFWorld's names, as AlfredTWEnv wraps it. It loads and resets in a second and steps in a tenth of one."""

    def __init__(self) -> None:
        kept = os.environ.get("ALFWORLD_DATA")
        textworld = _downward.package("textworld")
        pddl = _downward.package("textworld.envs.pddl.pddl")
        wrapper = _downward.package("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        if kept is None:
            os.environ.pop("ALFWORLD_DATA", None)  # importing alfworld sets it, and would make us look for official games there
        self.env = wrapper(pddl.PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        self.text = ""

    def start(self, game: Game) -> StockEpisode:
        """A fresh episode, which ends the one before."""
        with _downward.undisturbed():
            if self.text != game.text:
                self.env.load(json.loads(game.text))
                self.text = game.text
            return StockEpisode(self.env)


class StockEpisode:
    """One game being played by textworld itself."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation = _observation(env.reset())

    def step(self, command: str) -> GameObservation:
        """Do what the command says; one that is not admissible changes nothing."""
        self.observation = _observation(self.env.step(command)[0])
        return self.observation


def _observation(state: Any) -> GameObservation:
    return GameObservation(state.feedback, tuple(state["admissible_commands"]), bool(state["won"]))


def _without_goal(grammar: str) -> tuple[str, str]:
    """(the grammar with a blank where the goal's words are, the words), or the grammar as it is and nothing."""
    found = games.GOAL.search(grammar)
    if found is None or not PLAIN.fullmatch(found[1]) or games.BLANK in grammar:
        return grammar, ""
    return grammar[: found.start(1)] + games.BLANK + grammar[found.end(1) :], found[1]


def _read_logic(domain: str, grammar: str, task: Any) -> Logic:
    textworld_logic, pddl = _downward.package("textworld.logic"), _downward.package("textworld.envs.pddl.logic")
    read = pddl.GameLogic(domain=domain, grammar=grammar)
    for kind in task.types:
        if kind.name not in read.types._types:  # the translator lists `object` twice
            read.types.add(textworld_logic.Type(kind.name, kind.supertype_names))
    rules = Grammar(read.grammar._rules, read.types)
    return Logic(
        rules, {name: (one.template, rules.read(one.template), rules.read(one.feedback_rule)) for name, one in read.actions.items()}
    )


def _parameters(task: Any) -> dict[str, list[Slot]]:
    return {action.name: [(one.name.strip("?"), one.type_name) for one in action.parameters] for action in task.actions}


def _initial(task: Any) -> list[tuple[str, Arguments]]:
    """The facts of the problem's :init, with textworld's odd reading of assignments: their value is the predicate."""
    facts = []
    for one in task.init:
        if hasattr(one, "predicate"):
            if one.predicate != "=":
                facts.append((one.predicate, tuple(one.args)))
        elif one.fluent.symbol != "total-cost" and not str(one.expression.value).isdigit():
            facts.append((str(one.expression.value), tuple(one.fluent.args)))
    return facts


def numbered(ids: Iterable[str]) -> dict[str, str]:
    """What ALFWorld calls the things of a house, by their ids in lower case: instances of a kind are numbered from the last id."""
    names = {}
    kinds = {name: _kind(name) for name in ids}
    left = Counter(kinds.values())
    for name in sorted(kinds):
        names[name] = f"{kinds[name]} {left[kinds[name]]}" if kinds[name] else f"{_unescaped(name)} "
        left[kinds[name]] -= 1
    return names


def _named(facts: Iterable[tuple[str, Arguments]], types: Mapping[str, str]) -> dict[str, Any]:
    """textworld's record of everything that a fact mentions, with its name."""
    info = _downward.package("textworld.generator.game").EntityInfo
    things = {}
    for name, called in numbered({name for _, arguments in facts for name in arguments}).items():
        thing = things[name] = info(name, types[name])
        thing.name, thing.definite, thing.indefinite = called, "the", "a"
    return things


def _kind(name: str) -> str:
    """`cabinet_bar__plus_00_dot_68` -> cabinet; a basin is named with its sink; "" for what is no instance, such as agent1."""
    kind, bar, _ = name.partition("_bar_")
    return (kind + ("basin" if "basin" in name else "")) if bar else ""


def _unescaped(name: str) -> str:
    for escape, sign in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        name = name.replace(escape, sign)
    return name
