"""Training examples that logs seldom contain: other goals, near-miss goals, inadmissible actions.

A policy in training will try all of them. Every copy is labelled by the TextRules' text check or its action rules, which see what an agent
sees; its id begins with the id of the trajectory it was made from, so that a row never retrieves its own original. No copy is made where
the text leaves an outcome open or no rule judges it. Labels are 0 and 1: the fraction that an environment would pay for a copy is unknown.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dreamgym.envs.base import TextRules
from dreamgym.types import Action, Observation, Task, Trajectory, Transition, Turn

RELABELLED = "/as/"  # in the id of a copy, between the trajectory it was made from and what was made of it
TRIES = 128  # changed instructions that are looked at before a trajectory is given up


def relabel_goals(trajectories: Sequence[Trajectory], rules: TextRules, tasks: Sequence[Task], share: float, seed: int) -> list[Trajectory]:
    """The same episodes under another instruction, where what was right is now wrong.

    Reward 0 unless the TextRules' text check says that the other instruction happens to be met too (then the copy is dropped).
    """
    rng = random.Random(f"other-goals/{seed}")
    copies = []
    for trajectory in trajectories:
        last = trajectory.transitions[-1]
        if rng.random() >= share or not last.terminated:
            continue
        task = rng.choice(tasks)
        if _met(task.instruction, trajectory, rules) is not False:
            continue
        copies.append(_relabelled(trajectory, task, rules, success=False))
    return copies


def near_miss_goals_of(trajectories: Sequence[Trajectory], rules: TextRules, share: float, seed: int) -> list[Trajectory]:
    """The same episodes under an instruction that differs in one word or number, chosen so that the outcome flips.

    A success that misses one requirement, and a failure that would have been right for a slightly other instruction. Words come from
    other instructions, where they follow the same word; the TextRules says what is well-formed, and its text check says what is met.
    """
    rng = random.Random(f"near-goals/{seed}")
    after = _followers([trajectory.task.instruction for trajectory in trajectories])
    copies: list[Trajectory] = []
    for trajectory in trajectories:
        if rng.random() >= share or not trajectory.transitions[-1].terminated or not trajectory.scored:
            continue
        near = _near(trajectory.task.instruction, after)
        for instruction in rng.sample(near, min(TRIES, len(near))):
            if rules.well_formed(instruction) and _met(instruction, trajectory, rules) == (not trajectory.success):
                task = Task(f"near/{len(copies)}", instruction, trajectory.task.env, source="synthetic", parents=(trajectory.task.id,))
                copies.append(_relabelled(trajectory, task, rules, success=not trajectory.success))
                break
    return copies


def insert_invalid_actions(trajectories: Sequence[Trajectory], rules: TextRules, share: float, seed: int) -> list[Trajectory]:
    """The same episodes with an action that the state does not admit before about `share` of their steps, answered by rule. Where an
    answer shows an error, the later states show it too.

    The mistakes (`TextRules.invalid_action`) are others than the near misses by which fidelity is measured.
    """
    rng = random.Random(f"invalid-actions/{seed}")
    copies = []
    for trajectory in trajectories:
        turns: list[Turn] = []
        state_with_errors: Observation | None = None  # None while the state has no errors that the logs do not have
        for turn in trajectory.turns:
            past = [earlier.transition for earlier in turns]
            if rng.random() < share:
                state, action = (
                    state_with_errors or turn.transition.state,
                    rules.canonical(rules.invalid_action(turn.transition.action, rng)),
                )
                if rules.admissible(state, past, action) is False:
                    turns.append(Turn(_refused(trajectory.task, past, state, action, rules)))
                    after = turns[-1].transition.next_state
                    state_with_errors = after if after != turn.transition.state else state_with_errors
            if state_with_errors is not None:
                turn = replace(turn, transition=_from_state(state_with_errors, turn.transition, rules))
                state_with_errors = turn.transition.next_state
            turns.append(turn)
        copies.append(replace(trajectory, id=f"{trajectory.id}{RELABELLED}invalid", turns=tuple(turns)))
    return copies


def _met(instruction: str, trajectory: Trajectory, rules: TextRules) -> bool | None:
    """Whether the text shows that the episode ends as `instruction` asks, or None where it shows neither that nor the contrary."""
    past, claim = trajectory.transitions[:-1], replace(trajectory.transitions[-1], reward=1.0)
    verdict = rules.check_success(instruction, past, claim)
    return None if verdict is None or verdict.kind == "undecided" else verdict.passed


def _relabelled(trajectory: Trajectory, task: Task, rules: TextRules, *, success: bool) -> Trajectory:
    turns = []
    past: list[Transition] = []
    for turn in trajectory.turns:
        bare = replace(turn.transition, reward=float(success and turn.transition.terminated)).with_reasoning("")
        turns.append(replace(turn, transition=bare.with_reasoning(rules.explain(task, past, bare))))
        past.append(turns[-1].transition)
    return replace(trajectory, id=f"{trajectory.id}{RELABELLED}{task.id}", task=task, turns=tuple(turns), success=success, scored=True)


def _refused(task: Task, past: Sequence[Transition], state: Observation, action: Action, rules: TextRules) -> Transition:
    bare = Transition(state, action, rules.refusal(state, action), 0.0, False)
    return bare.with_reasoning(rules.explain(task, past, bare))


def _from_state(state: Observation, transition: Transition, rules: TextRules) -> Transition:
    """The same change from another state."""
    following = rules.apply_delta(state, transition.action, rules.encode_delta(transition))
    return replace(transition, state=state, next_state=following or transition.next_state)


def _followers(instructions: Sequence[str]) -> Mapping[str, list[str]]:
    """The words that follow each word in some instruction."""
    followers: dict[str, set[str]] = defaultdict(set)
    for instruction in instructions:
        words = instruction.split()
        for before, word in zip(["", *words], words, strict=False):
            followers[before].add(word)
    return {before: sorted(words) for before, words in followers.items()}


def _near(instruction: str, after: Mapping[str, list[str]]) -> list[str]:
    """Every instruction that differs in one word."""
    words = instruction.split()
    return [
        " ".join([*words[:i], other, *words[i + 1 :]])
        for i, (before, word) in enumerate(zip(["", *words], words, strict=False))
        for other in after.get(before, ())
        if other != word
    ]
