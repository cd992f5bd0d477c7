"""Engines are one plug-in kind: found by name or dotted path, checked before a run, and given new weights through one hook."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from chat_model import save_instruct_model
from fault_server import FaultServer

from dreamgym.engines import build_engine, check_engine, check_settings
from dreamgym.engines.scripted import END_ID, ScriptedLLM
from dreamgym.engines.server.weight_sync import PROBE_TOKENS, score
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import ConfigError, PluginError, ServerError
from dreamgym.experience import fitted_models
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.llm.vocabulary import ACT, END, MARKERS, STATE, TASK, Vocabulary
from dreamgym.policy.loading import Policies, check_policy
from dreamgym.policy.settings import PolicyConfig
from dreamgym.rollout import rollout
from dreamgym.types import Completion, Request, Sampling

SUITE = corridor.make(length=4)


@pytest.fixture(scope="module")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_instruct_model(tmp_path_factory.mktemp("hub") / "instruct")


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


def of_server(server: FaultServer, dialect: str = "vllm", **more: Any) -> dict[str, Any]:
    return {"name": "server", "base_url": server.url, "model": "policy", "dialect": dialect} | more


def test_a_backend_in_one_module_outside_the_package_acts_as_a_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = ModuleType("my_company.backend")
    sys.modules["my_company"] = ModuleType("my_company")
    monkeypatch.setitem(sys.modules, "my_company.backend", backend)
    backend.make = lambda *, step: ScriptedLLM(  # type: ignore[attr-defined]
        lambda prompt: "open" if prompt.rsplit("room ", 1)[1].startswith("3") else step
    )
    words = ScriptedLLM(str)
    vocabulary = Vocabulary(words.encode, words.decode, {TASK: 300, STATE: 301, ACT: 302, END: END_ID})
    block = PolicyConfig.model_validate({"engine": {"name": "my_company.backend", "step": "right"}})
    agent = Policies(block, SUITE.rules, None, vocabulary, served=tmp_path).agent(None, full_precision=False)
    goal = corridor.Goal(1, 3)
    task = corridor.Task("1-3", goal.instruction, "corridor", goal={"start": 1, "target": 3, "key": 0})
    (episode,) = rollout(agent, EnvPool(SUITE.env, SUITE.rules), [task], seed=0, max_steps=6)
    assert episode.success and [t.action for t in episode.transitions] == ["right", "right", "open"]
    check_policy(block, SUITE.rules)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "loacl"}, "No engines plug-in 'loacl'. Did you mean 'local'"),
        ({"max_bach": 3}, "Unknown key 'max_bach' in engine. Did you mean 'max_batch'"),
        ({"dtype": "int8"}, "'dtype' in engine"),
        ({"name": "server", "base_url": "http://localhost:99999/v1", "model": "x", "dialect": "vllm"}, "there is no port 99999"),
        ({"name": "server", "base_url": "http://localhost/v1", "modle": "x", "dialect": "vllm"}, "Unknown key 'modle'.*'model'"),
    ],
)
def test_an_unknown_engine_or_setting_is_refused_with_the_nearest_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, PluginError), match=words):
        check_settings(settings)


@pytest.mark.parametrize(
    ("lora", "dtype", "fails"),
    [(None, "float32", False), (None, "bfloat16", True), (LoraConfig(rank=2), "bfloat16", True), (LoraConfig(rank=2), "float32", False)],
)
def test_a_dtype_that_the_model_cannot_be_sampled_in_is_refused_before_a_run(
    lora: LoraConfig | None, dtype: str, fails: bool, instruct: Path
) -> None:
    if lora:
        pytest.importorskip("peft")
    block = PolicyConfig(backbone=BackboneConfig(model=str(instruct), device="cpu", lora=lora), engine={"dtype": dtype})
    if fails:
        with pytest.raises(ConfigError, match="dtype = 'bfloat16' differs from the model's torch.float32"):
            check_policy(block, SUITE.rules)
    else:
        check_policy(block, SUITE.rules)


def test_a_server_that_cannot_take_weights_is_refused_for_training(server: FaultServer, instruct: Path) -> None:
    for dialect in ("chat", "llama_cpp"):
        block = PolicyConfig(backbone=BackboneConfig(model=str(instruct)), engine=of_server(server, dialect))
        with pytest.raises(ConfigError, match=f"dialect = '{dialect}'.*cannot load new weights.*vllm or sglang"):
            check_policy(block, SUITE.rules)
    check_engine(of_server(server, "chat"))  # it may answer chats
    with pytest.raises(ConfigError, match=r"at temperature 1, not 0.5.*rl.learner.temperature = 1"):
        check_engine(of_server(server), trains=True, temperature=0.5)
    with pytest.raises(ConfigError, match="Set policy.backbone"):
        check_policy(PolicyConfig(engine=of_server(server)), SUITE.rules)
    assert not server.arrivals, "nothing was generated"


CALLS = {
    ("vllm", True): ("/v1/load_lora_adapter", "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    ("vllm", False): ("/collective_rpc", "VLLM_SERVER_DEV_MODE=1"),
    ("sglang", True): ("/load_lora_adapter", "Start SGLang with --enable-lora"),
    ("sglang", False): ("/update_weights_from_disk", "a version of SGLang"),
}


@pytest.mark.parametrize(("dialect", "lora"), CALLS)
def test_a_server_that_was_not_started_to_take_weights_is_refused_before_a_run_and_one_that_was_loads_nothing_yet(
    server: FaultServer, instruct: Path, dialect: str, lora: bool
) -> None:
    if lora:
        pytest.importorskip("peft")
    (path, needs), settings = CALLS[dialect, lora], of_server(server, dialect)
    backbone = BackboneConfig(model=str(instruct), device="cpu", dtype="float32", lora=LoraConfig(rank=2) if lora else None)
    block = PolicyConfig(backbone=backbone, engine=settings)
    check_policy(block, SUITE.rules)
    assert server.payloads(path) == [{}] and server.weights == {"policy": 0} and not server.arrivals
    server.manages_weights = False
    with pytest.raises(ServerError, match=f"{path} was refused with status 404.*{needs}"):
        check_policy(block, SUITE.rules)


def test_a_fitted_model_is_not_given_to_a_server_of_text(server: FaultServer, instruct: Path) -> None:
    with pytest.raises(ConfigError, match="dialect = 'chat'.*takes neither weights nor token ids"):
        fitted_models.check_backbone(BackboneConfig(model=str(instruct), device="cpu"), of_server(server, "chat"))


MARKED = BackboneConfig(model="", device="cpu", dtype="float32", markers=True)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("lora", "what"), [(LoraConfig(rank=2), "adapters that bring tokens"), (None, "more embeddings than its model has")]
)
def test_an_experience_model_with_markers_that_the_servers_model_lacks_is_refused_before_a_run(
    server: FaultServer, instruct: Path, lora: LoraConfig | None, what: str, dialect: str
) -> None:
    if lora:
        pytest.importorskip("peft")
    marked = MARKED.model_copy(update={"model": str(instruct), "lora": lora})
    with pytest.raises(ConfigError, match=f"experience.engine: .*adds tokens.*cannot load {what}.*'finetuned_chat'.*dreamgym merge"):
        fitted_models.check_backbone(marked, of_server(server, dialect))
    assert not server.seen
    fitted_models.check_backbone(marked, {})
    fitted_models.check_backbone(marked, of_server(server, "llama_cpp"))  # which is started on the fitted checkpoint
    fitted_models.check_backbone(marked.model_copy(update={"markers": False}), of_server(server, dialect))


def test_an_experience_model_whose_markers_the_servers_model_has_is_not_refused(
    server: FaultServer, instruct: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    lora = MARKED.model_copy(update={"model": str(instruct), "lora": LoraConfig(rank=2)})
    backbones.save(*backbones.load(lora), tmp_path / "adapters")
    backbones.merge(tmp_path / "adapters", tmp_path / "merged")
    fitted_models.check_backbone(lora.model_copy(update={"model": str(tmp_path / "merged")}), of_server(server))
    fitted_models.check_backbone(MARKED.model_copy(update={"model": str(tmp_path / "merged")}), of_server(server))
    with pytest.raises(ConfigError, match="adapters that bring tokens"):
        fitted_models.check_backbone(MARKED.model_copy(update={"model": str(tmp_path / "adapters")}), of_server(server))


def test_a_server_of_another_model_is_found_before_a_run(server: FaultServer) -> None:
    with pytest.raises(ServerError, match="serves policy, not 'other'"):
        check_engine(of_server(server, model="other", tokenizer=None), trains=True, tokenizer=tiny.train_tokenizer(["a"], vocab_size=300))


def test_weights_go_to_the_engine_through_one_hook(server: FaultServer, tmp_path: Path) -> None:
    tokenizer = tiny.train_tokenizer(["red mug"], vocab_size=300, special=MARKERS)
    server.encode = lambda text: tiny.encode(tokenizer, text)
    server.script = lambda prompt: [10, 11] * PROBE_TOKENS
    model = tiny.build(tokenizer, "100k")
    local = build_engine({}, model=model, tokenizer=tokenizer)
    local.publish(4, lambda: pytest.fail("an engine of this process needs no checkpoint"))
    remote = build_engine(of_server(server, retries=0), tokenizer=tokenizer)
    remote.publish(4, lambda: tmp_path)
    assert (local.version, remote.version, server.weights["policy"]) == (4, 4, 1)
    assert server.payloads("/collective_rpc")[0]["kwargs"] == {"weights_path": str(tmp_path)}
    remote.close()
    checked = build_engine(of_server(server), model=model, tokenizer=tokenizer)
    with closing(checked), pytest.raises(ServerError, match="differ from the learner's"):
        checked.publish(5, lambda: tmp_path)
    assert checked.version == 0


def test_the_learners_log_probabilities_of_a_completion_are_those_of_the_local_engine() -> None:
    tokenizer = tiny.train_tokenizer(["red mug"], vocab_size=300)
    model = tiny.build(tokenizer, "100k").eval()
    (found,) = build_engine({"dtype": "float32"}, model=model, tokenizer=tokenizer).generate([Request([5, 6, 7], Sampling(6))])
    assert isinstance(found, Completion) and score(model, found) == pytest.approx(found.logprobs, abs=1e-4)
    assert torch.is_grad_enabled()
