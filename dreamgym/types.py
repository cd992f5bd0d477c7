"""The records that every layer shares. Frozen, plain, and free of torch, so that importing them costs nothing.

Words follow the DreamGym paper (arXiv:2511.03773): a *dream* is synthetic, *real* is the environment, an `Observation` is the
paper's abstract state s_t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from dreamgym.bracket_actions import join_action, split_action
from dreamgym.errors import UsageError

Source = Literal["real", "dream", "demo"]
"""Where an experience came from: the real environment under our policy, the experience model, or somebody's logs."""

Action = str
"""What the agent does, as the environment reads it: `search[wool scarf]`, `click[buy now]`, `right`."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do. The instruction tau is part of the initial state; `goal` is the environment's private record of it."""

    id: str
    instruction: str
    env: str
    source: Literal["real", "synthetic"] = "real"
    difficulty: int = 1  # number of requirements; 0 when unknown
    goal: Mapping[str, Any] | None = None  # for the real environment only: no model, guard or policy may read it
    parents: tuple[str, ...] = ()  # ids of the seed tasks a synthetic task was varied from


@dataclass(frozen=True, slots=True)
class Observation:
    """The abstract state s_t: clean text that lists the actionable elements, as `TextRules.abstract` made it."""

    text: str


@dataclass(frozen=True, slots=True)
class View:
    """A state as the agent reads it, and what its references stand for: {"1": "b835"} turns `click[1]` into `click[b835]`.

    A policy that sees names learns which names were good; one that sees `[1]` must read the line. The same for real and dreamed states.
    """

    text: str
    names: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, action: Action) -> Action:
        """The agent's action in the environment's words."""
        verb, reference = split_action(action)
        if reference is None or join_action(verb, reference) != action:
            return action
        return join_action(verb, self.names.get(reference) or reference)

    def refer(self, action: Action) -> Action:
        """The environment's action in the agent's words: the inverse of `resolve`."""
        verb, _ = split_action(action)
        reference = next((short for short, name in self.names.items() if join_action(verb, name) == action), None)
        return join_action(verb, reference) if reference else action


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a prompt is continued: until one of `stop` is sampled, or `max_tokens` are out.

    An element of `stop` is a token id, or a sequence of ids that must be sampled in this order. Temperature 0 is greedy. `top_k` keeps
    the k likeliest tokens (0: all), `top_p` the fewest whose probability reaches p; both act after the temperature. `grammar` allows only
    what it derives (llguidance's Lark dialect; "" allows everything); the tokenizer's end token must then be among the stops.
    """

    max_tokens: int
    stop: tuple[int | tuple[int, ...], ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    grammar: str = ""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens={self.max_tokens} must be at least 1.")
        if self.temperature < 0:
            raise UsageError(f"temperature={self.temperature} must be 0 (greedy) or more.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p={self.top_p} must be above 0 and at most 1 (all tokens).")
        if self.top_k < 0:
            raise UsageError(f"top_k={self.top_k} must be 0 (all tokens) or more.")
        if any(isinstance(one, tuple) and not one for one in self.stop):
            raise UsageError("An empty stop sequence would stop everything at once. Give at least one token id.")

    @property
    def stops(self) -> tuple[tuple[int, ...], ...]:
        """Every element of `stop` as a sequence of ids."""
        return tuple((one,) if isinstance(one, int) else one for one in self.stop)

    def ends(self, ids: Sequence[int]) -> int:
        """The length of the stop that `ids` end with; 0 when they end with none."""
        return next((len(stop) for stop in self.stops if tuple(ids[-len(stop) :]) == stop), 0)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. `seed` names its random stream, whatever else is in the batch; None is a stream never used before.

    Requests of one `session` extend each other: an engine may keep the episode's key-value cache between them. It changes speed,
    never results.
    """

    prompt: Sequence[int]
    sampling: Sampling
    seed: tuple[int, ...] | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model produced, as tokens. `ids` were sampled; they are never decoded and encoded again.

    `logprobs[i]` is the natural-log probability of `ids[i]` under the weights `version`, at the sampling temperature (at 1 when greedy),
    over the whole vocabulary: `top_p`, `top_k` and `grammar` are not in it, so that it equals what the learner computes.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str  # of `ids`, without the stop that ended them
    finish_reason: Literal["stop", "length", "overflow"]
    """"stop": sampled, the last of `ids`; "overflow": the prompt had no room, nothing was sampled."""
    version: int = 0


VerdictKind = Literal["passed", "refused", "undecided", "masked", "unreadable"]
"""`refused`: the reward is taken away. `undecided`: the texts show neither a success nor a failure. `masked`: the whole episode is left out
of training and memory. `unreadable`: the experience model's answer could not be parsed, which ends the episode as a failed rollout."""

DecidedBy = Literal["rule", "recalled", "inferred", "composed", "generated"]
"""What determined a dreamed state or reward: a rule of the environment's `TextRules`, an exact precedent in real memory, a condition that
was mined from the logs (`experience.conditions`), a composition of several memories, or the experience model. What the episode itself
showed before counts as recalled, and a generated answer whose first line a condition corrected as generated."""
RewardBy = Literal[DecidedBy, "verifier"]
"""What determined a reward: the same, or a verifier that grants successes, which then decides where the experience model says failure."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of the guard, a rule or a verifier on one prediction. Programs read `kind`, people read `reasons`."""

    kind: VerdictKind
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(VerdictKind):
            raise UsageError(f"A verdict is one of {', '.join(get_args(VerdictKind))}, not {self.kind!r:.100}.")

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


@dataclass(frozen=True, slots=True)
class StepInfo:
    """How a step came about. The defaults are those of a step of the real environment."""

    reasoning: str = ""  # the explanation of the outcome: by the experience model, a scripted policy or a teacher
    neighbours: tuple[int, ...] = ()  # ids of the replay rows in the experience model's prompt
    verdict: Verdict | None = None
    raw_reward: float | None = None  # the experience model's reward, before the guard
    raw_terminated: bool | None = None
    decided_by: DecidedBy | None = None  # the next state; None: the environment
    reward_by: RewardBy | None = None  # reward and end; None: the environment
    out_of_support: bool = False  # no real transition in the replay buffer has this action
    error: str | None = None  # why the episode ends here as a failed rollout

    def has_verdict(self, kind: VerdictKind) -> bool:
        """Whether there is a verdict, and it is of this kind."""
        return self.verdict is not None and self.verdict.kind == kind


REAL_STEP = StepInfo()


@dataclass(frozen=True, slots=True)
class StepResult:
    """An environment's answer. `terminated`: the task ended. `truncated`: we stopped it. They are two facts."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool = False
    info: StepInfo = REAL_STEP
    action: Action | None = None  # in the environment's one spelling; None: as it was given


@dataclass(frozen=True, slots=True)
class Transition:
    """(s_t, a_t) -> (s_{t+1}, r_{t+1}), and how it came about."""

    state: Observation
    action: Action
    next_state: Observation
    reward: float
    terminated: bool
    info: StepInfo = REAL_STEP

    @property
    def succeeded(self) -> bool:
        """Whether the episode ends here with a reward of 1 or more, which is what success means everywhere."""
        return self.terminated and self.reward >= 1.0

    @property
    def as_predicted(self) -> Transition:
        """The step with the experience model's own reward and end, before the guard; its next state is as it is. A step that no model
        answered stays as it is."""
        reward = self.reward if self.info.raw_reward is None else self.info.raw_reward
        terminated = self.terminated if self.info.raw_terminated is None else self.info.raw_terminated
        return replace(self, reward=reward, terminated=terminated)

    @property
    def is_noop(self) -> bool:
        """Whether the action changed nothing: the same state, no reward, no end."""
        return self.next_state == self.state and not self.reward and not self.terminated

    @property
    def is_answer(self) -> bool:
        """Whether the environment, or a model of it, answered with another state. What a rule refused, as by an error, got no answer."""
        return self.next_state != self.state and self.info.decided_by != "rule"

    def with_reasoning(self, reasoning: str) -> Transition:
        """The same transition with another explanation."""
        return replace(self, info=replace(self.info, reasoning=reasoning))


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of the agent: the tokens it sampled (None in logs of others) and what came of them."""

    transition: Transition
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. A failed rollout is data: it carries `error`, is counted, and is never a training row."""

    id: str
    task: Task
    source: Source
    turns: tuple[Turn, ...]
    success: bool
    truncated: bool = False
    error: str | None = None
    behaviour: str = ""  # who acted: "expert", "policy", ...
    policy_version: int = 0
    model_version: int = 0  # of the experience model; 0 for real episodes
    scored: bool = True  # whether `success` and the rewards are known; False in logs without an outcome

    @property
    def total_reward(self) -> float:
        return sum(turn.transition.reward for turn in self.turns)

    @property
    def transitions(self) -> tuple[Transition, ...]:
        return tuple(turn.transition for turn in self.turns)

    @property
    def masked(self) -> bool:
        """Whether the guard left the episode out."""
        return bool(self.turns) and self.turns[-1].transition.info.has_verdict("masked")


@dataclass(frozen=True, slots=True)
class Query:
    """What the experience model is asked: what follows `action` in `state`, after `history`, in `task` (Eq. 4)."""

    task: Task
    history: tuple[Transition, ...]
    state: Observation
    action: Action
    stream: tuple[int, ...] = ()  # (rollout, episode, step): names the random numbers that its answer is sampled with
    episode_name: tuple[int, ...] = ()  # unique while the episode runs; stream[:2] by default

    @property
    def episode(self) -> tuple[int, ...]:
        """What names the episode among those under way."""
        return self.episode_name or self.stream[:2]

    def transition(self, prediction: Prediction) -> Transition:
        """The transition that the prediction makes of this query."""
        return Transition(self.state, self.action, prediction.next_state, prediction.reward, prediction.terminated, prediction.info)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer to a query, with the guard's verdict in its `info`."""

    next_state: Observation
    reward: float
    terminated: bool
    info: StepInfo


@dataclass(frozen=True, slots=True)
class Memory:
    """A replay-buffer row: one transition and where it came from. What was put together from several of them has row 0."""

    row: int
    trajectory: str
    step: int
    env: str
    instruction: str
    source: Source
    state: str
    action: str
    next_state: str
    reward: float
    terminated: bool
    success: bool
    reasoning: str = ""
    policy_version: int = 0
    model_version: int = 0
    verdict: str = ""  # the kind of the guard's verdict on a dream; "" for real rows
    task: str = ""  # the id of the task; "" where it is not known

    @property
    def transition(self) -> Transition:
        """The row as the step that it was."""
        return Transition(Observation(self.state), self.action, Observation(self.next_state), self.reward, self.terminated)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A memory and its cosine similarity to the query, in [-1, 1]; 1 where it is what was asked for, without comparing."""

    memory: Memory
    similarity: float
