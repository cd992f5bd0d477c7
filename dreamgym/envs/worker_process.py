"""The worker's side of a `WorkerPool`: a process that makes the suite and does what the pool asks for, until its line is cut."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, attempt
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import InvariantError
from dreamgym.types import Action, Observation, StepResult, Task, Trajectory, Transition

GRACE_S = 1.0
"""How long workers may take to leave by themselves when the pool is closed, or when the caller is dead."""


class Lost(Exception):
    """The answer to what cannot be had: why."""


class _Worker:
    """Where a worker does what it is asked. Slots are its own: 0, 1, ..."""

    def __init__(self, suite: EnvSuite) -> None:
        self.suite, self.pool = suite, EnvPool(suite.require_env, suite.rules)

    def begin(self, slot: int, task: Task) -> Observation:
        return self.pool.begin(slot, task)

    def act(self, slot: int, action: Action, past: tuple[Task, Sequence[Action], Observation] | None) -> StepResult:
        """One step, in an episode that is here, or that a `past` brings back: its task, what was done, and the state that led to."""
        if past is not None:
            task, actions, left = past
            state = self.pool.begin(slot, task)
            for earlier in actions:
                state = self.pool.step([slot], [earlier])[0].observation
            if state != left:
                raise Lost("its worker died, and the same actions led elsewhere in another, so the episode cannot be redone.")
        return self.pool.step([slot], [action])[0]

    def lose(self, reason: str) -> StepResult:
        """Give an episode up."""
        raise Lost(reason)

    def repeat(self, task: Task, actions: Sequence[Action]) -> tuple[tuple[Transition, ...] | None, int]:
        """The walk, and the steps that were made, also by one that failed."""
        before = self.pool.steps
        return self.pool.repeat([(task, actions)])[0], self.pool.steps - before

    def demonstrate(self, task: Task, behaviour: str, seed: int) -> Trajectory:
        return attempt(self.suite, task, behaviour, seed=seed)


def serve(line: Connection, suite: str, options: dict[str, Any]) -> None:
    """A worker's life: make the suite, say so, then answer requests until the line is cut."""
    os.setsid()  # Ctrl-C is for the caller, and whatever the environment starts can be ended with it
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    cut = threading.Event()
    atexit.register(_end_all, cut)  # registered before what the environment may have to put in order, so done after it
    try:
        worker = _Worker(plugins.make("envs", suite, **options))
    except Exception as error:  # the boundary of the process: whatever it is, it is the caller's to hear
        line.send_bytes(_sendable(error, suite))
        return
    line.send_bytes(pickle.dumps(None))
    with suppress(EOFError, OSError):  # the line is cut
        while True:
            for name, *arguments in line.recv():
                try:
                    answer = getattr(worker, name)(*arguments)
                except Exception as error:  # the same boundary
                    error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                    answer = error
                line.send_bytes(_sendable(answer, suite))
    cut.set()


def _end_with_the_caller() -> None:
    """However the caller ends, and whatever its worker is doing then."""
    if caller := multiprocessing.parent_process():
        caller.join()
        time.sleep(GRACE_S)
        os.killpg(0, signal.SIGKILL)


def _end_all(cut: threading.Event) -> None:
    """End whatever this worker has started, and itself, when it leaves because its line is cut."""
    if cut.is_set():
        os.killpg(0, signal.SIGKILL)


def _sendable(answer: Any, suite: str) -> bytes:
    """The answer as bytes, or an error that says why it cannot travel."""
    try:
        packed = pickle.dumps(answer)
        if isinstance(answer, Exception):
            pickle.loads(packed)
        return packed
    except Exception as error:
        why = f"A worker of environment '{suite}' cannot send {answer!r:.200}: {error}. Give plain values, or set env.workers = 0."
        return pickle.dumps(InvariantError(why))
