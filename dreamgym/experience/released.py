"""World models that others have released, as experience models: asked in their own format, under our guard.

They predict observations and know neither our memories nor our tasks: nothing is retrieved for them, first states must be given
(`openings`), and they vary no tasks. As a start for training in our own layout, load their weights as a backbone instead (`llm.backbones`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dreamgym.errors import UsageError
from dreamgym.experience.asking import AskConfig, Reply, ask
from dreamgym.experience.dreaming import guarded, unreadable
from dreamgym.experience.formats import WorldModelFormat
from dreamgym.experience.guard import Guard
from dreamgym.experience.parse import Answer
from dreamgym.experience.recall import Recall
from dreamgym.protocols import Chat, ReplayBuffer
from dreamgym.types import Neighbour, Observation, Prediction, Query, Task, Verdict


class ReleasedWorldModel:
    """Implements `protocols.ExperienceModel`. `counts` says how its answers could be read. `openings` are first states by instruction."""

    version = 1

    def __init__(
        self, chat: Chat, form: WorldModelFormat, replay: ReplayBuffer, guard: Guard, *, openings: Mapping[str, str], seed: int = 0
    ) -> None:
        self.chat, self.form, self.guard, self.seed = chat, form, guard, seed
        self.recall = Recall(replay, guard.domain, k=0)
        self.openings = dict(openings)
        self.counts: Counter[str] = Counter()

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """The given first states; UsageError names a task that has none."""
        for task in tasks:
            if task.instruction not in self.openings:
                raise UsageError(
                    f"No first state is known for '{task.instruction}', and a released world model writes none. Give `openings`."
                )
        return [Observation(self.openings[task.instruction]) for task in tasks]

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """One guarded prediction per query, in order. An unreadable answer is a failed verdict and leaves the state as it was."""
        return guarded(self.guard, self.recall, queries, self._ask)[0]

    def vary(self, seeds: Sequence[Task], *, seed: int) -> list[str]:
        """UsageError: nobody taught these models to write tasks."""
        raise UsageError("A released world model varies no tasks. Practise with curriculum.synthetic_share = 0.")

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        """Nothing is kept of episodes: every question holds its history."""

    def _ask(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Prediction]:
        if not queries:
            return []
        how = AskConfig(max_tokens=self.form.max_tokens, temperature=self.form.temperature, format="none")
        replies = ask(
            self.chat,
            [self.form.messages(query) for query in queries],
            lambda i, text: self.form.read(queries[i], text),
            how,
            {},
            seeds=[(self.seed, *query.key) for query in queries],
            again=False,  # a word about mistakes is no action: the model would answer it as one
        )
        return [self._prediction(query, reply) for query, reply in zip(queries, replies, strict=True)]

    def _prediction(self, query: Query, reply: Reply[Answer]) -> Prediction:
        said = reply.value
        self.counts["repaired" if said is not None and said.repaired else reply.kind] += 1
        if said is None:
            return unreadable(query, (), reply.raw or reply.problem)
        answer = (said.reasoning, Observation(said.state), said.reward, said.terminated, Verdict(True))
        return Prediction(*answer, raw_reward=said.reward, raw_terminated=said.terminated)
