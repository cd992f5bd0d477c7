"""Long results are shortened by a fixed rule that keeps ids whole."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.tools.shortening import shorten_arguments, shorten_result, shorten_text
from dreamgym.tool_calls import ToolCall

ORDERS = [
    {"order_id": f"#W{i:07}", "status": "delivered", "note": "a few words " * 20, "items": [{"id": str(10**9 + i)}] * 5} for i in range(30)
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=200), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def test_a_short_result_is_itself_and_json_is_written_in_one_line():
    assert shorten_result("Data is on.", 100) == "Data is on." and shorten_result("12", 100) == "12"
    assert shorten_result('{\n "a": [1,2.50],\n "b": "\\u00fc"\n}', 100) == '{"a": [1, 2.5], "b": "ü"}'


def test_long_json_stays_json_keeps_ids_and_counts_what_is_left_out():
    for limit in (300, 600, 1500):
        short = shorten_result(json.dumps(ORDERS), limit)
        kept = json.loads(short)
        assert len(short) <= limit and kept[0]["order_id"] == "#W0000000" and kept[-1] == f"…{31 - len(kept)} more"


def test_a_mild_limit_cuts_less_than_a_hard_one():
    lengths = [len(shorten_result(json.dumps(ORDERS), limit)) for limit in (200, 400, 800, 1600, 3200, 100_000)]
    assert lengths == sorted(lengths) and lengths[-1] == len(json.dumps(ORDERS))


def test_long_text_keeps_its_beginning_and_its_end():
    text = f"begin {'middle ' * 300}the end"
    short = shorten_text(text, 200)
    assert short.startswith("begin middle") and short.endswith("the end") and "characters" in short and len(short) < 240


def test_an_id_is_never_cut_in_two():
    text = " ".join(f"credit_card_{10**6 + i}" for i in range(99))
    assert set(shorten_text(text, 150).split()) - {"characters…"} - {
        word for word in shorten_text(text, 150).split() if word[0] == "…"
    } <= set(text.split())
    assert shorten_arguments(ToolCall("pay", {"id": "x" * 64, "why": "y z" * 99}), 20).arguments["id"] == "x" * 64


@given(JSON | st.text(max_size=400), st.integers(40, 300))
def test_any_result_is_shortened_to_the_limit_and_then_stays(value: object, limit: int):
    text = value if isinstance(value, str) else json.dumps(value)
    short = shorten_result(text, limit)
    assert len(short) <= limit and short == shorten_result(short, limit) == shorten_result(text, limit)
    words = shorten_text(text, limit)
    assert len(words) <= limit and words == shorten_text(words, limit)


def test_deeply_nested_and_endless_words_end_too():
    assert len(shorten_result("[" * 100_000, 100)) < 140 and len(shorten_result(json.dumps({"a": "b" * 9999}), 100)) < 140
