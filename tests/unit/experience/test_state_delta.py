"""A next state may be written as what changed: shorter, and read back to the letter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.engines.local.grammar import Grammars
from dreamgym.envs import webshop
from dreamgym.errors import UsageError
from dreamgym.experience.dataset import RowBuilder, SegmentWeights
from dreamgym.experience.parse import Answer, parse
from dreamgym.experience.prompts import PromptParts, grammar, visible_states
from dreamgym.experience.state_delta import EncodedState, decode, encode
from dreamgym.llm import tiny
from dreamgym.llm.vocabulary import END, MARKERS, NEXT, REWARD, SAME, Vocabulary
from dreamgym.recipes.factory import make_vocabulary

RESULTS = "results 1\n[b001] $12 red vest\n[b002] $9 blue vest\n[next >][back to search]"
ITEM = "item $12 red vest\nsize: [s][m]\n[description][buy now][< prev]"
CHOSEN = "item $12 red vest\nsize: [s][m]\nchosen [m]\n[description][buy now][< prev]"
OTHER = "item $12 red vest\nsize: [s][m]\nchosen [s]\n[description][buy now][< prev]"
STATES = st.lists(st.sampled_from(["", "a", "b", "page 1", "page 2", "1 1", "[x] a long line of text", " "]), max_size=6).map("\n".join)


def test_a_page_that_stays_takes_no_words_and_one_that_comes_back_takes_its_first_line():
    assert encode((RESULTS, ITEM), ITEM) == EncodedState("", is_delta=True)
    assert encode((RESULTS, ITEM), RESULTS) == EncodedState("results 1", is_delta=True)


def test_an_option_that_is_chosen_is_one_line():
    assert encode((RESULTS, ITEM), CHOSEN) == EncodedState("\n0 1\nchosen [m]", is_delta=True)
    assert encode((RESULTS, CHOSEN), OTHER) == EncodedState("\n1 1\nchosen [s]", is_delta=True)
    assert encode((RESULTS, CHOSEN), ITEM) == EncodedState("\n1 1", is_delta=True)


def test_a_page_that_nobody_has_seen_is_written_out():
    assert encode((RESULTS,), ITEM) == EncodedState(ITEM) == encode((), ITEM)
    assert encode((RESULTS, "item $3 hat\ncolor: [red]\n[description][buy now][< prev]"), ITEM) == EncodedState(ITEM)


def test_of_two_earlier_pages_that_begin_alike_the_later_one_is_meant():
    older = RESULTS.replace("vest", "hat")
    assert decode((older, RESULTS, ITEM), EncodedState("results 1", is_delta=True)) == RESULTS
    assert encode((older, RESULTS, ITEM), older) == EncodedState(older)  # which cannot be named any more


@given(st.lists(STATES, max_size=4).map(tuple), STATES)
def test_what_is_told_is_heard_to_the_letter(seen: tuple[str, ...], after: str):
    written = encode(seen, after)
    assert decode(seen, written) == after
    assert not written.is_delta or 2 * len(written.text) <= len(after)


@given(st.lists(STATES, max_size=3).map(tuple), st.text("a1 \n", max_size=12))
def test_whatever_is_written_is_a_state_or_nothing(seen: tuple[str, ...], text: str):
    assert decode(seen, EncodedState(text)) == text
    assert isinstance(decode(seen, EncodedState(text, is_delta=True)), str | None)


@pytest.mark.parametrize("text", ["results 2", "\nchosen [m]", "\n0 9\nchosen [m]", "\n2 2", "\n-1 1"])
def test_changes_of_what_is_not_there_mean_nothing(text: str):
    assert decode((RESULTS, ITEM), EncodedState(text, is_delta=True)) is None


def test_only_states_within_the_window_are_in_view():
    shop = webshop.make()
    done = shop.demonstrate(shop.tasks("train", 1)[0], "expert", seed=0).transitions
    texts = tuple(transition.state.text for transition in done)
    assert visible_states(done[:-1], texts[-1], PromptParts(history=99)) == texts
    assert visible_states(done[:-1], texts[-1], PromptParts(history=1)) == texts[-2:]
    assert visible_states(done[:-1], texts[-1], PromptParts(history=0)) == texts[-1:]


def test_going_back_and_choosing_are_short_in_the_shop_and_opening_is_not():
    shop = webshop.make()
    spent: dict[str, list[bool]] = {}
    for task in shop.tasks("train", 40):
        done = shop.demonstrate(task, "noisy", seed=0).transitions
        for t, transition in enumerate(done):
            seen = visible_states(done[:t], transition.state.text, PromptParts())
            kind = "back" if transition.action == "click[< prev]" else shop.rules.action_kind(transition.state, transition.action)
            if not transition.terminated and transition.next_state != transition.state:
                spent.setdefault(kind, []).append(encode(seen, transition.next_state.text).is_delta)
    assert all(spent["option"]) and sum(spent["back"]) / len(spent["back"]) > 0.9
    assert sum(spent["open item"]) / len(spent["open item"]) < 0.3  # those that were open before
    assert sum(spent["search"]) / len(spent["search"]) < 0.3


# --- in an answer -----------------------------------------------------------------------------------------------------------------

IDS = {marker: 300 + i for i, marker in enumerate((*MARKERS, END))}
WORDS = Vocabulary(lambda text: list(text.encode()), lambda ids: bytes(ids).decode(), IDS)


def ids(*context: str) -> list[int]:
    return [token for part in context for token in ([WORDS[part]] if part in IDS else WORDS.encode(part))]


@pytest.mark.parametrize(
    "context, expected",
    [
        ((SAME, REWARD, "0 go", END), Answer("why", "", 0.0, False, is_delta=True)),
        ((SAME, "\n0 1\nok", REWARD, "0 go", END), Answer("why", "\n0 1\nok", 0.0, False, is_delta=True)),
        (("\n0 1\nok", REWARD, "0 go", END), Answer("why", "\n0 1\nok", 0.0, False)),
        ((REWARD, "0 go", END), None),  # nothing at all is no state
        (("ok", SAME, REWARD, "0 go", END), None),  # the mark has one place
        ((SAME, SAME, REWARD, "0 go", END), None),
    ],
)
def test_an_answer_says_by_its_mark_whether_it_tells_changes(context: tuple[str, ...], expected: Any):
    assert parse(WORDS, ids("why", NEXT, *context), PromptParts()) == expected


def test_a_model_that_writes_states_out_may_not_use_the_mark():
    assert parse(WORDS, ids("why", NEXT, SAME, REWARD, "0 go", END), PromptParts(state_delta=False)) is None


def test_a_tokenizer_from_before_the_mark_is_refused_with_what_to_do():
    older = tiny.train_tokenizer(["go left"], vocab_size=300, special=[marker for marker in MARKERS if marker != SAME])
    with pytest.raises(UsageError, match=r"lacks <\|same\|>: it was made by an older version.*Make the run anew"):
        make_vocabulary(older)


def test_a_model_that_writes_states_out_reads_and_writes_them_whole():
    shop = webshop.make()
    episodes = [shop.demonstrate(task, "expert", seed=0) for task in shop.tasks("train", 20)]
    done = next(episode for episode in episodes if any("chosen [" in step.next_state.text for step in episode.transitions))
    for changes in (True, False):
        (row,) = RowBuilder(WORDS, PromptParts(history=99, state_delta=changes), SegmentWeights(), shop.rules).episode(
            done, [()] * len(done.turns)
        )
        assert (WORDS[SAME] in row.ids) == changes


@pytest.mark.parametrize("changes", [True, False])
def test_the_grammar_of_answers_allows_the_mark_where_the_model_may_use_it(changes: bool):
    pytest.importorskip("llguidance")
    tokenizer = tiny.train_tokenizer(["go left, 0 1"], vocab_size=300, special=MARKERS)
    matcher = Grammars(tokenizer).matcher(grammar(PromptParts(state_delta=changes)))
    words = make_vocabulary(tokenizer)
    bare = [*words.encode("why"), words[NEXT], words[SAME], words[REWARD], *words.encode("0 go")]
    assert matcher.validate_tokens(bare) == (len(bare) if changes else bare.index(words[SAME]))
