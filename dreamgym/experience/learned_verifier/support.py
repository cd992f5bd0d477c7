"""The support head: how much of a claim is like nothing real, as the lines of its states that no log has.

A claim is out of support where its number of such lines has a conformal p-value (Vovk et al. 2005) of at most `support_level` among logged
successes, each counted against the other episodes. This is the graded form of `action_support`, and needs no precedent word for word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from dreamgym.experience.learned_verifier.features import new_lines
from dreamgym.types import Trajectory, Transition


@dataclass(frozen=True)
class KnownLines:
    """The number of logged episodes in which each line of a state stands, by the hash of the line."""

    episodes: Mapping[int, int]

    @classmethod
    def of_logs(cls, logs: Sequence[Trajectory]) -> KnownLines:
        """The lines of all states of the logs."""
        return cls(Counter(line for t in logs for line in lines_of(t.transitions)))

    def novel(self, steps: Sequence[Transition], *, is_logged: bool = False) -> int:
        """How many lines of the states no log has; with `is_logged`, of an episode that is itself one of the logs, no other one."""
        return sum(self.episodes.get(line, 0) <= is_logged for line in lines_of(steps))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save: hashes of the lines, sorted, so that the same logs give the same file, and their numbers of episodes."""
        lines = sorted(self.episodes)
        return {"lines": np.array(lines, np.int64), "episodes": np.array([self.episodes[line] for line in lines], np.int64)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> KnownLines:
        """Rebuild the lines from what `arrays` gave."""
        return cls(dict(zip(arrays["lines"].tolist(), arrays["episodes"].tolist(), strict=True)))


def lines_of(steps: Sequence[Transition]) -> set[int]:
    """Hashes of the distinct lines of all states, but for those that a rule wrote."""
    refused = {line for step in steps if step.info.decided_by == "rule" for line in new_lines(step)}
    texts = {state.text for step in steps for state in (step.state, step.next_state)}
    lines = {line for text in texts for line in text.split("\n")} - refused
    return {crc32(line.encode("utf-8", "surrogatepass")) for line in lines}
