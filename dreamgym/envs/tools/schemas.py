"""The tools of an agent: their names and JSON schemas, read from a file or inferred from recorded calls, and what they rule out."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.tool_calls import RESPOND, ToolCall

ALWAYS = 5
"""Recorded calls that must all name an argument before it counts as required."""
MOST_FORMS = 8
"""Different schemas of one argument that are told apart."""
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict, "null": type(None)
}  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """One tool, as language models are told about it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # JSON schema of the arguments
    reads_only: bool = False  # whether it is declared to change nothing (`annotations.readOnlyHint` of MCP)

    def to_json(self) -> dict[str, Any]:
        found = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return found | ({"annotations": {"readOnlyHint": True}} if self.reads_only else {})


MESSAGE = Tool(RESPOND, "A message to the user.", {"properties": {"content": {"type": "string"}}, "required": ["content"]})


def read_tools(path: Path) -> list[Tool]:
    """The tools of a JSON file: a list of {"name", "description", "parameters"}, as OpenAI, Anthropic and MCP write them. UsageError for
    anything else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read the tools in '{path}': {error}. Expected a JSON list of tools.") from error
    found = found.get("tools", found) if isinstance(found, dict) else found
    if not isinstance(found, list):
        raise UsageError(f"'{path}' holds no JSON list of tools.")
    return tools_of(found, where=str(path))


def tools_of(found: Sequence[Any], *, where: str = "tools") -> list[Tool]:
    """Tools from their JSON form. UsageError for an entry that is none, and for a name that two tools have."""
    tools = [_checked(one, f"{where}, entry {i}") for i, one in enumerate(found)]
    twice = [name for name, n in Counter(tool.name for tool in tools).items() if n > 1]
    if twice:
        raise UsageError(f"{where}: several tools are called '{twice[0]}'. Give each name once.")
    return tools


def tool_of(found: Any) -> Tool | None:
    """A tool as OpenAI, Anthropic, MCP and OpenTelemetry define it, with what stands for its parameters, unchecked; None for what has no
    name."""
    if not isinstance(found, dict):
        return None
    inner = found["function"] if isinstance(found.get("function"), dict) else found
    if not isinstance(inner.get("name"), str):
        return None
    parameters: Any = next((inner[key] for key in ("parameters", "input_schema", "inputSchema") if inner.get(key) is not None), {})
    hints = [one.get("annotations") for one in (inner, found)]
    reads = any(isinstance(hint, dict) and hint.get("readOnlyHint") is True for hint in hints)
    return Tool(inner["name"], str(inner.get("description") or ""), parameters, reads)


def merged(definitions: Sequence[Tool]) -> Tool:
    """One tool that takes what any of several definitions of it takes: an argument may have the form that any gives it, and is required
    where all require it. One with more than `MOST_FORMS` forms may have any."""
    first, schemas = definitions[0], [tool.parameters for tool in definitions if isinstance(tool.parameters, Mapping)]
    if len(definitions) == 1 or not schemas:
        return first
    whole: dict[str, Any] = {key: value for schema in reversed(schemas) for key, value in schema.items()}
    if any(schema.get("additionalProperties") != whole.get("additionalProperties") for schema in schemas):
        whole.pop("additionalProperties", None)
    forms = dict[str, list[Any]]()
    for schema in schemas:
        properties = schema.get("properties")
        for name, form in properties.items() if isinstance(properties, Mapping) else ():
            if form not in forms.setdefault(name, []):
                forms[name].append(form)
    whole["properties"] = {
        name: found[0] if len(found) == 1 else {"anyOf": found} if len(found) <= MOST_FORMS else {} for name, found in forms.items()
    }
    whole["required"] = [name for name in forms if all(name in _required(schema) for schema in schemas)]
    return Tool(first.name, first.description, whole, all(tool.reads_only for tool in definitions))


def _required(schema: Mapping[str, Any]) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


class ToolInference:
    """The tools of recorded calls, which are added one after the other: memory is bounded by the number of tools and arguments.

    An argument that `ALWAYS` calls or more name has the types that were seen, and is required where every call names it. Whatever values
    were seen, others stay possible: what a schema excludes is refused by rule.
    """

    def __init__(self) -> None:
        self._calls = Counter[str]()  # whose arguments are an object
        self._named: dict[str, Counter[str]] = {}  # by tool, how often each argument is named
        self._types: dict[tuple[str, str], set[str]] = defaultdict(set)

    def add(self, call: ToolCall) -> None:
        if call.name == RESPOND:
            return
        named = self._named.setdefault(call.name, Counter())
        if isinstance(call.arguments, Mapping):
            self._calls[call.name] += 1
            named.update(call.arguments.keys())
            for key, value in call.arguments.items():
                self._types[call.name, key].add(_type(value))

    def tools(self) -> list[Tool]:
        """Sorted by name."""
        return [Tool(name, "", self._parameters(name)) for name in sorted(self._named)]

    def _parameters(self, name: str) -> dict[str, Any]:
        calls, named = self._calls[name], self._named[name]
        properties = {key: _schema(self._types[name, key]) if named[key] >= ALWAYS else {} for key in sorted(named)}
        required = [key for key in properties if calls >= ALWAYS and named[key] == calls]
        return {"type": "object", "properties": properties, "required": required}


def inferred_tools(calls: Iterable[ToolCall]) -> list[Tool]:
    """The tools of recorded calls, as `ToolInference` finds them."""
    inference = ToolInference()
    for call in calls:
        inference.add(call)
    return inference.tools()


def fault(tools: Mapping[str, Tool], call: ToolCall) -> str:
    """Why a call cannot be made: an unknown tool, or arguments that its schema excludes. "" where nothing speaks against it."""
    tool = MESSAGE if call.name == RESPOND else tools.get(call.name)
    if isinstance(call.arguments, str):
        return "the arguments are no JSON object"
    if tool is None:
        return f"there is no tool {call.name}"
    return _fault({"type": "object", **tool.parameters}, call.arguments, tool.parameters, "the arguments")


def _fault(schema: Any, value: Any, root: Mapping[str, Any], where: str) -> str:
    """Why a value does not fit a schema; "" where it does, and for what this reader does not know."""
    if not isinstance(schema, Mapping):
        return "" if schema is not False else f"{where}: nothing is allowed"
    if "$ref" in schema:
        return _fault(_referred(str(schema["$ref"]), root), value, root, where)
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and options and all(_fault(option, value, root, where) for option in options):
        return f"{where}: of another form than expected"
    types = schema.get("type")
    if types is not None and not any(_is(value, one) for one in (types if isinstance(types, list) else [types])):
        return f"{where}: expected {types if isinstance(types, str) else ' or '.join(map(str, types))}"
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return f"{where}: expected one of {json.dumps(schema['enum'], default=str)}"
    if "const" in schema and value != schema["const"]:
        return f"{where}: expected {schema['const']}"
    if isinstance(value, Mapping):
        return _object_fault(schema, value, root, where)
    if isinstance(value, list) and "items" in schema:
        return next((found for i, one in enumerate(value) if (found := _fault(schema["items"], one, root, f"{where}, item {i}"))), "")
    return ""


def _object_fault(schema: Mapping[str, Any], value: Mapping[str, Any], root: Mapping[str, Any], where: str) -> str:
    missing = [key for key in schema.get("required") or () if key not in value]
    if missing:
        return f"{where}: {missing[0]} is missing"
    known = schema.get("properties") or {}
    unknown = [key for key in value if key not in known]
    if unknown and schema.get("additionalProperties") is False:
        return f"{where}: {unknown[0]} is unknown"
    return next((found for key, one in value.items() if key in known and (found := _fault(known[key], one, root, key))), "")


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """The schema behind `#/$defs/name`; one that allows everything where there is none."""
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return {key: value for key, value in found.items() if key != "$ref"} if isinstance(found, Mapping) else {}


def _is(value: Any, kind: str) -> bool:
    if kind not in TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


def _type(value: Any) -> str:
    return next((kind for kind in TYPES if kind != "integer" and _is(value, kind)), "object")


def _schema(types: set[str]) -> dict[str, Any]:
    """Of an argument with these types; one that was only null could be anything else."""
    return {"type": sorted(types)} if types != {"null"} else {}


def _checked(found: Any, where: str) -> Tool:
    tool = tool_of(found)
    if tool is None:
        raise UsageError(f'{where} is no tool. Expected {{"name", "description", "parameters"}}.')
    if not isinstance(tool.parameters, dict):
        raise UsageError(f"{where}: the parameters of '{tool.name}' are no JSON schema.")
    return tool
