"""Playing one real episode with a function from state to action: how scripted behaviours become logged trajectories."""

from __future__ import annotations

from collections.abc import Callable

from dreamgym.protocols import Domain, Env
from dreamgym.types import Action, Observation, Task, Trajectory, Transition, Turn


def play(
    env: Env, domain: Domain, task: Task, act: Callable[[Observation], Action], *, max_steps: int, behaviour: str, name: str
) -> Trajectory:
    """Run `act` until the task ends or `max_steps` are taken; each transition carries the scripted teacher's reasoning."""
    state = domain.abstract(env.reset(task))
    transitions: list[Transition] = []
    terminated = False
    while len(transitions) < max_steps and not terminated:
        action = domain.canonical(act(state))
        raw, reward, terminated = env.step(action)
        bare = Transition(state, action, domain.abstract(raw), reward, terminated)
        reasoning = domain.explain(task, transitions, bare)
        transitions.append(Transition(state, action, bare.next_state, reward, terminated, reasoning))
        state = bare.next_state
    return Trajectory(
        id=name,
        task=task,
        source="demo",
        turns=tuple(Turn(transition) for transition in transitions),
        success=terminated and transitions[-1].reward >= 1.0,
        truncated=not terminated,
        behaviour=behaviour,
    )
