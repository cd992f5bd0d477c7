"""The JSON schemas that hold instruct models to a form end their remarks in time, and cut nothing that was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fault_server import FaultServer

from dreamgym import plugins
from dreamgym.experience import chat_prompts, teacher_prompts
from dreamgym.experience.chat_requests import AskConfig, ask
from dreamgym.experience.json_replies import LONGEST, limited, read_object, response_format, schema

TEXT = {"type": "string"}


def limits(properties: dict[str, Any], max_tokens: int) -> dict[str, int | None]:
    return {name: one.get("maxLength") for name, one in limited(schema(properties), max_tokens)["properties"].items()}


def test_remarks_and_the_rest_of_a_reply_have_the_same_share_of_its_tokens():
    given = {
        "state": {"type": "string", "maxLength": 8},
        "verdict": {"type": "string", "enum": ["yes", "no"]},
        "reward": {"type": "number"},
    }
    assert limits({"why": TEXT, "doubts": TEXT, **given}, 300) == {"why": 200, "doubts": 200, "state": 8, "verdict": None, "reward": None}
    assert limits({"why": TEXT}, 300) == {"why": 300}
    assert limits({"why": TEXT}, 100_000) == {"why": LONGEST} and LONGEST < 2000


def test_states_and_tasks_are_never_ended_by_a_grammar():
    assert limits(chat_prompts.properties(reasoning=True), 1024) == {"reasoning": 682, "next_state": None, "reward": None, "done": None}
    assert limits({"state": TEXT}, 1024) == {"state": None} and limits({"task": TEXT}, 1024) == {"task": None}


def test_texts_inside_lists_and_objects_are_limited_and_lists_are_as_long_as_they_may_be():
    found = limited(schema(teacher_prompts.properties(7)), 500)["properties"]
    assert {one["maxLength"] for one in found["tutorial"]["properties"].values()} == {200}
    assert found["steps"]["maxItems"] == 7 and found["steps"]["items"]["properties"]["reasoning"]["maxLength"] == 200
    assert "maxItems" not in limited(schema(teacher_prompts.properties(2000)), 500)["properties"]["steps"]
    assert "maxLength" not in json.dumps(teacher_prompts.properties(7)), "what was given is as it was"


@pytest.mark.parametrize("kind", ["json_object", "none"])
def test_a_host_that_takes_no_schema_gets_no_limits(kind: Any):
    assert "maxLength" not in json.dumps(response_format(kind, "scores", {"why": TEXT}, 300))


def test_a_server_is_sent_the_limits():
    fields = {"reasoning": TEXT, "believable": {"type": "boolean"}}
    with FaultServer() as server:
        server.answer = lambda messages: json.dumps({"reasoning": "So it is.", "believable": True})
        chat = plugins.make("engines", "server", base_url=server.url, model="policy", dialect="chat")
        talk = [{"role": "user", "content": "Is it?"}]
        (reply,) = ask(chat, [talk], lambda _, text: read_object(text, list(fields)), AskConfig(max_tokens=120), fields)
        chat.close()
    sent = server.payloads("/v1/chat/completions")[0]["response_format"]["json_schema"]["schema"]
    assert reply.kind == "clean" and sent["properties"]["reasoning"] == {"type": "string", "maxLength": 120}
    assert sent["required"] == list(fields) and sent["additionalProperties"] is False
