"""Which tools only read, where no schema declares it: those whose names say so, unless recorded episodes show that they change something.

The same call made twice, in one episode or in two of one task, is a comparison: where the two answers differ, one of the tools that were
called between them, or before one of the two only, has changed something. Each tool changes the answer to another call with a probability
of its own, and independently of the others, so that a pair with the tools D agrees with probability

    (1 - leak) * product over D of (1 - q_tool)

The probabilities are fitted by expectation maximisation (a noisy-or model, Pearl 1988, section 4.3.2). `leak` is for answers that differ
without any call. A tool is shown to change something where the pairs are `ODDS` times as likely with an unknown q as with q = 0.

Answers that stay the same show little: what was never asked about afterwards is not seen to change. In one of telecom's logs roaming was
enabled 26 times between two equal calls with nothing else between them, and no answer changed. Tools of which the same estimate
said that they read, without their names, included one to three of 22 that change something, in five of six such logs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from dreamgym.envs.tools.conversation import latest_turn
from dreamgym.errors import UsageError
from dreamgym.tool_calls import RESPOND, ToolCall, calls_of
from dreamgym.types import Trajectory, Transition

ODDS = 20.0
READING = {
    "get", "list", "search", "find", "read", "show", "view", "describe", "look", "lookup", "query", "fetch", "check", "count", "inspect",
    "calculate", "think", "can", "is", "has",
}  # fmt: skip
"""First words of the names of tools that read."""
COMPARED = 8
"""Earlier answers to the same call that one is compared with, at most, the latest ones."""
MOST_PAIRS = 50_000
STEPS = 300  # of expectation maximisation
UNKNOWN = np.linspace(0.005, 0.995, 199)  # where the likelihood of an unknown q is averaged, by a Beta(1, 4) prior
PRIOR = (1 - UNKNOWN) ** 3 / np.sum((1 - UNKNOWN) ** 3)

Pair = tuple[frozenset[str], bool]
"""The tools that may have changed the answer, and whether it is the same."""


def tools_that_change(episodes: Iterable[Trajectory]) -> frozenset[str]:
    """The tools that recorded episodes show to change something, whatever they are called."""
    counts = Counter(islice(_pairs(episodes), MOST_PAIRS))
    names = sorted({tool for tools, _ in counts for tool in tools})
    if not names:
        return frozenset()
    model = _NoisyOr(names, counts)
    return frozenset(name for i, name in enumerate(names) if model.log_odds(i) >= np.log(ODDS))


def says_reading(name: str) -> bool:
    """Whether the name of a tool begins, after names of servers and modules, with a word for reading: `get_order`, `mail.listFolders`."""
    first = re.match(r"[A-Z]?[a-z]+|[A-Z]+", re.split(r"__|[./:]", name)[-1])
    return first is not None and first[0].lower() in READING


class _NoisyOr:
    """The probabilities with which each of some tools changes an answer, fitted to pairs with their counts."""

    def __init__(self, names: list[str], counts: Counter[Pair]) -> None:
        self.stood = np.array([[name in tools for name in names] for tools, _ in counts], np.float64)  # [pairs, tools]
        self.differs = np.array([not same for _, same in counts])
        self.weight = np.array(list(counts.values()), np.float64)
        self.q, self.leak = np.full(len(names), 0.1), 0.001
        for _ in range(STEPS):
            differing = -np.expm1(self._log_same(self.q))
            blame = np.where(self.differs, self.weight / np.maximum(differing, 1e-12), 0.0)
            self.q = np.clip(self.q * (self.stood.T @ blame) / (self.stood.T @ self.weight), 1e-9, 1 - 1e-6)
            self.leak = float(np.clip(self.leak * blame.sum() / self.weight.sum(), 1e-9, 0.5))

    def log_odds(self, i: int) -> float:
        """Of an unknown q of tool `i` against q = 0, the others as they were fitted."""
        asked = self.stood[:, i] > 0  # all other pairs are as likely with any q
        others = (self._log_same(self.q) - self.stood[:, i] * np.log1p(-self.q[i]))[asked, None]
        log_same = others + np.log1p(-np.array([1e-9, *UNKNOWN]))  # [pairs, values of q]
        likely = np.where(self.differs[asked, None], np.log(np.maximum(-np.expm1(log_same), 1e-300)), log_same)
        nothing, *unknown = self.weight[asked] @ likely
        gains = np.array(unknown) - nothing
        top = gains.max()
        return float(top + np.log(np.sum(np.exp(gains - top) * PRIOR)))

    def _log_same(self, q: np.ndarray) -> np.ndarray:
        """The log-probability of each pair that its answers are the same."""
        return np.asarray(self.stood @ np.log1p(-q) + np.log1p(-self.leak))


def _pairs(episodes: Iterable[Trajectory]) -> Iterator[Pair]:
    """Each call beside the latest ones of its task that are the same."""
    known: dict[tuple[str, str, str], list[tuple[Counter[str], str]]] = defaultdict(list)
    for episode in episodes:
        before = Counter[str]()
        for step in episode.transitions:
            calls = _calls(step)
            if len(calls) == 1:  # of several calls nobody knows which came first
                answer, others = latest_turn(step.next_state), known[episode.task.env, episode.task.id, str(calls[0])]
                for earlier, other in others[-COMPARED:]:
                    yield frozenset((before - earlier) + (earlier - before)), answer == other
                others.append((before.copy(), answer))
            before.update(call.name for call in calls)


def _calls(step: Transition) -> list[ToolCall]:
    """The calls of a step; none where it is a message to the user, or no call."""
    try:
        return [call for call in calls_of(step.action) if call.name != RESPOND]
    except UsageError:
        return []
