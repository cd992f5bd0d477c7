"""Real text at real lengths from models that were never trained: logged episodes forced on whatever samples.

Every engine computes and samples as always; then the logged token takes the place of the sampled one. So all contenders play the same
episodes, readable to parser, guard and retrieval, and nothing has to be learnt before speeds can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dreamgym.experience.dreaming import told
from dreamgym.experience.prompts import Pieces, Step, answer, in_view
from dreamgym.layout import END, STATE, TASK, Vocabulary
from dreamgym.llm import hf
from dreamgym.llm._slots import Slots
from dreamgym.protocols import Domain
from dreamgym.types import Request, Trajectory


class Script:
    """What is to be said, by request: the agent's by (seed, episode, step), the experience model's by (its seed, seed, episode, step)."""

    def __init__(self, episodes: Sequence[Trajectory], words: Vocabulary, domain: Domain, pieces: Pieces, *, seed: int) -> None:
        self._said: dict[tuple[int, ...], list[int]] = {}
        for i, episode in enumerate(episodes):
            first, text = episode.turns[0].transition.state, episode.task.instruction
            self._said[words[TASK], *words.encode(text), words[STATE]] = [*words.encode(first.text), words[END]]
            for step, transition in enumerate(episode.transitions):
                act = domain.view(transition.state).refer(transition.action)
                self._said[seed, i, step] = [*words.encode(act), words[END]]
                seen = in_view(episode.transitions[:step], transition.state.text, pieces)
                segments = answer(words, Step(transition, (), told(domain, transition)), seen, pieces)
                self._said[0, seed, i, step] = [token for segment in segments.values() for token in segment]

    def of(self, request: Request) -> list[int]:
        """The tokens that answer a request; those of a first state are named by their prompt."""
        return self._said[request.seed if request.seed in self._said else tuple(request.prompt)]

    def force(self) -> None:
        """Let every `HFEngine` of this process say it."""
        sample = hf.sample

        def forced(
            slots: Slots, logits: torch.Tensor, rows: np.ndarray, bias: Any, ahead: np.ndarray | int
        ) -> tuple[np.ndarray, np.ndarray]:
            _, scores = sample(slots, logits, rows, bias, ahead)
            wanted = [self.of(slots.work[row].request) for row in rows]
            at = (slots.made[rows] + ahead).tolist()
            return np.array([said[min(k, len(said) - 1)] for said, k in zip(wanted, at, strict=True)]), scores

        hf.sample = forced
