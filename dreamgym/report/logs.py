"""What a run learned from recorded episodes: tools, where their arguments come from, how episodes end, and what the dream only guesses.

Nothing here knows an environment. Argument values are looked for, word for word, in the texts that came before the call.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.evals import held_out, next_actions
from dreamgym.evals.recorded_actions import sentence
from dreamgym.report.data import Decided, Run, block, decided, rate
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import Rate, wilson
from dreamgym.tool_calls import RESPOND, ToolCall, calls_of
from dreamgym.types import Trajectory

SOURCES = {"instruction": "dream", "an earlier state": "teal", "constant": "gold", "unseen": "bad"}
"""Where an argument's value is found first, with the colour of its bar. `constant`: in neither text, but given in another episode too."""
HELD_OUT = {
    "state_exact_valid": "next states exactly right",
    "state_exact_generated": "the same, of steps that only the model answers",
    "state_exact_knowable": "the same, of steps whose answer the history or the logs show",
    "false_success": "real failures called a success",
    "false_failure": "real successes called a failure",
    "false_failure_at_most": "the same, if those left out count too",
    "masked_share": "ends left out by the guard",
    "false_end": "steps that end in the dream and went on",
}
"""Measures of held-out recorded steps, as the page names them."""
PLAIN = re.compile(r"([^\s\[(]+)(?:[\[(](.*)[\])])?", re.DOTALL)


@dataclass(frozen=True)
class ToolUse:
    """One tool, or one kind of action."""

    name: str
    calls: int
    episodes: int
    success_with: Rate | None  # of the episodes with a known outcome that use it
    success_without: Rate | None
    sources: Mapping[str, float]  # shares of its argument values, by the keys of SOURCES; empty without arguments
    last: int  # episodes that end with it
    exact: Rate | None  # held-out next states exactly right, with guard


@dataclass(frozen=True)
class FromLogs:
    """The section of a run without an environment."""

    sentences: Sequence[str]
    tools: Sequence[ToolUse]
    decided: Sequence[Decided]  # of the dreams of the trained policy; exactness on held-out steps
    beside_control: str  # model and control on held-out steps in a sentence; "" before they are measured
    held_out: Sequence[tuple[str, tuple[Rate | None, ...]]]  # measures by name: with guard, without guard, of the control


def read(run: RunDir, found: Run) -> FromLogs | None:
    """The section; None for a run with an environment, or before its logs are read."""
    if block(found.phases, "logs").get("has_env", True):
        return None
    episodes = [episode for episode in run.read_episodes("logs") if episode.turns]
    fidelity = block(found.phases, "fidelity")
    guarded, control = block(fidelity, "held_out", "with_guard"), block(fidelity, "no_model", "with_guard")
    exact = {name: rate(value) for name, value in block(guarded, "by_action").items()}
    tools = tool_uses(episodes, exact)
    dreamed = block(found.phases, "uncertified", "dream")
    shown = decided(block(dreamed, "decided_by"), block(guarded, "decided_by"))
    sides = (guarded, block(fidelity, "held_out", "without_guard"), control)
    rows = [(label, tuple(rate(side.get(name)) for side in sides)) for name, label in HELD_OUT.items()] if guarded else []
    beside = ""
    with suppress(KeyError, TypeError, AttributeError):  # the page shows what there is
        beside = held_out.sentence(fidelity) if fidelity else ""
    texts = _sentences(episodes, tools, block(found.phases, "recorded_replay"), dreamed, beside)
    with suppress(KeyError, TypeError, AttributeError):
        texts += next_actions.sentences(found.phases["next_actions"])
    return FromLogs(texts, tools, shown, beside, rows)


def tool_uses(episodes: Sequence[Trajectory], exact: Mapping[str, Rate | None]) -> list[ToolUse]:
    """Tools by how often they are called."""
    calls, last, sources = Counter[str](), Counter[str](), defaultdict[str, Counter[str]](Counter)
    used = [{call.name for step in episode.transitions for call in _calls(step.action)} for episode in episodes]
    given = defaultdict[tuple[str, str, str], set[int]](set)
    for i, episode in enumerate(episodes):
        for step in episode.transitions:
            for call in _calls(step.action):
                calls[call.name] += 1
                for name, value in _arguments(call):
                    given[call.name, name, value].add(i)
        last[_calls(episode.transitions[-1].action)[-1].name] += 1
    for episode in episodes:
        seen = ""
        for step in episode.transitions:
            seen += "\n" + step.state.text
            for call in _calls(step.action):
                for name, value in _arguments(call):
                    constant = len(given[call.name, name, value]) > 1
                    sources[call.name][_source(value, episode.task.instruction, seen, constant)] += 1
    return [
        ToolUse(
            name,
            n,
            sum(name in names for names in used),
            _success([one for one, names in zip(episodes, used, strict=True) if name in names]),
            _success([one for one, names in zip(episodes, used, strict=True) if name not in names]),
            {source: sources[name][source] / sources[name].total() for source in SOURCES} if sources[name] else {},
            last[name],
            exact.get(name),
        )
        for name, n in calls.most_common()
    ]


def _source(value: str, instruction: str, seen: str, constant: bool) -> str:
    word = re.compile(rf"(?<!\w){re.escape(value)}(?!\w)")
    return "instruction" if word.search(instruction) else "an earlier state" if word.search(seen) else "constant" if constant else "unseen"


def _calls(action: str) -> list[ToolCall]:
    """The calls of an action; an action that is none, such as `click[red]`, is one call of its first word. At least one."""
    try:
        if found := calls_of(action):
            return found
    except UsageError:
        pass
    match = PLAIN.match(action.strip())
    name = re.sub(r"[\s()\"'=,]", "", match[1]) if match else ""
    return [ToolCall(name or "empty", {"": match[2]} if match and match[2] else {})]


def _arguments(call: ToolCall) -> list[tuple[str, str]]:
    """Names and values as texts; none of a message to the user, which is free text."""
    if call.name == RESPOND or isinstance(call.arguments, str):
        return []
    values: Mapping[str, Any] = call.arguments
    texts = [(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for name, value in values.items()]
    return [(name, text) for name, text in texts if text]


def _success(episodes: Sequence[Trajectory]) -> Rate | None:
    known = [episode.success for episode in episodes if episode.scored]
    return wilson(sum(known), len(known)) if known else None


def _sentences(
    episodes: Sequence[Trajectory],
    tools: Sequence[ToolUse],
    replay: Mapping[str, Any],
    dreamed: Mapping[str, Any],
    beside_control: str,
) -> list[str]:
    wins, unknown = sum(one.success for one in episodes), sum(not one.scored for one in episodes)
    cut = sum(one.truncated for one in episodes)
    fails = len(episodes) - wins - unknown
    texts = [
        f"The run learned from {len(episodes)} recorded episodes: {wins} succeed, {fails} fail, {unknown} have no "
        f"known outcome, {cut} were cut off. They call {len(tools)} tools."
    ]
    if beside_control:
        texts.append(beside_control)
    if replay:
        texts.append(sentence(replay))
    if success := rate(dreamed.get("uncertified_dream_success")):
        texts.append(
            f"The trained policy succeeds in {100 * success.value:.1f} % of {success.n} dreams. This is uncertified: there is no "
            f"environment "
            "that could confirm it."
        )
    elif dreamed:
        texts.append("No dream of the trained policy came to an end that counts, so there is not even an uncertified success.")
    return texts
