"""bench/engine.py: which keys its JSON has, whoever was measured."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from documents import ROOT

SECONDS = {"ours": 2.0, "transformers_generate": 8.0, "llama_cpp": 3.0, "floor": 1.0}
SERVERS = {"http://slow/v1": 12.0, "http://fast/v1": 5.0, "http://other/v1": 1.0}
RIGHT = {"greedy_identical": True, "near_ties": 0, "sequences": 32, "max_logprob_error": 0.0}


@pytest.fixture(scope="module")
def engine() -> ModuleType:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        spec = importlib.util.spec_from_file_location("bench_engine", ROOT / "bench/engine.py")
        assert spec and spec.loader
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # its dataclasses look themselves up
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return module


def measured(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """What a contender would have found, in no time."""
    name = function.__name__
    if name in ("faster_precision", "correctness"):
        return {"dtype": "float32", **RIGHT}
    if name == "served" and arguments[-1] == "http://absent/v1":
        return {"missing": "no package"}
    seconds = SERVERS[arguments[-1]] if name == "served" else SECONDS.get(name, 1.0)
    return {"seconds": seconds, "tokens_per_s": 60 / seconds, "cpu_seconds": seconds, "peak_mb": 1.0}


@pytest.mark.parametrize(
    ("servers", "ratio"),
    [
        ([], None),
        ([("llama_cpp", "http://other/v1")], None),
        ([("vllm", "http://absent/v1")], None),
        ([("vllm", "http://slow/v1"), ("vllm", "http://fast/v1"), ("llama_cpp", "http://other/v1")], 2.5),
    ],
)
def test_the_ratio_to_vllm_is_always_a_key_and_null_without_a_vllm_server(
    engine: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], servers: list[tuple[str, str]], ratio: float
) -> None:
    monkeypatch.setattr(engine, "isolated", measured)
    found = engine.measure("100k", engine.Workload(2, 2), {"rows": 1, "length": 9}, servers)
    assert found["ratio_vs_vllm_cpu"] == ratio and len(found["servers"]) == len(servers) and found["ratio_vs_llama_cpp"] == 1.5
    engine.show(found)
    assert f"ratio_vs_vllm_cpu={ratio}" in capsys.readouterr().out
