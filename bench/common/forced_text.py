"""Logged text as the output of models that were never trained.

Engines compute and sample as usual; the logged token then replaces the sampled one. All contenders play the same episodes, at real
lengths, readable to parser, guard and retrieval, without any training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.envs.base import TextRules
from dreamgym.experience.prompts import PromptParts, Step, answer, encode_delta, visible_states
from dreamgym.llm.vocabulary import END, STATE, TASK, Vocabulary
from dreamgym.types import Request, Trajectory


class ForcedText:
    """Logged tokens by request: the agent's by (seed, episode, step), the experience model's by (its seed, seed, episode, step)."""

    def __init__(
        self, episodes: Sequence[Trajectory], words: Vocabulary, rules: TextRules, prompt_parts: PromptParts, *, seed: int
    ) -> None:
        self._tokens: dict[tuple[int, ...], list[int]] = {}
        for i, episode in enumerate(episodes):
            first, text = episode.turns[0].transition.state, episode.task.instruction
            self._tokens[words[TASK], *words.encode(text), words[STATE]] = [*words.encode(first.text), words[END]]
            for step, transition in enumerate(episode.transitions):
                act = rules.view(transition.state).refer(transition.action)
                self._tokens[seed, i, step] = [*words.encode(act), words[END]]
                visible = visible_states(episode.transitions[:step], transition.state.text, prompt_parts)
                segments = answer(words, Step(transition, (), encode_delta(rules, transition)), visible, prompt_parts)
                self._tokens[0, seed, i, step] = [token for segment in segments.values() for token in segment]

    def of(self, request: Request) -> list[int]:
        """The tokens that answer a request; those of a first state are keyed by their prompt."""
        return self._tokens[request.seed if request.seed in self._tokens else tuple(request.prompt)]

    def force(self) -> None:
        """Make every `LocalEngine` of this process emit the logged tokens."""
        sample = LocalEngine._sample

        def forced(engine: LocalEngine, logits: torch.Tensor, rows: np.ndarray, ahead: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
            _, scores = sample(engine, logits, rows, ahead)
            logged = [self.of(engine.batch.active[row].request) for row in rows]
            positions = (engine.batch.made[rows] + ahead).tolist()
            return np.array([tokens[min(k, len(tokens) - 1)] for tokens, k in zip(logged, positions, strict=True)]), scores

        LocalEngine._sample = forced  # type: ignore[method-assign, assignment]
