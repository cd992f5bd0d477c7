"""Playing in a dream by hand, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dreamgym.recipes import factory
from dreamgym.recipes.context import open_context
from dreamgym.types import Observation, StepResult, Task, Trajectory


def play_dream(path: Path, instruction: str | None) -> None:
    """Read actions from standard input until the dream ends, an empty line, or end of file."""
    from dreamgym.experience.env import DreamEnv

    context = open_context(path)
    task = Task("play", instruction, context.suite.name, source="synthetic") if instruction else context.suite.tasks("train", 1, seed=0)[0]
    batch, _ = factory.make_dream(context, factory.replay_in_memory(context))
    env = DreamEnv(batch)
    print(f"task: {task.instruction}\n(type an action{_such_as(context.logs)}; an empty line ends)\n")
    first = env.reset(task)
    if not first.text:
        print("the dream cannot begin: the experience model's first state could not be read. Train it for more epochs, or on more logs.")
        return
    _show(first)
    while action := _ask():
        result = env.step(action)
        if result.info.error is not None:
            print(f"the dream is over: {result.info.error} (decided by: {_decided_by(result)})")
            return
        guess = " (a guess: no real memory shows this action)" if result.info.out_of_support else ""
        if result.info.reasoning:
            print(f"  reasoning: {result.info.reasoning}")
        print(f"  decided by: {_decided_by(result)}{guess}")
        _show(result.observation)
        if result.terminated or result.truncated:
            print(_ending(result))
            return


def _such_as(logs: Sequence[Trajectory]) -> str:
    """How a logged success began and ended, in words: `, such as search[lamp] or click[buy now]`."""
    actions = next(([t.action for t in log.transitions] for log in logs if log.success), [])
    return f", such as {' or '.join(dict.fromkeys((actions[0], actions[-1])))}" if actions else ""


def _decided_by(result: StepResult) -> str:
    """What determined the next state, and the reward where that is something else: a rule, a precedent, memories or the model."""
    state, reward = result.info.decided_by, result.info.reward_by
    return str(state) if state == reward else f"{state} (the reward: {reward})"


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


def _show(observation: Observation) -> None:
    print("\n".join(f"  | {line}" for line in observation.text.split("\n")))


def _ending(result: StepResult) -> str:
    verdict = result.info.verdict
    reasons = f" ({'; '.join(verdict.reasons)})" if verdict and verdict.reasons else ""
    return f"the dream is over: reward {result.reward:g}{reasons}" if result.terminated else "the dream was cut off at the horizon"
