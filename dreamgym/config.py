"""Configuration: frozen pydantic models that refuse unknown keys, read from short TOML files.

Each component keeps its own `Config` subclass beside itself; only `recipes` sees several at once. `read` reports an unknown key
with the nearest known one, because an option that is silently ignored costs somebody a week.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from dreamgym.errors import ConfigError, nearest


class Config(BaseModel):
    """Base of every configuration block."""

    # "constants": inf in a free table stays inf when dumped, as it does in a typed field, instead of becoming null
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, ser_json_inf_nan="constants")


C = TypeVar("C", bound=Config)


def build(kind: type[C], values: dict[str, Any], *, where: str = "configuration") -> C:
    """Validate `values` as `kind`; ConfigError names the key, what was expected, and the nearest known key."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(kind, item, where) for item in error.errors())) from error


def read(kind: type[C], path: Path, overrides: dict[str, Any] | None = None) -> C:
    """Read a TOML file as `kind`, with dotted `overrides` such as {"dream.iterations": 3} laid over it.

    A file lists only what differs: a key it leaves out keeps the value it has in `kind()`, also inside a block it opens. A block that
    names another plug-in than the default (`name = "ppo"`) is its own: the settings of the default plug-in are not laid under it.
    """
    return resolve(kind, merge(parse(path), overrides or {}), where=str(path))


def parse(path: Path) -> dict[str, Any]:
    """What a TOML file says. ConfigError where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"No configuration file '{path}'. Give the path of a TOML file, for example configs/quickstart.toml.") from error
    except OSError as error:
        raise ConfigError(f"Cannot read '{path}': {error.strerror}. Give the path of a TOML file that you may read.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}") from error


def resolve(kind: type[C], values: dict[str, Any], *, where: str = "configuration") -> C:
    """`values` laid over the defaults of `kind`, as `read` does it."""
    return build(kind, _laid_over(kind(), values), where=where)


def filled(kind: type[C], toml: str, *, where: str = "configuration") -> C:
    """A configuration that was stored as text, with the value in today's `kind()` for every key that it does not have."""
    return resolve(kind, tomllib.loads(toml), where=where)


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """`["dream.iterations=3", "env.name=corridor"]` as overrides: a value is read as TOML, and as text when it is none."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"'{pair}' sets nothing. Write KEY=VALUE, such as rl.iterations=20.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        found[key.strip()] = value
    return found


def merge(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`values` with dotted keys of `overrides` set: ({"a": {"b": 1}}, {"a.b": 2}) -> {"a": {"b": 2}}."""
    result: dict[str, Any] = {key: merge(value, {}) if isinstance(value, dict) else value for key, value in values.items()}
    for dotted, value in overrides.items():
        node = result
        *parents, leaf = dotted.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"Cannot set '{dotted}': '{parent}' is a value, not a block.")
        node[leaf] = value
    return result


def _laid_over(default: Config, values: dict[str, Any]) -> dict[str, Any]:
    """What a file leaves out, filled in from the default. Tables that are no blocks, such as a plug-in's options, are taken as they are."""
    named = getattr(default, "name", None)
    if values.get("name", named) != named:
        return values
    blocks = {key: getattr(default, key, None) for key, value in values.items() if isinstance(value, dict)}
    both = {key: _laid_over(block, values[key]) for key, block in blocks.items() if isinstance(block, Config)}
    return {**default.model_dump(), **values, **both}


def dump(config: Config) -> str:
    """The resolved configuration as TOML, written into every run directory before the first step.

    It reads back as what was dumped; ConfigError names a value that TOML has no word for (None where the default is another).
    """
    text = "\n".join(_lines(config.model_dump(mode="json"), [])).strip() + "\n"
    back = build(type(config), tomllib.loads(text), where="the dumped configuration")
    if back != config:
        said, wanted = (dict(_flat("", one.model_dump(mode="json"))) for one in (back, config))
        name = next(key for key in {**wanted, **said} if said.get(key) != wanted.get(key))
        raise ConfigError(
            f"'{name}' = {wanted.get(name)!r} cannot be written as TOML: it would read back as {said.get(name)!r}. Change it."
        )
    return text


def template(config: Config) -> str:
    """Every setting as a comment to be changed, those too that are not set by default."""
    lines = "\n".join(_lines(config.model_dump(mode="json"), [], unset=True)).strip().splitlines()
    return "\n".join(f"# {line}" if line else "" for line in lines) + "\n"


def _lines(block: dict[str, Any], path: list[str], unset: bool = False) -> list[str]:
    """Blocks and values as lines of TOML. What is not set is left out, or told in a comment when `unset`."""
    plain = {k: v for k, v in block.items() if not isinstance(v, dict) and (v is not None or unset)}
    lines = [f"\n[{'.'.join(map(_key, path))}]"] if path and (plain or not block) else []
    lines += [f"# {_key(key)} = ... is not set" if value is None else f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in block.items():
        if isinstance(value, dict):
            lines += _lines(value, [*path, key], unset)
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    """A TOML basic string: JSON's escapes are among its own, but for DEL."""
    if value != value.encode("utf-8", "replace").decode():
        raise ConfigError(f"{value!r} holds half a character, which no file can. Correct it.")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(v) for v in value if v is not None)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items() if v is not None)}}}"
    return repr(value)


def _flat(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value by its dotted name."""
    for key, value in values.items():
        yield from _flat(f"{prefix}{key}.", value) if isinstance(value, dict) and value else [(f"{prefix}{key}", value)]


def _keys(kind: Any, path: tuple[Any, ...]) -> list[str]:
    """The keys of the block at a path; none where the path leads through a list or a free table."""
    for part in path:
        fields = getattr(kind, "model_fields", {})
        if part not in fields:
            return []
        annotation = fields[part].annotation
        kind = next((one for one in (annotation, *get_args(annotation)) if hasattr(one, "model_fields")), None)
    return list(getattr(kind, "model_fields", {}))


def _explain(kind: type[Config], item: Any, where: str) -> str:
    location = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _keys(kind, item["loc"][:-1])
        said = f"{nearest(str(item['loc'][-1]), known)} Known: {', '.join(known)}." if known else ""
        return f"Unknown key '{location}' in {where}.{said}"
    return f"'{location}' in {where}: {item['msg']} (got {item['input']!r})."
