"""Every interface of dreamgym on one page. Lists go in and lists come out, in order, wherever a model or an index is inside.

Nothing here imports torch. Implementations are found by name in `llm/`, `envs/`, `replay/`, `train/algos/` (see `plugins`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dreamgym.types import (
    Action,
    Completion,
    Memory,
    Neighbour,
    Observation,
    Prediction,
    Query,
    Request,
    StepResult,
    Task,
    Told,
    Trajectory,
    Transition,
    Verdict,
    View,
)


class LLM(Protocol):
    """A language model that samples tokens. The caller need not know how or where."""

    version: int

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every prompt; completions in the order of the requests. UsageError for a prompt that does not fit."""
        ...

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Queue requests and return a ticket for each. They share batches with whatever else is under way."""
        ...

    def poll(self) -> list[tuple[int, Completion]]:
        """Work until something is finished: what has finished since the last call, each with its ticket. Empty: nothing is under way."""
        ...

    def cancel(self, tickets: Sequence[int]) -> None:
        """Drop requests, waiting or running, and free what they hold; tickets that are finished or unknown are ignored."""
        ...

    def release(self, sessions: Sequence[str]) -> None:
        """Free what is kept for these sessions; unknown names are ignored."""
        ...


class Meter(Protocol):
    """What a chat model was used for so far, and what that costs: see `llm.openai.Usage`."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def lost_tokens(self) -> int: ...
    @property
    def unreported(self) -> int: ...
    @property
    def price_per_million_input(self) -> float: ...
    @property
    def price_per_million_output(self) -> float: ...
    @property
    def cost(self) -> float: ...
    @property
    def lost_cost(self) -> float: ...


class Chat(Protocol):
    """An instruct model that answers chats in text, for teachers, judges and prompted experience models. None of its words are tokens."""

    model: str

    @property
    def usage(self) -> Meter: ...

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

    def begin(self, tasks: Sequence[Task], *, name: str) -> list[Any]: ...

    def act(
        self, conversations: Sequence[Any], observations: Sequence[Observation], *, temperature: float, seeds: Sequence[Sequence[int]]
    ) -> list[Completion]: ...

    def end(self, conversations: Sequence[Any]) -> None: ...


class Env(Protocol):
    """One real episode at a time, in raw form. `abstract` of its Domain turns raw into an Observation."""

    name: str

    def accepts(self, task: Task) -> bool: ...
    def reset(self, task: Task) -> dict[str, Any]: ...
    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]: ...


class BatchEnv(Protocol):
    """Many episodes side by side, real or dreamed: the one interface that rollouts know."""

    source: str

    @property
    def version(self) -> int:
        """Of the experience model; 0 for the real environment."""
        ...

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]: ...
    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]: ...


class RealEnv(BatchEnv, Protocol):
    """The real environment, in this process or in others. `steps` is what it was charged."""

    steps: int

    def repeat(self, walks: Sequence[tuple[Task, Sequence[Action]]]) -> list[tuple[Transition, ...] | None]:
        """What really follows each task's actions, until they or the episode end; None where it cannot be had, as for an invented task."""
        ...


class Domain(Protocol):
    """Everything about an environment family that is not its simulator.

    `admissible` and `check` see text only (instruction, states, history): never the catalogue, the goal record or the simulator.
    """

    name: str

    @property
    def atoms(self) -> Sequence[str]:
        """Regular expressions of what a tokenizer trained for this family keeps in one piece, such as `[buy now]`."""
        ...

    def abstract(self, raw: dict[str, Any]) -> Observation: ...
    def canonical(self, action: Action) -> Action: ...

    def view(self, observation: Observation) -> View:
        """How the agent sees a state: the same text with short references for names that could only be memorised."""
        ...

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None: ...
    def explain(self, task: Task, history: Sequence[Transition], transition: Transition) -> str: ...
    def check(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict: ...
    def brief(self, memory: Memory) -> str: ...
    def well_formed(self, instruction: str) -> bool: ...
    def feasible(self, instruction: str, memories: Iterable[Memory]) -> bool | None: ...


@runtime_checkable
class Described(Protocol):
    """A Domain that explains itself to instruct models, which have never seen it."""

    about: str
    """What the environment is and how it answers, in a few sentences."""
    manual: str
    """How an action is written at the end of a reply."""


@runtime_checkable
class SortsActions(Protocol):
    """A Domain that says of what kind an action is, for measures by kind."""

    def kind(self, observation: Observation, action: Action) -> str: ...


@runtime_checkable
class Stocked(Protocol):
    """A Family that can list what its world holds, for measures that ask whether a dreamed thing exists. For them alone."""

    def inventory(self) -> Iterable[Observation]: ...


@runtime_checkable
class Grounds(Protocol):
    """A Family that can say what in its world an invented instruction asks for, for measures that ask whether it can be done. For them
    alone."""

    grounds: bool
    """Whether it can with the settings at hand."""

    def grounded(self, task: Task) -> Task | None:
        """The task as the real environment scores it; None where nothing real meets it."""
        ...


@runtime_checkable
class LeavesOpen(Protocol):
    """A Domain whose texts may show neither a success nor a failure, such as a range of prices around the bound. `check` refuses those."""

    def leaves_open(self, instruction: str, history: Sequence[Transition], claim: Transition) -> bool:
        """Whether a claimed success is refused although nothing shows that it is none."""
        ...


@runtime_checkable
class Doubts(Protocol):
    """A Domain that can tell a dreamed success from a real one by its way there: by what no world of its kind shows. It reads texts."""

    def doubts(self, history: Sequence[Transition], claim: Transition) -> list[str]:
        """Why the pages that led to a claimed success cannot be real; [] where nothing shows it."""
        ...


@runtime_checkable
class PaysFractions(Protocol):
    """A Family whose environment may pay for a part of a success, which no text check knows."""

    pays_fractions: str
    """The option under which it does, such as `outcome = false`; "" when it pays for whole successes only."""


@runtime_checkable
class Glimpsed(Protocol):
    """A Domain of worlds that are seen bit by bit. What was never seen can only be drawn; what was seen stays as it was."""

    def hidden(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool:
        """Whether what follows shows something for the first time."""
        ...

    def revisits(self, history: Sequence[Transition]) -> list[bool]:
        """For each return to a place that had been seen: whether it showed what had to be there."""
        ...


@runtime_checkable
class Narrated(Protocol):
    """A Domain whose states hold all that is known, and grow by what each step tells. Its experience model writes the news, in the words
    of the environment, and the state mapping folds them into the state, in a dream as in reality."""

    def news(self, transition: Transition) -> str:
        """What the step told; `hear` makes the next state of it."""
        ...

    def hear(self, observation: Observation, told: str) -> Observation | None:
        """The state after what was told; None when it cannot be understood."""
        ...


@runtime_checkable
class Lists(Protocol):
    """A Domain whose worlds answer words with lists of what they hold, by words and page alone: a search (`replay.things`)."""

    longest_list: int  # things that a list names at most, over all its pages

    def asked(self, observation: Observation, history: Sequence[Transition], action: Action) -> tuple[str, int] | None:
        """The words whose list an action shows, and which page of it, from 1; None where it shows none, or only one shown before."""
        ...

    def told_of(self, transition: Transition) -> list[Told]:
        """What a step told of things that the world holds."""
        ...

    def terms(self, text: str) -> list[str]:
        """The words of a text that count where things are found by words."""
        ...

    def written(self, lines: Sequence[str], number: int) -> str:
        """The state that lists these lines as page `number`."""
        ...


@runtime_checkable
class Idles(Protocol):
    """A Domain that knows actions which may be taken and change nothing, such as choosing what is chosen."""

    def idle(self, observation: Observation, history: Sequence[Transition], action: Action) -> str:
        """Why nothing changes, in the teacher's words; "" where something may."""
        ...


class Family(Protocol):
    """What `make(**config)` of an environment plug-in returns: everything a run needs of one kind of environment."""

    name: str
    domain: Domain
    max_steps: int
    behaviours: Mapping[str, float]
    """The scripted behaviours that logs are made of, with their default shares, which sum to 1."""

    def tasks(self, split: str, n: int, *, seed: int) -> list[Task]:
        """`n` distinct tasks of split train, dev or test, which share no task; fewer when the split does not hold so many."""
        ...

    def env(self) -> Env: ...

    def behave(self, task: Task, behaviour: str, *, seed: int) -> Trajectory:
        """One real episode by a scripted behaviour; the same seed gives the same episode."""
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
    def sequence(self) -> int:
        """Number of the last row that was taken in, evicted or not."""
        ...

    @property
    def rollbacks(self) -> int:
        """How often the buffer was wound back: rows of the same numbers are then others."""
        ...

    def __len__(self) -> int: ...
    def add(self, trajectories: Sequence[Trajectory]) -> int: ...
    def memories(self) -> Iterable[Memory]: ...

    def search(
        self, states: Sequence[str], actions: Sequence[str], *, k: int, env: str | None = None, exclude: Sequence[str] | None = None
    ) -> list[list[Neighbour]]:
        """Top-k by cosine of phi(s, a); `exclude[i]` is a trajectory id that query i may not see."""
        ...


class ExperienceModel(Protocol):
    """M_exp and M_task of the paper: one set of weights that dreams transitions and varies tasks."""

    @property
    def version(self) -> int: ...

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]: ...
    def predict(self, queries: Sequence[Query]) -> list[Prediction]: ...
    def vary(self, seeds: Sequence[Task], *, seed: int) -> list[str]: ...
    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None: ...


class Teacher(Protocol):
    """Explains logged episodes: the R* of Eq. 5."""

    def annotate(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with a reasoning trace on every transition, in order; those that could not be annotated are left out."""
        ...


class Verifier(Protocol):
    """A second opinion on what an experience model claims."""

    def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
        """A verdict per (instruction, history, claim), in order; None where no opinion could be had."""
        ...


class Curriculum(Protocol):
    """Decides what to practise next (section 4.2 of the paper)."""

    def sample(self, n: int) -> list[Task]: ...
    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]: ...
    def expand(self) -> dict[str, int]: ...


class Objective(Protocol):
    """What every policy-gradient algorithm has. `config` holds the switches of `train.objective.ObjectiveConfig`; tensors are [N], one
    entry per trained token of a micro-batch."""

    config: Any
    grouped: bool
    """Whether rollouts of the same task are compared, so that groups of one teach nothing."""

    def loss(self, logprobs: Any, old: Any, advantages: Any, *, normaliser: float, **terms: Any) -> tuple[Any, dict[str, float]]:
        """(loss, sums of diagnostics). Terms: reference, entropy, weights, sampled; each [N] or None."""
        ...


@runtime_checkable
class Algorithm(Objective, Protocol):
    """Advantages from the rollouts alone."""

    def credit(self, groups: Sequence[Sequence[Trajectory]]) -> list[list[list[float]]]:
        """Per group, and per rollout in it without an error, the advantage of every turn. All 0.0: the rollout is left out."""
        ...


@runtime_checkable
class ActorCritic(Objective, Protocol):
    """Advantages from a learned value function. Rows are `train.batch.Row`, which the methods fill in."""

    critic: Any
    """The `train.critic.CriticConfig`. `config.bootstrap` says whether episodes cut at the horizon go on in their value."""

    def mark(self, rows: Sequence[Any]) -> None:
        """Say before which tokens values are read."""
        ...

    def assign(self, trajectory: Trajectory, rows: Sequence[Any], last: float) -> None:
        """Advantages and value targets of one trajectory, from the values read and the one after its last turn."""
        ...

    def finish(self, rows: Sequence[Any]) -> None:
        """What concerns the whole batch."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Keeps something between updates that a checkpoint must hold."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Learner(Protocol):
    """Owns the policy's weights and its optimiser."""

    version: int

    def update(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]: ...
    def publish(self) -> int: ...
