"""The tools of a log: the schemas it gives, and for other tools what their calls show (types, required arguments, enums of few values)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dreamgym.logs.records import ToolSchema
from dreamgym.logs.redaction import PLACEHOLDER
from dreamgym.tool_calls import RESPOND, ToolCall

FEW = 8  # values of an enum
SEEN = 5  # how often, on average, each value of an enum must have been seen
VALUE_CHARS = 40
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


@dataclass
class _Argument:
    count: int = 0
    types: Counter[str] = field(default_factory=Counter)
    values: set[str] | None = field(default_factory=set)  # None: too many, no strings, or redacted ones


class ToolCatalogue:
    """Gathers schemas and calls, episode by episode, in memory bounded by the number of tools and arguments."""

    def __init__(self) -> None:
        self.given: dict[str, ToolSchema] = {}
        self.calls: Counter[str] = Counter()
        self._arguments: dict[str, dict[str, _Argument]] = defaultdict(lambda: defaultdict(_Argument))

    def add(self, schemas: Sequence[ToolSchema], calls: Sequence[ToolCall]) -> None:
        for schema in schemas:
            self.given.setdefault(schema.name, schema)
        for call in calls:
            if call.name == RESPOND:
                continue
            self.calls[call.name] += 1
            if call.name not in self.given and isinstance(call.arguments, Mapping):
                for name, value in call.arguments.items():
                    _observe(self._arguments[call.name][name], value)

    def tools(self) -> list[ToolSchema]:
        """Sorted by name: given schemas, and inferred ones of tools that have none."""
        names = sorted({*self.given, *self.calls})
        return [self.given.get(name) or ToolSchema(name, "", self._inferred(name)) for name in names]

    def _inferred(self, name: str) -> dict[str, Any]:
        arguments = self._arguments.get(name, {})
        required = sorted(one for one, seen in arguments.items() if seen.count == self.calls[name])
        return {"type": "object", "properties": {one: _schema(seen) for one, seen in sorted(arguments.items())}, "required": required}


def _observe(seen: _Argument, value: Any) -> None:
    seen.count += 1
    seen.types[TYPES.get(type(value), "string")] += 1
    if seen.values is not None:
        short = isinstance(value, str) and len(value) <= VALUE_CHARS and not PLACEHOLDER.search(value)
        if short and (value in seen.values or len(seen.values) < FEW):
            seen.values.add(value)
        else:
            seen.values = None


def _schema(seen: _Argument) -> dict[str, Any]:
    types = sorted(seen.types)
    if types == ["integer", "number"]:
        types = ["number"]
    if types == ["string"] and seen.values and seen.count >= SEEN * len(seen.values):
        return {"type": "string", "enum": sorted(seen.values)}
    return {"type": types[0] if len(types) == 1 else types}
