"""A toy world whose dynamics are known exactly: a corridor of rooms, a door in each, and sometimes a key to fetch first.

A state lists where the agent is and what can be done there:

    room 2 of 6
    you carry the key
    [left] [right] [open]

Opening a door ends the episode, with reward 1 in the room the task names (and with its key, where it asks for one), else 0. The
instruction and the state together are Markov, so a model that errs here has no excuse.
Splits share no task, though they do share rooms: there are too few of them to hold any out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from dreamgym.bracket_actions import ELEMENT
from dreamgym.config import Config, build
from dreamgym.envs.base import EnvSuite, TextRules, check_split
from dreamgym.errors import UsageError
from dreamgym.types import Action, Memory, Observation, Task, Transition, Verdict

ACTIONS: tuple[Action, ...] = ("left", "right", "take", "open")
SHARES: Mapping[str, tuple[float, float]] = {"train": (0.0, 0.6), "dev": (0.6, 0.8), "test": (0.8, 1.0)}
MIX: Mapping[str, float] = {"expert": 0.2, "noisy": 0.4, "random": 0.2, "invalid": 0.2}
INSTRUCTION = re.compile(
    r"start in room (?P<start>[1-9]\d*), (?:take the key in room (?P<key>[1-9]\d*), )?go to room (?P<target>[1-9]\d*) and open the door"
)
ROOM = re.compile(r"room ([1-9]\d*) of ([1-9]\d*)")
KEY_HERE, KEY_HELD, OPENED = "a key lies here", "you carry the key", "the door is open"
GARBAGE: tuple[Action, ...] = ("jump", "open the window", "go to room 3", "click[open]", "up", "take lamp", "lef", "right right", "wait")


class CorridorConfig(Config):
    """How long the corridor is and how slippery."""

    length: int = Field(6, ge=3, le=99)
    """Number of rooms."""
    keys: bool = True
    """Whether some tasks ask for a key to be fetched first."""
    slip: float = Field(0.0, ge=0.0, lt=1.0)
    """Probability that a step left or right leads nowhere."""
    seed: int = 0
    """Names the split of the tasks and the slips."""
    max_steps: int | None = Field(None, ge=1)
    """Horizon of an episode; three times the length when not given."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a task asks: the rooms of the start, of the door to open, and of the key (0: none is needed)."""

    start: int
    target: int
    key: int = 0

    @property
    def instruction(self) -> str:
        fetch = f"take the key in room {self.key}, " if self.key else ""
        return f"start in room {self.start}, {fetch}go to room {self.target} and open the door"


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything there is to know at one moment of an episode."""

    room: int
    carrying: bool = False
    opened: bool = False


def read_goal(instruction: str) -> Goal | None:
    """The goal that an instruction spells out, or None when it is not worded as one."""
    match = INSTRUCTION.fullmatch(instruction)
    return Goal(int(match["start"]), int(match["target"]), int(match["key"] or 0)) if match else None


def elements(state: str) -> tuple[str, ...]:
    """What a state offers, in order."""
    return tuple(ELEMENT.findall(state))


def canonical(action: Action) -> Action:
    """One spelling: lower case, single spaces, no brackets around the whole."""
    text = " ".join(action.lower().split())
    return text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text


def follow(goal: Goal, situation: Situation, action: Action, length: int) -> tuple[Situation, float]:
    """The dynamics without slips: the situation after `action`, and the reward."""
    room, carrying = situation.room, situation.carrying
    if action == "left" and room > 1:
        return replace(situation, room=room - 1), 0.0
    if action == "right" and room < length:
        return replace(situation, room=room + 1), 0.0
    if action == "take" and room == goal.key and not carrying:
        return replace(situation, carrying=True), 0.0
    if action == "open":
        return replace(situation, opened=True), float(room == goal.target and (carrying or not goal.key))
    return situation, 0.0


class Corridor:
    """One walker in the corridor (the `Env` protocol). Raw observations are dicts of room, rooms, key_here, carrying and opened.

    A slip depends on the seed, the task and the actions so far, so an episode can be repeated exactly.
    """

    name = "corridor"

    def __init__(self, config: CorridorConfig) -> None:
        self.config = config
        self.task: Task | None = None
        self.goal = Goal(1, 1)
        self.situation = Situation(1)
        self.actions: list[Action] = []

    def accepts(self, task: Task) -> bool:
        """The real corridor needs a goal record to score an episode; a synthetic task has none."""
        return task.goal is not None

    def reset(self, task: Task) -> dict[str, Any]:
        """Enter the corridor for a task; UsageError for a task without a goal or with rooms that are not here."""
        if task.goal is None:
            raise UsageError(f"Task '{task.id}' has no goal record to score it by. Use synthetic tasks in a dream.")
        goal = Goal(**task.goal)
        if not all(1 <= room <= self.config.length for room in (goal.start, goal.target, goal.key or 1)):
            raise UsageError(f"Task '{task.id}' names a room outside 1 to {self.config.length}. Make the corridor with a greater length.")
        self.task, self.goal, self.situation, self.actions = task, goal, Situation(goal.start), []
        return self._raw()

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        """Raw observation, reward and whether a door was opened. An action that is not offered here changes nothing."""
        if self.task is None or self.situation.opened:
            raise UsageError("The episode has not begun or is over. Call reset(task) before step(action).")
        action = canonical(action)
        self.actions.append(action)
        if action in ("left", "right") and self._slips(self.task):
            return self._raw(), 0.0, False
        self.situation, reward = follow(self.goal, self.situation, action, self.config.length)
        return self._raw(), reward, self.situation.opened

    def _slips(self, task: Task) -> bool:
        return self.config.slip > 0 and random.Random(f"slip/{self.config.seed}/{task.id}/{self.actions}").random() < self.config.slip

    def _raw(self) -> dict[str, Any]:
        return raw_state(self.goal, self.situation, self.config.length)


class CorridorRules(TextRules):
    """The `TextRules` of corridors: it reads instructions and states, and knows no task's goal record."""

    name = "corridor"
    token_patterns = (r"\[[^\[\]\n]{1,200}\]",)
    about = "This is a row of rooms with doors. Walk to the room that the task names, with the key if it asks for one, and open its door."
    action_format = "End your reply with one line that holds one action of those in square brackets, such as Action: right."

    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The state mapping: where we are, what we carry, what can be done."""
        lines = [f"room {raw['room']} of {raw['rooms']}"]
        lines += [KEY_HELD] if raw["carrying"] else [KEY_HERE] if raw["key_here"] else []
        if raw["opened"]:
            return Observation("\n".join([*lines, OPENED]))
        offered = (("left", raw["room"] > 1), ("right", raw["room"] < raw["rooms"]), ("take", raw["key_here"]), ("open", True))
        return Observation("\n".join([*lines, " ".join(f"[{name}]" for name, possible in offered if possible)]))

    def canonical(self, action: Action) -> Action:
        """One spelling for actions the corridor cannot tell apart."""
        return canonical(action)

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether the state offers the action; None when the text is no state of a corridor."""
        if not ROOM.match(observation.text):
            return None
        return canonical(action) in elements(observation.text)

    def explain(self, task: Task, history: Sequence[Transition], transition: Transition) -> str:
        """The scripted teacher's reasoning trace: what the action meant, what it rests on, and what follows."""
        action, after = canonical(transition.action), ROOM.match(transition.next_state.text)
        if not self.admissible(transition.state, history, action):
            return "no such element, so nothing changes."
        if action == "take":
            return "a key lies here, so now i carry it."
        if action == "open":
            return _explain_door(task.instruction, transition)
        if transition.next_state == transition.state:
            return f"go {action}, but slip, so nothing changes."
        return f"go {action}, so room {after[1] if after else 'unknown'}."

    def check_success(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict:
        """Whether the claimed end and reward follow from the text: an end needs an open door, a success the right one and its key."""
        goal, place = read_goal(instruction), ROOM.match(claim.state.text)
        opens = canonical(claim.action) == "open" and "open" in elements(claim.state.text)
        wrong_end = "an end without an open door" if claim.terminated else "an open door without an end"
        reasons = [] if claim.terminated == opens else [wrong_end]
        if goal is None or place is None:
            return Verdict("refused", (*reasons, "the instruction or the state cannot be read"))
        missing = _missing(goal, claim.state.text, history) if opens else ["no door was opened"]
        if claim.reward > 0:
            reasons += missing
        elif not missing:
            reasons.append("a success without its reward")
        return Verdict("refused" if reasons else "passed", tuple(reasons))

    def memory_text(self, memory: Memory) -> str:
        """A memory in two lines: what was done where, and what came of it."""
        here, there = (", ".join(text.split("\n")[:-1]) for text in (memory.state, memory.next_state))
        return f"{here}: {memory.action}\n" + (f"reward {memory.reward:g}" if memory.terminated else there)

    def well_formed(self, instruction: str) -> bool:
        """Whether a synthetic instruction is worded as one."""
        return read_goal(instruction) is not None

    def feasible(self, instruction: str, memories: Iterable[Memory]) -> bool | None:
        """Whether the corridor that the memories show has the rooms that the instruction names; None when they show none."""
        goal = read_goal(instruction)
        if goal is None:
            return False
        lengths = [int(match[2]) for memory in memories if (match := ROOM.match(memory.state))]
        return max(goal.start, goal.target, goal.key) <= max(lengths) if lengths else None


class CorridorSuite(EnvSuite):
    """The environment suite of the corridor, with its exact dynamics."""

    name = "corridor"
    scripted_policies = MIX

    def __init__(self, config: CorridorConfig) -> None:
        self.config = config
        self.rules = CorridorRules()
        self.max_steps = config.max_steps or 3 * config.length

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """`n` distinct tasks of a split in an order that `seed` names; fewer when the split does not hold so many."""
        check_split(split)
        goals = self._goals()
        random.Random(f"split/{self.config.seed}").shuffle(goals)
        low, high = (round(share * len(goals)) for share in SHARES[split])
        chosen = goals[low:high]
        random.Random(f"tasks/{split}/{seed}").shuffle(chosen)
        return [self._task(goal) for goal in chosen[:n]]

    def task_key(self, task: Task) -> str:
        """What is asked, since recorded tasks have ids of their own."""
        return self.rules.task_key(task.instruction)

    def knows_task(self, task: Task) -> bool:
        return read_goal(task.instruction) is not None

    def env(self) -> Corridor:
        """A fresh corridor."""
        return Corridor(self.config)

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        """What a scripted walker does next: expert, noisy, random or invalid."""
        goal = read_goal(task.instruction)
        if goal is None:
            raise UsageError(f"Task '{task.id}' is not worded as a corridor task: '{task.instruction}'.")
        return _walk(policy, goal, state.text, rng)

    def _goals(self) -> list[Goal]:
        rooms = range(1, self.config.length + 1)
        keys = (0, *rooms) if self.config.keys else (0,)
        return [Goal(start, target, key) for start in rooms for target in rooms for key in keys if start != target]

    def _task(self, goal: Goal) -> Task:
        return Task(
            id=f"corridor{self.config.length}-{goal.start}-{goal.target}-{goal.key}",
            instruction=goal.instruction,
            env=self.name,
            difficulty=2 if goal.key else 1,
            goal={"start": goal.start, "target": goal.target, "key": goal.key},
        )


def make(**config: Any) -> CorridorSuite:
    """The corridor suite, by configuration (see CorridorConfig)."""
    return CorridorSuite(build(CorridorConfig, config, where="env corridor"))


def raw_state(goal: Goal, situation: Situation, length: int) -> dict[str, Any]:
    """What an environment shows, before the state mapping."""
    return {
        "room": situation.room,
        "rooms": length,
        "key_here": situation.room == goal.key and not situation.carrying,
        "carrying": situation.carrying,
        "opened": situation.opened,
    }


def _walk(policy: str, goal: Goal, state: str, rng: random.Random) -> Action:
    """What a scripted walker does next. It reads the instruction's goal and the state's text, as an agent would."""
    if policy == "invalid" and rng.random() < 0.5:
        offered = elements(state)
        return rng.choice([action for action in (*ACTIONS, *GARBAGE) if action not in offered])
    if policy == "random" or (policy != "expert" and rng.random() < 0.25):
        return rng.choice(elements(state))
    needs_key = bool(goal.key) and KEY_HELD not in state
    place = ROOM.match(state)
    room, destination = int(place[1]) if place else 0, goal.key if needs_key else goal.target
    if room == destination:
        return "take" if needs_key else "open"
    return "right" if room < destination else "left"


def _missing(goal: Goal, state: str, history: Sequence[Transition]) -> list[str]:
    """What keeps the open door from being a success, as far as the text tells."""
    place = ROOM.match(state)
    reasons = [] if place and int(place[1]) == goal.target else [f"this is not room {goal.target}"]
    if goal.key and not (KEY_HELD in state and any(canonical(past.action) == "take" and KEY_HERE in past.state.text for past in history)):
        reasons.append("the key was never taken")
    return reasons


def _explain_door(instruction: str, transition: Transition) -> str:
    goal, place = read_goal(instruction), ROOM.match(transition.state.text)
    if goal is None or place is None:
        return f"open, {'success' if transition.reward > 0 else 'failure'}."
    facts = [f"room {goal.target} {'yes' if int(place[1]) == goal.target else 'no'}"]
    if goal.key:
        facts.append(f"key {'yes' if KEY_HELD in transition.state.text else 'no'}")
    return f"open the door in room {place[1]}. {', '.join(facts)}, {'success' if transition.reward > 0 else 'failure'}."
