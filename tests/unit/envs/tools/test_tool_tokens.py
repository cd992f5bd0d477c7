"""The tokens of calls and JSON results in a small model's vocabulary."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import Tool
from dreamgym.llm import tiny
from dreamgym.llm.vocabulary import MARKERS
from dreamgym.tool_calls import ToolCall

RULES = ToolRules("desk", [Tool("get_user_details")])
RESULT = '{"user_id": "anna_lee_17", "orders": ["W1", "W2"], "address": {"zip_code": "12345", "city": "Bonn"}, "paid": 2.5}'
CALL = str(ToolCall("get_user_details", {"user_id": "anna_lee_17", "n": 2}))
TOKENIZER = tiny.train_tokenizer([RESULT, CALL] * 30, vocab_size=400, special=MARKERS, token_patterns=RULES.token_patterns)


def written(text: str) -> list[str]:
    return [TOKENIZER.decode([one]).strip() for one in tiny.encode(TOKENIZER, text)]


def test_a_value_stands_right_behind_its_name_in_one_token():
    assert written(CALL) == ["get_user_details", "(n=", "2", ', user_id="', "anna_lee_17", '")']
    found = written(RESULT)
    for name, value in (('{"user_id": "', "anna_lee_17"), ('"zip_code": "', "123"), ('", "city": "', "Bonn"), (', "paid": ', "2.5")):
        assert found[found.index(name.strip()) + 1] == value


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(JSON)
def test_the_tokens_of_any_json_are_that_json(value: Any):
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(tiny.encode(TOKENIZER, text)) == text


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,12}", fullmatch=True), JSON))
def test_the_tokens_of_any_call_are_that_call(arguments: dict[str, Any]):
    text = str(ToolCall("get_user_details", arguments)).encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(tiny.encode(TOKENIZER, text)) == text
