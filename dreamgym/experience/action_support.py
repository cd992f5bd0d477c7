"""What a dream rests on: the actions that somebody has really taken.

What follows an action of which no real memory tells is a guess, however sure the model sounds. Model-based RL from logs is pessimistic
about such steps, or the policy learns to live off its model's mistakes: MOPO (arXiv:2005.13239) charges for them, MOReL (arXiv:2005.05951)
stops there. Here a dream marks them, and `ood_penalty` of every algorithm is what a turn is charged.
"""

from __future__ import annotations

from collections import defaultdict

from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Action


class ActionSupport:
    """Whether real rows of a replay buffer show an action, word for word. Dreamed rows are no precedents. It follows the buffer."""

    def __init__(self, replay: ReplayBuffer) -> None:
        self.replay = replay
        self._read = (0, -1)  # rollbacks, and the buffer's last row, when it was read
        self._actions: dict[str, set[Action]] = defaultdict(set)

    def __contains__(self, action: tuple[str, Action]) -> bool:
        """Of (environment, action)."""
        now = (self.replay.rollbacks, self.replay.sequence)
        if self._read != now:
            if self._read[0] != now[0]:
                self._actions, self._read = defaultdict(set), (now[0], -1)
            for memory in self.replay.memories(after=self._read[1]):
                if memory.source != "dream":
                    self._actions[memory.env].add(memory.action)
            self._read = now
        env, words = action
        return words in self._actions.get(env, ())
