"""Episodes as JSON Lines: what a run writes, what `logs.files` reads, and what an experience model's teacher annotates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from dreamgym.errors import InvariantError, UsageError, reason_of
from dreamgym.runs.files import dumps, is_number, read_given_jsonl, scalar, write_atomic
from dreamgym.types import REAL_STEP, Completion, Observation, Source, StepInfo, Task, Trajectory, Transition, Turn, Verdict

LOGS = "episodes/logs.jsonl"
TURN, INFO, COMPLETION = ({field.name for field in fields(kind)} for kind in (Transition, StepInfo, Completion))
TUPLE = "__tuple__"  # in the free-form `goal`, a tuple is written {"__tuple__": [...]}, so that it comes back as one


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], *, completions: bool = True) -> None:
    """Write episodes to a file of their own, in the format of a run's, replacing it whole."""
    write_atomic(path, lines_of(trajectories, completions))


def read_trajectories(path: Path) -> list[Trajectory]:
    """The episodes of a file that somebody names. UsageError, with the line, for whatever is not one: nothing is left out silently."""
    expected = f"a JSON Lines file of episodes, such as RUN/{LOGS}"
    episodes = [episode_from_json(record, number, path) for number, record in read_given_jsonl(path, expected)]
    if not episodes:
        raise UsageError(f"'{path}' holds no episode. Give {expected}.")
    return episodes


def trajectory_to_json(trajectory: Trajectory, *, completions: bool = True) -> dict[str, Any]:
    """A trajectory as plain JSON values. `trajectory_from_json` gives an equal one back, but for completions left out."""
    task = trajectory.task
    return {
        **_flat(trajectory, "task", "turns"),
        "task": {**_flat(task, "goal", "parents"), "goal": _freeze(task.goal), "parents": list(task.parents)},
        "turns": [_turn_to_json(turn, completions) for turn in trajectory.turns],
    }


def trajectory_from_json(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory that `trajectory_to_json` wrote. TypeError or ValueError for values that no trajectory has."""
    task = record["task"]
    found = Trajectory(
        **{
            **record,
            "task": Task(**{**task, "goal": _thaw(task["goal"]), "parents": tuple(task["parents"])}),
            "turns": tuple(_turn_from_json(turn) for turn in record["turns"]),
        }
    )
    task = found.task
    _require(str, id=found.id, behaviour=found.behaviour, task_id=task.id, instruction=task.instruction, env=task.env, source=task.source)
    _require(bool, success=found.success, truncated=found.truncated, scored=found.scored)
    if found.source not in get_args(Source):
        raise ValueError(f"source is {found.source!r}, and not one of {', '.join(get_args(Source))}")
    if found.success and not found.turns:
        raise ValueError("it succeeds without a turn")
    if found.success and not found.scored:
        raise ValueError("it succeeds, and its outcome is unknown")
    return found


def _require(kind: type, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}, and not {kind.__name__}")


def episode_from_json(record: Any, number: int, path: Path) -> Trajectory:
    try:
        return trajectory_from_json(record)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, UsageError) as error:
        raise UsageError(
            f"Line {number} of '{path}' is no episode: {reason_of(error)}. Expected one such as a run writes to {LOGS}. `dreamgym import` "
            "makes episodes of an agent's logs."
        ) from error


def lines_of(trajectories: Iterable[Trajectory], completions: bool) -> str:
    return "".join(dumps(trajectory_to_json(t, completions=completions)) + "\n" for t in trajectories)


def _turn_to_json(turn: Turn, completions: bool) -> dict[str, Any]:
    transition, completion = turn.transition, turn.completion
    record = {
        **_flat(transition, "state", "next_state", "info"),
        "state": transition.state.text,
        "next_state": transition.next_state.text,
        "info": _info_to_json(transition.info),
    }
    if completions and completion is not None:
        sequences = {name: list(getattr(completion, name)) for name in ("prompt_ids", "ids", "logprobs")}
        record["completion"] = {**_flat(completion, *sequences), **sequences}
    return record


def _info_to_json(info: StepInfo) -> dict[str, Any]:
    """What is not as in every real step."""
    changed = {name: value for name, value in _flat(info, "neighbours", "verdict").items() if value != getattr(REAL_STEP, name)}
    if info.neighbours:
        changed["neighbours"] = list(info.neighbours)
    return changed | ({"verdict": {"kind": info.verdict.kind, "reasons": list(info.verdict.reasons)}} if info.verdict else {})


def _turn_from_json(record: Mapping[str, Any]) -> Turn:
    values = dict(record)
    if unknown := (values.keys() - TURN - {"completion"}) | (values["info"].keys() - INFO):
        raise ValueError(f"a turn has '{min(unknown)}': another version of dreamgym wrote it")
    completion, info, verdict = values.pop("completion", None), values["info"], values["info"].get("verdict")
    values["state"], values["next_state"] = Observation(values["state"]), Observation(values["next_state"])
    verdict = None if verdict is None else Verdict(verdict["kind"], tuple(verdict["reasons"]))
    values["info"] = StepInfo(**info | {"neighbours": tuple(info.get("neighbours", ())), "verdict": verdict})
    if completion is not None:
        if unknown := completion.keys() - COMPLETION:
            raise ValueError(f"a completion has '{min(unknown)}': another version of dreamgym wrote it")
        sampled: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in completion.items()}
        completion = Completion(**sampled)
    texts = {name: values[name].text for name in ("state", "next_state")}
    _require(str, **texts, action=values["action"], reasoning=values["info"].reasoning)
    _require(bool, terminated=values["terminated"])
    if not is_number(values["reward"]):
        raise ValueError(f"reward is {str(values['reward'])[:30]!r}, and not a finite number")
    return Turn(Transition(**values), completion)


def _flat(record: Any, *without: str) -> dict[str, Any]:
    """The fields of a dataclass by name, but for those that need care."""
    return {field.name: scalar(getattr(record, field.name)) for field in fields(record) if field.name not in without}


def _freeze(value: Any) -> Any:
    """A free-form value as JSON that `_thaw` turns back into an equal one."""
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str) or key == TUPLE]:
            raise InvariantError(f"Keys of a goal must be strings other than '{TUPLE}' to survive JSON, got {bad[0]!r}.")
        return {key: _freeze(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [_freeze(item) for item in value]}
    if isinstance(value, list):
        return [_freeze(item) for item in value]
    return scalar(value)


def _thaw(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(_thaw(item) for item in value[TUPLE]) if value.keys() == {TUPLE} else {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, list) else value
