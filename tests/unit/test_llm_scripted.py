"""The scripted double truncates, stops and counts as an engine does."""

from __future__ import annotations

from dreamgym.llm.scripted import END_ID, make


def test_it_answers_from_the_text_of_the_prompt() -> None:
    llm = make(answer=lambda prompt: prompt[::-1])
    (completion,) = llm.generate([llm.encode("mug é")], max_tokens=50, stop_id=END_ID)
    assert completion.text == "é gum" and completion.finish == "stop" and completion.ids[-1] == END_ID
    assert len(completion.logprobs) == len(completion.ids) and llm.prompts == ["mug é"]


def test_a_long_answer_is_cut_at_max_tokens() -> None:
    llm = make(answer=lambda prompt: "abcdef")
    (completion,) = llm.generate([llm.encode("x")], max_tokens=3, stop_id=END_ID)
    assert completion.text == "abc" and completion.finish == "length"
