"""What episodes must be to serve as logs, and the tools that go with them: `dreamgym train` and `dreamgym init` ask the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from dreamgym.envs.base import EnvSuite
from dreamgym.envs.tools import recorded_calls
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.errors import UsageError, counted
from dreamgym.experience.augmentation import RELABELLED
from dreamgym.tool_calls import RESPOND
from dreamgym.types import Trajectory

LACKING = 0.01
"""Share of the recorded calls whose tools may be unknown: an agent makes up the name of a tool now and then."""


def require_logs(episodes: Iterable[tuple[Path, Trajectory]], env: str) -> None:
    """UsageError for a dream, another environment than `env`, a name given twice, and a name that says it is a copy. Each with its file."""
    known = set[str]()
    for file, episode in episodes:
        if episode.task.env != env:
            raise UsageError(f"'{file}' holds an episode of '{episode.task.env}', and the run is of '{env}'. Set env.name.")
        if episode.source == "dream":
            raise UsageError(f"'{file}' holds a dream, '{episode.id}'. Logs are real: leave out what an experience model made up.")
        if episode.id in known:
            raise UsageError(f"Two logged episodes are called '{episode.id}' (the second in '{file}'). Give every one its own id.")
        if RELABELLED in episode.id:
            raise UsageError(
                f"A logged episode is called '{episode.id}' (in '{file}'), and '{RELABELLED}' marks our own copies. Rename it."
            )
        known.add(episode.id)


def tools_lacking(episodes: Sequence[Trajectory], suite: EnvSuite) -> Counter[str]:
    """The recorded tools that the suite's file of tools lacks, with how often each is called: a dream refuses their calls. UsageError where
    they are more than the share `LACKING` of all calls."""
    rules = suite.rules
    calls = Counter(call.name for call in recorded_calls(episodes)) if isinstance(rules, ToolRules) else Counter[str]()
    known = {RESPOND, *rules.schemas} if isinstance(rules, ToolRules) else set()
    lacking = Counter({name: n for name, n in calls.items() if name not in known})
    if lacking.total() > LACKING * calls.total():
        files = ", ".join(f"'{file}'" for file in suite.input_files.get("tools", ())) or "The suite"
        raise UsageError(
            f"{files} lacks {listed(lacking)}, which the episodes call: a dream would refuse these calls. Add the tools to the file. "
            "Importing the logs again, with the same --out, adds those that are missing."
        )
    return lacking


def listed(tools: Counter[str]) -> str:
    """`2 tools (cancel: 3 calls, refund: 1 call)`."""
    return f"{counted(len(tools), 'tool')} ({', '.join(f'{name}: ' + counted(n, 'call') for name, n in tools.most_common())})"
