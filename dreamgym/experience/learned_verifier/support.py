"""The support head: how much of a claim is like nothing real, as the lines of its states that no log has.

A claim is out of support where its number of such lines has a conformal p-value (Vovk et al. 2005) of at most `support_level` among logged
successes. Claims and logged successes are counted alike: lines of the same task do not count as known. A task that no log has could have
none, and counted within tasks nearly every success of a new task would look out of support. This is the graded form of `action_support`,
and needs no precedent word for word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from dreamgym.experience.learned_verifier.features import new_lines
from dreamgym.types import Transition

SEVERAL = -1


@dataclass(frozen=True)
class KnownLines:
    """The lines of logged states, by their hashes, with the hash of the only task that has a line, or `SEVERAL`."""

    owners: Mapping[int, int]

    @classmethod
    def of_logs(cls, logs: Iterable[tuple[str, Sequence[Transition]]]) -> KnownLines:
        """The lines of all states of (task, steps)."""
        owners = dict[int, int]()
        for task, steps in logs:
            own = _hashed(task)
            for line in lines_of(steps):
                owners[line] = own if owners.get(line, own) == own else SEVERAL
        return cls(owners)

    def novel(self, steps: Sequence[Transition], task: str) -> int:
        """How many lines of the states no log of another task has."""
        own = _hashed(task)
        return sum(self.owners.get(line, own) == own for line in lines_of(steps))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save: hashes of the lines, sorted, so that the same logs give the same file, and their tasks."""
        lines = sorted(self.owners)
        return {"lines": np.array(lines, np.int64), "owners": np.array([self.owners[line] for line in lines], np.int64)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> KnownLines:
        """Rebuild the lines from what `arrays` gave."""
        return cls(dict(zip(arrays["lines"].tolist(), arrays["owners"].tolist(), strict=True)))


def lines_of(steps: Sequence[Transition]) -> set[int]:
    """Hashes of the distinct lines of all states, but for those that a rule wrote."""
    refused = {line for step in steps if step.info.decided_by == "rule" for line in new_lines(step)}
    texts = {state.text for step in steps for state in (step.state, step.next_state)}
    lines = {line for text in texts for line in text.split("\n")} - refused
    return {_hashed(line) for line in lines}


def _hashed(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))
