"""Recorded episodes of AgentLab and BrowserGym as logs of the web: `dreamgym web import`.

Two JSON forms are read: AgentLab's `tape.json` (https://github.com/ServiceNow/AgentLab, `agentlab/agents/tapeagent`), and a list of
BrowserGym's steps, each with `obs`, `action`, `reward`, `terminated`, `truncated`. Observations hold an accessibility tree: as an object
(`axtree_object`), or as AgentLab's agents keep it, as text (`axtree_txt`). States are those of `page_text`, and BrowserGym's actions are
written as WebArena's. An action without a counterpart leaves its episode out, with the reason. AgentLab's pickles are not opened: nothing
is unpickled, and no path or address in a record is followed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from dreamgym.envs.web.actions import WebAction, canonical, parse
from dreamgym.envs.web.page_text import DONE, MAX_OPTION, PageText, clean, page_text
from dreamgym.envs.web.rules import elements
from dreamgym.errors import UsageError, explain_errors
from dreamgym.runs.episodes import write_trajectories
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

FILES = ("tape.json", "steps_info.json")
"""What is looked for in folders."""
TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
NODE = re.compile(rf"^(\t*)(?:\[([^\]\s]+)\] )?(\w+)(?: ({TEXT}))?(?: value=({TEXT}|[^,]*))?((?:, .*)?)$")
MARKS = ("clickable", "visible", "som")
"""What BrowserGym adds to the properties of a node."""
PROPERTY = re.compile(rf", (\w+)(?:=({TEXT}|\([^)]*\)|[^,]*))?")


@dataclass
class Account:
    """What was read, and what was left out and why."""

    files: int = 0
    episodes: int = 0
    successes: int = 0
    steps: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    """A file for each reason."""

    def leave_out(self, reason: str, file: Path) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        self.examples.setdefault(reason, str(file))


class Unusable(ValueError):
    """Why an episode is left out."""


def import_recorded(paths: Sequence[Path], out: Path | None, *, max_tokens: int = 1500) -> Account:
    """Read the episodes of files and folders, and write them to `out`. UsageError where none can be read."""
    account, found = Account(), list[Trajectory]()
    for file in _files(paths):
        account.files += 1
        try:
            found.append(episode(_json(file), file.parent.name if file.name in FILES else file.stem, max_tokens=max_tokens))
        except Unusable as error:
            account.leave_out(str(error), file)
    tasks = {one.task.id: one.task for one in reversed(found)}  # the first of each name
    taken = set[str]()
    for i, one in enumerate(found):  # folders of several studies may share a name
        names = (f"{one.id}-{n}" if n > 1 else one.id for n in count(1))
        own = next(name for name in names if name not in taken and (name == one.id or name not in tasks))
        taken.add(own)
        task = one.task if one.task.instruction == tasks[one.task.id].instruction else replace(one.task, id=own)
        found[i] = replace(one, id=own, task=task)
    account.episodes, account.successes, account.steps = len(found), sum(t.success for t in found), sum(len(t.turns) for t in found)
    if not found:
        why = "; ".join(f"'{file}': {reason}" for reason, file in account.examples.items())
        raise UsageError(f"No episode could be read. {why}. Expected AgentLab's tape.json, or BrowserGym's steps as a JSON list.")
    if out is not None:
        write_trajectories(out, found)
    return account


def episode(record: Any, name: str, *, max_tokens: int = 1500) -> Trajectory:
    """One recorded episode. Unusable for what is none."""
    steps, terminated = _steps(record)
    if not steps or not any(step.get("action") is not None for step in steps):
        raise Unusable("it has no step with an action")
    pages = [_page(step.get("obs"), max_tokens) for step in steps]
    task = Task(f"recorded/{name}", _instruction(steps[0]["obs"]), "web")
    acted = [i for i, step in enumerate(steps) if step.get("action") is not None]
    # BrowserGym's reward stands beside what the action led to
    total = sum(_number(steps[i + 1].get("reward")) for i in acted if i + 1 < len(steps))
    actions: dict[int, str] = {}
    for i in reversed(acted):  # from the end, where the last action is that is no wait
        if (action := _action(str(steps[i]["action"]), pages[i], last=not actions)) is not None:
            actions[i] = action
    answered = bool(actions) and actions[max(actions)].startswith("stop ")
    truncated = not (answered if terminated is None else terminated)
    turns: list[Turn] = []
    for i, after in pairwise([*reversed(actions), len(pages) - 1]):  # after a wait, the next state is the page that was waited for
        ended = len(turns) == len(actions) - 1 and not truncated
        next_state = Observation(DONE if ended else pages[after].text)
        reward = 1.0 if ended and total >= 1.0 else 0.0
        turns.append(Turn(Transition(Observation(pages[i].text), actions[i], next_state, reward, ended)))
    if not turns:
        raise Unusable("it has no step with an action")
    return Trajectory(f"recorded/{name}", task, "demo", tuple(turns), bool(turns[-1].transition.reward), truncated, behaviour="recorded")


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(file for name in FILES for file in path.rglob(name))
            if not found:
                pickled = next(path.rglob("step_*.pkl.gz"), None)
                why = (
                    f" It holds pickles such as '{pickled.name}', which are not opened: save the episodes as tape.json." if pickled else ""
                )
                raise UsageError(f"'{path}' holds no {' or '.join(FILES)}.{why}")
            yield from found
        else:
            yield path


def _json(file: Path) -> Any:
    with explain_errors(file):
        data = file.read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unusable("it is no JSON document") from error


def _steps(record: Any) -> tuple[list[dict[str, Any]], bool | None]:
    """(steps of an episode, whether the world ended it; None where the record says neither that nor that it was cut at the horizon)."""
    if isinstance(record, dict) and isinstance(record.get("steps"), list):
        return _tape(record)
    if isinstance(record, dict) and "obs" in record and "action" in record:
        raise Unusable("it holds one step and not an episode, as BrowserGym's steps_info.json does; save a tape or the list of steps")
    if not isinstance(record, list) or not all(isinstance(step, dict) and isinstance(step.get("obs"), dict) for step in record):
        raise Unusable("it is neither a tape nor a list of steps with observations")
    return record, _terminated(record[-1] if record else {})


def _terminated(end: Mapping[str, Any]) -> bool | None:
    """Whether the world ended an episode, by what stands beside its end; None where nothing does, as in a recording that was left."""
    return True if end.get("terminated") else False if end.get("truncated") else None


def _tape(record: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool | None]:
    """The steps of a tape: an observation, and after it the thought and the action that it led to."""
    steps: list[dict[str, Any]] = []
    for one in record["steps"]:
        kind, content = (one.get("kind"), one.get("content")) if isinstance(one, dict) else ("", "")
        if kind == "dict_observation":
            try:
                steps.append({"obs": json.loads(str(content))})
            except (ValueError, TypeError, RecursionError) as error:
                raise Unusable("an observation of its tape is no JSON") from error
        elif kind == "assistant" and steps:
            steps[-1]["action"] = content
    whole = _table(record.get("metadata"))
    if steps:
        end = {"obs": steps[-1]["obs"], "reward": whole.get("reward")}  # of the whole episode
        steps = [*steps, end] if "action" in steps[-1] else [*steps[:-1], end]
    if any(not isinstance(step["obs"], dict) for step in steps):
        raise Unusable("an observation of its tape is no object")
    return steps, _terminated(whole)


def _page(obs: Any, max_tokens: int) -> PageText:
    given = _table(obs)
    if isinstance(tree := given.get("axtree_object"), dict) and isinstance(tree.get("nodes"), list):
        raw = given
    elif isinstance(text := given.get("axtree_txt"), str) and text.strip():
        raw = tree_of(text) | {key: value for key, value in given.items() if key not in ("axtree_object", "extra_element_properties")}
    else:
        raise Unusable("an observation has no accessibility tree (axtree_object or axtree_txt)")
    try:
        return page_text(raw, max_tokens=max_tokens)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unusable("the accessibility tree of an observation is damaged") from error


def tree_of(text: str) -> dict[str, Any]:
    """`axtree_object`, `extra_element_properties` and `title` of a tree as text, as BrowserGym's `flatten_axtree_to_str` writes it.

    Lines that are no node are skipped."""
    nodes: list[dict[str, Any]] = []
    properties: dict[str, dict[str, Any]] = {}
    open_nodes: list[tuple[int, dict[str, Any]]] = []  # (depth, node) from the root down
    for line in text.split("\n"):
        match = NODE.match(line)
        if not match:
            continue
        depth, bid, role, name, value, rest = len(match[1]), match[2], match[3], match[4], match[5], match[6]
        given = {key: _literal(found) if found else True for key, found in PROPERTY.findall(rest)}
        node: dict[str, Any] = {
            "nodeId": str(len(nodes) + 1), "role": {"value": role}, "name": {"value": _literal(name) if name else ""}, "childIds": [],
            "properties": [{"name": key, "value": {"value": one}} for key, one in given.items() if key not in MARKS],
        }  # fmt: skip
        if value is not None:
            node["value"] = {"value": _literal(value)}
        if bid is not None:
            node["browsergym_id"] = bid
            seen = {"visibility": 1.0} if "visible" in given else {}
            properties[bid] = seen | {"clickable": "clickable" in given, "set_of_marks": "som" in given}
        while open_nodes and open_nodes[-1][0] >= depth:
            open_nodes.pop()
        if open_nodes:
            open_nodes[-1][1]["childIds"].append(node["nodeId"])
            node["parentId"] = open_nodes[-1][1]["nodeId"]
        open_nodes.append((depth, node))
        nodes.append(node)
    if ", visible" in text:  # then what is not marked so is not
        for known in properties.values():
            known.setdefault("visibility", 0.0)
    title = nodes[0]["name"]["value"] if nodes else ""
    return {"axtree_object": {"nodes": nodes}, "extra_element_properties": properties, "title": title}


def _instruction(obs: Mapping[str, Any]) -> str:
    goal = obs.get("goal") or obs.get("goal_object") or ""
    if isinstance(goal, list):
        goal = " ".join(str(part.get("text") or "") for part in goal if isinstance(part, dict))
    if not str(goal).strip():
        raise Unusable("its first observation has no goal")
    return " ".join(str(goal).split())


def _action(text: str, page: PageText, *, last: bool) -> str | None:
    """BrowserGym's action in our spelling; None for a wait. What is no action there keeps its words: nothing happened."""
    try:
        calls = [node.value for node in ast.parse(text.strip()).body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
        name, given = _call(calls[0]) if len(calls) == 1 else ("", [])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return canonical(text)
    if len(calls) != 1:
        if len(calls) > 1:
            raise Unusable("a step has several actions")
        return canonical(text)
    if name == "noop":
        return None
    if (made := _translated(name, given, page, last=last)) is None or parse(str(made)) is None:
        raise Unusable(f"the action {name} has no counterpart here with {len(given)} arguments such as these")
    return canonical(str(made))


def _call(node: ast.Call) -> tuple[str, list[Any]]:
    """The name and the arguments of a call, in the order in which they are written. ValueError for what is no plain call."""
    if not isinstance(node.func, ast.Name):
        raise ValueError
    return node.func.id, [ast.literal_eval(one) for one in (*node.args, *(word.value for word in node.keywords))]


def _translated(name: str, given: Sequence[Any], page: PageText, *, last: bool) -> WebAction | None:
    texts = [str(one) for one in given]
    number = next((n for n, bid in page.bids.items() if texts and bid == texts[0]), None)
    if name in ("click", "hover", "fill", "clear", "select_option", "press") and number is None:
        raise Unusable("the element of an action is not in its state")
    match name, texts:
        case ("click", [_]) | ("click", [_, "left"]) | ("click", [_, "left", "[]"]):
            return WebAction("click", number)
        case "hover", [_]:
            return WebAction("hover", number)
        case "fill", [_, text, *_]:
            return WebAction("type", number, text, enter=False)
        case "clear", [_]:
            return WebAction("type", number, "", enter=False)
        case "select_option", [_, option] if isinstance(given[1], str) or (isinstance(given[1], list) and len(given[1]) == 1):
            return WebAction("select", number, _option(option if isinstance(given[1], str) else str(given[1][0]), number, page))
        case ("press", [_, key]) | ("keyboard_press", [key]):
            return WebAction("press", text=key)
        case "goto", [url]:
            return WebAction("goto", text=url)
        case "scroll", [_, down]:
            return WebAction("scroll", text="up" if float(down) < 0 else "down")
        case (("go_back" | "go_forward" | "new_tab"), []):
            return WebAction(name)
        case "tab_close", []:
            return WebAction("close_tab")
        case "tab_focus", [tab]:
            return WebAction("tab_focus", int(tab))
        case ("send_msg_to_user", [text]) if last:
            return WebAction("stop", text=text)
        case "report_infeasible", [*_] if last:
            return WebAction("stop", text="N/A")
    return None


def _option(named: str, number: int | None, page: PageText) -> str:
    """An option as the state shows it. Unusable where the state shows all options and none is called so: Playwright takes its value too."""
    shown, options = clean(named, MAX_OPTION), elements(page.text)[number or 0].options
    if f"'{shown}'" not in options and not re.search(r", \d+ more$", options):
        raise Unusable("an option is not named as its state shows it")
    return shown


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
