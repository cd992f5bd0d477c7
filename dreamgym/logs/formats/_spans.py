"""OpenTelemetry spans as files hold them: OTLP attributes as plain values, and flattened indexed keys as nested ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dreamgym.logs.formats import _values as values


def spans_of(value: Any) -> Iterator[dict[str, Any]]:
    """The spans of an OTLP export, of a list, or the span that the value is."""
    if isinstance(value, list):
        for one in value:
            yield from spans_of(one) if isinstance(one, dict) else ()
    elif isinstance(value, dict) and "resourceSpans" in value:
        for resource in values.tables(value["resourceSpans"]):
            for scope in values.tables(values.first(resource.get(key) for key in ("scopeSpans", "instrumentationLibrarySpans"))):
                yield from values.tables(scope.get("spans"))
    elif isinstance(value, dict):
        yield value


def attributes(value: Any) -> dict[str, Any]:
    """Attributes by name, from an object or from OTLP's list of keys and typed values."""
    if isinstance(value, dict):
        return value
    return {values.text(one.get("key")): _plain(one.get("value")) for one in values.tables(value)}


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "intValue" in value:
        try:
            return int(value["intValue"])
        except (TypeError, ValueError):
            return value["intValue"]
    if isinstance(listed := value.get("arrayValue"), dict):
        return [_plain(one) for one in values.tables(listed.get("values"))]
    if isinstance(listed := value.get("kvlistValue"), dict):
        return attributes(listed.get("values"))
    return values.first(value.get(key) for key in ("stringValue", "boolValue", "doubleValue"))


def indexed(found: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """`prefix.0.a.b = x` as [{"a": {"b": x}}], in the order of the numbers; numbers further inside make lists as well."""
    tree: dict[str, Any] = {}
    for key, value in found.items():
        if not key.startswith(f"{prefix}."):
            continue
        at, parts = tree, key[len(prefix) + 1 :].split(".")
        for part in parts[:-1]:
            inner = at.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            at = inner
        else:
            at[parts[-1]] = value
    return [one for one in _lists(tree) if isinstance(one, dict)] if isinstance(_lists(tree), list) else []


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _lists(one) for key, one in value.items()}
    if inner and all(key.isdecimal() and len(key) < 7 for key in inner):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner
