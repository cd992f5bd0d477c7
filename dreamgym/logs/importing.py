"""`dreamgym import`: files of logs in, episodes and tool schemas out, with an account of everything that was left out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dreamgym.envs.tools.conversation import FURTHER, latest_turn
from dreamgym.envs.tools.schemas import Tool, ToolInference, merged
from dreamgym.errors import UsageError, counted
from dreamgym.logs.conversion import HOLLOW, UNANSWERED, Conversion, renamed, trajectory
from dreamgym.logs.files import LogFile, open_log
from dreamgym.logs.formats import LogFormat, chosen
from dreamgym.logs.outcomes import IDS_EXPECTED, Outcomes
from dreamgym.logs.records import Account
from dreamgym.logs.redaction import Redactor
from dreamgym.logs.tools_file import WrittenTools, tools_beside, write_tools
from dreamgym.runs.episodes import trajectory_to_json
from dreamgym.runs.files import dumps, writing_lines
from dreamgym.runs.progress import Advance, progress
from dreamgym.tool_calls import RESPOND, ToolCall, calls_of
from dreamgym.types import Trajectory


class Names:
    """Names that are each given once: where one is wanted again it gets a number."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self._times = Counter[str]()

    def next(self, wanted: str) -> str:
        """What `take` would give."""
        name, number = wanted, max(1, self._times[wanted])
        while name in self.taken:
            number += 1
            name = f"{wanted}#{number}"
        return name

    def take(self, wanted: str) -> str:
        name = self.next(wanted)
        self._times[wanted] += 1
        self.taken.add(name)
        return name


class _Tasks:
    """The ids of tasks that records name. Records of one file that name a task and nothing else are trials of it. Records of another file,
    or with an id that their file has given before, are trials of it where they have an instruction that it has; elsewhere their task is
    another one that is called alike, as of two benchmarks that count from 0, and gets a number."""

    def __init__(self) -> None:
        self.names = Names()
        self.apart: set[str] = set()  # names that several tasks have
        self._given = Counter[tuple[Path, str]]()  # how often a file has given the id of an episode
        self._by_place: dict[tuple[Path, str, int], str] = {}
        self._by_instruction: dict[tuple[str, str], str] = {}

    def take(self, file: Path, episode: str, task: str, instruction: str) -> str:
        self._given[file, episode] += 1
        place, same = (file, task, 1 if episode == task else self._given[file, episode]), (task, instruction)
        found = self._by_place.get(place) or self._by_instruction.get(same)
        if found is None:
            found = self.names.take(task)
            self.apart |= {task} if found != task else set()
        self._by_place.setdefault(place, found)
        self._by_instruction.setdefault(same, found)
        return found


@dataclass
class _Tools:
    """The tools of the logs: as the logs define them, or else as their calls show them."""

    defined: dict[str, list[Tool]] = field(default_factory=dict)  # every different definition of a name
    calls: Counter[str] = field(default_factory=Counter)
    inference: ToolInference = field(default_factory=ToolInference)

    def add(self, tools: Sequence[Tool], calls: Sequence[ToolCall]) -> None:
        for tool in tools:
            known = self.defined.setdefault(tool.name, [])
            if not any((one.parameters, one.reads_only) == (tool.parameters, tool.reads_only) for one in known):
                known.append(tool)
        for call in calls:
            self.inference.add(call)
        self.calls.update(call.name for call in calls if call.name != RESPOND)

    def found(self) -> list[Tool]:
        """Sorted by name."""
        tools = {tool.name: tool for tool in self.inference.tools()} | {name: merged(known) for name, known in self.defined.items()}
        return [tools[name] for name in sorted(tools)]


@dataclass
class _Import:
    outcomes: Outcomes
    truncations: Outcomes
    how: Conversion
    redactor: Redactor | None
    account: Account = field(default_factory=Account)
    tools: _Tools = field(default_factory=_Tools)
    ended: Counter[str] = field(default_factory=Counter)
    truncated: int = 0
    ids: Names = field(default_factory=Names)
    logged_ids: set[str] = field(default_factory=set)  # as the logs have them
    tasks: _Tasks = field(default_factory=_Tasks)
    read: set[bytes] = field(default_factory=set)  # what identifies every episode
    steps: int = 0

    def episodes(self, file: LogFile, advance: Advance) -> Iterator[Trajectory]:
        for units in file.episodes(self.account, advance):
            for found in file.form.read(units, self.account):
                shown = replace(found, id=self.redactor.name(found.id), task=self.redactor.name(found.task)) if self.redactor else found
                wanted = shown.id.replace("/as/", "/") or f"episode-{len(self.ids.taken) + 1}"
                success = self.outcomes.of(found, self.ids.next(wanted))  # not as redacted: ids and scores are as the user knows them
                cut = self.truncations.of(found, wanted)
                shown = replace(shown, truncated=found.truncated if cut is None else cut)
                made = trajectory(shown, self.how, success, self.account, self.redactor)
                if made is None:
                    continue
                self.logged_ids.add(found.id)
                own = bool(found.id) and found.id != found.task  # records that name a task and nothing else may be trials that went alike
                if own and (whole := _digest(wanted, made)) in self.read:
                    self.account.drop("episodes that were given before, with the same id, steps and outcome", 1, wanted)
                    continue
                self.read |= {whole} if own else set()
                made = self._named(made, wanted, file.path, named=bool(found.task))
                if self.redactor:
                    self.redactor.count(_texts(made))
                calls, tools = [call for turn in made.transitions for call in calls_of(turn.action)], renamed(shown.tools)
                if tools:
                    known = {tool.name for tool in tools} | {RESPOND}
                    self.account.note("calls of tools that the log does not define", sum(call.name not in known for call in calls))
                self.tools.add(tools, calls)
                self.ended["unknown" if success is None else "success" if success else "failure"] += 1
                self.truncated += made.truncated
                self.steps += len(made.turns)
                yield made

    def _named(self, made: Trajectory, wanted: str, file: Path, *, named: bool) -> Trajectory:
        """The episode under an id that no other has: one given twice gets a number."""
        name, task = self.ids.take(wanted), made.task.id or wanted
        self.account.note("ids that were given twice, numbered", int(name != wanted), wanted)
        task = self.tasks.take(file, wanted, task, made.task.instruction) if named else self.tasks.names.take(task)
        return replace(made, id=name, task=replace(made.task, id=task))


def _texts(episode: Trajectory) -> Iterator[str]:
    """What an episode shows, each text once."""
    yield from {episode.id, episode.task.id}
    yield episode.task.instruction
    for step in episode.transitions:
        yield step.action
        yield from (line for line in latest_turn(step.next_state).split("\n") if not line.startswith(FURTHER))  # whose calls are actions


def _digest(name: str, episode: Trajectory) -> bytes:
    """Of what an episode shows and how it ended: 16 bytes."""
    shown = [(step.action, step.next_state.text) for step in episode.transitions]
    text = json.dumps([name, episode.task.id, episode.task.instruction, shown, episode.success, episode.scored, episode.truncated])
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def import_logs(
    paths: Sequence[Path],
    out: Path | None,
    *,
    form: str = "auto",
    outcomes: Outcomes | None = None,
    truncations: Outcomes | None = None,
    env: str = "tools",
    system: bool = False,
    redact: bool = True,
) -> dict[str, Any]:
    """Read the files and, unless `out` is None, write the episodes, and their tools beside them. Returns the account.

    UsageError for a file in no known format or in another one than `form`, and where no episode is found at all.
    """
    given: LogFormat | None = None if form == "auto" else chosen(form)
    files = [open_log(path, given) for path in paths]
    if out is not None and any(out.exists() and path.samefile(out) for path in paths):
        raise UsageError(f"'{out}' is one of the logs. Give another path to --out.")
    work = _Import(outcomes or Outcomes(), truncations or Outcomes(), Conversion(env, system), Redactor() if redact else None)
    with progress(sum(path.stat().st_size for path in paths), "importing, bytes") as advance:
        with writing_lines(out) if out is not None else nullcontext() as write:
            for file in files:
                for made in work.episodes(file, advance):
                    if write is not None:
                        write(dumps(trajectory_to_json(made)))
            if not work.ids.taken:
                reasons = ", ".join(f"{reason}: {n}" for reason, n in work.account.dropped.items())
                raise UsageError(f"No episode was found in {', '.join(map(str, paths))} ({reasons or 'the files are empty'}).")
            _require_known_ids(work)
    tools = [tool.to_json() for tool in work.tools.found()]
    return _report(work, files, tools, out, None if out is None else write_tools(tools, tools_beside(out)))


def _require_known_ids(work: _Import) -> None:
    """UsageError where outcomes are by id and no episode has one of the ids: all would be failures."""
    if work.outcomes.ids is not None and not (listed := _listed(work.outcomes)) & (work.ids.taken | work.logged_ids):
        raise UsageError(
            f"No episode has one of the {counted(len(listed), 'id')} of --success-ids, such as '{min(listed):.80}'; the log's are such as "
            f"'{min(work.logged_ids | work.ids.taken):.80}'. {IDS_EXPECTED}"
        )


def _listed(outcomes: Outcomes) -> frozenset[str]:
    return (outcomes.ids or frozenset()) | (outcomes.failures or frozenset())


def _report(
    work: _Import, files: Sequence[LogFile], tools: list[dict[str, Any]], out: Path | None, written: WrittenTools | None
) -> dict[str, Any]:
    account, ended = work.account, {name: work.ended[name] for name in ("success", "failure", "unknown")}
    return {
        "episodes": len(work.ids.taken), "steps": work.steps, "dropped": dict(account.dropped), "outcomes": ended,
        "truncated": work.truncated, "tools": {tool["name"]: work.tools.calls[tool["name"]] for tool in tools},
        "redacted": dict(work.redactor.counts) if work.redactor else {},
        "notes": dict(account.notes), "places": dict(account.places), "formats": {str(file.path): file.form.name for file in files},
        "inferred_tools": [tool["name"] for tool in tools if tool["name"] not in work.tools.defined],
        "warnings": _warnings(ended, work, written), "out": None if out is None else str(out),
        "tools_file": None if written is None else str(written.path),
    }  # fmt: skip


def _warnings(ended: dict[str, int], work: _Import, written: WrittenTools | None) -> list[str]:
    found, dropped, redactor = list[str](), work.account.dropped, work.redactor
    if n := dropped[UNANSWERED]:
        lost = counted(dropped[HOLLOW], "episode")
        found.append(
            f"{counted(n, 'call has', 'calls have')} no result and {'is' if n == 1 else 'are'} left out, with {lost} that lost most calls. "
            "A result belongs to the call whose id it gives (`tool_call_id` of a tool message, `tool_use_id`)."
        )
    found += written.warnings() if written else []
    if differing := sorted(name for name, known in work.tools.defined.items() if len(known) > 1):
        found.append(
            f"The logs define {counted(len(differing), 'tool')} in several ways ({', '.join(differing[:5])}): arguments may have the form "
            "that any definition gives them, and those are required that all require."
        )
    if apart := sorted(work.tasks.apart):
        found.append(
            f"{counted(len(apart), 'task id')} ({', '.join(apart[:5])}) came again, in another file or with an episode's id that had been "
            "there, and with another instruction: taken for other tasks, with a number behind the id. Where they are the same tasks, put "
            "their records into one file and give every episode an id of its own, so that held-out tasks are none that were learned."
        )
    if unknown := sorted(_listed(work.outcomes) - work.ids.taken - work.logged_ids):
        others = "count as failures" if work.outcomes.failures is None else "have no known outcome"
        some = ", ".join(unknown[:5])
        found.append(f"{counted(len(unknown), 'id')} of --success-ids no episode has: {some}. Episodes that are not named {others}.")
    if not work.tools.calls:
        found.append("No episode calls a tool: every action is a message to the user. `dreamgym init --env logs` takes actions as texts.")
    if n := ended["unknown"]:
        found.append(
            f"{counted(n, 'episode has', 'episodes have')} no known outcome. Such episodes teach the experience model states and no "
            f"reward, and the policy nothing. {work.outcomes.advice}"
        )
    if work.truncations.field and not work.truncations.known:
        found.append(f"No record says whether its episode was truncated. {work.truncations.advice}")
    if ended["success"] and not ended["failure"]:
        missing = "No episode is a known failure: an experience model cannot learn from these logs what fails."
        found.append(f"{missing} {work.outcomes.values}".rstrip())
    if ended["failure"] and not ended["success"]:
        found.append(f"No episode is a known success: there is nothing to start a policy from. {work.outcomes.values}".rstrip())
    if redactor and (n := sum(redactor.counts.values())):
        are = counted(n, "value is a placeholder", "values are placeholders")
        found.append(
            f"{are} now. A policy that learns from these episodes must see such values as placeholders when it acts; --no-redact "
            "keeps them."
        )
    return found
