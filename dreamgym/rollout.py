"""Rolling out a policy in many episodes at once, real or dreamed: the same code, the same records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from dreamgym.errors import InvariantError
from dreamgym.protocols import BatchEnv, Policy
from dreamgym.types import Completion, Observation, StepInfo, StepResult, Task, Trajectory, Transition, Turn

T = TypeVar("T")
DEFAULT_MIN_READY = 0.25
"""The share of the running episodes that must have answered before the other side, policy or environment, goes on: where one of them
is `concurrent`."""
TOO_LONG = "the first state does not fit into the policy's context"


@runtime_checkable
class NumberedEpisodes(Protocol):
    """A batch environment that draws random numbers by an episode's place in the whole rollout, as a dream does."""

    def number_episodes(self, indices: Sequence[int]) -> None:
        """The places of the episodes that have just begun, by slot; without it they are 0, 1, ..."""
        ...


def rollout(
    agent: Policy,
    env: BatchEnv,
    tasks: Sequence[Task],
    *,
    seed: int,
    max_steps: int,
    temperature: float = 1.0,
    name: str = "rollout",
    min_ready: float | None = None,
    episode_indices: Sequence[int] | None = None,
    max_parallel: int | None = None,
) -> list[Trajectory]:
    """One trajectory per task, in order. Episode i draws from the random streams (seed, i, step), whatever runs beside it.

    `min_ready` is the share of the running episodes that must have actions before the environment goes on with them, and results before the
    policy does. By default `DEFAULT_MIN_READY` where policy or environment is concurrent, else 1.0 (lockstep): engines of one process take
    turns, and full batches are faster. It changes no trajectory but by the rounding of batched arithmetic.

    `episode_indices` are the episodes' places in the whole rollout of which these are a part, for the random streams; by default 0, 1, ...
    At most `max_parallel` episodes are open at once, as some environments keep no more; by default all. It changes no trajectory either.
    A dream takes both into account (`NumberedEpisodes`).

    Finished episodes leave the batch. A step whose `info` has an `error` ends its episode as a failed rollout: kept, never trained on.
    So does a first state that does not fit into the policy's context. A conversation that has outgrown it is cut off there, as at
    `max_steps`: the policy did not come to an end.
    """
    if min_ready is None:
        min_ready = DEFAULT_MIN_READY if agent.concurrent or env.concurrent else 1.0
    indices = list(range(len(tasks)) if episode_indices is None else episode_indices)
    size = len(tasks) if max_parallel is None else max_parallel
    trajectories = list[Trajectory]()
    for start in range(0, len(tasks), size) if tasks else ():
        part = slice(start, start + size)
        trajectories += _play(
            agent,
            env,
            tasks[part],
            indices[part],
            seed=seed,
            max_steps=max_steps,
            temperature=temperature,
            name=name,
            min_ready=min_ready,
        )
    return trajectories


def _play(
    agent: Policy,
    env: BatchEnv,
    tasks: Sequence[Task],
    indices: Sequence[int],
    *,
    seed: int,
    max_steps: int,
    temperature: float,
    name: str,
    min_ready: float,
) -> list[Trajectory]:
    """The episodes of tasks that are open at once."""
    conversations = agent.begin(tasks, name=name)
    try:
        observations = env.start(tasks, seed=seed)
        if isinstance(env, NumberedEpisodes):
            env.number_episodes(indices)
        turns: list[list[Turn]] = [[] for _ in tasks]
        last: list[StepResult | None] = [None] * len(tasks)
        running = set(range(len(tasks))) if max_steps else set()
        waiting, pending_actions, pending_steps = sorted(running), dict[int, int](), dict[int, Completion]()
        while running:
            tickets = agent.submit(
                [conversations[i] for i in waiting],
                [observations[i] for i in waiting],
                temperature=temperature,
                seeds=[(seed, indices[i], len(turns[i])) for i in waiting],
            )
            pending_actions |= zip(tickets, waiting, strict=True)
            enough = max(1, math.ceil(min_ready * len(running)))
            acted = sorted(
                (pending_actions.pop(ticket), completion) for ticket, completion in _poll_at_least(agent.poll, len(pending_actions), enough)
            )
            for i, completion in acted:
                if completion.finish_reason == "overflow":
                    if not turns[i]:
                        last[i] = StepResult(observations[i], 0.0, False, False, StepInfo(error=TOO_LONG))
                    running.discard(i)
                else:
                    pending_steps[i] = completion
            submitted = [i for i, _ in acted if i in pending_steps]
            env.submit(submitted, [pending_steps[i].text for i in submitted])
            waiting = []
            for i, result in sorted(_poll_at_least(env.poll, len(pending_steps), enough)):
                turns[i].append(_turn(observations[i], pending_steps.pop(i), result))
                observations[i], last[i] = result.observation, result
                if _is_done(result) or len(turns[i]) == max_steps:
                    running.discard(i)
                else:
                    waiting.append(i)
    finally:
        agent.end(conversations)
        env.end()
    return [
        _trajectory(task, tuple(turns[i]), last[i], source=env.source, name=f"{name}/{indices[i]}", model_version=env.version)
        for i, task in enumerate(tasks)
    ]


def _poll_at_least(poll: Callable[[], list[tuple[int, T]]], under_way: int, enough: int) -> list[tuple[int, T]]:
    """Poll until there are at least `enough` results, or all that are under way."""
    results = list[tuple[int, T]]()
    while len(results) < min(under_way, enough):
        fresh = poll()
        if not fresh:
            raise InvariantError(f"{under_way - len(results)} answers are under way, and polling gives none.")
        results += fresh
    return results


def rollout_groups(agent: Policy, env: BatchEnv, tasks: Sequence[Task], group_size: int, **options: Any) -> list[list[Trajectory]]:
    """`group_size` trajectories per task, as `loop.train` collects them; `options` are those of `rollout`."""
    return group_by_task(rollout(agent, env, repeat_tasks(tasks, group_size), **options), group_size)


def repeat_tasks(tasks: Sequence[Task], size: int) -> list[Task]:
    """Every task `size` times in a row: of their rollouts `group_by_task` makes groups."""
    return [task for task in tasks for _ in range(size)]


def group_by_task(trajectories: Sequence[Trajectory], size: int) -> list[list[Trajectory]]:
    """Consecutive runs of `size` trajectories, each of one task."""
    return [list(trajectories[i : i + size]) for i in range(0, len(trajectories), size)]


def _is_done(result: StepResult) -> bool:
    return result.terminated or result.truncated or result.info.error is not None


def _turn(state: Observation, completion: Completion, result: StepResult) -> Turn:
    action = completion.text if result.action is None else result.action
    return Turn(Transition(state, action, result.observation, result.reward, result.terminated, result.info), completion)


def _trajectory(task: Task, turns: tuple[Turn, ...], last: StepResult | None, *, source: str, name: str, model_version: int) -> Trajectory:
    error = last.info.error if last else "no step was taken"
    ended = last is not None and last.terminated
    return Trajectory(
        id=name,
        task=task,
        source="dream" if source == "dream" else "real",
        turns=turns,
        success=error is None and bool(turns) and turns[-1].transition.succeeded,
        truncated=not ended,
        error=error,
        behaviour="policy",
        policy_version=turns[0].completion.version if turns and turns[0].completion else 0,
        model_version=model_version,
    )
