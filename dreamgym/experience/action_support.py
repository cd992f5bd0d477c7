"""Whether real data contains an action.

Model-based RL from logs is pessimistic about actions without data: MOPO (arXiv:2005.13239) penalises them, MOReL (arXiv:2005.05951) ends
the episode. Here a dream marks such steps, and `ood_penalty` of an algorithm is subtracted from the turn's reward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from dreamgym.envs.real_rows import RealRows
from dreamgym.types import Action, Memory


class ActionSupport(RealRows):
    """Whether real rows of a replay buffer show an action, word for word."""

    def __contains__(self, action: tuple[str, Action]) -> bool:
        """Whether a real row of the environment shows the action, given as (environment, action)."""
        self._follow()
        env, words = action
        return words in self._actions.get(env, ())

    def _clear(self) -> None:
        self._actions: dict[str, set[Action]] = defaultdict(set)

    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        for rows in episodes:
            for memory in rows:
                self._actions[memory.env].add(memory.action)
