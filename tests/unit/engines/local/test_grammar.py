"""Structured decoding: whatever a model would like to say, it says it in the asked form."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.local.running_batch import ActiveRequest, RunningBatch, sample
from dreamgym.envs import corridor
from dreamgym.errors import UsageError
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.models.finetuned import FinetunedConfig, FinetunedExperienceModel
from dreamgym.experience.parse import parse
from dreamgym.experience.prompts import PromptParts, grammar
from dreamgym.llm import tiny
from dreamgym.llm.vocabulary import END, MARKERS, NEXT, REWARD, THINK, Vocabulary
from dreamgym.plugins import make
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Query, Request, Sampling

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    """A model with fresh weights, which left alone writes nothing that could be read."""
    tokenizer = tiny.train_tokenizer(["room 3 of 5, go right 0 go 1 stop"] * 3, vocab_size=300, special=MARKERS)
    return LocalEngine(tiny.build(tokenizer, "1m", seed=1), tokenizer)


@pytest.fixture(scope="module")
def words(engine: LocalEngine) -> Vocabulary:
    return Vocabulary(engine.encode, engine.decode, {marker: engine.special_id(marker) for marker in (*MARKERS, END)})


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.03, 1.0])
def test_a_number_in_brackets_is_all_that_can_be_said(engine: LocalEngine, temperature: float) -> None:
    end = engine.special_id(END)
    rules = 'start: "[" NUMBER "]"\nNUMBER: /[1-9][0-9]{0,2}/'
    asked = [Request([20 + i], Sampling(12, (end,), temperature, grammar=rules), (i,)) for i in range(20)]
    free = Request([20], Sampling(12, (end,), temperature), (0,))
    *said, other = engine.generate([*asked, free])
    assert all(re.fullmatch(r"\[[1-9]\d{0,2}\]", one.text) and one.finish_reason == "stop" for one in said)
    assert other.ids == engine.generate([free])[0].ids  # a grammar is its own request's, not its neighbours'


def test_a_model_with_more_logits_than_its_tokenizer_has_tokens_says_what_it_may(engine: LocalEngine) -> None:
    """As Qwen2.5's, whose embedding is padded."""
    padded = tiny.build(engine.tokenizer, "100k", seed=1)
    padded.resize_token_embeddings(len(engine.tokenizer) + 100)
    with torch.no_grad():
        padded.get_output_embeddings().weight[len(engine.tokenizer) :] = 1.0  # likely, and no token
    end = engine.special_id(END)
    rules = 'start: "[" NUMBER "]"\nNUMBER: /[1-9][0-9]{0,2}/'
    asked = [Request([20 + i], Sampling(12, (end,), 1.0, grammar=rules), (i,)) for i in range(20)]
    assert all(re.fullmatch(r"\[[1-9]\d{0,2}\]", one.text) for one in LocalEngine(padded, engine.tokenizer).generate(asked))


def test_top_p_is_of_what_the_grammar_allows() -> None:
    logits = torch.full((300, 50), 9.0)
    logits[:, 7], logits[:, 8] = 2.0, 0.6  # 0.8 and 0.2 of the two together, next to nothing of all
    bias = torch.full((300, 50), float("-inf"))
    bias[:, 7:9] = 0.0
    for top_p, expected in ((0.5, {7}), (0.99, {7, 8})):
        batch = RunningBatch()
        sampling = Sampling(1, (0,), 1.0, top_p=top_p)
        rows = batch.append([ActiveRequest(i, Request([1], sampling, (i,)), (i,)) for i in range(300)])
        ids, logprobs = sample(batch, logits, rows, bias)
        assert set(ids.tolist()) == expected
        assert logprobs[ids == 7] == pytest.approx(float(torch.log_softmax(logits[0], -1)[7]), abs=1e-5), "of the whole vocabulary"


def test_log_probabilities_are_of_the_whole_vocabulary(engine: LocalEngine) -> None:
    end = engine.special_id(END)
    (one,) = engine.generate([Request([20], Sampling(9, (end,), grammar='start: "a"'), (0,))])
    with torch.no_grad():
        scores = torch.log_softmax(engine.model(torch.tensor([one.prompt_ids + one.ids])).logits[0], -1)
    assert one.logprobs == pytest.approx([float(scores[i, token]) for i, token in enumerate(one.ids)], abs=1e-4)


@pytest.mark.parametrize("reasoning", [True, False])
def test_every_answer_of_the_experience_model_can_be_read(engine: LocalEngine, words: Vocabulary, reasoning: bool) -> None:
    prompt_parts = PromptParts(reasoning=reasoning)
    how = {"max_tokens": 60, "stop": (words[END],)}
    prompt = [words[THINK if reasoning else NEXT]]
    free = engine.generate([Request(prompt, Sampling(**how), (i,)) for i in range(30)])
    bound = engine.generate([Request(prompt, Sampling(**how, grammar=grammar(prompt_parts)), (i,)) for i in range(30)])
    finished = [one for one in bound if one.finish_reason == "stop"]
    assert all(parse(words, one.ids, prompt_parts) is None for one in free)
    assert finished and all(
        answer is not None and not answer.repaired for one in finished if (answer := parse(words, one.ids, prompt_parts))
    )
    assert all(list(one.ids).count(words[REWARD]) <= 1 for one in bound)


def test_the_experience_model_asks_by_grammar_when_it_is_told_to(
    engine: LocalEngine, words: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = corridor.make(length=4)
    seen: list[str] = []
    submit = engine.submit

    def watch(requests: Any) -> Any:
        seen.extend(request.sampling.grammar for request in requests)
        return submit(requests)

    monkeypatch.setattr(engine, "submit", watch)
    (task,) = suite.tasks("train", 1, seed=0)
    env = suite.env()
    state = suite.rules.abstract(env.reset(task))
    for structured in (False, True):
        buffer = ReplayBuffer.open(None, make("replay.encoders", "lexical"))
        guard = Guard(suite.rules, GuardConfig(admissibility=False))
        FinetunedExperienceModel(engine, words, buffer, guard, FinetunedConfig(structured=structured)).predict(
            [Query(task, (), state, "right")]
        )
    assert seen == ["", grammar(PromptParts())]


def test_a_grammar_that_cannot_be_read_or_cannot_end_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(UsageError, match=r"grammar cannot be used.*Lark"):
        engine.submit([Request([20], Sampling(5, (engine.special_id(END),), grammar="start: ((("))])
    with pytest.raises(UsageError, match="add its id, 1, to the stops"):
        engine.submit([Request([20], Sampling(5, (7,), grammar='start: "a"'))])
    assert engine.poll() == []
