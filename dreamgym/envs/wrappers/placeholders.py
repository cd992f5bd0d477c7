"""A suite whose tasks' own names are placeholders: `Enter "deneen" and press Submit.` is read as `Enter "NAME1" and press Submit.`

    [env]
    name = "dreamgym.envs.wrappers.placeholders"
    options = {suite = "web", options = {seeds = 250}}

A small model from scratch learns the names of its logs by heart, and writes one of them where a task asks for another. Words that few
instructions have are names: they are numbered in the order of the instruction, in every state and action of its episodes, and back where
the environment is acted in (delexicalisation, as in dialogue systems: Wen et al., arXiv:1508.01745). What an episode does with a name then
holds for all names, for policies, for the experience model, and for what is recalled. What a name means is lost. Names that an instruction
does not have stay as they are. Hand-written rules that know an environment's words read placeholders: use `rules = "none"` or `"induced"`.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.wrappers import WrappedSuite
from dreamgym.protocols import Env
from dreamgym.types import Action, Observation, Task, Trajectory, Transition

WORD = re.compile(r"\w+")
PLACEHOLDER = re.compile(r"NAME\d+")
RARE = 0.01
"""Words of at most this share of the training instructions are names."""
COUNTED = 2000  # training instructions
LEAST_DIGITS = 5  # of a number that is a name: shorter ones are amounts, places in a list, numbers of elements
KEY = "named"
"""In a task's goal record: what its placeholders stand for. The environment's own record is beside it."""


@dataclass(frozen=True)
class Names:
    """The names of one task, in both directions."""

    words: Mapping[str, str]
    """By placeholder."""

    def hide(self, text: str) -> str:
        """A text of the inner suite, with placeholders."""
        short = {word: placeholder for placeholder, word in self.words.items()}
        return WORD.sub(lambda found: short.get(found[0], found[0]), text) if short else text

    def show(self, text: str) -> str:
        """The inverse of `hide`."""
        return PLACEHOLDER.sub(lambda found: self.words.get(found[0], found[0]), text)


class Namer:
    """Tells names from the words of an environment, by how many of its training instructions have them."""

    def __init__(self, suite: EnvSuite) -> None:
        instructions = [task.instruction for task in suite.tasks("train", COUNTED)]
        counts = Counter(word for text in instructions for word in set(WORD.findall(text)))
        rules = suite.rules
        described = f"{rules.about} {rules.action_format} {json.dumps(list(rules.tools))}"
        self.common = {word for word, n in counts.items() if n > RARE * len(instructions)} | set(WORD.findall(described))

    def names(self, instruction: str) -> Names:
        """The names in an instruction, numbered from 1."""
        words = [word for word in dict.fromkeys(WORD.findall(instruction)) if self._is_name(word)]
        return Names({f"NAME{i}": word for i, word in enumerate(words, 1)})

    def _is_name(self, word: str) -> bool:
        return word not in self.common and not PLACEHOLDER.fullmatch(word) and (not word.isdigit() or len(word) >= LEAST_DIGITS)

    def hide_task(self, task: Task) -> Task:
        """The task with placeholders; its goal record says what they stand for."""
        names = self.names(task.instruction)
        goal = {KEY: dict(names.words), "goal": task.goal}
        return replace(task, instruction=names.hide(task.instruction), goal=goal) if names.words else task


def names_of(task: Task) -> Names:
    """What the placeholders of a task stand for."""
    return Names((task.goal or {}).get(KEY, {}))


def show_task(task: Task) -> Task:
    """The inverse of `Namer.hide_task`."""
    if KEY not in (task.goal or {}):
        return task
    return replace(task, instruction=names_of(task).show(task.instruction), goal=(task.goal or {})["goal"])


class NamedEnv:
    """The inner environment, acted in with placeholders. Raw observations carry the task's names: the state mapping hides them."""

    def __init__(self, inner: Env) -> None:
        self.inner, self.name = inner, inner.name
        self._names = Names({})

    def accepts(self, task: Task) -> bool:
        return self.inner.accepts(show_task(task))

    def reset(self, task: Task) -> dict[str, Any]:
        self._names = names_of(task)
        return self._raw(self.inner.reset(show_task(task)))

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        raw, reward, terminated = self.inner.step(self._names.show(action))
        return self._raw(raw), reward, terminated

    def _raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {"named": raw, "names": self._names}


class PlaceholderSuite(WrappedSuite):
    """The inner suite with placeholders for the names of its tasks."""

    def __init__(self, inner: EnvSuite) -> None:
        self.namer = Namer(inner)
        super().__init__(inner, placeholder_rules(inner.rules))

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        return [self.namer.hide_task(task) for task in super().tasks(split, n, seed=seed)]

    def task_key(self, task: Task) -> str:
        return super().task_key(show_task(task))

    def env(self) -> Env | None:
        env = super().env()
        return None if env is None else NamedEnv(env)

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        return self.recorded(super().demonstrate(show_task(task), policy, seed=seed))

    def recorded(self, episode: Trajectory) -> Trajectory:
        episode = super().recorded(episode)
        task = self.namer.hide_task(episode.task)
        names = names_of(task)

        def hidden(step: Transition) -> Transition:
            state, after = Observation(names.hide(step.state.text)), Observation(names.hide(step.next_state.text))
            return replace(step, state=state, action=names.hide(step.action), next_state=after).with_reasoning(
                names.hide(step.info.reasoning)
            )

        return replace(episode, task=task, turns=tuple(replace(turn, transition=hidden(turn.transition)) for turn in episode.turns))

    def inventory(self) -> Iterable[Observation]:
        return ()  # of no task, so nothing says what is a name


def placeholder_rules(inner: TextRules) -> TextRules:
    """The inner rules with a state mapping that hides names; every other rule is the inner one."""
    kind: Any = type(inner)

    class PlaceholderRules(kind):
        def abstract(self, raw: dict[str, Any]) -> Observation:
            if "named" not in raw:
                return Observation(super().abstract(raw).text)
            names: Names = raw["names"]
            return Observation(names.hide(super().abstract(raw["named"]).text))

    rules = copy.copy(inner)
    rules.__class__ = PlaceholderRules
    return rules


def make(*, suite: str, options: Mapping[str, Any] | None = None) -> PlaceholderSuite:
    """The suite plug-in `suite`, made from `options`, with placeholders for the names of its tasks."""
    return PlaceholderSuite(plugins.make("envs", suite, **(options or {})))
