"""A pretrained instruct model as the policy of a run, and another one that dreams: the same recipes, other settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_model import save_instruct_model
from scripted_chat import ScriptedChat
from toy import LOOP, SHARED, command, object_in, shrink, weights

from dreamgym.config import read
from dreamgym.envs import corridor
from dreamgym.envs.base import TextRules
from dreamgym.errors import ConfigError, PluginError
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.llm.vocabulary import END
from dreamgym.policy.loading import Policies
from dreamgym.policy.settings import PolicyConfig
from dreamgym.recipes.config import TrainConfig
from dreamgym.runs.rundir import RunDir
from dreamgym.train import sft
from dreamgym.train.settings import SFTConfig
from dreamgym.types import Observation

PROMPTED = '[experience]\nname = "prompted"\nengine = {name = "toy.dreamer"}\n'
SUITE = corridor.make(length=4, keys=False, max_steps=4)
ASKED = SHARED[: SHARED.index("[experience]")] + SHARED[SHARED.index("[warm_start]") :]  # without a fitted experience model
SERVER = {"base_url": "http://localhost:1/v1", "model": "x"}
PROMPTED_BY_A_SERVER = {"name": "prompted", "engine": SERVER}
SAY = "Such as Action: left."


def policies_of(block: PolicyConfig, rules: Any = SUITE.rules) -> Any:
    """Policies of a backbone, for which the tokenizer of small models is not asked."""
    return Policies(block, rules, None, {END: 1}, served=Path("served"))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    monkeypatch.setitem(sys.modules, "toy.dreamer", sys.modules[__name__])  # the plug-in is `make`, below


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instruct model that knows nothing."""
    return save_instruct_model(tmp_path_factory.mktemp("hub") / "blank")


@pytest.fixture(scope="module")
def skilled(blank: Path) -> Path:
    """One that has seen the corridor, and gets some tasks right: often enough that the last bits of its weights, which differ between
    processes, do not decide whether a group is mixed."""
    policies = policies_of(PolicyConfig(backbone=BackboneConfig(model=str(blank)), instructions=SAY))
    model = policies.initial_model(blank)
    shown = [
        policies.demonstrations(SUITE.demonstrate(task, "expert", seed=i))[0] for i in range(3) for task in SUITE.tasks("train", 20, seed=0)
    ]
    sft.train(model, *zip(*shown, strict=True), SFTConfig(epochs=24.0, lr=5e-3, batch_tokens=1024, bf16=False))
    policies.save(model, blank.parent / "skilled")
    return blank.parent / "skilled"


def settings(path: Path, backbone: Path, mode: str, *, lora: str = "", experience: str = "") -> Path:
    policy = f'[policy]\nmax_reply_tokens = 16\ninstructions = "{SAY}"\n[policy.backbone]\nmodel = "{backbone}"\n{lora}\n'
    path.write_text(f'mode = "{mode}"\n{ASKED if experience else SHARED}\n{experience}\n{policy}\n[rl]\n{LOOP}')
    return path


@pytest.mark.parametrize(("lora", "changes"), [("", ["warm_start.epochs=1"]), ("lora = {rank = 8}", ["warm_start.epochs=0"])])
def test_a_backbone_is_trained_in_another_ones_dream_and_is_judged(
    lora: str, changes: list[str], tmp_path: Path, skilled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = settings(tmp_path / "run.toml", skilled, "dream", lora=lora, experience=PROMPTED), tmp_path / "run"
    code, out, err = command(monkeypatch, capsys, "train", run, *changes, "--config", file, "--json")
    assert code == 0, err
    found = object_in(out)
    assert found["warm_start"]["episodes"] == 2 and found["dream"]["dream_transitions"] > 0 == found["dream"]["real_transitions_online"]
    assert not (run / "checkpoints" / "experience").exists()
    lines = [line for line in RunDir.view(run).read_jsonl("metrics.jsonl") if line["phase"] == "dream"]
    assert len(lines) == 2 and any(line.get("grad_norm", 0) > 0 for line in lines)
    kept = {name: {file.name for file in (run / "checkpoints" / name).iterdir()} for name in ("warm_start", "dream")}
    file_name = "adapter_model.safetensors" if lora else "model.safetensors"
    assert file_name in kept["warm_start"] and file_name in kept["dream"]
    assert ("model.safetensors" in kept["dream"]) == (not lora), "of a model with adapters, checkpoints hold the adapters alone"
    code, out, _ = command(monkeypatch, capsys, "eval", run, "--policy", "dream", "--tasks", "2", "--json")
    assert code == 0 and object_in(out)["greedy"]["n"] == 2


def test_a_backbone_may_go_as_it_came_and_the_same_command_goes_on(
    tmp_path: Path, blank: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = settings(tmp_path / "run.toml", blank, "real"), tmp_path / "run"
    asked = ("train", run, "warm_start.epochs=0", "rl.iterations=1", "--config", file)
    code, _, err = command(monkeypatch, capsys, *asked)
    assert code == 2 and "no iteration of 'real_only' had a gradient" in err, "random weights never open a door"
    assert (run / "report.html").is_file(), "it shows what was measured"
    assert not (run / "checkpoints" / "experience").exists() and RunDir.view(run).data("warm_start")["demonstrations"] == 0
    before = weights(run, "real_only")
    assert command(monkeypatch, capsys, *asked)[0] == 2 and weights(run, "real_only") == before


def test_what_was_read_of_an_instruct_model_reads_like_its_own_words(blank: Path) -> None:
    policies = policies_of(PolicyConfig.model_validate({"backbone": {"model": str(blank)}}))
    model = policies.initial_model(Path("nowhere"))
    (task, *_) = SUITE.tasks("train", 1, seed=0)
    ((ids, weights),) = policies.demonstrations(SUITE.demonstrate(task, "expert", seed=0))
    said = policies.tokenizer.decode([i for i, weight in zip(ids, weights, strict=True) if weight])
    assert SUITE.rules.action_format in policies.tokenizer.decode(ids) and said.startswith("Action: ") and said.endswith("<|im_end|>")
    agent = policies.agent(model, full_precision=False)
    assert agent.llm.model is model and agent.template.system.endswith(SUITE.rules.action_format)


def test_an_environment_that_says_nothing_of_itself_wants_instructions(blank: Path) -> None:
    class Silent(TextRules):
        name = "silent"

        def abstract(self, raw: dict[str, Any]) -> Observation:
            return Observation(str(raw))

    block = PolicyConfig.model_validate({"backbone": {"model": str(blank)}})
    with pytest.raises(ConfigError, match="how actions are written in 'silent': .* Set policy.instructions"):
        policies_of(block, Silent())
    assert policies_of(block.model_copy(update={"instructions": "Press it."}), Silent()).template.system.endswith("Press it.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy.instructions": "Act.", "policy.backbone": None}, "for a pretrained policy only, and the small one is none"),
        ({"policy.engine": {"cash_bytes": 1}}, "Unknown key 'cash_bytes' in policy.engine. Did you mean 'cache_bytes'"),
        ({"experience": {"name": "prompted", "engine": {"model": "x"}}}, "'base_url' in engine: Field required"),
        ({"experience": PROMPTED_BY_A_SERVER | {"state_delta": True}}, "Unknown key 'experience.state_delta'"),
        ({"experience": PROMPTED_BY_A_SERVER | {"training": {"epochs": 1}}}, "'prompted' is not. Remove it"),
        ({"experience.name": "promted"}, "No experience.models plug-in 'promted'. Did you mean 'prompted'"),
        ({"experience": PROMPTED_BY_A_SERVER, "policy": {}}, "A small policy starts as a fitted experience model"),
        ({"experience": PROMPTED_BY_A_SERVER, "rl.on_gap": "refresh"}, "needs a fitted experience model"),
        ({"warm_start.optimiser": "muon"}, "'muon' is for models trained from scratch.*Set warm_start.optimiser = 'adamw' and a rate"),
        ({"experience": {"name": "prompted", "engine": SERVER | {"api_key": "sk"}}}, "would be written into the run directory"),
        ({"policy.backbone": {"modle": "x"}}, "Unknown key 'policy.backbone.modle'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes: dict[str, Any], words: str, tmp_path: Path, blank: Path) -> None:
    with pytest.raises((ConfigError, PluginError), match=words):
        read(TrainConfig, settings(tmp_path / "run.toml", blank, "dream"), changes)


def test_a_backbone_that_is_not_here_is_told_before_anything_is_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = settings(tmp_path / "run.toml", tmp_path / "nowhere", "dream")
    code, _, err = command(monkeypatch, capsys, "train", tmp_path / "run", "--config", file)
    assert code == 2 and "No model at" in err and "experience model" not in err


def make() -> ScriptedChat:
    """The plug-in that dreams here: an instruct model that knows the corridor by heart."""
    table = {}
    for task in SUITE.tasks("train", 100, seed=0):
        env = SUITE.env()
        for actions in (("right",) * 3, ("left",) * 3):
            for door in range(4):
                state, done = SUITE.rules.abstract(env.reset(task)), False
                for action in (*actions[:door], "open"):
                    if done:
                        break
                    raw, reward, done = env.step(action)
                    after = SUITE.rules.abstract(raw)
                    table[state.text, action, task.instruction] = (after.text, reward, done)
                    state = after

    def answer(messages: Sequence[Mapping[str, Any]]) -> str:
        asked = json.loads(messages[1]["content"])
        if "action" not in asked:
            return json.dumps({"state": asked["examples"][0]["state"]} if "examples" in asked else {"task": asked["task"]})
        after, reward, done = table.get((asked["state"], asked["action"], asked["task"]), (asked["state"], 0.0, False))
        return json.dumps({"reasoning": "So it is.", "next_state": after, "reward": reward, "done": done})

    return ScriptedChat(answer)


def test_a_policy_is_trained_in_a_prompted_dream_like_in_a_fitted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(f'mode = "dream"\nstart = "scratch"\n{ASKED}\n{PROMPTED}\n[rl]\n{LOOP}')
    code, out, err = command(monkeypatch, capsys, "train", run, "eval.paired_replays=8", "--config", file, "--json")
    assert code == 0, err
    found = object_in(out)
    assert found["dream"]["dream_transitions"] > 0 and not (run / "checkpoints" / "experience").exists()
    assert found["audit"]["with_guard"]["dream_success"]["n"] == 7, "there are no more tasks to train on"
    assert any("right" in episode.transitions[0].action for episode in RunDir.view(run).read_episodes("dream-0000"))
