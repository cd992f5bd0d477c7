"""bench/paper.py: a model travels in parts, rows join the table of results, and no step is begun that may not end in time."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from documents import DOCS, ROOT

from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import backbones
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.recipes.config import CompareConfig
from dreamgym.runs.rundir import RunDir


@pytest.fixture(scope="module")
def paper() -> ModuleType:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        spec = importlib.util.spec_from_file_location("bench_paper", ROOT / "bench/paper.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "bench"))
    return module


def row(arm: str, seed: int, **more: Any) -> dict[str, Any]:
    made = {"device": "card", "settings": "one", "commit": "c1"}
    return {"arm": arm, "seed": seed, "real_success": 1.0, "sampled": 2.0, "tokens": 3, "seconds": 36.0, **made} | more


def test_a_model_travels_in_pieces_and_is_read_from_them(paper: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = paper.tiny_instruct_model(tmp_path / "whole")
    monkeypatch.setattr(paper, "PIECE", "100KB")
    parts = paper.prepare(tmp_path / "parts", str(whole))
    assert len(list(parts.glob("*.safetensors"))) > 1
    one, words = backbones.load(BackboneConfig(model=str(whole), device="cpu"))
    other, same = backbones.load(BackboneConfig(model=str(parts), device="cpu", dtype="float32"))
    assert words.chat_template == same.chat_template
    assert all(torch.equal(a.bfloat16().float(), b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_row_takes_the_place_of_an_older_one_in_a_table_that_the_results_page_reads(paper: ModuleType, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_results_again", DOCS / "make_results.py")
    assert spec and spec.loader
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    file, config = tmp_path / "paper-smollm2.json", CompareConfig()
    for one in (row("sft", 1), row("sft", 0), row("sft", 0, device="other"), row("sft", 0, real_success=9.0)):
        paper.merged(file, one, config)
    table = json.loads(file.read_text("utf-8"))
    assert tuple(table) == page.KEYS and table["name"] == file.stem and all(set(one) == set(table["columns"]) for one in table["rows"])
    assert [(one["seed"], one["device"], one["real_success"]) for one in table["rows"]] == [
        (0, "card", 9.0),
        (0, "other", 1.0),
        (1, "card", 1.0),
    ]
    assert table["seeds"] == [0, 1] and table["hours"] == 0.03


def test_rows_of_processes_side_by_side_join_one_table(paper: ModuleType, tmp_path: Path) -> None:
    parts = [tmp_path / f"{seed}.json" for seed in (1, 0)]
    for seed, part in zip((1, 0), parts, strict=True):
        paper.merged(part, row("sft", seed), CompareConfig())
    table = paper.join(tmp_path / "paper-smollm2.json", parts)
    assert table == json.loads((tmp_path / "paper-smollm2.json").read_text("utf-8"))
    assert [one["seed"] for one in table["rows"]] == table["seeds"] == [0, 1] and table["name"] == "paper-smollm2"
    with pytest.raises(UsageError, match="has no rows"):
        paper.join(tmp_path / "paper-smollm2.json", [tmp_path / "missing.json"])


def test_rows_of_other_settings_or_another_commit_join_no_table(paper: ModuleType, tmp_path: Path) -> None:
    file, other = tmp_path / "paper.json", tmp_path / "other.json"
    paper.merged(file, row("sft", 0), CompareConfig(), ["--set", "rules=none"])
    assert json.loads(file.read_text("utf-8"))["command"].endswith("--set rules=none")
    with pytest.raises(UsageError, match=r"Rows of settings one, made by '.* --set rules=none', and of settings two, .*--out another file"):
        paper.merged(file, row("sft", 0, real_success=9.0, settings="two"), CompareConfig())
    with pytest.raises(UsageError, match=r"What differs is in the file of --config"):
        paper.merged(file, row("sft", 0, real_success=9.0, settings="two"), CompareConfig(), ["--set", "rules=none"])
    paper.merged(other, row("sft", 1, settings="two"), CompareConfig())
    with pytest.raises(UsageError, match="Rows of settings"):
        paper.join(file, [other])
    with pytest.raises(UsageError, match=r"Rows of commit c1, .* and of commit c2"):
        paper.merged(file, row("sft", 1, commit="c2"), CompareConfig(), ["--set", "rules=none"])
    older = {name: value for name, value in row("sft", 1).items() if name not in ("settings", "commit")}
    other.write_text(json.dumps(json.loads(other.read_text("utf-8")) | {"rows": [older]}), "utf-8")
    with pytest.raises(UsageError, match="Rows of settings"):
        paper.join(file, [other])
    assert [one["real_success"] for one in json.loads(file.read_text("utf-8"))["rows"]] == [1.0]


def test_a_curated_title_stays_and_hours_are_those_of_all_rows(paper: ModuleType, tmp_path: Path) -> None:
    parts = [tmp_path / f"{seed}.json" for seed in (0, 1)]
    for seed, part in enumerate(parts):
        paper.merged(part, row("sft", seed, seconds=3600.0), CompareConfig())
    file = tmp_path / "table.json"
    paper.join(file, parts)
    ours = {"title": "Ours", "text": "Written.", "command": "bench/paper.py as we ran it", "machine": "our card", "notes": ["Seen."]}
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | ours), "utf-8")
    paper.join(file, parts)
    table = paper.merged(file, row("sft", 2, seconds=3600.0), CompareConfig())
    assert table["hours"] == 3.0 and {name: table[name] for name in ours} == ours
    assert paper.merged(file, row("sft", 3, device="other"), CompareConfig())["machine"] == "card, other"


def test_claims_go_when_the_rows_that_they_were_about_change(paper: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, claims = tmp_path / "table.json", [{"what": "higher than before", "asked": "above 0", "got": 1.0, "interval": None}]
    made = paper.merged(file, row("sft", 0), CompareConfig())
    file.write_text(json.dumps(made | {"claims": claims}), "utf-8")
    assert paper.merged(file, row("sft", 0), CompareConfig())["claims"] == claims, "the row was there"
    assert paper.merged(file, row("sft", 0, sampled=3.0), CompareConfig())["claims"] == []
    assert "its claims are left out" in (said := capsys.readouterr().out) and "higher than before" in said


def test_a_digest_is_of_settings_and_models_and_not_of_places(paper: ModuleType, tmp_path: Path) -> None:
    whole = paper.tiny_instruct_model(tmp_path / "whole")
    shutil.copytree(whole, tmp_path / "copy")

    def digest(model: Path = whole, device: str = "cpu", **changes: Any) -> str:
        found: str = paper.digest(paper.settings(model, device, None, paper.SMOKE | changes))
        return found

    assert digest() == digest(tmp_path / "copy", "auto", seed=3, seeds=[3], arms=["grpo-real"])
    assert len({digest(), digest(rules="none"), digest(**{"dream.learner.lr": 1e-3})}) == 3
    (tmp_path / "copy" / "chat_template.jinja").write_text("another")
    paper._files.cache_clear()
    assert digest() != digest(tmp_path / "copy")


def test_a_seed_that_was_begun_at_another_commit_does_not_go_on(paper: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "step", lambda *given: pytest.fail("something was trained"))
    with RunDir.open(tmp_path / "seed-0", ""):
        (tmp_path / "seed-0" / "paper.json").write_text(json.dumps({"commit": "c0", "devices": {}}), "utf-8")
    with pytest.raises(UsageError, match=r"seed-0' was begun at commit c0, .* give --data another folder"):
        paper.play(CompareConfig(), tmp_path, tmp_path / "out.json", [0], [], 25.0)


def test_without_out_the_rows_go_into_a_file_of_the_current_folder_and_no_published_table(
    paper: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paper.merged(tmp_path / "seed.json", row("sft", 0), CompareConfig())
    monkeypatch.setattr(sys, "argv", ["paper.py", "--join", "seed.json"])
    paper.main()
    assert json.loads((tmp_path / "paper.json").read_text("utf-8"))["rows"] == [row("sft", 0)]


def test_an_arm_that_is_none_is_refused_before_anything_is_trained(
    paper: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "step", lambda *given: pytest.fail("something was trained"))
    for arm in ("grpo-dreams", "grpo-dream-no-nothing"):
        monkeypatch.setattr(sys, "argv", ["paper.py", "--smoke", "--arms", arm])
        with pytest.raises(ConfigError):
            paper.main()


def test_no_step_is_begun_that_may_not_end_in_time(
    paper: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = list[tuple[int, str]]()
    monkeypatch.setattr(paper.context, "commit", lambda: "c1")
    made = {"settings": paper.digest(CompareConfig())}
    monkeypatch.setattr(paper, "step", lambda config, data, seed, arm: begun.append((seed, arm)) or row(arm, seed, **made))
    out = tmp_path / "paper-smollm2.json"
    assert paper.play(CompareConfig(), tmp_path, out, [0], ["sft"], 9.9) == [] and not begun and not out.exists()
    assert "the same command goes on with seed 0, warm_start" in capsys.readouterr().out
    assert len(paper.play(CompareConfig(), tmp_path, out, [0, 1], ["sft"], 25.0)) == 4
    assert begun == [(0, "warm_start"), (0, "sft"), (1, "warm_start"), (1, "sft")]
