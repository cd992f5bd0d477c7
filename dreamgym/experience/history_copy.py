"""Next states that are copied from the episode's own history, where real memory shows that an action leads back to one.

For every action, spelled exactly, and every reference into the history, the real rows of a replay buffer count how often the reference is
the next state:

    repeat    what followed the same action in the same state, earlier in this episode
    first     the first state of the episode
    before    the state before this one, the latest that differs from it

A reference is used where it was right in at least `MIN_AGREEMENT` of `MIN_SAMPLES` rows. Nothing here knows an environment's words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dreamgym.envs.real_rows import RealRows
from dreamgym.experience.recall import MIN_AGREEMENT, MIN_SAMPLES
from dreamgym.types import Action, Memory, Query

ANY = ""  # `repeat` is counted over all actions: an action that is repeated seldom has few rows of its own
Step = tuple[str, Action, str]
"""(state, action, next state)"""


class HistoryCopy(RealRows):
    """Counts references in the real rows of a replay buffer."""

    def next_state(self, query: Query) -> str | None:
        """The state of the history that the query's action leads to; None where no reference is reliable."""
        self._follow()
        past = [(step.state.text, step.action, step.next_state.text) for step in query.history]
        for name, next_state in _references(past, query.state.text, query.action):
            right, counted = self._counts[name, ANY if name == "repeat" else query.action]
            if counted >= MIN_SAMPLES and right >= MIN_AGREEMENT * counted:
                return next_state
        return None

    def _clear(self) -> None:
        self._counts: dict[tuple[str, Action], list[int]] = defaultdict(lambda: [0, 0])  # right, counted

    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        for rows in episodes:
            past: list[Step] = []
            for memory in rows:
                for name, next_state in _references(past, memory.state, memory.action):
                    counts = self._counts[name, ANY if name == "repeat" else memory.action]
                    counts[0] += next_state == memory.next_state
                    counts[1] += 1
                past.append((memory.state, memory.action, memory.next_state))


def _references(past: Sequence[Step], state: str, action: Action) -> Iterator[tuple[str, str]]:
    """Each reference that exists here, by name, with the state it refers to."""
    repeated = next((after for before, taken, after in reversed(past) if (before, taken) == (state, action)), None)
    if repeated is not None:
        yield "repeat", repeated
    if past:
        yield "first", past[0][0]
    earlier = next((before for before, _, _ in reversed(past) if before != state), None)
    if earlier is not None:
        yield "before", earlier
