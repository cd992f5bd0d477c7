"""The teacher: an instruct model that writes the reasoning traces which the experience model learns from (R* of Eq. 5).

It is asked about whole episodes, outcome included. Every reply is kept in a file, so that nothing is paid for twice: the same call goes on
where it stopped. Without it, the environment's `TextRules.explain` writes the traces of logged steps.

    teacher = ChatTeacher(plugins.make("engines", "server", base_url=..., model=..., dialect="chat"), Path("replies.jsonl"))
    print(teacher.estimate(trajectories))
    annotated = teacher.annotate(trajectories)
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dreamgym.experience import teacher_prompts as prompts
from dreamgym.experience.chat_requests import AskConfig, Reply, ReplyLog, ask
from dreamgym.experience.json_replies import tokens_of
from dreamgym.experience.teacher_prompts import Annotation
from dreamgym.protocols import Chat
from dreamgym.types import Trajectory, Transition, Turn

LIKELY, AT_MOST = 4.0, 2.0  # bytes per token


@dataclass(frozen=True)
class Estimate:
    """What annotating would take. `cost` and the tokens are a guess at the likely; `cost_at_most` is for replies that are all as long as
    they may be and are all asked for twice. A model that thinks before it writes uses more than is likely, and never more than that. Costs
    are in the currency of the prices, and 0 where no prices were given.
    """

    trajectories: int
    done: int  # annotated before, so free
    left_out: int  # without a step, or broken: never asked about
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float
    cost_at_most: float


class ChatTeacher:
    """Asks an instruct model to explain whole episodes.

    `counts` says what became of the trajectories: annotated (new), known (from the file), repaired (those of the new that were asked for
    twice), and, left out of the result: unreadable, failed, unaffordable, empty, broken. Without a file, replies are kept in memory only.
    """

    def __init__(self, chat: Chat, replies: Path | None = None, config: AskConfig | None = None, *, seed: int = 0) -> None:
        self.chat, self.config, self.seed = chat, config or AskConfig(), seed
        self.ledger = ReplyLog(replies)
        self.counts: Counter[str] = Counter()
        self.problems: dict[str, str] = {}  # trajectory id -> why it has no annotation

    def estimate(self, trajectories: Sequence[Trajectory]) -> Estimate:
        """Tokens and money that `annotate` would use, from the lengths of the texts."""
        sound = [t for t in trajectories if _flaw(t) is None]
        new = {key: t for t in sound if (key := self._key(t)) not in self.ledger.accepted}
        prompts_in = sum(tokens_of(prompts.question(t), bytes_per_token=LIKELY) for t in new.values())
        out = sum(min(self.config.max_tokens, prompts.TOKENS_BESIDE + prompts.TOKENS_PER_STEP * len(t.turns)) for t in new.values())
        longest = self.config.max_tokens
        most_in = sum(2 * tokens_of(prompts.question(t), bytes_per_token=AT_MOST) + longest + 200 for t in new.values())
        return Estimate(
            trajectories=len(trajectories),
            done=sum(self._key(t) in self.ledger.accepted for t in sound),
            left_out=len(trajectories) - len(sound),
            requests=len(new),
            prompt_tokens=prompts_in,
            completion_tokens=out,
            cost=self._cost(prompts_in, out),
            cost_at_most=self._cost(most_in, 2 * longest * len(new)),
        )

    def annotate(self, trajectories: Sequence[Trajectory], *, watch: Callable[[int, str], None] | None = None) -> list[Trajectory]:
        """The trajectories with the model's reasoning, in order, without those that could not be had (`counts`, `problems`).

        `watch(finished, note)` is called with progress. ServerError when the server fails for good; what was annotated until then is kept.
        """
        with self.ledger.owned():
            missing = self._missing(trajectories)
            self._ask(missing, watch or (lambda finished, reasoning_text: None))
        return [self._annotated(t) for t in trajectories if _flaw(t) is None and self._key(t) in self.ledger.accepted]

    def _missing(self, trajectories: Sequence[Trajectory]) -> dict[str, Trajectory]:
        """Collect what must be asked about, once for each content; what is known or cannot be asked about is counted."""
        missing: dict[str, Trajectory] = {}
        for trajectory in trajectories:
            if flaw := _flaw(trajectory):
                self.counts[flaw] += 1
                self.problems[trajectory.id] = f"{flaw}: {trajectory.error or 'it has no step'}"
            elif (key := self._key(trajectory)) in self.ledger.accepted:
                self.counts["known"] += 1
            else:
                missing.setdefault(key, trajectory)
        return missing

    def _ask(self, missing: dict[str, Trajectory], watch: Callable[[int, str], None]) -> None:
        keys, episodes = list(missing), list(missing.values())

        def read(i: int, text: str) -> Annotation:
            return prompts.read(text, len(episodes[i].turns))

        def note(i: int, attempt: int, reply: Reply[Annotation]) -> None:
            value = None if reply.value is None else {"tutorial": reply.value.tutorial, "reasoning": list(reply.value.reasoning)}
            self.ledger.note(keys[i], episodes[i].id, attempt, reply, value)
            watch(int(attempt == 2 or reply.kind != "unreadable"), f"{self.chat.usage.cost:.4f} spent")

        replies = ask(
            self.chat,
            [prompts.question(episode) for episode in episodes],
            read,
            self.config,
            prompts.properties(max((len(episode.turns) for episode in episodes), default=1)),
            name="annotation",
            seeds=[(self.seed, int(key[:12], 16), self.ledger.attempts[key]) for key in keys],
            note=note,
        )
        for episode, reply in zip(episodes, replies, strict=True):
            self.counts["annotated" if reply.value is not None else reply.kind] += 1
            self.counts["repaired"] += reply.kind == "repaired"
            if reply.value is None:
                self.problems[episode.id] = f"{reply.kind}: {reply.problem}"

    def _annotated(self, trajectory: Trajectory) -> Trajectory:
        reasoning = self.ledger.accepted[self._key(trajectory)]["reasoning"]
        return _with(
            trajectory, [t.with_reasoning(reasoning_text) for t, reasoning_text in zip(trajectory.transitions, reasoning, strict=True)]
        )

    def _key(self, trajectory: Trajectory) -> str:
        """A hash of everything that would be sent, and of the model: another prompt, episode or model is another question."""
        question = json.dumps([self.chat.model, prompts.question(trajectory)], sort_keys=True)
        return hashlib.sha256(question.encode()).hexdigest()[:32]

    def _cost(self, tokens_in: int, tokens_out: int) -> float:
        usage = self.chat.usage
        return (tokens_in * usage.price_per_million_input + tokens_out * usage.price_per_million_output) / 1e6


def _flaw(trajectory: Trajectory) -> str | None:
    """Why an episode is not worth asking about; None when it is."""
    if trajectory.error is not None:
        return "broken"
    return None if trajectory.turns else "empty"


def _with(trajectory: Trajectory, transitions: Sequence[Transition]) -> Trajectory:
    turns = (Turn(transition, turn.completion) for transition, turn in zip(transitions, trajectory.turns, strict=True))
    return replace(trajectory, turns=tuple(turns))
