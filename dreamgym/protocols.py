"""The interfaces that cross layers, on one page. Lists go in and lists come out, in order, wherever a model or an index is inside.

Nothing here imports torch. Implementations are found by name in `engines/`, `envs/`, `replay/`, `train/algos/` (see `plugins`). An
interface that one layer keeps to itself stands in its own module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dreamgym.types import (
    Action,
    Completion,
    Memory,
    Neighbour,
    Observation,
    Request,
    Source,
    StepResult,
    Task,
    Trajectory,
    Transition,
    Verdict,
)
from dreamgym.usage import Usage


class LLM(Protocol):
    """A language model that samples tokens. The caller need not know how or where."""

    version: int
    """Of the weights that it samples from, as `publish` gave it."""
    concurrent: bool
    """Whether requests are worked on while nobody polls, as on a server."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens around it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        ...

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every prompt; completions in the order of the requests. UsageError for a prompt that does not fit."""
        ...

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests and return a ticket for each. They share batches with whatever else is under way."""
        ...

    def poll(self, tickets: Collection[int] | None = None) -> list[tuple[int, Completion]]:
        """Work until something is finished: what has finished since the last call, each with its ticket. Empty: nothing is under way.

        With `tickets`, only those count; what else finishes waits for its own poll. So several callers share one engine."""
        ...

    def cancel(self, tickets: Sequence[int]) -> None:
        """Drop requests, waiting or running, and free what they hold; tickets that are finished or unknown are ignored."""
        ...

    def release(self, sessions: Sequence[str]) -> None:
        """Free what is kept for these sessions; unknown names are ignored."""
        ...

    def publish(self, version: int, save: Callable[[], Path]) -> None:
        """Sample from the learner's weights from now on, and give completions this version. `save` writes a checkpoint and returns its
        folder, for an engine in another process."""
        ...


class Chat(Protocol):
    """An instruct model that answers chats in text, for teachers, judges and prompted experience models. None of its words are tokens."""

    model: str

    @property
    def usage(self) -> Usage:
        """What has been asked and answered so far."""
        ...

    def replies(
        self,
        conversations: Iterable[Sequence[Mapping[str, Any]]],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seeds: Sequence[tuple[int, ...]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        allow_truncated: bool = False,
    ) -> Generator[tuple[int, str | Exception], None, None]:
        """Each reply as it comes, with its conversation's place; a ServerError stands in the place of a reply that will not come.

        Conversations are taken one by one as there is room for them, so a caller ends the asking by ending them. `close` aborts.
        """
        ...


class Policy(Protocol):
    """Acts in many episodes at once. A conversation is what the policy keeps of one episode; only the policy looks inside."""

    @property
    def concurrent(self) -> bool:
        """Whether actions are worked on while nobody polls."""
        ...

    def begin(self, tasks: Sequence[Task], *, name: str) -> list[Any]:
        """A conversation per task, in order. `name` is part of the names of their sessions, so that those of two calls differ."""
        ...

    def submit(
        self, conversations: Sequence[Any], observations: Sequence[Observation], *, temperature: float, seeds: Sequence[Sequence[int]]
    ) -> list[int]:
        """Ask for one action in each conversation, and return a ticket for each."""
        ...

    def poll(self) -> list[tuple[int, Completion]]:
        """Work until an action is there: those since the last call, each with its ticket. Its text is the action. Empty: none was asked
        for."""
        ...

    def end(self, conversations: Sequence[Any]) -> None:
        """Drop what is still asked for in these conversations, and free what is kept of them."""
        ...


class Env(Protocol):
    """One real episode at a time, in raw form. `abstract` of its TextRules turns raw into an Observation."""

    name: str

    def accepts(self, task: Task) -> bool:
        """Whether the environment can play the task: a synthetic one it may not know."""
        ...

    def reset(self, task: Task) -> dict[str, Any]:
        """Begin the task's episode, and end the one before; the first raw observation."""
        ...

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        """(raw observation, reward, whether the episode has ended). An inadmissible action is a step like any other."""
        ...


class BatchEnv(Protocol):
    """Many episodes side by side, real or dreamed: the one interface that rollouts know."""

    source: str

    @property
    def version(self) -> int:
        """Of the experience model; 0 for the real environment."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether steps are worked on while nobody polls."""
        ...

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """Begin an episode per task, in slots 0, 1, …; their first observations in order."""
        ...

    def submit(self, slots: Sequence[int], actions: Sequence[Action]) -> None:
        """Act in the episodes named by `slots`, none of which has a step under way."""
        ...

    def poll(self) -> list[tuple[int, StepResult]]:
        """Work until a step is done: those since the last call, each with its slot. Empty: none is under way."""
        ...

    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        """Submit, and wait for all; results in the order of the slots. See `envs.batch`."""
        ...

    def end(self) -> None:
        """No episode goes on: drop what is under way in them, and free what is kept for them. See `envs.batch`."""
        ...


class RealEnv(BatchEnv, Protocol):
    """The real environment, in this process or in others. `steps` is what it was charged."""

    steps: int

    @property
    def seconds(self) -> float:
        """Wall-clock seconds for which callers have waited for it."""
        ...

    def repeat(self, walks: Sequence[tuple[Task, Sequence[Action]]]) -> list[tuple[Transition, ...] | None]:
        """What really follows each task's actions, until they or the episode end; None where it cannot be had, as for a synthetic task."""
        ...


class Encoder(Protocol):
    """phi(s, a): unit vectors whose cosine says how alike two situations are."""

    id: str
    dim: int

    def encode(self, states: Sequence[str], actions: Sequence[str]) -> np.ndarray:
        """float32 [n, dim], rows of length 1."""
        ...


class ReplayBuffer(Protocol):
    """A durable log of experience with a nearest-neighbour index over it."""

    @property
    def last_row(self) -> int:
        """Number of the last row that was read, evicted or not."""
        ...

    @property
    def rollbacks(self) -> int:
        """How often the buffer was rolled back: row numbers are then used again for other rows."""
        ...

    @property
    def refused(self) -> int:
        """Transitions that were not admitted."""
        ...

    @refused.setter
    def refused(self, value: int) -> None: ...

    def __len__(self) -> int: ...
    def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Append the transitions that are admitted; how many these were."""
        ...

    def rollback(self, row: int) -> None:
        """Drop every row above this number, as after an interruption."""
        ...

    def stats(self) -> dict[str, float]:
        """Counts for reports: rows by source, trajectories, refused ones."""
        ...

    def close(self) -> None:
        """Write what is pending and free the files."""
        ...

    def memories(self, *, env: str | None = None, source: Source | None = None, after: int = 0) -> Iterable[Memory]:
        """The memories in order, of one environment and one source where they are given, and of the rows above `after`."""
        ...

    def search(
        self, states: Sequence[str], actions: Sequence[str], *, k: int, env: str | None = None, exclude: Sequence[str] | None = None
    ) -> list[list[Neighbour]]:
        """Top-k by cosine of phi(s, a); `exclude[i]` is a trajectory id that query i may not see."""
        ...


class Verifier(Protocol):
    """A second opinion on what an experience model claims."""

    def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
        """A verdict per (instruction, history, claim), in order; None where no opinion could be had."""
        ...


class Curriculum(Protocol):
    """Chooses the tasks of each iteration (section 4.2 of the paper)."""

    def sample(self, n: int, *, after: Sequence[Task] | None = None) -> list[Task]:
        """`n` tasks for this iteration, or for the next one: `after` are then the tasks of this one, which are still played."""
        ...

    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
        """Take note of the rollouts of each task: value of Eq. 7; metrics."""
        ...

    def expand(self) -> dict[str, int]:
        """Propose variations of tasks of high value (Eq. 6); how many were accepted and refused, by reason."""
        ...


class Objective(Protocol):
    """What every policy-gradient algorithm has. `config` holds the switches of `train.objective.ObjectiveConfig`."""

    config: Any
    grouped: bool
    """Whether rollouts of the same task are compared, so that groups of one rollout have no gradient."""

    def loss(self, inputs: Any) -> Any:
        """`train.objective.LossInputs`, the trained tokens of a micro-batch, to `LossOutputs`: the loss and sums of diagnostics."""
        ...


@runtime_checkable
class Algorithm(Objective, Protocol):
    """Advantages from the rollouts alone."""

    def compute_advantages(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[list[float]]]:
        """[group][rollout without error][turn] the advantage of every turn. A rollout whose advantages are all 0.0 is left out."""
        ...


@runtime_checkable
class ActorCritic(Objective, Protocol):
    """Advantages from a learned value function. Sequences are `train.batch.TokenSequence`, which the methods fill in."""

    critic: Any
    """The `train.critic.CriticConfig`. The `bootstrap` of `config` says whether episodes cut at the horizon go on in their value."""

    def mark_valued(self, sequences: Sequence[Any]) -> None:
        """Set each sequence's `value_mask`, along its tokens: 1.0 where a value is read before the token, else 0.0."""
        ...

    def set_advantages(self, trajectory: Trajectory, sequences: Sequence[Any], last: float) -> None:
        """Set `advantages` and `returns` (value targets), along the tokens of one trajectory's sequences, from their `values` and `last`,
        the value after its last turn."""
        ...

    def normalise(self, sequences: Sequence[Any]) -> None:
        """Normalise over the whole batch."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Has state that a checkpoint must hold."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Learner(Protocol):
    """Owns the policy's weights and its optimiser."""

    version: int
    """How often the weights were published."""

    def update(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
        """The gradient steps of one iteration, on groups of rollouts of one task each; metrics."""
        ...

    def publish(self) -> int:
        """Let the engine sample from the present weights; their version."""
        ...
