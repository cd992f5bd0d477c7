"""Secrets of logs become placeholders, and what is no secret stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_samples import imported, openai_messages

from dreamgym.envs.tools.conversation import Exchange
from dreamgym.errors import UsageError
from dreamgym.logs.redaction import Redactor
from dreamgym.tool_calls import ToolCall


def test_secrets_get_one_placeholder_throughout_an_episode(tmp_path: Path):
    key = "sk-proj-" + "a1B2" * 6
    messages = openai_messages()
    messages[3]["content"] = json.dumps({"api_key": "hunter2hunter2", "mail": "bob@example.org", "key": key})
    messages[4]["tool_calls"][0]["function"]["arguments"] = json.dumps({"id": key, "password": "swordfish"})
    _, found = imported(tmp_path, [{"messages": messages}])
    text = (tmp_path / "episodes.jsonl").read_text()
    assert not any(secret in text for secret in (key, "hunter2", "bob@", "ann@", "swordfish"))
    assert found["redacted"] == {"e-mail": 2, "key": 2, "secret": 2}
    _, found = imported(tmp_path, [{"messages": messages}], redact=False)
    assert key in (tmp_path / "episodes.jsonl").read_text() and found["redacted"] == {}


PARTS = [
    '{"password": ',
    "API_SECRET_KEY=",
    "userPassword: ",
    '"',
    "'",
    "\\",
    '\\"',
    ", ",
    "\n",
    "}",
    "hunter22",
    "redacted-secret-1",
    "ab",
    "1234567",
    '{"token": ',
    "Authorization: Basic ",
    "://ann:",
    "@db.example.org",
]


@given(st.text() | st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_redaction_is_idempotent(text: str):
    redactor = Redactor()
    once = redactor.text(text)
    assert redactor.text(once) == once


NESTED = json.dumps({"password": 'ab"c, d\\e', "user": "ann"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"password": "correct horse battery", "n": 1}', '{"password": "redacted-secret-1", "n": 1}'),
        ('{"password": "ab,cdefgh1"}', '{"password": "redacted-secret-1"}'),
        (r'{"password": "ab\"cdefgh\\", "n": 1}', '{"password": "redacted-secret-1", "n": 1}'),
        (json.dumps([NESTED]), json.dumps([json.dumps({"password": "redacted-secret-1", "user": "ann"})])),
        ("{'clientSecret': 'ab cdefgh'}", "{'clientSecret': 'redacted-secret-1'}"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG next", "AWS_SECRET_ACCESS_KEY=redacted-secret-1 next"),
        ('{"private_key": 12345678}', '{"private_key": "redacted-secret-1"}'),
        (json.dumps(json.dumps({"password": 12345678})), json.dumps(json.dumps({"password": "redacted-secret-1"}))),
        (json.dumps(json.dumps({"token": "0a1b2c3d"})), json.dumps(json.dumps({"token": "redacted-secret-1"}))),
        ('{"token": "0a1b2c3d", "n": 1}', '{"token": "redacted-secret-1", "n": 1}'),
        ("Authorization: Basic YW5uOmh1bnRlcjI=", "Authorization: Basic redacted-token-1"),
        ("postgres://ann:p@ss:word@db.example.org/shop", "postgres://ann:redacted-secret-1@db.example.org/shop"),
        ('{"password": "cut off here', '{"password": "redacted-secret-1 off here'),
    ],
)
def test_a_value_that_is_named_like_a_secret_is_redacted_to_its_end(text: str, shown: str):
    assert Redactor().text(text.replace("cut off", "hunter2 off")) == shown


@pytest.mark.parametrize("secret", ['pässwörd"1', "tab\tand\\slash", "\U0001f511 key key"])
@pytest.mark.parametrize("written", [json.dumps, lambda value: json.dumps([json.dumps(value)])])
def test_a_secret_that_json_escapes_has_the_placeholder_of_the_argument_and_is_restored_as_it_was(secret: str, written: Any):
    redactor = Redactor()
    turns = [
        Exchange((ToolCall("look", {}),), (written({"password": secret}),)),
        Exchange((ToolCall("login", {"password": secret}),), ("",)),
    ]
    _, (looked, login) = redactor.conversation("Log in.", turns)
    assert looked.results == (written({"password": "redacted-secret-1"}),)
    assert login.calls[0].arguments == {"password": "redacted-secret-1"}
    assert redactor.restored("redacted-secret-1") == secret


def test_a_key_file_in_json_has_the_placeholder_of_the_same_key_as_an_argument():
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----"
    redactor = Redactor()
    turns = [Exchange((ToolCall("look", {}),), (json.dumps({"pem": pem}),)), Exchange((ToolCall("use", {"pem": pem}),), ("",))]
    _, (looked, used) = redactor.conversation("Use it.", turns)
    assert looked.results == ('{"pem": "redacted-key-1"}',) and used.calls[0].arguments == {"pem": "redacted-key-1"}
    assert redactor.restored("redacted-key-1") == pem


def test_an_argument_that_is_named_like_a_secret_is_redacted_whatever_its_spelling_and_type():
    names = ["clientSecret", "userPassword", "secret_key", "AWS_SECRET_ACCESS_KEY", "privateKey", "DBPassword"]
    arguments = {name: "ab cdefgh" for name in names} | {"password": 12345678}
    assert set(redacted(arguments).values()) == {"redacted-secret-1", "redacted-secret-2"}


def test_what_only_resembles_the_name_of_a_secret_stays():
    arguments = {
        "token_count": 5, "max_tokens": 1_000_000, "keyboard": "mechanical", "primary_key": 7_000_000, "secretary": "Ann Miller",
        "password": True, "api_keys": ["mechanical"], "next_token": "c3RhcnQ6MTAw",
    }  # fmt: skip
    text = json.dumps(arguments) + ' {"password": false} type="password" id="mechanical" a basic question http://127.0.0.1:8000/a@b'
    text += "\ntoken = lexer.following()\ntoken: Callable[[str], None]"
    assert redacted(arguments) == arguments and Redactor().text(text) == text


def redacted(arguments: dict[str, object]) -> dict[str, object]:
    _, (turn,) = Redactor().conversation("Look.", [Exchange((ToolCall("get", arguments),), ("",))])
    return dict(turn.calls[0].arguments)  # type: ignore[arg-type]


def with_secrets_in_what_is_left_out() -> list[dict[str, Any]]:
    messages = openai_messages()
    messages[0]["content"] = "Ask admin@example.com, with the key sk-abcdefghijklmnopqrstuvwxyz."
    messages[2]["content"] = "I am bot@example.com."
    return messages


def test_only_secrets_that_an_episode_shows_are_numbered_and_counted(tmp_path: Path):
    record = {"id": "one", "messages": with_secrets_in_what_is_left_out()}
    (episode,), account = imported(tmp_path, [record])
    assert "mail redacted-e-mail-1" in episode.task.instruction and account["redacted"] == {"e-mail": 1}
    assert any(text.startswith("1 value is a placeholder now") for text in account["warnings"])
    (episode,), account = imported(tmp_path, [record], system=True)
    assert "admin" not in episode.task.instruction and "mail redacted-e-mail-3" in episode.task.instruction
    assert account["redacted"] == {"e-mail": 2, "key": 1}


def test_secrets_of_episodes_that_are_left_out_are_not_counted(tmp_path: Path):
    record = {"id": "one", "messages": openai_messages()}
    _, once = imported(tmp_path, [record])
    _, twice = imported(tmp_path, [record, record])
    assert once["redacted"] == twice["redacted"] == {"e-mail": 1}


def test_a_secret_in_the_part_of_a_result_that_is_not_shown_is_not_counted(tmp_path: Path):
    messages = openai_messages()
    messages[3]["content"] = "x " * 2000 + "bob@example.org" + " x" * 2000
    _, account = imported(tmp_path, [{"messages": messages}])
    assert account["redacted"] == {"e-mail": 1}, "that of the instruction"


def test_a_placeholder_that_stood_in_a_log_is_never_given_to_a_secret():
    turn = Exchange((ToolCall("send", {"to": "redacted-e-mail-2"}),), ("sent to bob@example.org",))
    redactor = Redactor()
    instruction, (shown,) = redactor.conversation("Mail ann@example.com.", [turn])
    assert instruction == "Mail redacted-e-mail-1." and shown.results == ("sent to redacted-e-mail-3",)
    assert redactor.restored({"to": ["redacted-e-mail-1", "redacted-e-mail-2", "redacted-e-mail-3"]}) == {
        "to": ["ann@example.com", "redacted-e-mail-2", "bob@example.org"]
    }


@pytest.mark.parametrize("written", ["redacted-e-mail-2", "redacted-e-mail-11", "redacted-key-1", "to redacted-e-mail-", "redacted-token"])
def test_a_placeholder_that_stands_for_nothing_is_not_restored(written: str):
    redactor = Redactor()
    redactor.conversation("Mail ann@example.com.", [])
    with pytest.raises(UsageError, match=f"'{written.split()[-1]}' stands for nothing"):
        redactor.restored({"a": [{"to": written}]})


def test_an_argument_that_the_episode_shows_before_stays_so_that_whoever_acts_can_give_it():
    secret = "hunter22x"
    login = Exchange((ToolCall("login", {"password": secret}),), ("ok",))
    redactor = Redactor()
    _, (shown,) = redactor.conversation(f"Log in. My password is {secret}.", [login])
    assert shown == login
    told = Exchange((ToolCall("ask", {}),), ("",), f"It is {secret}, of course.")
    assert redactor.conversation("Log in.", [told, login])[1] == [told, login]
    unseen = Exchange((ToolCall("ask", {}),), ("word " * 500 + secret + " word" * 500,))
    for before in ([], [unseen], [Exchange((ToolCall("ask", {}),), (f"id-{secret}",))]):
        *_, shown = redactor.conversation("Log in.", [*before, login])[1]
        assert shown.calls[0].arguments == {"password": "redacted-secret-1"}, "no state shows it before"


def test_a_secret_that_was_found_is_replaced_in_whatever_follows():
    secret = 'hunter "22" x'
    turns = [
        Exchange((ToolCall("create", {"password": secret}),), (f"created with {secret}",), f"So it is {secret}?"),
        Exchange((ToolCall("login", {"text": f"{secret}!", "secret": secret}),), (json.dumps({"echo": f"it is\n{secret}"}),)),
    ]
    _, shown = Redactor().conversation("Log in.", turns)
    assert secret not in str(shown) and str(shown).count("redacted-secret-1") == 6
    numbers = [Exchange((ToolCall("login", {"password": 12345678}),), ('{"id": 12345678}',))]
    assert Redactor().conversation("Log in.", numbers)[1][0].results == ('{"id": 12345678}',)


@given(st.lists(st.sampled_from(["hunter22", "My password is hunter22", '{"password": "hunter22"}', "xhunter22"]), max_size=5))
def test_the_first_turns_of_a_conversation_read_alike_whatever_follows(texts: list[str]):
    turns = [Exchange((ToolCall("login", {"password": "hunter22"}),), (text,)) for text in texts]
    whole = Redactor().conversation("Log in.", turns)[1]
    assert all(Redactor().conversation("Log in.", turns[:n])[1] == whole[:n] for n in range(len(turns)))
