"""What a server cannot do for a run is said when the run begins, and not hours later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_model import save_instruct_model
from fault_server import FaultServer
from model_server import ModelServer
from toy import LOOP, SHARED, shrink

from dreamgym.config import read, resolve
from dreamgym.errors import ConfigError, ServerError
from dreamgym.recipes import context
from dreamgym.recipes.config import CompareConfig, RunConfig, SharedConfig, TrainConfig
from dreamgym.recipes.phases import logs
from dreamgym.recipes.phases.logs import prepare_logs, temperatures

WARM = {"learner": {"temperature": 0.7}}
ARMS = {"dream": WARM, "real": {"learner": {"temperature": 0.5}}}


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (TrainConfig, {}, [1.0]),
        (TrainConfig, {"rl": WARM}, [0.7]),
        (TrainConfig, {"rl": WARM | {"iterations": 0}, "mode": "s2r"}, [0.7]),
        (RunConfig, {"dream": WARM}, [0.7]),
        (RunConfig, {"dream": WARM, "real_only": {"iterations": 3}}, [0.7, 1.0]),
        (RunConfig, {"dream": WARM, "s2r": {"iterations": 3}}, [0.7]),
        (RunConfig, {"s2r": WARM | {"iterations": 3}}, [0.7, 1.0]),
        (RunConfig, {"dream": {"iterations": 0} | WARM, "equal_budget": True}, [1.0]),
        (RunConfig, {"dream": {"iterations": 0}, "s2r": WARM | {"iterations": 0}}, [1.0]),
        (CompareConfig, ARMS | {"arms": ["sft", "grpo-dream", "grpo-s2r"]}, [0.7]),
        (CompareConfig, ARMS | {"arms": ["grpo-real", "grpo-mixed"]}, [0.5, 1.0]),
        (CompareConfig, ARMS | {"arms": ["sft"], "ablations": ["history"], "ablated": "grpo-dream"}, [0.7]),
        (CompareConfig, ARMS | {"arms": ["sft"]}, [1.0]),
    ],
)
def test_the_temperatures_of_a_run_are_those_of_the_loops_that_it_plays(
    kind: type[SharedConfig], settings: dict[str, Any], expected: list[float]
) -> None:
    assert temperatures(resolve(kind, settings, where="here")) == expected


def test_a_loop_at_a_temperature_that_the_server_cannot_report_is_refused_when_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch)
    model = save_instruct_model(tmp_path / "instruct")
    file = tmp_path / "train.toml"
    file.write_text(f'mode = "real"\n{SHARED}\n[rl]\n{LOOP}')
    with FaultServer() as server:
        engine = {"name": "server", "base_url": server.url, "model": "policy", "dialect": "vllm"}
        backbone = {"model": str(model), "device": "cpu", "dtype": "float32"}
        changes = {"policy.engine": engine, "policy.backbone": backbone, "policy.instructions": "Such as Action: left."}
        warm = read(TrainConfig, file, changes | {"rl.learner.temperature": 0.7})
        with context.open_run(tmp_path / "warm", warm) as run, pytest.raises(ConfigError, match=r"at temperature 1, not 0.7"):
            prepare_logs(run, warm)
        sglang = read(TrainConfig, file, changes | {"rl.learner.temperature": 0.7, "policy.engine": engine | {"dialect": "sglang"}})
        monkeypatch.setattr(logs, "check_publication", lambda *_: None)  # this server has no weights to publish to
        with context.open_run(tmp_path / "sglang", sglang) as run:
            assert prepare_logs(run, sglang).logs


def test_a_run_with_a_server_that_keeps_its_weights_ends_before_it_has_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    model = save_instruct_model(tmp_path / "instruct")
    file = tmp_path / "train.toml"
    file.write_text(f'mode = "real"\n{SHARED}\n[rl]\n{LOOP}')
    with ModelServer(model) as server:
        engine = {"name": "server", "base_url": server.url, "model": "policy", "dialect": "vllm"}
        backbone = {"model": str(model), "device": "cpu", "dtype": "float32"}
        say = "Such as Action: left."
        config = read(TrainConfig, file, {"policy.engine": engine, "policy.backbone": backbone, "policy.instructions": say})
        server.loads = False
        with context.open_run(tmp_path / "run", config) as run:
            with pytest.raises(ServerError, match=f"goes on sampling from those before.*{server.url}"):
                prepare_logs(run, config)
            assert not run.done("logs")
            server.loads = True
            prepare_logs(run, config)
            assert run.done("logs") and len(server.payloads("/collective_rpc")) == 2 + 1 + 2, "the first is a question without weights"
