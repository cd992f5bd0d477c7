"""Configuration: frozen pydantic models that refuse unknown keys, read from short TOML files.

Each component keeps its own `Config` subclass beside itself; only `recipes` sees several at once. `read` reports an unknown key
with the nearest known one, because an option that is silently ignored is hard to notice. Presets are files of this package.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from dreamgym.errors import ConfigError, nearest, reason_of

LARGEST = 1e30
"""No number of a configuration is as large: float32 ends soon after."""


class Config(BaseModel):
    """Base of every configuration block."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    def documented_by(self) -> tuple[type[Config], ...]:
        """The classes whose source explains the settings: of a block that holds a plug-in's settings, the plug-in's too."""
        return (type(self),)

    @model_validator(mode="before")
    @classmethod
    def _writable(cls, values: Any) -> Any:
        """Numbers are finite and fit in 64 bits, and texts can be encoded, in free tables too: everything goes into the run directory."""
        for name, value in _leaves("", values):
            if (isinstance(value, int) and abs(value) >= 2**63) or (isinstance(value, float) and not abs(value) < LARGEST):
                raise ConfigError(f"'{name}' is {str(value)[:30]}. Expected a finite number of at most 64 bits.")
            if isinstance(value, str) and ("\0" in value or value != value.encode("utf-8", "replace").decode()):
                raise ConfigError(f"'{name}' is {value[:60]!r}, which holds half a character or a null character. Correct it.")
        return values


def _server_url(url: str) -> str:
    import httpx  # here, because most configurations name no server

    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"no address ({error}); expected one such as http://localhost:8000/v1") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("must begin with http:// or https:// and name a host, such as http://localhost:8000/v1")
    if parsed.port is not None and not 1 <= parsed.port <= 65_535:
        raise ValueError(f"no address: there is no port {parsed.port}; expected 1 to 65535, as in http://localhost:8000/v1")
    return url


ServerUrl = Annotated[str, AfterValidator(_server_url)]
"""The address of a server: http or https, a host, and a port that exists."""
C = TypeVar("C", bound=Config)
PRESETS = Path(str(resources.files("dreamgym"))) / "presets"


def presets() -> list[str]:
    """Names of the shipped configurations."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def find(name: Path) -> Path:
    """The file of `--config NAME`: NAME where it is a file, else the preset of that name. ConfigError offers the nearest preset."""
    if str(name) in presets() and not os.path.isfile(name):
        return PRESETS / f"{name}.toml"
    if os.path.exists(name):
        return name
    raise ConfigError(
        f"No configuration file or preset '{name}'.{nearest(name.stem, presets())} Give the path of a TOML file, or a preset: "
        f"{', '.join(presets())}."
    )


def build(config_class: type[C], values: dict[str, Any], *, where: str = "configuration", prefix: str = "") -> C:
    """Validate `values` as `config_class`; ConfigError names the key, what was expected, and the nearest known key. `prefix` is the dotted
    name of the block, such as "experience."."""
    try:
        return config_class.model_validate(values)
    except ConfigError as error:  # a block refused itself
        raise error if where == "configuration" or where in str(error) else ConfigError(f"{where}: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(config_class, item, where, prefix) for item in error.errors())) from error


def read(config_class: type[C], path: Path, overrides: dict[str, Any] | None = None) -> C:
    """Read a TOML file or a preset as `config_class`, with dotted `overrides` such as {"dream.iterations": 3} laid over it.

    A file lists only what differs: a key it leaves out keeps the value it has in `config_class()`, also inside a block it opens. A block
    that names another plug-in than the default (`name = "ppo"`) is its own: the settings of the default plug-in are not laid under it.
    """
    return resolve(config_class, merge(parse(find(path)), overrides or {}), where=f"{path} or the overrides" if overrides else str(path))


def parse(path: Path) -> dict[str, Any]:
    """The values of a TOML file. ConfigError where it cannot be read."""
    try:
        return parse_text(path.read_text(encoding="utf-8"), f"'{path}'")
    except OSError as error:
        raise ConfigError(f"Cannot read '{path}': {error.strerror}. Give the path of a TOML file that you may read.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{path}' is not valid TOML: {error}") from error


def parse_text(text: str, where: str) -> dict[str, Any]:
    """The values of a text in TOML. ConfigError where it is none, or nested too deeply."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid TOML: {reason_of(error)}. Correct it, or restore the file.") from error


def resolve(config_class: type[C], values: dict[str, Any], *, where: str = "configuration") -> C:
    """`values` laid over the defaults of `config_class`, as `read` does it."""
    return build(config_class, _laid_over(config_class(), values), where=where)


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """`["dream.iterations=3", "env.name=corridor"]` as overrides: a value is read as TOML, and as text when it is none."""
    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"'{pair}' sets nothing. Write KEY=VALUE, such as rl.iterations=20.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text
        overrides[key.strip()] = value
    return overrides


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


def paths(config: Config) -> dict[str, Path]:
    """The settings of a block that name a file or a folder, and that are given."""
    return {name: value for name, value in config if isinstance(value, Path)}


def dump(config: Config) -> str:
    """The resolved configuration as TOML, written into every run directory before the first step.

    It reads back as what was dumped; ConfigError names a value that TOML has no word for (None where the default is another).
    """
    text = "\n".join(_lines(config.model_dump(mode="json"), [])).strip() + "\n"
    back = build(type(config), tomllib.loads(text), where="the dumped configuration")
    if back != config:
        written, expected = (dict(_flat("", model.model_dump(mode="json"))) for model in (back, config))
        name = next(key for key in {**expected, **written} if written.get(key) != expected.get(key))
        raise ConfigError(
            f"'{name}' = {expected.get(name)!r} cannot be written as TOML: it would read back as {written.get(name)!r}. Change it."
        )
    return text


def template(config: Config) -> str:
    """Every setting as a comment to be changed, those too that are not set by default, below the first sentence of its docstring."""
    lines = "\n".join(_lines(config.model_dump(mode="json"), [], dict(_explanations(config)))).strip().splitlines()
    return "\n".join(line if not line or line.startswith("##") else f"# {line}" for line in lines) + "\n"


def _explanations(config: Config, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The first sentence of what stands below each setting in the source, or of its block's docstring, by its path."""
    below: dict[str, str] = {}
    for config_class in (base for cls in config.documented_by() for base in reversed(cls.__mro__) if issubclass(base, Config)):
        for field, after in pairwise(_class_body(config_class)):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                below[ast.unparse(field.target)] = str(after.value.value)
    annotations = {name: field.annotation for config_class in config.documented_by() for name, field in config_class.model_fields.items()}
    for name, value in config:
        annotation = annotations[name]
        block = next((arg for arg in get_args(annotation) or [annotation] if _is_block(arg)), None)
        value = block.model_validate(value) if block and isinstance(value, dict) else value
        text = below.get(name) or (isinstance(value, Config) and type(value).__doc__) or ""
        text = re.split(r"(?<=\.)(?<!\bEq\.)(?<!\bDr\.) ", " ".join(text.split()), maxsplit=1)[0]
        if get_origin(annotation) is Literal:
            text += f" ({', '.join(map(json.dumps, get_args(annotation)))})"
        yield (*path, name), text.strip()
        if isinstance(value, Config):
            yield from _explanations(value, (*path, name))


def _is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Config)


def _class_body(config_class: type[Config]) -> list[ast.stmt]:
    """The statements of a class; none where its source is not at hand, as of a class made in an interpreter."""
    try:
        statements = ast.parse(textwrap.dedent(inspect.getsource(config_class))).body
    except (OSError, TypeError):
        return []
    return next((node.body for node in statements if isinstance(node, ast.ClassDef)), [])


def _lines(block: dict[str, Any], path: list[str], explanations: Mapping[tuple[str, ...], str] | None = None) -> list[str]:
    """Blocks and values as lines of TOML. What is not set is left out, or named in a comment beside `explanations`, where there are any."""
    texts, lines = explanations or {}, []
    plain = {k: v for k, v in block.items() if not isinstance(v, dict) and (v is not None or explanations is not None)}
    if path and (plain or not block):
        lines += ["", *(f"## {text}" for text in filter(None, [texts.get(tuple(path))])), f"[{'.'.join(map(_key, path))}]"]
    for key, value in plain.items():
        lines += [f"## {text}" for text in filter(None, [texts.get((*path, key))])]
        lines.append(f"# {_key(key)} = ... is not set" if value is None else f"{_key(key)} = {toml_value(value)}")
    for key, value in block.items():
        if isinstance(value, dict):
            lines += _lines(value, [*path, key], explanations)
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    """A TOML basic string: JSON's escapes are among its own, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(toml_value(v) for v in value if v is not None)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(k)} = {toml_value(v)}' for k, v in value.items() if v is not None)}}}"
    return repr(value)


def _flat(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every value by its dotted name."""
    for key, value in values.items():
        yield from _flat(f"{prefix}{key}.", value) if isinstance(value, dict) and value else [(f"{prefix}{key}", value)]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and every value that is no table or list, with the dotted name of where it is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{name}.{key}" if name else str(key), key
            yield from _leaves(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(name, inner)
    else:
        yield name, value


def _keys(config_class: Any, path: tuple[Any, ...]) -> list[str]:
    """The keys of the block at a path; none where the path leads through a list or a free table."""
    for part in path:
        fields = getattr(config_class, "model_fields", {})
        if part not in fields:
            return []
        annotation = fields[part].annotation
        config_class = next((arg for arg in (annotation, *get_args(annotation)) if hasattr(arg, "model_fields")), None)
    return list(getattr(config_class, "model_fields", {}))


def _explain(config_class: type[Config], item: Any, where: str, prefix: str) -> str:
    location = prefix + ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        name, known_keys = str(item["loc"][-1]), _keys(config_class, item["loc"][:-1])
        inside = [key for key in known_keys if name in _keys(config_class, (*item["loc"][:-1], key))]
        nested = " or ".join(f"'{location.removesuffix(name)}{key}.{name}'" for key in inside)
        near = f" Did you mean {nested}?" if nested else nearest(name, known_keys)
        hint = f"{near} Known: {', '.join(known_keys)}." if known_keys else ""
        return f"Unknown key '{location}' in {where}.{hint}"
    got = "" if isinstance(item["input"], dict) else f" (got {item['input']!r})"  # a whole block says too much
    return f"'{location}' in {where}: {item['msg'].removeprefix('Value error, ')}{got}."
