"""Rolling out a policy in many episodes at once, real or dreamed: the same code, the same records."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.protocols import BatchEnv, Policy
from dreamgym.types import Completion, Observation, StepInfo, StepResult, Task, Trajectory, Transition, Turn

TOO_LONG = "the conversation no longer fits into the policy's context"


def rollout(
    agent: Policy,
    env: BatchEnv,
    tasks: Sequence[Task],
    *,
    seed: int,
    max_steps: int,
    temperature: float = 1.0,
    name: str = "rollout",
) -> list[Trajectory]:
    """One trajectory per task, in order. Episode i draws from the random streams (seed, i, step), whatever runs beside it.

    Finished episodes leave the batch. A step whose `info` has an `error` ends its episode as a failed rollout: kept, never trained on.
    So does a conversation that no longer fits into the policy's context.
    """
    conversations = agent.begin(tasks, name=name)
    observations = env.start(tasks, seed=seed)
    turns: list[list[Turn]] = [[] for _ in tasks]
    last: list[StepResult | None] = [None] * len(tasks)
    active = list(range(len(tasks)))
    for step in range(max_steps):
        completions = agent.act(
            [conversations[i] for i in active],
            [observations[i] for i in active],
            temperature=temperature,
            seeds=[(seed, i, step) for i in active],
        )
        for i, completion in zip(active, completions, strict=True):
            if completion.finish == "overflow":
                last[i] = StepResult(observations[i], 0.0, False, False, StepInfo(error=TOO_LONG))
        going = [i for i, completion in zip(active, completions, strict=True) if completion.finish != "overflow"]
        completions = [completion for completion in completions if completion.finish != "overflow"]
        results = env.step(going, [completion.text for completion in completions])
        for i, completion, result in zip(going, completions, results, strict=True):
            turns[i].append(_turn(observations[i], completion, result))
            observations[i], last[i] = result.observation, result
        active = [i for i in active if not _over(last[i])]
        if not active:
            break
    agent.end(conversations)
    return [
        _trajectory(task, tuple(turns[i]), last[i], source=env.source, name=f"{name}/{i}", model_version=env.version)
        for i, task in enumerate(tasks)
    ]


def group_by_task(trajectories: Sequence[Trajectory], size: int) -> list[list[Trajectory]]:
    """Consecutive runs of `size` trajectories, as the loop asked for them; each run shares one task."""
    return [list(trajectories[i : i + size]) for i in range(0, len(trajectories), size)]


def _over(result: StepResult | None) -> bool:
    return result is not None and (result.terminated or result.truncated or result.info.error is not None)


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
        success=ended and error is None and turns[-1].transition.reward >= 1.0,
        truncated=not ended,
        error=error,
        behaviour="policy",
        policy_version=turns[0].completion.version if turns and turns[0].completion else 0,
        model_version=model_version,
    )
