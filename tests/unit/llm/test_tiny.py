"""The tiny model's tokenizer copies words, and its checkpoints are ordinary directories."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dreamgym.envs.base import TextRules
from dreamgym.envs.web.rules import WebRules
from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import tiny

TEXTS = ["search[red mug]\n[b017] red mug non-stick (blue) $4.99\nmug red search"] * 20


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny.train_tokenizer(TEXTS, vocab_size=400, special=("<|act|>",))


def prompt_parts(tokenizer: Any, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tiny.encode(tokenizer, text))


def test_a_word_is_the_same_token_wherever_it_stands(tokenizer: Any) -> None:
    assert prompt_parts(tokenizer, "search[red mug]") == ["Ġsearch", "[", "Ġred", "Ġmug", "]"]
    assert prompt_parts(tokenizer, "[b017] 1250 red") == ["[", "Ġb017", "]", "Ġ", "1", "2", "5", "0", "Ġred"]
    assert prompt_parts(tokenizer, "red\nmug (red red-mug") == ["Ġred", "Ċ", "Ġmug", "Ġ(", "Ġred", "Ġred", "-", "Ġmug"]
    assert prompt_parts(tokenizer, "red 42") == ["Ġred", "Ġ", "4", "2"]


def test_names_and_numbers_of_elements_are_the_same_tokens_in_a_page_an_action_and_a_task() -> None:
    page = "[1] heading 'Books'\n[16] link 'Teal mug' | [17] button 'Add'\ndogs' bone"
    acts, task = "Action: click [16]\nAction: type [17] [Teal mug] [1]", 'Enter "Teal mug" and press Add'
    tokenizer = tiny.train_tokenizer([page, acts, task] * 20, vocab_size=420, token_patterns=WebRules().token_patterns)
    read, act, asked = (prompt_parts(tokenizer, text) for text in (page, acts, task))
    assert {"Ġ[1]", "Ġ[16]", "Ġ[17]"} <= set(read) & set(act)
    assert all({"ĠTeal", "Ġmug"} <= set(parts) for parts in (read, act, asked)) and "ĠAdd" in set(read) & set(asked)
    assert "ĠTeal" not in prompt_parts(tokenizer, '{"id": "Teal"}'), "quotes of JSON stand before every value, in calls and answers alike"


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(), st.text(alphabet="ab1[ (\n-/é日<|end>\r\t'\"]")))
def test_any_text_survives_the_round_trip_and_never_becomes_a_special_token(tokenizer: Any, text: str) -> None:
    text = text + "<|end|><|act|>" + text
    ids = tiny.encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.get_added_vocab().values())


def test_special_tokens_are_single_ids_with_names(tokenizer: Any) -> None:
    assert [tiny.special_id(tokenizer, name) for name in ("<|pad|>", "<|end|>", "<|act|>")] == [0, 1, 2]
    with pytest.raises(UsageError, match="Did you mean '<|act|>'"):
        tiny.special_id(tokenizer, "<|acts|>")
    with pytest.raises(ConfigError, match="vocab_size=100"):
        tiny.train_tokenizer(TEXTS, vocab_size=100)


def test_the_same_seed_builds_the_same_weights_without_touching_the_global_stream(tokenizer: Any) -> None:
    before = torch.get_rng_state()
    first, second, other = (tiny.build(tokenizer, seed=seed).model.layers[0].mlp.up_proj.weight for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(ConfigError, match="Known: 100k, 1m, 4m, 15m, 60m"):
        tiny.build(tokenizer, "16m")


def test_a_checkpoint_comes_back_as_it_was_saved(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy"
    for seed in (0, 1):  # the second replaces the first
        model = tiny.build(tokenizer, seed=seed)
        tiny.save(model, tokenizer, path)
    loaded, words = tiny.load(path)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True))
    text = "search[red-mug]\n\nfoo 12 <|end|>"
    assert tiny.encode(words, text) == tiny.encode(tokenizer, text) and words.decode(tiny.encode(words, text)) == text
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_a_missing_or_broken_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No checkpoint at .*nowhere"):
        tiny.load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="Cannot read the checkpoint"):
        tiny.load(tmp_path)


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, dreamgym.llm, dreamgym.engines.scripted; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("text", ["a" * 100_000, "a1" * 50_000, "[" * 100_000, "\u65e5" * 50_000, "1" * 100_000])
def test_no_piece_is_so_long_that_merging_takes_the_square_of_a_text(text: str, tokenizer: Any) -> None:
    parts = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert max(end - start for _, (start, end) in parts) <= 129


@pytest.mark.parametrize("name", ["corridor", "webshop", "alfworld", "tools"])
def test_patterns_of_tokens_bound_their_repetitions(name: str) -> None:
    """`+` and `*` would look for the end of a match to the end of the text, from every place in it."""
    module = importlib.import_module({"corridor": "dreamgym.envs.corridor"}.get(name, f"dreamgym.envs.{name}.rules"))
    rules = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, TextRules) and "token_patterns" in vars(one)]
    patterns = [pattern for one in rules for pattern in one.token_patterns if one.__module__ == module.__name__]
    assert patterns
    for pattern in patterns:
        bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "x", pattern)  # without escapes and classes
        assert not set("+*") & set(bare), pattern
