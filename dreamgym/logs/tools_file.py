"""The file of tools beside a file of episodes. A person corrects it, so that importing again adds what it lacks and changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.envs.tools.schemas import read_tools
from dreamgym.errors import UsageError, counted
from dreamgym.runs.files import write_atomic

NAMED = 8  # tools that a message lists


def tools_beside(out: Path) -> Path:
    """Where the tool schemas of a file of episodes are: `episodes.tools.json` for `episodes.jsonl`."""
    return out.with_name(f"{out.name.removesuffix('.jsonl')}.tools.json")


@dataclass(frozen=True)
class WrittenTools:
    """The file beside the episodes that was there or was written, and what became of it."""

    kept: Path
    new: Path | None = None  # what the logs say, where the kept file says something else
    added: tuple[str, ...] = ()  # tools that the kept file lacked
    others: tuple[str, ...] = ()  # tools of the kept file that the logs do not have
    differing: tuple[str, ...] = ()  # tools of which it says something else
    fault: str = ""  # why the kept file cannot be read

    @property
    def path(self) -> Path:
        """Where all is that the logs say."""
        return self.new or self.kept

    def warnings(self) -> list[str]:
        """What a reader should know, in sentences."""
        texts = list[str]()
        if self.added:
            left = f" It still has {_named(self.others)}, of which these logs say nothing." if self.others else ""
            texts.append(f"'{self.kept}' was there and lacked {_named(self.added)}, which {_is(self.added)} added.{left}")
        if self.fault:
            texts.append(f"'{self.kept}' is kept as it is, and cannot be read: {self.fault} The tools of these logs are in '{self.new}'.")
        elif self.differing:
            texts.append(
                f"'{self.kept}' is kept where it says something else than these logs, as after a correction: of {_named(self.differing)}. "
                f"What they say is in '{self.new}': take over from it what you need, or put it in the place of the other."
            )
        return texts


def write_tools(tools: list[dict[str, Any]], path: Path) -> WrittenTools:
    """Write the tools to `path`. A file that is there gets those that it lacks and keeps what it says of the others. Where that is
    something else, or where it cannot be read, the tools are written beside it too."""
    new = path.with_name(f"{path.name.removesuffix('.tools.json')}.new.tools.json")
    if not path.exists():
        write_atomic(path, _text(tools))
        return WrittenTools(path)
    try:
        known = {tool.name: tool.to_json() for tool in read_tools(path)}
    except UsageError as error:
        write_atomic(new, _text(tools))
        return WrittenTools(path, new, fault=str(error))
    lacked = [tool for tool in tools if tool["name"] not in known]
    if lacked:
        document = json.loads(path.read_text("utf-8"))
        (document["tools"] if isinstance(document, dict) else document).extend(lacked)
        write_atomic(path, _text(document))
    differing = tuple(tool["name"] for tool in tools if known.get(tool["name"], tool) != tool)
    if differing:
        write_atomic(new, _text(tools))
    others = tuple(sorted(known.keys() - {tool["name"] for tool in tools}))
    return WrittenTools(path, new if differing else None, tuple(tool["name"] for tool in lacked), others, differing)


def _text(tools: Any) -> str:
    return json.dumps(tools, indent=1) + "\n"


def _named(tools: tuple[str, ...]) -> str:
    rest = ", …" if len(tools) > NAMED else ""
    return f"{counted(len(tools), 'tool')} ({', '.join(tools[:NAMED])}{rest})"


def _is(tools: tuple[str, ...]) -> str:
    return "is" if len(tools) == 1 else "are"
