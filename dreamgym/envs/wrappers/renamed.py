"""A suite whose words are renamed: every letter of states, actions and instructions passes through one random permutation.

The dynamics are those of the inner suite, so anything that is learned works as well here. Whatever knows an environment's words (action
names, labels, the wording of instructions) fails here. The permutation moves every letter, keeps case, and leaves digits and punctuation.
"""

from __future__ import annotations

import copy
import random
import string
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.wrappers import WrappedEnv, WrappedSuite
from dreamgym.protocols import Env
from dreamgym.types import Action, Observation, Task, Trajectory, Transition, Turn


class Cipher:
    """A random permutation of the letters a to z without a fixed point, the same for capitals. `decode` inverts `encode`."""

    def __init__(self, seed: int) -> None:
        letters, order = string.ascii_lowercase, list(string.ascii_lowercase)
        rng = random.Random(f"renamed/{seed}")
        while any(a == b for a, b in zip(letters, order, strict=True)):
            rng.shuffle(order)
        there = "".join(order)
        self._encode = str.maketrans(letters + letters.upper(), there + there.upper())
        self._decode = str.maketrans(there + there.upper(), letters + letters.upper())

    def encode(self, text: str) -> str:
        """A text of the inner suite, renamed."""
        return text.translate(self._encode)

    def decode(self, text: str) -> str:
        """A renamed text in the words of the inner suite."""
        return text.translate(self._decode)

    def encode_task(self, task: Task) -> Task:
        """The task with its instruction renamed; the private goal record stays as the environment needs it."""
        return replace(task, instruction=self.encode(task.instruction))

    def decode_task(self, task: Task) -> Task:
        """The inverse of `encode_task`."""
        return replace(task, instruction=self.decode(task.instruction))


class RenamedEnv(WrappedEnv):
    """The inner environment, acted in with renamed actions. Raw observations stay as they are: the state mapping renames their text."""

    def __init__(self, inner: Env, cipher: Cipher) -> None:
        super().__init__(inner)
        self.cipher = cipher

    def accepts(self, task: Task) -> bool:
        return self.inner.accepts(self.cipher.decode_task(task))

    def reset(self, task: Task) -> dict[str, Any]:
        return self.inner.reset(self.cipher.decode_task(task))

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        return self.inner.step(self.cipher.decode(action))


class RenamedSuite(WrappedSuite):
    """The inner suite in other words. Its rules are the inner ones, which read the renamed texts as if nobody had renamed them."""

    translates = True

    def __init__(self, inner: EnvSuite, seed: int) -> None:
        self.cipher = Cipher(seed)
        super().__init__(inner, renamed_rules(inner.rules, self.cipher))

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        return [self.cipher.encode_task(task) for task in super().tasks(split, n, seed=seed)]

    def env(self) -> Env | None:
        env = super().env()
        return None if env is None else RenamedEnv(env, self.cipher)

    def task_key(self, task: Task) -> str:
        return super().task_key(self.cipher.decode_task(task))

    def knows_task(self, task: Task) -> bool:
        return super().knows_task(self.cipher.decode_task(task))

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        return self._encoded(super().demonstrate(self.cipher.decode_task(task), policy, seed=seed), task)

    def recorded(self, episode: Trajectory) -> Trajectory:
        episode = super().recorded(episode)
        return self._encoded(episode, self.cipher.encode_task(episode.task))

    def _encoded(self, episode: Trajectory, task: Task) -> Trajectory:
        """An episode of the inner suite in renamed words. Its reasoning is what the rules say of the renamed texts."""
        past: list[Transition] = []
        for step in episode.transitions:
            state, after = Observation(self.cipher.encode(step.state.text)), Observation(self.cipher.encode(step.next_state.text))
            bare = replace(step, state=state, action=self.cipher.encode(step.action), next_state=after).with_reasoning("")
            past.append(bare.with_reasoning(self.rules.explain(task, past, bare)))
        return replace(episode, task=task, turns=tuple(map(Turn, past)))

    def inventory(self) -> Iterable[Observation]:
        return (Observation(self.cipher.encode(state.text)) for state in super().inventory())


def renamed_rules(inner: TextRules, cipher: Cipher) -> TextRules:
    """The inner rules with a state mapping that renames what it returns; every other rule is the inner one."""
    kind: Any = type(inner)

    class RenamedRules(kind):
        def abstract(self, raw: dict[str, Any]) -> Observation:
            return Observation(cipher.encode(super().abstract(raw).text))

    rules = copy.copy(inner)
    rules.__class__ = RenamedRules
    return rules


def make(*, suite: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> RenamedSuite:
    """The suite plug-in `suite`, made from `options`, renamed by the permutation of `seed`."""
    return RenamedSuite(plugins.make("envs", suite, **(options or {})), seed)
