"""A suite whose tasks' own names are placeholders: `Enter "deneen" and press Submit.` is read as `Enter "NAME1" and press Submit.`

    [env]
    name = "dreamgym.envs.wrappers.placeholders"
    options = {suite = "web", options = {seeds = 250}}

A small model from scratch learns the names of its logs by heart, and writes one of them where a task asks for another. Names are words of
the instruction that few instructions have (`rare`), and identifiers wherever they are: words with many digits, and codes such as A-3437.
They are numbered in the order in which the states of an episode show them, and back where the environment is acted in (delexicalisation,
as in dialogue systems: Wen et al., arXiv:1508.01745). What an episode does with a name then holds for all names: for policies, for the
experience model, and for what is recalled. What a name means is lost, and a word of the form NAME1 in the environment's own texts reads as
a placeholder.
Hand-written rules that know an environment's words read placeholders: use `rules = "none"` or `"induced"`.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.wrappers import WrappedEnv, WrappedSuite
from dreamgym.errors import ConfigError
from dreamgym.protocols import Env
from dreamgym.types import Action, Observation, Task, Trajectory, Transition

CHUNK = re.compile(r"\w+(?:-\w+)*")
IDENTIFIER = re.compile(
    r"(?=\d*[^\W\d])\w*\d{4}\w*|\d{5,}|(?=[A-Z]+\d)[A-Z][A-Z\d]{4,}|(?=(?:[a-z]*\d){3})(?=\d*[a-z]+\d+[a-z]+)[a-z\d]{8,}"
    r"|(?!\d{4}-\d\d-\d\d)(?:(?=[\d-]*[A-Z])[A-Z\d]+(?:-[A-Z\d]+)+|(?=[\d-]*[^\W\d])(?=(?:\D*\d){3})\w+(?:-\w+)+)"
    r"|(?=.*\d{5})\d+(?:-\d+)+"
)
"""Four digits in a row beside letters, five and more, a code of capitals and digits, or a long one of small letters with three digits or
more between them. With hyphens: capitals and digits, letters and three digits or more, or five digits in a row; no date. Shorter numbers
are amounts, years, places in a list, numbers of elements."""
PLACEHOLDER = re.compile(r"(?<!\w)NAME\d+(?!\w)")
RARE = 0.01  # words of at most this share of the training instructions are names, unless the option `rare` says otherwise
COUNTED = 2000  # training instructions
KEY = "named"
"""In a task's goal record: what its placeholders stand for. The environment's own record is beside it."""


def words_of(text: str) -> Iterator[str]:
    """The words of a text, in order; with their hyphens where they hold a digit, as `WEB-03-03-1400` does and `half-open` does not."""
    return (word for chunk in CHUNK.findall(text) for word in _split(chunk))


def _split(chunk: str) -> list[str]:
    return [chunk] if any(map(str.isdecimal, chunk)) else chunk.split("-")


def is_identifier(word: str) -> bool:
    """Whether a word is a name wherever it stands."""
    return bool(IDENTIFIER.fullmatch(word)) and not PLACEHOLDER.search(word)


class Names:
    """The names that an episode has shown, in both directions."""

    def __init__(self, words: Mapping[str, str] | None = None) -> None:
        self.words = dict(words or {})
        """By placeholder."""
        self._short = {word: placeholder for placeholder, word in self.words.items()}

    def add(self, word: str) -> None:
        """Number a name that is new."""
        if word not in self._short:
            self._short[word] = placeholder = f"NAME{len(self.words) + 1}"
            self.words[placeholder] = word

    def hide(self, text: str, *, new: bool = True) -> str:
        """A text of the inner suite, with placeholders; with `new`, identifiers in it are names from here on."""
        for word in words_of(text) if new else ():
            if is_identifier(word):
                self.add(word)
        if not self._short:
            return text
        return CHUNK.sub(lambda chunk: "-".join(self._short.get(word, word) for word in _split(chunk[0])), text)

    def hide_step(self, step: Transition) -> Transition:
        """A step of the inner suite, with placeholders: its action as an agent could write it, with names that a state has shown."""
        state, action = Observation(self.hide(step.state.text)), self.hide(step.action, new=False)
        after = Observation(self.hide(step.next_state.text))
        why = self.hide(step.info.reasoning, new=False)
        return replace(step, state=state, action=action, next_state=after).with_reasoning(why)

    def show(self, text: str) -> str:
        """The inverse of `hide`."""
        return PLACEHOLDER.sub(lambda placeholder: self.words.get(placeholder[0], placeholder[0]), text)


class Namer:
    """Tells names from the words of an environment, by how many of its training instructions have them: names are in at most the share
    `rare` of them, or in a single one."""

    def __init__(self, suite: EnvSuite, rare: float = RARE) -> None:
        instructions = [task.instruction for task in suite.tasks("train", COUNTED)]
        counts = Counter(word for text in instructions for word in set(words_of(text)))
        rules = suite.rules
        described = f"{rules.about} {rules.action_format} {json.dumps(list(rules.tools))}"
        self.common = {word for word, n in counts.items() if n > max(1, rare * len(instructions))} | set(words_of(described))

    def names(self, instruction: str) -> Names:
        """The names in an instruction, numbered from 1."""
        found = Names()
        for word in words_of(instruction):
            rare = not (word in self.common or word.replace("-", "").isdigit() or PLACEHOLDER.search(word))
            if rare or is_identifier(word):
                found.add(word)
        return found

    def hide_task(self, task: Task) -> Task:
        """The task with placeholders; its goal record says what they stand for."""
        names = self.names(task.instruction)
        goal = {KEY: dict(names.words), "goal": task.goal}
        return replace(task, instruction=names.hide(task.instruction), goal=goal) if names.words else task


def names_of(task: Task) -> Names:
    """What the placeholders of a task stand for."""
    return Names((task.goal or {}).get(KEY))


def show_task(task: Task) -> Task:
    """The inverse of `Namer.hide_task`."""
    if KEY not in (task.goal or {}):
        return task
    return replace(task, instruction=names_of(task).show(task.instruction), goal=(task.goal or {})["goal"])


class NamedEnv(WrappedEnv):
    """The inner environment, acted in with placeholders. Its raw observations are states already: what is a name depends on what came
    before, which the state mapping does not know."""

    def __init__(self, inner: Env, rules: TextRules) -> None:
        super().__init__(inner)
        self.rules = rules
        self._names = Names()

    def accepts(self, task: Task) -> bool:
        return self.inner.accepts(show_task(task))

    def reset(self, task: Task) -> dict[str, Any]:
        self._names = names_of(task)
        return self._raw(self.inner.reset(show_task(task)))

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        raw, reward, terminated = self.inner.step(self._names.show(action))
        return self._raw(raw), reward, terminated

    def _raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {KEY: self._names.hide(self.rules.abstract(raw).text)}


class PlaceholderSuite(WrappedSuite):
    """The inner suite with placeholders for the names of its tasks."""

    translates = True

    def __init__(self, inner: EnvSuite, rare: float = RARE) -> None:
        super().__init__(inner, placeholder_rules(inner.rules))
        self.rare = rare

    @cached_property
    def namer(self) -> Namer:
        """Made when a task is first read or recorded: some suites open a browser to list theirs."""
        return Namer(self.inner, self.rare)

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        return [self.namer.hide_task(task) for task in super().tasks(split, n, seed=seed)]

    def task_key(self, task: Task) -> str:
        return super().task_key(show_task(task))

    def knows_task(self, task: Task) -> bool:
        return super().knows_task(show_task(task))

    def env(self) -> Env | None:
        env = super().env()
        return None if env is None else NamedEnv(env, self.inner.rules)

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        return self._hidden(super().demonstrate(show_task(task), policy, seed=seed), task)

    def recorded(self, episode: Trajectory) -> Trajectory:
        episode = super().recorded(episode)
        return self._hidden(episode, self.namer.hide_task(episode.task))

    def _hidden(self, episode: Trajectory, task: Task) -> Trajectory:
        """The episode with placeholders, as one of `task`, which has them."""
        names = names_of(task)
        turns = tuple(replace(turn, transition=names.hide_step(turn.transition)) for turn in episode.turns)
        return replace(episode, task=task, turns=turns)

    def doubts(self, episodes: Sequence[Trajectory]) -> str:
        texts = (text for one in episodes for text in (one.task.instruction, *(step.action for step in one.transitions)))
        if not episodes or any(map(PLACEHOLDER.search, texts)):
            return self.inner.doubts(episodes)
        return (
            f"dreamgym.envs.wrappers.placeholders hides nothing: no instruction and no action of {len(episodes):,} episodes holds a word "
            "that it takes for a name. Raise `rare` in env.options, so that words of more instructions are names, or leave "
            "the wrapper out."
        )

    def inventory(self) -> Iterable[Observation]:
        return ()  # of no task, so nothing says what is a name


def placeholder_rules(inner: TextRules) -> TextRules:
    """The inner rules with a state mapping that hides names; every other rule is the inner one."""
    kind: Any = type(inner)

    class PlaceholderRules(kind):
        def abstract(self, raw: dict[str, Any]) -> Observation:
            return Observation(raw[KEY]) if KEY in raw else Observation(super().abstract(raw).text)

    rules = copy.copy(inner)
    rules.__class__ = PlaceholderRules
    return rules


def make(*, suite: str, options: Mapping[str, Any] | None = None, rare: float = RARE) -> PlaceholderSuite:
    """The suite plug-in `suite`, made from `options`, with placeholders for the names of its tasks: words that at most the share `rare` of
    the training instructions have. ConfigError for a share outside of 0 to 1."""
    if not 0 <= rare <= 1:
        raise ConfigError(f"rare = {rare} is no share of the training instructions. Expected a number from 0 to 1.")
    return PlaceholderSuite(plugins.make("envs", suite, **(options or {})), rare)
