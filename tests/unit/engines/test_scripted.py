"""The scripted double truncates, stops and counts as an engine does."""

from __future__ import annotations

from dreamgym.engines.scripted import END_ID, make
from dreamgym.types import Request, Sampling


def test_it_answers_from_the_text_of_the_prompt() -> None:
    llm = make(answer=lambda prompt: prompt[::-1])
    (completion,) = llm.generate([Request(llm.encode("mug é"), Sampling(50, stop=(END_ID,)))])
    assert completion.text == "é gum" and completion.finish_reason == "stop" and completion.ids[-1] == END_ID
    assert len(completion.logprobs) == len(completion.ids) and llm.prompts == ["mug é"]


def test_a_long_answer_is_cut_at_max_tokens() -> None:
    llm = make(answer=lambda prompt: "abcdef")
    (completion,) = llm.generate([Request(llm.encode("x"), Sampling(3, stop=(END_ID,)))])
    assert completion.text == "abc" and completion.finish_reason == "length"
