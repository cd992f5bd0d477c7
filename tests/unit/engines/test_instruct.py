"""An instruct model in this process: a chat without a server, whose replies have the form that is asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_model import save_instruct_model
from transformers import AutoModelForCausalLM

from dreamgym import plugins
from dreamgym.engines import check_engine
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.token_chat import TokenChat, _grammar
from dreamgym.errors import ConfigError, UsageError
from dreamgym.experience.chat_requests import AskConfig, ask
from dreamgym.experience.json_replies import Message, read_object
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.recipes import chat_server

FIELDS = {"state": {"type": "string", "maxLength": 8}, "reward": {"type": "integer", "enum": [0, 1]}}


@pytest.fixture(scope="module")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_instruct_model(tmp_path_factory.mktemp("hub") / "blank")


def questions(n: int) -> list[list[Message]]:
    return [[{"role": "user", "content": f"What follows {i}?"}] for i in range(n)]


def test_even_an_untrained_model_answers_in_the_form_that_is_asked_for(instruct: Path):
    chat: TokenChat = plugins.make("engines", "instruct", model=str(instruct), max_batch=2)
    how = AskConfig(max_tokens=120, temperature=1.0)
    replies = ask(chat, questions(5), lambda _, text: read_object(text, list(FIELDS)), how, FIELDS, seeds=[(i,) for i in range(5)])
    assert [reply.kind for reply in replies] == ["clean"] * 5
    assert all(reply.value["reward"] in (0, 1) and len(reply.value["state"]) <= 8 for reply in replies if reply.value)
    assert chat.usage.requests == 5 and chat.model == str(instruct)
    free = AskConfig(max_tokens=40, format="none", temperature=1.0)
    (reply,) = ask(chat, questions(1), lambda _, text: read_object(text, list(FIELDS)), free, FIELDS)
    assert reply.kind != "clean", "without a form, an untrained model writes anything"


def test_it_shares_the_weights_of_a_backbone_that_is_in_memory_with_adapters_and_of_another_chat(instruct: Path, tmp_path: Path):
    pytest.importorskip("peft")
    place = str(shutil.copytree(instruct, tmp_path / "roomy"))  # with an embedding for every token, as models have it: none grows
    roomy = AutoModelForCausalLM.from_pretrained(instruct)
    roomy.resize_token_embeddings(264)
    roomy.save_pretrained(place)
    dreams, _ = backbones.load(BackboneConfig(model=place, device="cpu", lora=LoraConfig(rank=2)))
    chats: list[TokenChat] = [plugins.make("engines", "instruct", model=place, device="cpu") for _ in range(2)]
    frozen = {p.data_ptr() for p in dreams.parameters() if not p.requires_grad}
    for chat in chats:
        assert isinstance(chat.llm, LocalEngine)
        assert {p.data_ptr() for p in chat.llm.model.parameters()} == frozen
    whole, _ = backbones.load(BackboneConfig(model=place, device="cpu"))
    assert not {p.data_ptr() for p in whole.parameters()} & frozen, "what is trained whole is nobody else's"


def test_the_grammar_is_the_schema_without_free_white_space():
    schema = {"type": "object", "properties": FIELDS}
    kind, _, found = _grammar({"type": "json_schema", "json_schema": {"schema": schema}}).partition("%json ")
    assert kind == "start: " and json.loads(found) == {"x-guidance": {"whitespace_flexible": False}, **schema}


def test_conversations_are_taken_as_there_is_room_and_their_replies_do_not_depend_on_it(instruct: Path):
    taken: list[int] = []

    def talks() -> Iterator[list[Message]]:
        for i, talk in enumerate(questions(5)):
            taken.append(i)
            yield talk

    seeds = [(i,) for i in range(5)]
    two: TokenChat = plugins.make("engines", "instruct", model=str(instruct), max_batch=2)
    replies = two.replies(talks(), max_tokens=12, seeds=seeds, allow_truncated=True)
    first = next(replies)
    assert taken == [0, 1]
    together: TokenChat = plugins.make("engines", "instruct", model=str(instruct), max_batch=8)
    assert [first, *replies] == list(together.replies(questions(5), max_tokens=12, seeds=seeds, allow_truncated=True))


def test_commands_use_it_where_no_address_is_given(instruct: Path):
    with chat_server.open_chat(str(instruct), None, ["max_batch=3"], api_key_env="X") as chat:
        assert isinstance(chat, TokenChat) and chat.at_once == 3
    with pytest.raises(ConfigError, match="option of a host"), chat_server.open_chat(str(instruct), None, price_per_million_output=1.0):
        pass
    with pytest.raises(ConfigError, match="timeout_s"), chat_server.open_chat(str(instruct), None, ["timeout_s=3"]):
        pass


def test_a_model_that_cannot_chat_is_named_before_anything_is_spent(tmp_path: Path, instruct: Path):
    with pytest.raises(ConfigError, match="No model at"):
        check_engine({"name": "instruct", "model": str(tmp_path / "none")})
    plain = instruct.parent / "plain"
    shutil.copytree(instruct, plain, dirs_exist_ok=True)
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(UsageError, match="no chat template"):
        check_engine({"name": "instruct", "model": str(plain)})
    with pytest.raises(ConfigError, match="samples from no policy"):
        check_engine({"name": "instruct", "model": str(tmp_path)}, trains=True)
