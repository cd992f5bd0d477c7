"""Fast Downward inside this process: translating PDDL, and copies of its library that hold one game each.

Traps that this module is for. The translator overwrites `sys.argv` and swaps `sys.stdout`, so it must never run in a thread beside
others. Every copy of the library is a file of 33 MB that is never closed, so copies are few and games move in and out of them: a
state is named by its number in the copy, and when its game has moved out it is found again by repeating its operators.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int
from typing import Any

from dreamgym.errors import MissingExtra

COPIES = 32
"""Copies of the library in a process: about 3 MB each. More games than that, played in turns, cost 2 ms a turn."""
VISITS = 200_000
"""Operators applied in a copy before it forgets the states it has seen, which it keeps otherwise."""


def package(name: str) -> Any:
    """A package of the `alfworld` extra; MissingExtra says how to get it."""
    import importlib

    try:
        with undisturbed():
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"Environment 'alfworld' needs {name.split('.')[0]} ({error}). Install it with: pip install 'dreamgym[alfworld]' "
            "(compiles for some minutes; needs g++, make and cmake)."
        ) from error


def translate(domain: str, problem: str, *, to_plan: bool = False) -> tuple[Any, bytes]:
    """(the parsed task, its SAS text). `to_plan` leaves out what no plan needs; a game must be played from the whole."""
    fast_downward = package("fast_downward")
    with undisturbed():
        task, sas = fast_downward.pddl2sas(domain, problem, optimize=to_plan)
    return task, sas.encode()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give back `sys.argv` and `sys.stdout` as they were: the translator takes both."""
    argv, stdout = list(sys.argv), sys.stdout
    sys.argv[:] = ["translate.py", "domain", "task"]  # its options are read from here when it is first imported
    kept = sys.argv
    try:
        yield
    finally:
        kept[:] = argv
        sys.argv, sys.stdout = kept, stdout


class Tape:
    """Where an episode is: the operators applied since the start, and what its state is called in the copy that holds it now."""

    __slots__ = ("operators", "state", "where")

    def __init__(self) -> None:
        self.operators: list[int] = []
        self.where: object = None  # the loading (see Copy.loading) that `state` belongs to
        self.state = 0


class Copy:
    """One copy of the library and the game inside. Calls act on the state that `enter` was given last."""

    def __init__(self) -> None:
        self.fast_downward = package("fast_downward")
        self.library = self.fast_downward.load_lib()
        self.library.get_state_id.restype = c_int
        self.library.set_state_id.argtypes = [c_int]
        self.library.set_state_id.restype = None
        self.sas: bytes | None = None
        self.loading: object = None  # a new one every time a game moves in: state numbers of another loading mean nothing
        self.visits = 0
        self._operators, self._atoms = (self.fast_downward.Operator * 256)(), (self.fast_downward.Atom * 16)()

    def hold(self, sas: bytes) -> None:
        """Have this game inside (`sas` is compressed, and the same object as before means the same game)."""
        if self.sas is not sas or self.visits > VISITS:
            self.library.load_sas(zlib.decompress(sas))
            self.sas, self.loading, self.visits = sas, object(), 0

    def enter(self, tape: Tape) -> None:
        """Be in the episode's state."""
        if tape.where is self.loading:
            self.library.set_state_id(tape.state)
            return
        self.library.set_state_id(0)  # the initial state
        for operator in tape.operators:
            self.library.apply_operator(operator, None)
        self._left(tape, len(tape.operators))

    def facts(self) -> list[str]:
        """The names of the atoms of the state, negated ones too."""
        atoms = (self.fast_downward.Atom * self.library.get_state_size())()
        self.library.get_state(atoms)
        return [atom.name for atom in atoms]

    def applicable(self) -> tuple[int, ...]:
        """The numbers of the operators that the state admits, in the library's order."""
        count = self.library.get_applicable_operators_count()
        if count > len(self._operators):
            self._operators = (self.fast_downward.Operator * (2 * count))()
        self.library.get_applicable_operators(self._operators)
        return tuple(self._operators[place].id for place in range(count))

    def described(self, place: int) -> tuple[str, int]:
        """(name, number of effects) of the operator at a place of what `applicable` returned last."""
        operator = self._operators[place]
        return operator.name, operator.nb_effect_atoms

    def apply(self, tape: Tape, operator: int, effects: int) -> list[str]:
        """Apply an operator and return the names of its `effects` atoms."""
        if effects > len(self._atoms):
            self._atoms = (self.fast_downward.Atom * (2 * effects))()
        self.library.apply_operator(operator, self._atoms)
        tape.operators.append(operator)
        self._left(tape, 1)
        return [self._atoms[place].name for place in range(effects)]

    def won(self) -> bool:
        return bool(self.library.check_goal())

    def solve(self, sas: bytes) -> list[str]:
        """Names of the operators that win a game, translated for planning, from its start; empty when none do. What is inside stays."""
        if self.sas is None:
            self.hold(compressed(sas))  # the library crashes when it plans before anything was ever loaded
        if not self.library.solve_sas(sas, False):
            return []
        operators = (self.fast_downward.Operator * self.library.get_last_plan_length())()
        self.library.get_last_plan(operators)
        return [operator.name for operator in operators]

    def _left(self, tape: Tape, visits: int) -> None:
        tape.where, tape.state = self.loading, self.library.get_state_id()
        self.visits += visits


class Copies:
    """The copies of this process: the one that holds a game, else a new one, else the one used longest ago."""

    def __init__(self, most: int = COPIES) -> None:
        self.most = most
        self._copies: list[Copy] = []  # the one used last is last

    def holding(self, sas: bytes) -> Copy:
        """A copy with this game inside."""
        if not self._copies or self._copies[-1].sas is not sas:
            self._copies.append(self._take(sas))
        self._copies[-1].hold(sas)
        return self._copies[-1]

    def _take(self, sas: bytes) -> Copy:
        place = next((place for place, copy in enumerate(self._copies) if copy.sas is sas), None)
        if place is None and len(self._copies) < self.most:
            return Copy()
        return self._copies.pop(place or 0)

    def any(self) -> Copy:
        """A copy, whatever it holds."""
        if not self._copies:
            self._copies.append(Copy())
        return self._copies[-1]


def compressed(sas: bytes) -> bytes:
    """SAS text as a game keeps it: a tenth of its size."""
    return zlib.compress(sas, 1)


def atom(name: str) -> tuple[str, tuple[str, ...]]:
    """`NegatedAtom opened(safe_1)` -> ("not_opened", ("safe_1",)), as textworld reads it."""
    kind, rest = name.split(" ", 1)
    predicate, arguments = rest.split("(", 1)
    return ("not_" if kind == "NegatedAtom" else "") + predicate, tuple(part for part in arguments[:-1].split(", ") if part)
