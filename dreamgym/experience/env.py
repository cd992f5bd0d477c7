"""The dream as an environment: `DreamBatch` for rollouts, `DreamEnv` for one episode by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dreamgym.envs.base import TextRules
from dreamgym.envs.batch import AsyncBatchEnv
from dreamgym.errors import UsageError
from dreamgym.experience.action_support import ActionSupport
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.types import Action, Observation, Prediction, Query, StepResult, Task, Transition


class DreamBatch(AsyncBatchEnv):
    """Many dreamed episodes side by side (the `BatchEnv` protocol). `steps` counts dreamed transitions.

    With `support`, a step that the model was asked about and of which no real memory tells is marked as `out_of_support`.
    """

    source = "dream"

    def __init__(self, model: ExperienceModel, rules: TextRules, *, horizon: int, support: ActionSupport | None = None) -> None:
        self.model, self.rules, self.horizon, self.support = model, rules, horizon, support
        self.steps = 0
        self.rollout = 0
        self.tasks: list[Task] = []
        self.numbers: list[int] = []  # the episodes' places in the whole rollout, by slot
        self.states: list[Observation] = []
        self.histories: list[list[Transition]] = []
        self._pending: dict[int, tuple[int, Query]] = {}  # the slot and query of each ticket of the model

    @property
    def version(self) -> int:
        return self.model.version

    @property
    def concurrent(self) -> bool:
        return self.model.concurrent

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """Dream the first observation of every task."""
        self.end()
        self.rollout, self.tasks, self.numbers = seed, list(tasks), list(range(len(tasks)))
        self.states = self.model.start(tasks, seed=seed)
        self.histories = [[] for _ in tasks]
        return list(self.states)

    def number_episodes(self, indices: Sequence[int]) -> None:
        """See `rollout.NumberedEpisodes`. No step may be under way."""
        self.numbers = list(indices)

    def end(self) -> None:
        """Let the model forget the episodes: its engine keeps the keys and values of each, which a learner needs the memory of."""
        self.model.forget([(self.rollout, number) for number in self.numbers])
        self.tasks, self.numbers, self._pending = [], [], {}

    def submit(self, slots: Sequence[int], actions: Sequence[Action]) -> None:
        """Dream what follows. `truncated` is our horizon's doing, never the model's; an unreadable dream is an error of its episode."""
        queries = [
            Query(
                task=self.tasks[slot],
                history=tuple(self.histories[slot]),
                state=self.states[slot],
                action=self.rules.canonical(action),
                stream=(self.rollout, self.numbers[slot], len(self.histories[slot])),
            )
            for slot, action in zip(slots, actions, strict=True)
        ]
        self.steps += len(queries)
        for slot, query, ticket in zip(slots, queries, self.model.submit(queries), strict=True):
            self._pending[ticket] = (slot, query)

    def poll(self) -> list[tuple[int, StepResult]]:
        """See `protocols.BatchEnv`."""
        results = []
        for ticket, prediction in self.model.poll():
            slot, query = self._pending.pop(ticket)
            self.states[slot] = prediction.next_state
            self.histories[slot].append(query.transition(prediction))
            results.append((slot, self.result(query, prediction, len(self.histories[slot]) >= self.horizon)))
        return results

    def result(self, query: Query, prediction: Prediction, at_horizon: bool) -> StepResult:
        """Make a prediction the result of a step; `at_horizon`: the episode may not go on."""
        info = prediction.info
        if self.support is not None and info.decided_by == self.model.answers_by:
            info = replace(info, out_of_support=(query.task.env, query.action) not in self.support)
        if info.verdict and info.has_verdict("masked"):
            info = replace(info, error=f"masked by the guard: {info.verdict.reasons[0]}")
        if not query.state.text:
            info = replace(info, error="the experience model's first state could not be read")
        truncated = at_horizon and not prediction.terminated
        return StepResult(prediction.next_state, prediction.reward, prediction.terminated, truncated, info, query.action)


class DreamEnv:
    """One dreamed episode: `reset(task)`, then `step(action)`, as a person or a Gymnasium adapter would."""

    def __init__(self, batch: DreamBatch) -> None:
        self.batch, self.episodes = batch, 0

    def reset(self, task: Task) -> Observation:
        self.episodes += 1
        return self.batch.start([task], seed=self.episodes)[0]

    def step(self, action: Action) -> StepResult:
        if not self.batch.tasks:
            raise UsageError("step() before reset(): give the dream a task first.")
        return self.batch.step([0], [action])[0]
