"""The agent's layout: what the policy reads, what imitation learns from, and what RL learns from are the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from rollouts import act

from dreamgym.envs import corridor
from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import tiny
from dreamgym.llm.request_queue import SyncLLM
from dreamgym.llm.vocabulary import END, MARKERS, Vocabulary
from dreamgym.policy.agent import Agent, demonstrations
from dreamgym.policy.templates.markers import Markers
from dreamgym.train.batch import sequences_of
from dreamgym.types import Completion, Request

CORRIDOR = corridor.make()
EPISODES = [CORRIDOR.demonstrate(task, "noisy", seed=0) for task in CORRIDOR.tasks("train", 10)]
TOKENIZER = tiny.train_tokenizer(
    [text for e in EPISODES for t in e.transitions for text in (e.task.instruction, t.state.text, t.action)],
    vocab_size=400,
    special=MARKERS,
    token_patterns=CORRIDOR.rules.token_patterns,
)
WORDS = Vocabulary(lambda text: tiny.encode(TOKENIZER, text), TOKENIZER.decode, {m: tiny.special_id(TOKENIZER, m) for m in (*MARKERS, END)})


class Writer(SyncLLM):
    """A language model that writes the actions it is given, one after the other."""

    def __init__(self, actions: Sequence[str]) -> None:
        super().__init__()
        self.actions = iter(actions)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        said = [(*WORDS.encode(next(self.actions)), WORDS[END]) for _ in requests]
        return [Completion(tuple(r.prompt), s, (0.0,) * len(s), WORDS.decode(s[:-1]), "stop") for r, s in zip(requests, said, strict=True)]


def test_a_demonstration_weighs_actions_and_their_ends_only():
    expert = CORRIDOR.demonstrate(CORRIDOR.tasks("train", 1)[0], "expert", seed=0)
    ((ids, weights),) = demonstrations(expert, Markers(WORDS), CORRIDOR.rules)
    said_ = [i for i, w in zip(ids, weights, strict=True) if w]
    assert said_ == [i for t in expert.transitions for i in (*WORDS.encode(t.action), WORDS[END])] and set(weights) == {0.0, 1.0}


@pytest.mark.parametrize("window", [None, 0, 1, 50])
def test_a_demonstration_is_laid_out_as_the_policy_will_read_it(window: int | None):
    """What was sampled is rolled up into the very rows that imitation learns from; `sequences_of` is what RL learns from."""
    expert = CORRIDOR.demonstrate(CORRIDOR.tasks("train", 1)[0], "expert", seed=0)
    agent = Agent(Writer([t.action for t in expert.transitions]), Markers(WORDS), CORRIDOR.rules, window=window)  # type: ignore[arg-type]
    (conversation,) = agent.begin([expert.task], name="e")
    said = [act(agent, conversation, t.state) for t in expert.transitions]
    sampled = replace(expert, turns=tuple(replace(turn, completion=one) for turn, one in zip(expert.turns, said, strict=True)))
    shown = demonstrations(expert, Markers(WORDS), CORRIDOR.rules, window=window)
    assert [(row.ids, row.mask) for row in sequences_of(sampled, 0)] == shown
    assert len(shown) == (1 if window in (None, 50) else len(expert.turns) - (window or 0))
    assert agent.next_prompt(replace(sampled, turns=sampled.turns[:-1])) == list(said[-1].prompt_ids)
    with pytest.raises(UsageError, match="no tokens"):
        agent.next_prompt(expert)


def test_a_window_below_nothing_is_refused():
    with pytest.raises(ConfigError, match="window=-1"):
        Agent(Writer([]), Markers(WORDS), CORRIDOR.rules, window=-1)  # type: ignore[arg-type]
