"""Ray workers as clients of inference servers: the driver publishes, and the run is that of one process; with ray and peft alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from instruct import INSTRUCTIONS, instructed
from model_server import ModelServer
from test_ray_runs import episodes, measures
from toy import LOOP, SHARED, shrink

pytest.importorskip("ray")
pytest.importorskip("peft")

from dreamgym.config import read
from dreamgym.recipes import train as recipe
from dreamgym.recipes.config import TrainConfig
from dreamgym.runs.files import read_jsonl


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instruct model that acts in the corridor at times."""
    path, made = tmp_path_factory.mktemp("hub") / "instruct", instructed(0, epochs=30.0)
    made.model.save_pretrained(path)
    made.tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def servers(checkpoint: Path) -> Iterator[tuple[ModelServer, ModelServer]]:
    """One of the policy, and one of the experience model, which holds no weights yet."""
    with ModelServer(checkpoint) as policy, ModelServer() as dream:
        yield policy, dream


def settings(folder: Path, checkpoint: Path, servers: tuple[ModelServer, ModelServer], changes: dict[str, Any]) -> TrainConfig:
    def engine(server: ModelServer) -> dict[str, Any]:
        return {"name": "server", "base_url": server.url, "model": "policy", "dialect": "vllm", "max_context": 1024, "backoff_s": 0.01}

    file = folder / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    backbone = {"model": str(checkpoint), "dtype": "float32", "device": "cpu", "lora": {"rank": 4}}
    served = {
        "mode": "mixed", "rl.real_share": 0.5, "experience.training.epochs": 25.0, "warm_start.epochs": 0.0, "rl.learner.bf16": False,
        "env.options": {"length": 4, "keys": False, "max_steps": 6}, "policy.backbone": backbone, "policy.engine": engine(servers[0]),
        "policy.max_reply_tokens": 8, "policy.instructions": INSTRUCTIONS, "experience.engine": engine(servers[1]), "rl.learner.lr": 1e-2,
    }  # fmt: skip
    return read(TrainConfig, file, served | changes)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"rl.async_rollouts": True, "rl.learner.old_logprobs": "sampler"}], ids=["in turn", "ahead"])
def test_workers_that_are_clients_of_servers_play_the_run_of_one_process(
    changes: dict[str, Any],
    tmp_path: Path,
    checkpoint: Path,
    servers: tuple[ModelServer, ModelServer],
    monkeypatch: pytest.MonkeyPatch,
):
    shrink(monkeypatch)
    policy, _ = servers
    runs, published = [], []
    for name, executor in (("alone", {"name": "outside.worker_threads"} if changes else {}), ("spread", {"name": "ray", "workers": 2})):
        before = [len(server.paths()) for server in servers]
        config = settings(tmp_path, checkpoint, servers, {**changes, "exec": executor})
        recipe.run(config, tmp_path / name, say=lambda text: None)
        runs.append(tmp_path / name)
        loads = ("/v1/load_lora_adapter", "/collective_rpc")
        published.append([sum(path in loads for path in s.paths()[n:]) for s, n in zip(servers, before, strict=True)])
    alone, spread = runs
    assert published[0] == published[1], "the driver alone publishes"
    assert episodes(alone) == episodes(spread) and len(episodes(spread)) > 16
    for ours, theirs in zip(measures(alone), measures(spread), strict=True):
        assert {k: v for k, v in theirs.items() if isinstance(v, float)} == pytest.approx(
            {k: v for k, v in ours.items() if isinstance(v, float)}, rel=1e-3, abs=1e-4
        )
    assert any(line["grad_norm"] > 0 for line in measures(spread)), "the weights changed between publications"
    asked = {payload["model"] for payload in policy.payloads("/v1/completions")}
    versions = {int(found[1]) for name in asked if (found := re.match(r"policy-v(\d+)-", name))}
    assert {0, 1, 2} <= versions
    lines = [line for line in read_jsonl(spread / "metrics.jsonl") if line["phase"] == "mixed"]
    assert [line["staleness"] for line in lines] == ([0, 1, 1] if changes else [0, 0, 0])[: len(lines)]
