"""Writing texts by a game's context-sensitive grammar. textworld reads the grammar; this writes from what it read, once, fast.

textworld parses a template anew, and copies everything around it, each time it writes a word: that is why it is slow. Here a template
is read once and becomes a few nodes. What is written is the same to the letter, quirks included; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from dreamgym.envs.alfworld._facts import Binding, Facts, Query, compile_query
from dreamgym.errors import UsageError


@dataclass(frozen=True, slots=True)
class Words:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Nonterminal:
    """`#name#`: written by the first rule of that name whose condition holds."""

    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """`o.name`: an expression over the things that placeholders stand for."""

    code: CodeType


@dataclass(frozen=True, slots=True)
class ForEach:
    """`{what | given}`: written once per match of the query; once when there is no query."""

    what: Nonterminal | Value
    given: Query | None


@dataclass(frozen=True, slots=True)
class JoinedList:
    """`[{...}]`: the same with commas and an "and" between."""

    each: ForEach


Node = Words | Nonterminal | Value | ForEach | JoinedList


@dataclass(frozen=True, slots=True)
class Scope:
    """What a text is about: the facts, and the things that placeholders stand for."""

    facts: Facts
    things: Mapping[str, Any]  # textworld's EntityInfo by id
    binding: Binding
    variables: Mapping[str, Any]

    @classmethod
    def of(cls, facts: Facts, things: Mapping[str, Any], binding: Binding) -> Scope:
        return cls(facts, things, binding, {name: things[thing] for (name, _), thing in binding.items()})


class Grammar:
    """The rules of a game's grammar, ready to write. `rules` and `types` are textworld's."""

    def __init__(self, rules: Mapping[str, Sequence[Any]], types: Any) -> None:
        self.types = types
        self._queries: dict[str, Query] = {}
        self.rules = {
            name: [(self.query(rule.condition) if rule.condition else None, self._nodes(rule.rhs)) for rule in several]
            for name, several in rules.items()
        }

    def query(self, text: str) -> Query:
        """A query, read once."""
        if text not in self._queries:
            self._queries[text] = compile_query(text, self.types)
        return self._queries[text]

    def read(self, template: str) -> tuple[Node, ...]:
        """A template such as `take {o} from {r}`."""
        return self._nodes(_parsed(template))

    def write(self, nodes: Sequence[Node], scope: Scope) -> str:
        """The text of a template."""
        return "".join(text for node in nodes for text in self._texts(node, scope))

    def mentions(self, nodes: Sequence[Node], predicates: set[str]) -> bool:
        """Whether the text depends on one of these predicates, so that it may change during an episode."""
        return any(self._mentions(node, predicates, set()) for node in nodes)

    def _texts(self, node: Node, scope: Scope) -> Iterator[str]:
        if isinstance(node, Words):
            yield node.text
        elif isinstance(node, Value):
            yield str(eval(node.code, {"__builtins__": {}}, dict(scope.variables)))  # a game's grammar holds attributes and `+`, no calls
        elif isinstance(node, Nonterminal):
            yield self._part(node.name, scope)
        elif isinstance(node, ForEach):
            yield from self._each(node, scope)
        else:
            yield self._list(list(self._each(node.each, scope)), scope)

    def _part(self, name: str, scope: Scope) -> str:
        if name not in self.rules:
            raise UsageError(f"The grammar of this game has no rule '{name}', which one of its rules asks for. Copy the game file again.")
        for condition, nodes in self.rules[name]:
            if condition is None or next(scope.facts.matches(condition, scope.binding), None) is not None:
                return self.write(nodes, scope)
        raise UsageError(f"No rule '{name}' in the grammar of this game applies here. Copy the game file again.")

    def _each(self, node: ForEach, scope: Scope) -> Iterator[str]:
        if node.given is None:
            yield from self._texts(node.what, scope)
            return
        for binding in scope.facts.matches(node.given, scope.binding):
            variables = {**scope.variables, **{name: scope.things[thing] for (name, _), thing in binding.items()}}
            yield from self._texts(node.what, Scope(scope.facts, scope.things, binding, variables))

    def _list(self, texts: list[str], scope: Scope) -> str:
        if not texts:
            return self._part("list_empty", scope)
        if len(texts) == 1:
            return texts[0]
        return self._part("list_separator", scope).join(texts[:-1]) + self._part("list_last_separator", scope) + texts[-1]

    def _nodes(self, symbols: Sequence[Any]) -> tuple[Node, ...]:
        return tuple(self._node(symbol) for symbol in symbols)

    def _node(self, symbol: Any) -> Node:
        kind = type(symbol).__name__
        if kind == "TerminalSymbol":
            return Words(str(symbol))
        if kind == "ListSymbol":
            return JoinedList(self._conditional(symbol.symbol))
        return self._conditional(symbol) if kind == "ConditionalSymbol" else self._inner(symbol)

    def _conditional(self, symbol: Any) -> ForEach:
        return ForEach(self._inner(symbol.expression), self.query(symbol.given) if symbol.given else None)

    def _inner(self, symbol: Any) -> Nonterminal | Value:
        if type(symbol).__name__ == "NonterminalSymbol":
            return Nonterminal(str(symbol))
        return Value(compile(symbol.expression.strip(), "<grammar>", "eval"))

    def _mentions(self, node: Node, predicates: set[str], seen: set[str]) -> bool:
        if isinstance(node, JoinedList):
            return self._mentions(node.each, predicates, seen)
        if isinstance(node, ForEach):
            return _asks(node.given, predicates) or self._mentions(node.what, predicates, seen)
        if isinstance(node, Nonterminal) and node.name not in seen:
            seen.add(node.name)
            rules = self.rules.get(node.name, ())
            return any(
                _asks(condition, predicates) or any(self._mentions(inner, predicates, seen) for inner in nodes)
                for condition, nodes in rules
            )
        return False


def _asks(query: Query | None, predicates: set[str]) -> bool:
    return any(condition.predicate.removeprefix("not_") in predicates for condition in query or ())


@lru_cache(maxsize=4096)
def _parsed(template: str) -> tuple[Any, ...]:
    from textworld.envs.pddl import textgen

    return tuple(textgen._parse_and_convert(template, rule_name="symbols"))
