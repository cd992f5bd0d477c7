"""The command line as a function, and what every refusal must look like."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator

import pytest
from typer.main import get_command

from dreamgym import cli


def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code and everything that `dreamgym ARGUMENTS` printed; an exception that leaves it is a traceback for the user."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    code = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch.setattr(sys, "argv", ["dreamgym", *arguments])
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    assert isinstance(said.buffer, io.BytesIO)
    return code, said.buffer.getvalue().decode()


def refuse(arguments: list[str], *names: str) -> None:
    """Run a command; where it fails, its message is no traceback and holds one of the names or arguments."""
    code, said = run_command(*arguments)
    assert code in (0, 1, 2) and "Traceback" not in said, said
    flat = "".join(character for character in said if not character.isspace() and character not in "│╭╮╰╯─")
    wanted = [
        name.encode("utf-8", "backslashreplace").decode().replace(" ", "")[:12]
        for name in (*names, *arguments, *(word.partition("=")[0] for word in arguments), *(word.partition(".")[0] for word in arguments))
    ]
    assert code == 0 or any(name in flat for name in wanted), said


def absent(commands: Iterable[str]) -> list[str]:
    """The commands of `dreamgym` with which none of these command lines begins."""
    given = [command.split() for command in commands]
    return [" ".join(name) for name in _names(get_command(cli.app)) if all(words[: len(name)] != name for words in given)]


def _names(command: object, before: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The words of every command below this one, as they are typed."""
    below = getattr(command, "commands", None)
    if below is None:
        yield list(before)
    for name, one in (below or {}).items():
        yield from _names(one, (*before, name))
