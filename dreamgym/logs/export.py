"""Episodes as ATIF v1.8 trajectories or OpenAI messages, one a line. Results are as the states show them: shortened by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.envs.tools.conversation import CALL, EMPTY, FURTHER, START, USER, latest_turn, unescaped
from dreamgym.envs.tools.schemas import read_tools
from dreamgym.errors import UsageError, nearest
from dreamgym.logs.conversion import is_message
from dreamgym.logs.tools_file import tools_beside
from dreamgym.runs.episodes import LOGS, read_trajectories
from dreamgym.runs.files import dumps, writing_lines
from dreamgym.tool_calls import RESPOND, ToolCall, calls_of
from dreamgym.types import Trajectory, Transition

Schema = Mapping[str, Any]
Answer = tuple[str, list[ToolCall], list[str], str]
"""The agent's text, its calls, a result a call, and what the user said next."""


def export_episodes(source: Path, out: Path, form: str, *, tools: Sequence[Schema] | None = None) -> int:
    """Write the episodes of a file, or the logs of a run, each with the schemas of the tools, and return how many there are.

    Args:
        tools: The agent's tools, each {"name", "description", "parameters"}. None: those of the file beside a file of episodes
            (`episodes.tools.json`), if there is one.
    """
    if form not in FORMS:
        raise UsageError(f"No export format '{form}'.{nearest(form, FORMS)} Known: {', '.join(FORMS)}.")
    file = source / LOGS if source.is_dir() else source
    episodes = read_trajectories(file)
    if out.exists() and out.samefile(file):
        raise UsageError(f"'{out}' holds the episodes that are exported. Give another path to --out.")
    if tools is None:
        beside = tools_beside(file)
        tools = [tool.to_json() for tool in read_tools(beside)] if beside.is_file() else []
    schemas = [{"type": "function", "function": tool} for tool in tools]
    with writing_lines(out) as write:
        for episode in episodes:
            write(dumps(FORMS[form](episode, schemas)))
    return len(episodes)


def openai(episode: Trajectory, schemas: Sequence[Schema] = ()) -> dict[str, Any]:
    """A record with `messages`, `truncated` and, where they are known, `tools`, `success` and `reward`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text} for text in _opening(episode)]
    for i, transition in enumerate(episode.transitions):
        text, calls, results, user_text = _answer(transition)
        named = [f"call_{i}_{j}" for j in range(len(calls))]
        functions = [
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for name, call in zip(named, calls, strict=True)
        ]
        messages.append({"role": "assistant", "content": text or None} | ({"tool_calls": functions} if calls else {}))
        messages += [{"role": "tool", "tool_call_id": name, "content": result} for name, result in zip(named, results, strict=True)]
        messages += [{"role": "user", "content": user_text}] if user_text else []
    known = {"tools": schemas} if schemas else {}
    return {"id": episode.id, "task_id": episode.task.id, "messages": messages} | known | _outcome(episode)


def atif(episode: Trajectory, schemas: Sequence[Schema] = ()) -> dict[str, Any]:
    """An ATIF v1.8 trajectory; the outcome and `truncated`, for which ATIF has no field, are in `extra`."""
    steps: list[dict[str, Any]] = [{"source": "user", "message": text} for text in _opening(episode)]
    for i, transition in enumerate(episode.transitions):
        text, calls, results, user_text = _answer(transition)
        step: dict[str, Any] = {"source": "agent", "message": text}
        if calls:
            named = [f"call_{i}_{j}" for j in range(len(calls))]
            step["tool_calls"] = [
                {"tool_call_id": name, "function_name": call.name, "arguments": _object(call)}
                for name, call in zip(named, calls, strict=True)
            ]
            found = zip(named, results, strict=True)
            step["observation"] = {"results": [{"source_call_id": name, "content": result} for name, result in found]}
        steps += [step, *([{"source": "user", "message": user_text}] if user_text else [])]
    known = {"tool_definitions": schemas} if schemas else {}
    return {
        "schema_version": "ATIF-v1.8", "session_id": episode.id, "trajectory_id": episode.id,
        "agent": {"name": episode.behaviour or "agent", "version": str(episode.policy_version)} | known,
        "steps": [{"step_id": i, **step} for i, step in enumerate(steps, start=1)], "extra": _outcome(episode),
    }  # fmt: skip


FORMS: Mapping[str, Callable[[Trajectory, Sequence[Schema]], dict[str, Any]]] = {"atif": atif, "openai": openai}


def _outcome(episode: Trajectory) -> dict[str, Any]:
    found: dict[str, Any] = {"truncated": episode.truncated}
    return found | ({"success": episode.success, "reward": episode.total_reward} if episode.scored else {})


def _opening(episode: Trajectory) -> list[str]:
    """The instruction, and what the agent sees before its first action, unless that is a conversation without calls."""
    first = episode.transitions[0].state.text if episode.transitions else START
    return [episode.task.instruction, *([first] if first.strip() and first != START else [])]


def _answer(transition: Transition) -> Answer:
    """An action that is no tool call is the agent's text, and the state after it what it is told."""
    try:
        calls = calls_of(transition.action)
    except UsageError:
        return transition.action, [], [], latest_turn(transition.next_state)
    if not transition.next_state.text.partition("\n")[0].startswith((CALL, "(")):
        return "", calls, [transition.next_state.text, *[""] * (len(calls) - 1)], ""
    results, user_text = _results(latest_turn(transition.next_state), len(calls))
    arguments = calls[0].arguments
    if len(calls) == 1 and calls[0].name == RESPOND and isinstance(arguments, Mapping) and is_message(arguments) and not results[0]:
        return arguments["content"], [], [], user_text
    return "", calls, results, user_text


def _results(turn: str, n: int) -> tuple[list[str], str]:
    """What each call of a turn returned, and what the user said, from the lines of a state."""
    results, user_text = [list[str]()], ""
    for line in turn.split("\n"):
        if line.startswith(FURTHER) and len(results) < n:
            results.append([])
        elif line.startswith(USER):
            user_text = line.removeprefix(USER)
        else:
            results[-1].append(unescaped(line))
    whole = [[] if lines == [EMPTY] else lines for lines in results]
    return ["\n".join(lines) for lines in (*whole, *[[]] * (n - len(whole)))], user_text


def _object(call: ToolCall) -> dict[str, Any]:
    return {"text": call.arguments} if isinstance(call.arguments, str) else dict(call.arguments)


def _arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else dumps(dict(call.arguments))
