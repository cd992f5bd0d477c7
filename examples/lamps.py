"""An environment of your own in one file: a row of lamps to be set as the task says, and a door to leave by.

Nothing here is registered anywhere. From the root of the repository:

    PYTHONPATH=. .venv/bin/dreamgym train runs/lamps env.name=examples.lamps

docs/your_environment.md says what each part is for, and what to leave out when there are only logs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from dreamgym.config import Config, build
from dreamgym.errors import UsageError
from dreamgym.playing import play
from dreamgym.types import Action, Memory, Observation, Task, Trajectory, Transition, Verdict, View

WORDING = re.compile(r"light (lamps? (\d(?:, \d)*)) and leave")
PRESS = re.compile(r"press (\d)")


class LampsConfig(Config):
    """Settings, checked before a run begins: `env.options = {lamps = 5}`."""

    lamps: int = 6


def asked(instruction: str) -> set[str] | None:
    """The lamps that an instruction names; None when it is worded in another way."""
    match = WORDING.fullmatch(instruction)
    return set(match[2].split(", ")) if match else None


def burning(state: str) -> set[str]:
    """The lamps that a state shows as lit."""
    return set(re.findall(r"lamp (\d): on", state))


class Lamps:
    """The environment itself (`protocols.Env`): what is slow, fragile or expensive in your case. It may be a client of a server."""

    name = "lamps"

    def __init__(self, config: LampsConfig) -> None:
        self.config = config
        self.lit: set[str] = set()
        self.task: Task | None = None
        self.left = False

    def accepts(self, task: Task) -> bool:
        """Whether it can play and score the task. An invented one has no goal record."""
        return task.goal is not None

    def reset(self, task: Task) -> dict[str, Any]:
        if task.goal is None:
            raise UsageError(f"Task '{task.id}' has no goal to score it by. Practise invented tasks in a dream.")
        self.lit, self.task, self.left = set(), task, False
        return self._raw()

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        """Raw observation, reward, and whether the episode is over. What cannot be done changes nothing."""
        if self.task is None or self.task.goal is None or self.left:
            raise UsageError("The episode has not begun or is over. Call reset(task) before step(action).")
        lamp = PRESS.fullmatch(action)
        if lamp and 1 <= int(lamp[1]) <= self.config.lamps:
            self.lit ^= {lamp[1]}
        self.left = action == "leave"
        return self._raw(), float(self.left and self.lit == set(self.task.goal["lit"])), self.left

    def _raw(self) -> dict[str, Any]:
        return {"lit": sorted(self.lit), "lamps": self.config.lamps, "left": self.left}


class LampsDomain:
    """What is known of the texts (`protocols.Domain`). It never sees the environment: it must judge dreams too."""

    name = "lamps"
    atoms = (r"lamp \d: (?:on|off)",)

    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The state mapping: what matters of a raw observation, as text. DOM trees become lists of what can be clicked."""
        if raw["left"]:
            return Observation("you are outside")
        shown = [f"lamp {i}: {'on' if str(i) in raw['lit'] else 'off'}" for i in range(1, raw["lamps"] + 1)]
        return Observation("\n".join([*shown, "press 1 to " + str(raw["lamps"]) + ", or leave"]))

    def canonical(self, action: Action) -> Action:
        """One spelling of actions that the environment cannot tell apart."""
        return " ".join(action.lower().split())

    def view(self, observation: Observation) -> View:
        """How the policy reads a state. Long ids that could only be memorised would be shortened here."""
        return View(observation.text)

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether the state offers the action, so that what it does not offer is answered by rule; None: not known, ask the model."""
        lamp = PRESS.fullmatch(action)
        return f"lamp {lamp[1]}:" in observation.text if lamp else action == "leave" and observation.text.endswith("or leave")

    def explain(self, task: Task, history: Sequence[Transition], transition: Transition) -> str:
        """The reasoning that the experience model learns to write first. `dreamgym annotate` lets an instruct model write it instead."""
        if not self.admissible(transition.state, history, transition.action):
            return "that cannot be done, so nothing changes."
        if transition.action != "leave":
            return f"the button changes lamp {transition.action[-1]}, and the others stay."
        wanted, lit = sorted(asked(task.instruction) or ()), sorted(burning(transition.state.text))
        return f"asked for {', '.join(wanted)}; lit are {', '.join(lit) or 'none'}: {'right' if wanted == lit else 'wrong'}."

    def check(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict:
        """Whether a claimed end and reward follow from the text. This is what keeps a policy from learning to be believed."""
        wanted, ends = asked(instruction), claim.action == "leave"
        right = ends and wanted is not None and wanted == burning(claim.state.text)
        reasons = [] if claim.terminated == ends else ["an episode ends by leaving, and only so"]
        reasons += [] if (claim.reward > 0) == right else ["the lamps do not earn this reward"]
        return Verdict(not reasons, tuple(reasons))

    def brief(self, memory: Memory) -> str:
        """A retrieved memory as the experience model reads it: as short as can be."""
        lit = ", ".join(sorted(burning(memory.state))) or "none"
        return f"lit {lit}: {memory.action}\n" + (f"reward {memory.reward:g}" if memory.terminated else memory.next_state)

    def well_formed(self, instruction: str) -> bool:
        """Whether an invented instruction is worded like a task."""
        return asked(instruction) is not None

    def feasible(self, instruction: str, memories: Iterable[Memory]) -> bool | None:
        """Whether what was really seen can meet an invented instruction; None: nothing was seen that tells."""
        seen = {lamp for memory in memories for lamp in re.findall(r"lamp (\d):", memory.state)}
        return (asked(instruction) or {"?"}) <= seen if seen else None


class LampsFamily:
    """Everything a run needs (`protocols.Family`)."""

    name = "lamps"
    behaviours = {"expert": 0.4, "careless": 0.6}
    max_steps = 8

    def __init__(self, config: LampsConfig) -> None:
        self.config, self.domain = config, LampsDomain()

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """Splits share no task: what policies are judged by was never practised."""
        if split not in ("train", "dev", "test"):
            raise UsageError(f"No split '{split}'. Known: train, dev, test.")
        names = [str(i) for i in range(1, self.config.lamps + 1)]
        goals = [goal for size in range(1, len(names)) for goal in combinations(names, size)]
        random.Random(0).shuffle(goals)
        low, high = {"train": (0.0, 0.6), "dev": (0.6, 0.8), "test": (0.8, 1.0)}[split]
        chosen = goals[round(low * len(goals)) : round(high * len(goals))]
        random.Random(f"{split}/{seed}").shuffle(chosen)
        return [self._task(goal) for goal in chosen[:n]]

    def env(self) -> Lamps:
        return Lamps(self.config)

    def behave(self, task: Task, behaviour: str, *, seed: int) -> Trajectory:
        """An episode by a script: logs where there are none. With `logs.files` of your agent's episodes, scripts serve measures only."""
        if behaviour not in self.behaviours:
            raise UsageError(f"No behaviour '{behaviour}'. Known: {', '.join(self.behaviours)}.")
        name = f"{behaviour}/{task.id}/{seed}"
        draw, wanted = random.Random(name), asked(task.instruction) or set()

        def act(state: Observation) -> Action:
            if behaviour == "careless" and draw.random() < 0.4:
                return draw.choice([*(f"press {i}" for i in range(1, self.config.lamps + 1)), "leave", "press 0", "jump"])
            missing = sorted(wanted ^ burning(state.text))
            return f"press {missing[0]}" if missing else "leave"

        return play(self.env(), self.domain, task, act, max_steps=self.max_steps, behaviour=behaviour, name=name)

    def _task(self, goal: Sequence[str]) -> Task:
        lamps = f"lamp{'s' if len(goal) > 1 else ''} {', '.join(goal)}"
        return Task(f"lamps-{'-'.join(goal)}", f"light {lamps} and leave", self.name, difficulty=len(goal), goal={"lit": list(goal)})


def make(**config: Any) -> LampsFamily:
    """What `env.name` finds: a module with this function."""
    return LampsFamily(build(LampsConfig, config, where="env lamps"))
