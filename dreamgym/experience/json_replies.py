"""JSON to and from instruct models: what they are shown, and what is accepted of what they say.

Everything that an environment, a log or a policy wrote goes into a message as a JSON string (`data`). A text cannot leave its string, and
it cannot spell a chat template's markers, because their beginnings are escaped: `<|im_end|>` becomes `\\u003c|im_end|>`, which JSON
reads as the same letters and no tokenizer reads as a marker. What comes back must be one JSON object with the keys that were asked for,
each once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dreamgym.runs.files import is_number, without_lone_surrogates

Format = Literal["json_schema", "json_object", "none"]
"""What the host can be held to: a schema, any JSON object, or nothing but the words of the prompt."""

Message = dict[str, str]
MARKERS = re.compile(r"<(?=\S)|\[(?=/?[a-z]?[A-Z_]{2,}\d*\])")  # <|eot_id|>, </s>, <start_of_turn>; [INST], [gMASK]; not `[< prev]`
FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
SHOWN = 200  # characters of a bad reply in a problem
WHOLE = frozenset({"state", "next_state", "task"})
"""Texts that are not limited: they are what was asked for, and one that a grammar had ended early would be another state, or another task.
Such a reply that is too long is cut at max_tokens instead, and seen to be."""
LONGEST = 1900
"""Characters of any other text, and items of the longest list that is limited. llama.cpp refused grammars that repeat something 2,000 times
(its pull requests 17381 and 26613)."""


class BadReply(Exception):
    """A reply that cannot be used. Its text says what was expected, in words that the model can be told."""


def data(value: Any) -> str:
    """`value` as JSON in which text stands for itself only: it ends no string, and spells no marker of any chat template."""
    return escape_markers(json.dumps(value, ensure_ascii=False, indent=1))


def escape_markers(text: str) -> str:
    """The text with its markers escaped as JSON escapes letters: within a JSON string it still reads the same."""
    return MARKERS.sub(lambda mark: f"\\u{ord(mark[0]):04x}", without_lone_surrogates(text))


def messages(system: str, value: Any) -> list[Message]:
    """A chat: what the model is to do, in our words, and what it is to do it with, as data."""
    return [{"role": "system", "content": system}, {"role": "user", "content": data(value)}]


def response_format(kind: Format, name: str, properties: Mapping[str, Any], max_tokens: int) -> dict[str, Any] | None:
    """Build the setting that holds a host to an object of exactly these properties. Its remarks leave room for the rest of a reply of
    `max_tokens`."""
    if kind == "none":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    form = limited(schema(properties), max_tokens)
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": form}}


def schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object that has all of these properties and no others."""
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}


def limited(form: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """The JSON schema with a `maxLength` for every text that has none, except those that must be whole. Small models ramble in texts; two
    characters a token leave each text, and all that is no text, the same share of the reply."""
    return _limited("", form, min(LONGEST, 2 * max_tokens // (_texts(form) + 1)))


def _limited(name: str, form: Mapping[str, Any], limit: int) -> dict[str, Any]:
    if form.get("type") == "string" and name not in WHOLE and not form.keys() & {"enum", "maxLength"}:
        return {**form, "maxLength": limit}
    limited_form = {key: value for key, value in form.items() if key != "maxItems" or value <= LONGEST}
    if "properties" in form:
        limited_form["properties"] = {key: _limited(key, inner, limit) for key, inner in form["properties"].items()}
    if "items" in form:
        limited_form["items"] = _limited(name, form["items"], limit)
    return limited_form


def _texts(form: Mapping[str, Any]) -> int:
    """How many texts without a limit a JSON schema has."""
    inner = [*form.get("properties", {}).values(), *([form["items"]] if "items" in form else [])]
    return sum(map(_texts, inner)) + (form.get("type") == "string" and not form.keys() & {"enum", "maxLength"})


def read_object(reply: str, keys: Sequence[str]) -> dict[str, Any]:
    """The JSON object that a reply consists of. Thinking before it and one code fence around it are taken off; BadReply for anything else.

    An object inside prose is not looked for: it might be a text of somebody else that the model only repeats.
    """
    bare = reply.strip()
    if not bare.startswith(("{", "`")) and "</think>" in bare:
        bare = bare.partition("</think>")[2].strip()
    if fence := FENCE.fullmatch(bare):
        bare = fence[1]
    try:
        parsed = json.loads(bare, object_pairs_hook=_once_each, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the reply is not one JSON object alone ({error}); it begins {without_lone_surrogates(bare)[:SHOWN]!r}") from error
    if not isinstance(parsed, dict):
        raise BadReply(f"the reply is a JSON {type(parsed).__name__}, not an object with the keys {', '.join(keys)}")
    if missing := [key for key in keys if key not in parsed]:
        raise BadReply(f"the key '{missing[0]}' is missing; the object has exactly the keys {', '.join(keys)}")
    if more := [key for key in parsed if key not in keys]:
        raise BadReply(
            f"the key '{without_lone_surrogates(more[0])[:40]}' was not asked for; the object has exactly the keys {', '.join(keys)}"
        )
    return parsed


def text_in(fields: Mapping[str, Any], key: str) -> str:
    """A string with something in it, without white space around it."""
    value = fields.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadReply(f"'{key}' is {_shown(value)}; it must be a string that says something")
    return without_lone_surrogates(value.strip())


def number_in(fields: Mapping[str, Any], key: str) -> float:
    """A finite number."""
    value = fields.get(key)
    if not is_number(value):
        raise BadReply(f"'{key}' is {_shown(value)}; it must be a number")
    return float(value)


def flag_in(fields: Mapping[str, Any], key: str) -> bool:
    """A truth value: true or false."""
    value = fields.get(key)
    if not isinstance(value, bool):
        raise BadReply(f"'{key}' is {_shown(value)}; it must be true or false")
    return value


def about_tokens(text: str, *, bytes_per_token: float = 4.0) -> int:
    """A guess at the tokens of a text. Four bytes a token suit English; two are a safe side for numbers and names."""
    return math.ceil(len(text.encode("utf-8", "replace")) / bytes_per_token)


def tokens_of(chat: Sequence[Mapping[str, Any]], *, bytes_per_token: float = 4.0) -> int:
    """A guess at the tokens of a chat, with a few around each message."""
    return sum(about_tokens(str(message["content"]), bytes_per_token=bytes_per_token) + 6 for message in chat)


def _shown(value: Any) -> str:
    return without_lone_surrogates(json.dumps(value))[:60]


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A key that stands twice has two meanings: which one counts would be a matter of taste."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key stands there twice")
    return fields


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
