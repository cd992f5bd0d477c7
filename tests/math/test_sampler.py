"""The sampler and the learner are one policy: the same log-probabilities, before an update and after it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from rollouts import learner, tiny, trajectory

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.train.batch import pad, sequences_of
from dreamgym.train.forward import token_logprobs
from dreamgym.types import Completion, Request, Sampling

PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 2, 3], [4] * 11, [5, 2]]


def sampled(engine: LocalEngine, prompts: Sequence[Sequence[int]], turn: int) -> list[Completion]:
    """An answer of up to eight tokens to each prompt, at temperature 0.7, in the session of its episode."""
    how = Sampling(8, temperature=0.7)
    return engine.generate([Request(list(p), how, (turn, i), f"episode {i}") for i, p in enumerate(prompts)])


def as_the_learner_computes(model: torch.nn.Module, said: Sequence[Completion]) -> list[float]:
    rows = [row for i, one in enumerate(said) for row in sequences_of(trajectory([0.0], [one]), i)]
    with torch.no_grad():
        batch = pad([row.ids for row in rows], [row.mask for row in rows], range(len(rows)))
        return token_logprobs(model, batch, temperature=0.7)[0].tolist()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_what_was_sampled_has_the_learners_log_probabilities_and_after_an_update_the_new_policys(kind: str):
    model = tiny(kind=kind)
    engine = LocalEngine(model, SimpleNamespace(decode=lambda ids, **_: ""))
    trained = learner(model, {"name": "grpo"}, lr=1e-2, temperature=0.7)
    trained._on_publish = lambda version: setattr(engine, "version", version)
    first = sampled(engine, PROMPTS, 0)
    reported = [lp for one in first for lp in one.logprobs]
    assert reported == pytest.approx(as_the_learner_computes(model, first), abs=1e-4) and {one.version for one in first} == {0}
    assert trained.update([[trajectory([float(i % 2)], [one]) for i, one in enumerate(first)]])["policy_version"] == 1
    again = sampled(engine, PROMPTS, 0)  # the same random numbers
    then = [*again, *sampled(engine, [[*one.prompt_ids, *one.ids, 7] for one in again], 1)]  # and a turn on the kept caches
    assert {one.version for one in then} == {1}
    assert [lp for one in then for lp in one.logprobs] == pytest.approx(as_the_learner_computes(model, then), abs=1e-4)
    old = [logprobs_of_first(tiny(kind=kind), one) for one in again]
    assert all(abs(one.logprobs[0] - before) > 1e-3 for one, before in zip(again, old, strict=True))


def logprobs_of_first(model: torch.nn.Module, one: Completion) -> float:
    """What another policy would have given the first sampled token, at the same temperature."""
    ids = [*one.prompt_ids, one.ids[0]]
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor([ids])).logits[0, -2].float() / 0.7, -1)
    return float(scores[ids[-1]])
