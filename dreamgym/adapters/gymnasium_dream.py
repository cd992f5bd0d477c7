"""A dream as a Gymnasium environment, and many episodes of it as a vector environment whose steps share the engine's batches.

    with dg.open_dream("runs/mine").sessions() as dream:
        env = DreamVectorEnv(dream, num_envs=8)
        observations, infos = env.reset(seed=0)
        observations, rewards, terminations, truncations, infos = env.step(("search[wool scarf]",) * 8)

Observations are the instruction and the state, as in `adapters.gymnasium`. `infos` hold `serve.sessions.outcome`: an episode that the guard
masks is truncated, with `masked` set. It is no failure: leave it out of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from dreamgym.adapters.gymnasium import Words
from dreamgym.errors import UsageError, nearest
from dreamgym.serve.sessions import DreamSessions, SessionError, SessionStart, outcome
from dreamgym.types import Action, Observation, StepResult, Task

SEEDS = 2**31  # of episodes, drawn from the environment's own stream


class DreamTextEnv(gymnasium.Env[str, str]):
    """One dreamed episode at a time. `reset` takes the task whose id or instruction is `options["task"]`, or one that the seed draws."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # gymnasium warns without a rate

    def __init__(self, dream: DreamSessions, *, render_mode: Literal["ansi"] | None = None) -> None:
        self.dream, self.render_mode = dream, render_mode
        self.observation_space, self.action_space = Words(), Words(256)
        self._session, self._shown, self._over = "", "", True
        self._task: Task | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first state of an episode; the same seed and task give the same episode. UsageError for an unknown option, SessionError for a
        task that is no text."""
        super().reset(seed=seed)
        self.close()
        drawn = int(self.np_random.integers(SEEDS))
        opened = self.dream.open(_task(options), seed=drawn).result()
        self._session, self._task, self._over = opened.session, opened.task, False
        self._shown = _text(opened.task, opened.observation)
        return self._shown, _begun(opened)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The next state, its reward, whether the task ended, whether the episode was cut, and who decided."""
        if self._over or self._task is None:
            raise UsageError("The episode has not begun or is over. Call reset() before step(action).")
        result = self.dream.step(self._session, action).result()
        self._shown = _text(self._task, result.observation)
        ended, cut = _ends(result)
        self._over = ended or cut
        return self._shown, float(result.reward), ended, cut, outcome(result)

    def render(self) -> str | None:
        """What the agent sees, in render mode "ansi"."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        if self._session:
            _ended(self.dream, self._session)
            self._session, self._over = "", True


class DreamVectorEnv(VectorEnv[tuple[str, ...], tuple[str, ...], Any]):
    """`num_envs` dreamed episodes side by side. An episode that is over begins anew at the next step, whose action is ignored
    (`AutoresetMode.NEXT_STEP`, the default of Gymnasium)."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}

    def __init__(self, dream: DreamSessions, num_envs: int) -> None:
        if not 1 <= num_envs <= dream.limits.sessions:
            raise UsageError(f"num_envs={num_envs} must be from 1 to {dream.limits.sessions}, the limit of sessions.")
        self.dream, self.num_envs = dream, num_envs
        self.single_observation_space, self.single_action_space = Words(), Words(256)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._open: list[SessionStart | None] = [None] * num_envs
        self._over = np.ones(num_envs, dtype=bool)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The first states of all episodes."""
        super().reset(seed=seed)
        self._end(range(self.num_envs))
        task = _task(options)
        started = self._begin(range(self.num_envs), task)
        infos: dict[str, Any] = {}
        for i in range(self.num_envs):
            infos = self._add_info(infos, _begun(started[i]), i)
        return tuple(_text(started[i].task, started[i].observation) for i in range(self.num_envs)), infos

    def step(self, actions: Sequence[str]) -> tuple[tuple[str, ...], Any, Any, Any, dict[str, Any]]:
        """One step of every episode: states, rewards [num_envs], ends, cuts, and who decided. UsageError for another number of actions."""
        if len(actions) != self.num_envs:
            raise UsageError(f"Expected {self.num_envs} actions, one an episode, and got {len(actions)}.")
        if any(one is None for one in self._open):
            raise UsageError("The episodes have not begun. Call reset() before step(actions).")
        again = [i for i in range(self.num_envs) if self._over[i]]
        asked = {i: self.dream.step(self._of(i).session, actions[i]) for i in range(self.num_envs) if not self._over[i]}
        self._end(again)
        started = self._begin(again, None)
        rewards = np.zeros(self.num_envs)
        ended, cut = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        shown, infos = list[str](), dict[str, Any]()
        for i in range(self.num_envs):
            if i in started:
                shown.append(_text(started[i].task, started[i].observation))
                infos = self._add_info(infos, _begun(started[i]), i)
                continue
            result = asked[i].result()
            shown.append(_text(self._of(i).task, result.observation))
            rewards[i], (ended[i], cut[i]) = result.reward, _ends(result)
            infos = self._add_info(infos, outcome(result), i)
        self._over = ended | cut
        return tuple(shown), rewards, ended, cut, infos

    def close_extras(self, **_: Any) -> None:
        self._end(range(self.num_envs))

    def _begin(self, places: Sequence[int], task: str | None) -> dict[int, SessionStart]:
        futures = {i: self.dream.open(task, seed=int(self.np_random.integers(SEEDS))) for i in places}
        for i, future in futures.items():
            if future.exception() is None:  # all that have begun are known, so that they can be ended, though another one fails
                self._open[i], self._over[i] = future.result(), False
        return {i: future.result() for i, future in futures.items()}

    def _end(self, places: Sequence[int]) -> None:
        for i in places:
            if (opened := self._open[i]) is not None:
                _ended(self.dream, opened.session)
                self._open[i] = None

    def _of(self, i: int) -> SessionStart:
        opened = self._open[i]
        assert opened is not None
        return opened


def _ended(dream: DreamSessions, session: str) -> None:
    """End an episode; those of a dream that is closed have ended with it."""
    with suppress(SessionError):
        dream.end(session).result()


def _task(options: dict[str, Any] | None) -> str | None:
    unknown = next((key for key in options or {} if key != "task"), None)
    if unknown is not None:
        raise UsageError(f"No option '{unknown:.64}' of reset.{nearest(unknown, ['task'])} Known: task.")
    return (options or {}).get("task")


def _text(task: Task, observation: Observation) -> str:
    return f"{task.instruction}\n{observation.text}"


def _begun(opened: SessionStart) -> dict[str, Any]:
    return {"task": opened.task.id, "instruction": opened.task.instruction, "simulation": True}


def _ends(result: StepResult) -> tuple[bool, bool]:
    """(terminated, truncated) of a step; a failed rollout, masked or broken, is cut."""
    failed = result.info.error is not None
    return result.terminated and not failed, result.truncated or failed
