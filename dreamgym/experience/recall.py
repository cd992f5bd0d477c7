"""What is remembered of the step that is asked about (d_1 to d_k of Eq. 4), in training as at inference.

The top-k rows of the replay buffer by phi(s, a); and first of them, where an action shows a list, that list: the real page if anybody
has asked for it, or else the page that remembered things fill (`replay.things`). A list is not like the lists that resemble it: what
three searches in nearly the same words showed says less of the fourth than the things do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dreamgym.experience.guard import stands_still
from dreamgym.protocols import Domain, Lists, ReplayBuffer
from dreamgym.replay.things import NOBODY, Things
from dreamgym.types import Memory, Neighbour, Query


class Recall:
    """Finds the memories of queries in a replay buffer, which it follows."""

    def __init__(self, replay: ReplayBuffer, domain: Domain, *, k: int, things: bool = True) -> None:
        self.replay, self.domain, self.k = replay, domain, k
        self._listing = domain if things and k and isinstance(domain, Lists) else None
        self._things: dict[str, Things] = {}  # by environment

    def find(self, queries: Sequence[Query], hidden: Sequence[str] | None = None) -> list[list[Neighbour]]:
        """At most k memories per query, the most telling first; `hidden[i]` is a trajectory that query i may not see.

        Where a rule answers, there is nothing to be told: none.
        """
        found: list[list[Neighbour]] = [[] for _ in queries]
        wanted = [i for i, query in enumerate(queries) if self.k and not stands_still(self.domain, query)]
        if not wanted:
            return found
        states, actions = [queries[i].state.text for i in wanted], [queries[i].action for i in wanted]
        own = [hidden[i] for i in wanted] if hidden else None
        similar = self.replay.search(states, actions, k=self.k, env=queries[0].task.env, exclude=own)
        for place, (i, row) in enumerate(zip(wanted, similar, strict=True)):
            listed = self._list(queries[i], own[place] if own else NOBODY)
            found[i] = row if listed is None else [listed, *(one for one in row if not _same(one, listed))][: self.k]
        return found

    def _list(self, query: Query, hidden: str) -> Neighbour | None:
        """The list that an action shows, remembered or composed, as what the action led to; None where it shows none, or no list was
        ever seen."""
        domain, env = self._listing, query.task.env
        asked = domain.asked(query.state, query.history, query.action) if domain else None
        if asked is None or domain is None:
            return None
        if env not in self._things:
            self._things[env] = Things(self.replay, domain, env)
        if memory := self._things[env].listed(*asked, hidden=hidden):
            return Neighbour(replace(memory, state=query.state.text, action=query.action, reasoning=""), 1.0)
        page = self._things[env].composed(*asked, hidden=hidden)
        if page is None:
            return None
        made = Memory(
            row=0, trajectory="", step=0, env=env, instruction="", source="demo", state=query.state.text, action=query.action,
            next_state=page, reward=0.0, terminated=False, success=False,
        )  # fmt: skip
        return Neighbour(made, 1.0)


def _same(one: Neighbour, other: Neighbour) -> bool:
    """Whether two memories are of one row, or tell the same."""
    a, b = one.memory, other.memory
    return a.row == b.row or (a.action, a.next_state) == (b.action, b.next_state)
