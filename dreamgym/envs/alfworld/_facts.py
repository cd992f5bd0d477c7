"""What holds in a house, and finding what a query such as `inreceptacle(o:object, r:receptacle)` matches, in textworld's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Slot = tuple[str, str]
"""A placeholder of a query: its name and its type, as in `o:object`."""
Binding = dict[Slot, str]
"""What placeholders stand for."""
Arguments = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """One predicate of a query. `ranks` orders the types of arguments that may match: facts are tried by rank, then by name."""

    predicate: str
    slots: tuple[Slot, ...]
    ranks: Mapping[tuple[str, ...], int]


Query = tuple[Condition, ...]


def compile_query(text: str, types: Any) -> Query:
    """A query read by textworld's own parser; `types` is its TypeHierarchy."""
    from textworld.logic import Rule

    found = []
    for predicate in Rule.parse_conjunctive_query(text).preconditions:
        order = types.multi_subtypes([types.get(name) for name in predicate.signature.types])
        ranks: dict[tuple[str, ...], int] = {}
        for each in order:
            ranks.setdefault(tuple(one.name for one in each), len(ranks))
        found.append(Condition(predicate.name, tuple((slot.name, slot.type) for slot in predicate.parameters), ranks))
    return tuple(found)


class Facts:
    """The facts of one moment. What no action changes is shared between episodes and sorted once."""

    def __init__(self, types: Mapping[str, str], moving: Iterable[str], start: Iterable[tuple[str, Arguments]]) -> None:
        self.types = types
        self.moving: dict[str, set[Arguments]] = {name: set() for predicate in moving for name in (predicate, f"not_{predicate}")}
        self.fixed: dict[str, set[Arguments]] = {}
        self._sorted: dict[int, list[Arguments]] = {}
        for name, arguments in start:
            (self.moving[name] if name in self.moving else self.fixed.setdefault(name, set())).add(arguments)

    def copy(self) -> Facts:
        """The same facts for another episode."""
        other = Facts.__new__(Facts)
        other.types, other.fixed, other._sorted = self.types, self.fixed, self._sorted
        other.moving = {name: set(held) for name, held in self.moving.items()}
        return other

    def change(self, name: str, arguments: Arguments) -> None:
        """A fact becomes true (`opened`), or false (`not_opened`)."""
        self.moving[name.removeprefix("not_") if name.startswith("not_") else f"not_{name}"].discard(arguments)
        self.moving[name].add(arguments)

    def matches(self, query: Query, binding: Mapping[Slot, str]) -> Iterator[Binding]:
        """Every way to fill the query's free placeholders, different ones by different things, as textworld orders them."""
        return self._search(query, 0, dict(binding), set(binding.values()))

    def _search(self, query: Query, depth: int, binding: Binding, used: set[str]) -> Iterator[Binding]:
        if depth == len(query):
            yield dict(binding)
            return
        condition = query[depth]
        for arguments in self._candidates(condition):
            fresh: list[Slot] = []
            for slot, argument in zip(condition.slots, arguments, strict=True):
                bound = binding.get(slot)
                if bound is None and argument not in used:
                    binding[slot] = argument
                    used.add(argument)
                    fresh.append(slot)
                elif bound != argument:
                    break
            else:
                yield from self._search(query, depth + 1, binding, used)
            for slot in fresh:
                used.discard(binding.pop(slot))

    def _candidates(self, condition: Condition) -> list[Arguments]:
        held = self.moving.get(condition.predicate)
        if held is not None:
            return self._ordered(held, condition)
        key = id(condition)
        if key not in self._sorted:
            self._sorted[key] = self._ordered(self.fixed.get(condition.predicate, ()), condition)
        return self._sorted[key]

    def _ordered(self, held: Iterable[Arguments], condition: Condition) -> list[Arguments]:
        ranked = [(condition.ranks.get(tuple(self.types[name] for name in arguments)), arguments) for arguments in held]
        return [arguments for _, arguments in sorted((rank, arguments) for rank, arguments in ranked if rank is not None)]
