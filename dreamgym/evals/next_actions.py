"""The next action of a policy at every step of recorded successes: what logs alone can say of a policy on tasks that it has not seen.

The history of every step is the recorded one (teacher forcing), so that no environment is needed. Other actions than the recorded one can
be right, so the share of equal actions is a lower bound of how often the policy is right: compare it with the same on training tasks.
An identifier that no text so far shows is wrong whatever was recorded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dreamgym.envs.actions import kind_of, parts
from dreamgym.envs.base import TextRules
from dreamgym.errors import counted
from dreamgym.policy.agent import Agent
from dreamgym.runs.progress import progress
from dreamgym.statistics import Rate, clustered_rate
from dreamgym.types import Action, Trajectory

IDENTIFIERS = re.compile(r"(?=\S*\d)\S+(\s+(?=\S*\d)\S+)*")
"""An argument of identifiers alone: every word holds a digit."""
FROM_TEXTS = 0.9
"""An argument is known to be an identifier from earlier texts where at least this share of its logged values is."""
BATCH = 256  # episodes side by side
MOST_INVENTED = 0.1  # more actions than that with an identifier from nowhere, by the lower bound, are warned of
MOST_LOST = 0.15  # so much lower a share of recorded actions than in training episodes is warned of, where the intervals are apart
LEAST_KIND = 0.5  # a lower share of recorded tools is warned of
PLACEHOLDERS = "put placeholders in place of identifiers (env.name = 'dreamgym.envs.wrappers.placeholders'), "
ADVICE = "record more tasks, or start from a pretrained policy (dreamgym init --backbone)"

Hit = tuple[int, bool]
"""The number of the episode, whose steps depend on each other, and whether the step counts."""
Arguments = frozenset[tuple[str, str]]
"""Arguments by the kind of action and their key."""


@dataclass(frozen=True)
class NextActions:
    """A policy's greedy actions beside the recorded ones. Intervals of rates take the steps of an episode for a cluster."""

    episodes: int
    action_exact: Rate
    """Of all steps: the action is the recorded one, argument for argument."""
    action_kind: Rate
    """Of all steps: the action calls the recorded tools, with whatever arguments."""
    identifier_unknown: Rate
    """Of the actions with an identifier: those that give one that neither the task nor an answer so far shows."""
    by_action: Mapping[str, Rate]
    """`action_exact` by the kind of the recorded action."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def compare_actions(agent: Agent, episodes: Sequence[Trajectory], known: Arguments, *, name: str) -> NextActions:
    """The greedy action of `agent` at every step of `episodes`, with their recorded history before it. `known` are the arguments that are
    identifiers (`identifier_arguments`), and `name` keeps the sessions of different calls apart."""
    exact, kinds, unknown = defaultdict[str, list[Hit]](list), list[Hit](), list[Hit]()
    for number, (episode, actions) in enumerate(zip(episodes, greedy_actions(agent, episodes, name=name), strict=True)):
        texts = episode.task.instruction
        for step, action in zip(episode.transitions, actions, strict=True):
            texts = f"{texts}\n{agent.rules.without_actions(step.state)}"
            exact[kind_of(step.action)].append((number, list(parts(action)) == list(parts(step.action))))
            kinds.append((number, kind_of(action) == kind_of(step.action)))
            if given := [word for kind, key, word in _identifiers(action) if (kind, key) in known]:
                unknown.append((number, not all(_shown(word, texts) for word in given)))
    same = [hit for of_kind in exact.values() for hit in of_kind]
    by_kind = {kind: _rate(of_kind) for kind, of_kind in sorted(exact.items())}
    return NextActions(len(episodes), _rate(same), _rate(kinds), _rate(unknown), by_kind)


def _rate(hits: Sequence[Hit]) -> Rate:
    return clustered_rate([hit for _, hit in hits], [episode for episode, _ in hits])


def greedy_actions(agent: Agent, episodes: Sequence[Trajectory], *, name: str) -> list[list[Action]]:
    """The greedy action at every step of every episode, after the recorded ones before it; "" where the prompt is too long."""
    found: list[list[Action]] = [[] for _ in episodes]
    with progress(sum(len(episode.turns) for episode in episodes), name) as advance:
        for start in range(0, len(episodes), BATCH):
            batch = episodes[start : start + BATCH]
            talks = agent.begin([episode.task for episode in batch], name=f"{name}/{start}")
            for i in range(max(len(episode.turns) for episode in batch)):
                slots = [slot for slot, episode in enumerate(batch) if i < len(episode.turns)]
                steps = [batch[slot].transitions[i] for slot in slots]
                asked = [replace(talks[slot], turns=[*talks[slot].turns], ids=[*talks[slot].ids]) for slot in slots]  # grow by the answer
                tickets = agent.submit(asked, [step.state for step in steps], temperature=0.0, seeds=[(start + slot, i) for slot in slots])
                answers = dict[int, Action]()
                while len(answers) < len(tickets):
                    answers |= {ticket: completion.text for ticket, completion in agent.poll()}
                for slot, step, ticket in zip(slots, steps, tickets, strict=True):
                    found[start + slot].append(answers[ticket])
                    agent.append(talks[slot], step)
                advance(len(slots))
            agent.end(talks)
    return found


def identifier_arguments(logs: Sequence[Trajectory], rules: TextRules) -> Arguments:
    """The named arguments that are identifiers in all logged actions, of which the task or an answer before shows nearly all."""
    shown, others = defaultdict[tuple[str, str], list[bool]](list), set[tuple[str, str]]()
    for episode in logs:
        texts = episode.task.instruction
        for step in episode.transitions:
            texts = f"{texts}\n{rules.without_actions(step.state)}"
            for kind, arguments in parts(step.action):
                others |= {(kind, key) for key, value in arguments.items() if not key or (value and not IDENTIFIERS.fullmatch(value))}
            for kind, key, word in _identifiers(step.action):
                shown[kind, key].append(_shown(word, texts))
    return frozenset(one for one, seen in shown.items() if one not in others and sum(seen) >= FROM_TEXTS * len(seen))


def _identifiers(action: Action) -> Iterator[tuple[str, str, str]]:
    """(kind, key, word) of every word of the arguments that hold identifiers alone."""
    for kind, arguments in parts(action):
        for key, value in arguments.items():
            if IDENTIFIERS.fullmatch(value):
                yield from ((kind, key, word) for word in value.split())


def _shown(word: str, texts: str) -> bool:
    """Whether a text holds the word as it stands."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", texts) is not None


def sentences(measured: Mapping[str, Any]) -> list[str]:
    """What the phase `next_actions` measured, a line for every policy; why nothing was measured where that is so."""
    tasks = "new tasks" if measured["held_out_by"] == "task" else "tasks that were trained on, since few were recorded"
    lines = []
    for policy, sides in measured["by_policy"].items():
        held, training = sides["held_out"], sides["training"]
        exact, kind, unknown = (Rate(**held[rate]) for rate in ("action_exact", "action_kind", "identifier_unknown"))
        successes = counted(held["episodes"], "recorded success", "recorded successes")
        lines.append(
            f"Next actions of {policy} in {successes} that were held out ({tasks}): {_percent(exact)} of {exact.n} are the recorded ones "
            f"(in training episodes {_percent(Rate(**training['action_exact']))}), and {_percent(kind)} call the recorded tool. "
            + (f"{_invented(unknown)}. " if unknown.n else "")
            + "Other actions than the recorded one can be right."
        )
    return lines or ["Next actions were not compared with recorded ones: no recorded success was held out. Record more tasks."]


def warning(measured: Mapping[str, Any]) -> str:
    """What speaks against the policy that came last; "" where nothing does."""
    if not measured.get("by_policy"):
        return ""
    policy, sides = list(measured["by_policy"].items())[-1]
    held, training = sides["held_out"], sides["training"]
    exact, trained, kind = Rate(**held["action_exact"]), Rate(**training["action_exact"]), Rate(**held["action_kind"])
    unknown, reasons = Rate(**held["identifier_unknown"]), list[str]()
    if unknown.n and unknown.low > MOST_INVENTED:
        reasons.append(f"{_invented(unknown)}, which no tool can accept")
    if exact.high < trained.low and trained.value - exact.value > MOST_LOST:
        reasons.append(
            f"{_percent(exact)} of its actions are the recorded ones, and {_percent(trained)} in episodes that it was trained on"
        )
    if kind.n and kind.value < LEAST_KIND:
        reasons.append(f"{_percent(kind)} of its actions call the recorded tool")
    if not reasons:
        return ""
    advice = (PLACEHOLDERS if unknown.n and unknown.low > MOST_INVENTED else "") + ADVICE
    return (
        f"On recorded successes that were held out '{policy}' does not act as the logs do: {'; '.join(reasons)}. Its success in the dream "
        f"is of training tasks and does not hold for new ones. In a new run directory {advice}."
    )


def _invented(unknown: Rate) -> str:
    return f"{round(unknown.value * unknown.n)} of {counted(unknown.n, 'action')} with an identifier give one that no text so far shows"


def _percent(rate: Rate) -> str:
    return f"{100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
