"""The options that every program takes: its size, and machine-readable output."""

from __future__ import annotations

import argparse
import json
from typing import Any


def parser(doc: str, *, full: str, smoke: str) -> argparse.ArgumentParser:
    """`--json`, and one size at most: `--full`, or `--smoke`, which tests run. `doc` is the docstring of the program."""
    found = argparse.ArgumentParser(description=doc.splitlines()[0])
    found.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    size = found.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help=full)
    size.add_argument("--smoke", action="store_true", help=f"seconds of work, to test the program: {smoke}")
    return found


def finish(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """The last line of `--json`."""
    if options.json:
        print(json.dumps(found))
