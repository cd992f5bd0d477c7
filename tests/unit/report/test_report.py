"""The report: what a reader finds on the page, whatever the run directory holds."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dreamgym import plugins, report
from dreamgym.errors import RunDirError
from dreamgym.evals.bound import measure
from dreamgym.evals.paired_replay import Replay
from dreamgym.recipes.arms import ARMS, RL_ARMS
from dreamgym.recipes.gains import gains
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.report import charts, data, sentences
from dreamgym.report.episodes import chosen
from dreamgym.report.metrics import METRICS
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import seed_mean, wilson
from dreamgym.types import Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict

EVIL = "<script>alert('dream')</script> & <b>bold</b>"
CONFIG = """
seed = 0
seeds = [0]

[env]
name = "webshop"

[env.options]
preset = "mini"

[logs]
trajectories = 2500

[model]
size = "1m"

[experience]
k = 1

[guard]
admissibility = true
grounding = true

[dream]
iterations = 30
tasks_per_iter = 16
group_size = 8

[dream.learner]
lr = 0.0003

[s2r]
iterations = 8
tasks_per_iter = 16
group_size = 8
"""
HOME = "shop home\n[search]"
RESULTS = "results 1\n[b944] metallic dimmable lamp $80\n[b390] rustic dimmable lamp $51\n[next >][back to search]"
ITEM = "item rustic dimmable lamp\nprice $51\nsize: [small][medium][large]\n[description][features][buy now][back to search]"


def rate(value: float, n: int = 1000) -> dict[str, Any]:
    half = 1.96 * math.sqrt(value * (1 - value) / max(1, n))
    return {"value": value, "low": max(0.0, value - half), "high": min(1.0, value + half), "n": n}


def fidelity(dream: float, real: float, false_success: float) -> dict[str, Any]:
    return {
        "dream_success": rate(dream, 1024), "real_success": rate(real, 1024), "false_success": rate(false_success, 700),
        "false_failure": rate(0.04, 300), "raw_false_success": rate(0.41, 700), "consistency": rate(0.9, 320),
        "state_exact": rate(0.93, 4100), "first_divergence": 2.8, "gap": dream - real, "unreadable": 3,
    }  # fmt: skip


DECIDED = {
    "states": {"rule": 0.1, "recalled": 0.5, "composed": 0.0, "generated": 0.4},
    "rewards": {"rule": 0.3, "recalled": 0.5, "composed": 0.0, "generated": 0.2},
    "exact": {"rule": rate(1.0, 70), "recalled": rate(0.99, 300), "composed": rate(0.0, 0), "generated": rate(0.78, 250)},
    "rewards_exact": {"rule": rate(1.0, 210), "recalled": rate(1.0, 300), "composed": rate(0.0, 0), "generated": rate(0.66, 140)},
    "steps": 700,
}
AUDIT = {
    "with_guard": fidelity(0.31, 0.27, 0.03) | {"state_exact_generated": rate(0.79, 966), "decided_by": DECIDED},
    "without_guard": fidelity(0.66, 0.26, 0.55),
    "no_model": fidelity(0.28, 0.27, 0.03) | {"state_exact_generated": rate(0.72, 852)},
}


def row(value: float, sampled: float, online: int, probe: int, dreamed: int, seconds: float) -> dict[str, Any]:
    greedy = rate(value)
    return {
        "real_success": value, "ci95": [greedy["low"], greedy["high"]], "sampled": rate(sampled), "episodes": 1000,
        "real_transitions_offline": 15230, "real_transitions_online": online, "real_transitions_probe": probe,
        "dream_transitions": dreamed, "seconds": seconds, "real_seconds": seconds / 10,
    }  # fmt: skip


SUMMARY = {
    "warm_start": row(0.175, 0.11, 0, 0, 0, 455.0),
    "sft": row(0.231, 0.142, 0, 2100, 0, 580.0),
    "dream": row(0.262, 0.221, 0, 4210, 21345, 900.0) | {"dream_success": 0.31, "false_success": 0.03, "false_failure": 0.04},
    "s2r": row(0.301, 0.264, 5520, 4210, 21345, 1010.0),
    "real_only": None,
    "seeds": [0],
    "commit": "5da34b6+",
    "budget": "default",
    "peak_rss_mb": 2310.0,
    "audit": AUDIT,
}


def episode(name: str, *, source: Any = "dream", success: bool = True, reasoning: str = "", neighbours: tuple[int, ...] = ()) -> Trajectory:
    """A search, a click and a purchase."""
    dreamed = source == "dream"
    said = (
        "search dimmable lamp, so results.",
        "open b390, so its page.",
        reasoning or "dimmable yes, lamp yes, 51 under 70 yes, success.",
    )
    pages = (HOME, RESULTS, ITEM, "purchase done")
    actions = ("search[dimmable lamp]", "click[b390]", "click[buy now]")
    turns = []
    for i, action in enumerate(actions):
        last = i == 2
        refused = Verdict("refused", ("instruction asks for red, the page shows no color",))
        verdict = None if not dreamed else refused if last and not success else Verdict("passed", ("evidence stands",) if last else ())
        reward = 1.0 if last and success else 0.0
        transition = Transition(
            Observation(pages[i]), action, Observation(pages[i + 1]), reward, last,
            StepInfo(said[i], neighbours, verdict, 1.0 if last else 0.0, last, "generated") if dreamed else StepInfo(neighbours=neighbours),
        )  # fmt: skip
        turns.append(Turn(transition))
    task = Task(f"train/{name}", "find me a dimmable lamp, and price lower than 70.00 dollars", "webshop")
    return Trajectory(name, task, source, tuple(turns), success, policy_version=12)


def write_metrics(run: RunDir) -> None:
    """What the phases of a quickstart append, learning slowly and with noise."""
    noise = random.Random(3)
    for step in range(25, 2500, 25):
        fall = math.exp(-step / 500)
        parts = {"start": 1.2, "reasoning": 5.0, "state": 6.0, "reward": 1.5, "task": 3.0}
        losses = {f"loss_{k}": v * fall + 0.04 + noise.random() * 0.03 for k, v in parts.items()}
        losses |= {"loss": 4 * fall + 0.05, "done": step / 2500}
        run.append_jsonl("metrics.jsonl", {"phase": "experience", "iteration": step, **losses})
    for phase in ("warm_start", "sft"):
        for step in range(25, 400, 25):
            run.append_jsonl("metrics.jsonl", {"phase": phase, "iteration": step, "done": step / 400, "loss": 0.2 + math.exp(-step / 90)})
    for phase, n in (("dream", 30), ("s2r", 8)):
        for i in range(n):
            mixed, failed = 5 + noise.randrange(5), 5 + noise.randrange(3)
            line: dict[str, Any] = {
                "success": 0.12 + 0.006 * i + noise.gauss(0, 0.02), "episode_length": 5.5 - 0.02 * i, "truncated": 0.2,
                "failed_rollouts": 0.0, "synthetic_share": min(0.25, 0.05 * i) if phase == "dream" else 0.0,
                "groups_mixed": mixed, "groups_unsolved": failed, "groups_solved": 16 - mixed - failed,
                "sequences": 60.0, "tokens": 2100.0, "policy_version": i + 1.0,
                "replay_added": 600 + 10.0 * noise.randrange(9), "seconds": 10.0 * i,
            }  # fmt: skip
            if i != 4:  # an iteration without a signal has no gradient
                line |= {"entropy": 1.1 - 0.015 * i, "grad_norm": 0.4 + noise.random() * 0.2, "clip_fraction": 0.01, "approx_kl": 0.002}
            if phase == "dream":
                line |= {"tasks_proposed": 16.0, "tasks_accepted": 5.0 + noise.randrange(4), "tasks_duplicate": 3.0}
                line |= {"tasks_malformed": 2.0, "tasks_impossible": 2.0, "tasks_held_out": 1.0}
                if (i + 1) % 5 == 0:
                    real = 0.11 + 0.0055 * i
                    line |= {"probe_dream_success": real + 0.03, "probe_real_success": real, "probe_real_low": real - 0.07}
                    line |= {"probe_real_high": real + 0.1, "gap": 0.03 + noise.gauss(0, 0.02), "false_success": 0.04}
                    line |= {"false_failure": 0.05, "state_exact": 0.93, "first_divergence": None}
            run.append_jsonl("metrics.jsonl", {"phase": phase, "iteration": i, **line})


def logs() -> list[Trajectory]:
    return [episode(f"log/{i}", source="demo") for i in range(3)]


def full_run(path: Path) -> Path:
    """A finished run, as a quickstart leaves it."""
    with RunDir.open(path, CONFIG) as run:
        run.mark("logs", {"trajectories": 2500, "transitions": 15230, "successes": 610})
        write_metrics(run)
        curve = [{"epoch": 2 * i, "greedy": 0.15 + 0.02 * i, "sampled": 0.1 + 0.01 * i} for i in range(5)]
        for phase, seconds in (("experience", 400.0), ("warm_start", 55.0), ("sft", 180.0), ("dream", 445.0), ("s2r", 110.0)):
            run.mark(phase, {"seconds": seconds, "curve": curve if phase == "sft" else [], "stop_reason": ""})
        run.episodes("logs", logs())
        run.episodes("dream-0020", [episode("dream/20/0", success=False)])
        run.episodes("dream-0029", [episode("dream/29/0", success=False, neighbours=(2, 999)), episode("dream/29/1", neighbours=(2,))])
        run.episodes("eval-dream-greedy", [episode("eval/dream/0", source="real")])
        with ReplayBuffer.open(path / "replay" / "dream.sqlite", plugins.make("replay.encoders", "lexical")) as replay:
            replay.add(logs())
        run.write_summary(SUMMARY)
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report.write(full_run(tmp_path_factory.mktemp("runs") / "quickstart")).read_text("utf-8")


class Outline(HTMLParser):
    """Checks that what is opened is closed, and collects ids and text."""

    VOID = {"meta", "br"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, text: str) -> None:
        self.words += text + " "


def words(page: str) -> str:
    return re.sub(r"\s+", " ", Outline(page).words)


def test_the_page_has_every_section_and_is_well_formed(page: str):
    outline = Outline(page)
    assert outline.open == []
    assert outline.ids == ["results", "fidelity", "curves", "episodes", "notes"]
    assert page.startswith("<!DOCTYPE html>")


def test_the_page_needs_nothing_from_outside(page: str):
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)|@import|url\(""", page)
    assert "script" not in Outline(page).tags


def test_the_header_says_what_was_run(page: str):
    for text in (
        "quickstart",
        "5da34b6+",
        "default",
        "19 min 50 s",
        "2.3 GiB",
        "webshop (preset mini)",
        "30 iterations of 16 tasks × 8 rollouts",
    ):
        assert text in words(page)
    assert "unfinished" not in page


def test_the_results_tell_rate_interval_and_cost_and_leave_out_absent_rows(page: str):
    text = words(page)
    assert "26.2 [23.5, 28.9]" in text
    assert "21 345" in text and "5 520" in text
    assert "Dream, then real (S2R)" in text
    assert "Real only" not in text
    assert page.count('class="interval"') == 14  # eight of the results, and the exactness of three kinds of decision, states and rewards


def test_the_headline_does_not_claim_more_than_the_intervals():
    def run_of(summary: dict[str, Any]) -> data.Run:
        rows = [data._row(key, key, ARMS[key], summary[key], {}) for key in ("warm_start", "dream")]
        return data.Run("r", {}, "", summary, {}, {}, [row for row in rows if row], [])

    run = run_of(SUMMARY)
    assert "+8.7 points in one seed. The intervals over its episodes do not overlap; they say nothing of other seeds" in sentences.headline(
        run
    )
    for value in (0.19, 0.21, 0.14):  # the last two lie outside the warm start's interval, and theirs overlap it
        close = SUMMARY | {"dream": row(value, 0.1, 0, 0, 1, 1.0)}
        run = run_of(close)
        assert "does not establish a difference" in sentences.headline(run)


@pytest.mark.parametrize(
    ("dream", "real", "says"),
    [(0.31, 0.27, "+4.0 points, within 10 points"), (0.6, 0.2, "overstates"), (0.1, 0.3, "understates")],
)
def test_the_gap_says_whether_dream_success_estimates_real_success(dream: float, real: float, says: str):
    (audit,) = data._audits({"with_guard": fidelity(dream, real, 0.1), "without_guard": AUDIT["without_guard"]}, [0])
    assert says in sentences.fidelity(audit)[0]
    assert "Without the guard, the gap is +40.0 points" in sentences.fidelity(audit)[-1]


def test_the_report_compares_dreams_in_and_out_of_support():
    known = {"share": rate(0.7, 1000), "false_success": rate(0.01, 116), "state_exact": rate(0.97)}
    guesses = {"share": rate(0.3, 1000), "false_success": rate(0.08, 161), "state_exact": rate(0.33)}
    (audit,) = data._audits({"with_guard": AUDIT["with_guard"] | {"in_support": known, "out_of_support": guesses}}, [0])
    said = sentences.fidelity(audit)[-1]
    assert said.startswith("70.0 % [67.2, 72.8] of the dreams are in support")
    assert "97.0 % [95.9, 98.1] of next states are exact, and 1.0 % [0.0, 2.8] of 116 real failures are called successes" in said
    assert "Of the dreams out of support, 33.0 %" in said
    (alike,) = data._audits(
        {"with_guard": AUDIT["with_guard"] | {"in_support": known, "out_of_support": {"state_exact": rate(0.0, 1) | {"n": 0}}}}, [0]
    )
    assert not any("in support" in text for text in sentences.fidelity(alike))


def test_the_fidelity_section_says_what_decided_the_steps_and_shows_the_control(page: str):
    text = words(page)
    assert "no model, with guard" in text and "72.0 [69.0, 75.0] of 852" in text
    assert "generated 40.0 78.0 [72.9, 83.1] 20.0 66.0 [58.2, 73.8]" in text and "composed 0.0 – 0.0 –" in text


@pytest.mark.parametrize(("control", "says"), [(0.72, "do not overlap"), (0.78, "what the model adds is not established")])
def test_the_model_is_compared_with_the_control_on_what_only_it_answers(control: float, says: str):
    arm = fidelity(0.28, 0.27, 0.03) | {"state_exact_generated": rate(control, 852)}
    (audit,) = data._audits(AUDIT | {"no_model": arm}, [0])
    (said,) = [text for text in sentences.fidelity(audit) if "control without a model" in text]
    assert says in said and "79.0 %" in said


def test_the_curves_show_dream_and_reality_together(page: str):
    text = words(page)
    for title in (
        "Dream: success in training", "real probes on the same tasks", "Gap and false success", "Experience model: loss by segment",
        "Entropy",
        "Gradient norm", "Groups: Dream", "Rollouts on synthetic tasks", "Synthetic tasks", "held out", "Replay buffer: rows added",
    ):  # fmt: skip
        assert title in text
    assert page.count('class="whisker real"') == 6
    assert "nan" not in re.findall(r'd="([^"]*)"', page)


def test_three_episodes_are_shown_with_their_neighbours(page: str):
    text = words(page)
    assert text.count("Last state") == 3
    assert "A dreamed success" in text and "A dreamed failure" in text and "A real episode" in text
    assert "guard: refused instruction asks for red" in text
    assert "the model claimed 1" in text
    assert "row 2, demo: find me a dimmable lamp" in text
    assert "row 999: its text is not in this run directory" in text


def test_the_real_episode_that_is_shown_is_not_chosen_by_its_success(tmp_path: Path):
    path = full_run(tmp_path / "run")
    long = episode("failed", source="real", success=False)
    long = replace(long, turns=(*long.turns, *long.turns, *long.turns))
    with RunDir.open(path, CONFIG) as run:
        run.episodes("eval-s2r-greedy", [long, episode("solved", source="real"), long])
    *_, real = chosen(RunDir.view(path))
    assert real.file == "eval-s2r-greedy" and real.trajectory.id == "failed"


def test_the_dreams_that_are_shown_are_of_the_loop_itself(tmp_path: Path):
    path = full_run(tmp_path / "run")
    with RunDir.open(path, CONFIG) as run:
        run.episodes("dream-probed", [episode("relived", source="real"), episode("relived/1", source="real", success=False)])
        run.episodes("dream-no-replay-0079", [episode("ablated"), episode("ablated/1", success=False)])
    shown = chosen(RunDir.view(path))
    assert [one.file for one in shown] == ["dream-0029", "dream-0029", "eval-dream-greedy"]


@pytest.mark.parametrize("name", RL_ARMS)
def test_every_kind_of_loop_has_its_curves(name: str, tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG) as run:
        for i in range(12):
            line = {"success": 0.1 * i, "entropy": 1.0, "grad_norm": 0.3, "episode_length": 4.0, "groups_mixed": 3.0, "replay_added": 9.0}
            run.append_jsonl("metrics.jsonl", {"phase": name, "iteration": i, "seconds": float(i), **line})
    found = words(report.write(tmp_path / "run").read_text("utf-8"))
    assert f"{ARMS[name].label}: success in training" in found


def test_a_seed_of_a_comparison_shows_its_arms_and_their_ablations(tmp_path: Path):
    arms = {"grpo-dream": "GRPO, dream", "grpo-real": "GRPO, real only", "grpo-dream-no-model": "GRPO, dream, without model"}
    loop = {
        "iterations": 12,
        "steps": 900,
        "real_steps": 100,
        "optimiser_steps": 7,
        "decided_by": {"states": {}, "rewards": {}},
        "seconds": 5.0,
    }
    with RunDir.open(tmp_path / "seed-0", CONFIG) as run:
        run.mark("logs", {"trajectories": 9, "transitions": 70, "successes": 3})
        run.mark("grpo-mixed", {"iterations": 2})  # less than a phase leaves
        run.mark("eval-grpo-mixed", {"greedy": rate(0.4), "sampled": rate(0.3)})
        for name in arms:
            for i in range(12):
                run.append_jsonl("metrics.jsonl", {"phase": name, "iteration": i, "success": 0.05 * i, "entropy": 1.0})
            run.mark(name, loop | {"stop_reason": "its gap was open" if name == "grpo-dream" else ""})
            run.mark(f"eval-{name}", {"greedy": rate(0.5), "sampled": rate(0.4)})
    (tmp_path / "compare.json").write_text(json.dumps({"seeds": [0]}))
    found = data.read(RunDir.view(tmp_path / "seed-0"))
    assert {row.label: row.costs["dream_transitions"] for row in found.rows} == dict.fromkeys(arms.values(), 800.0) | {"GRPO, mixed": None}
    text = words(report.write(tmp_path / "seed-0").read_text("utf-8"))
    assert all(f"{label}: success in training" in text for label in arms.values())
    assert "GRPO, dream: stopped early, its gap was open." in text and "8 iterations of 16 tasks" not in text


def test_a_seed_of_a_comparison_is_unfinished_where_its_tables_lack_the_seed_or_an_arm_was_added(tmp_path: Path):
    def status() -> str:
        return sentences.status(data.read(RunDir.view(tmp_path / "seed-0")))

    (tmp_path / "compare.md").write_text("the tables")
    with RunDir.open(tmp_path / "seed-0", CONFIG) as run:
        run.mark("logs", {"trajectories": 9, "transitions": 70, "successes": 3})
        for name in ("grpo-dream", "grpo-s2r"):  # of an arm s2r alone, whose dream is not evaluated
            run.mark(name, {"iterations": 2})
        run.mark("eval-grpo-s2r", {"greedy": rate(0.5), "sampled": rate(0.4)})
        assert "Finished phases" in status(), "a comparison has no tables before all seeds are through"
        for damaged in ("{", "[]", json.dumps({"seeds": 0}), json.dumps({"seeds": [1]})):
            (tmp_path / "compare.json").write_text(damaged)
            assert "Finished phases" in status()
        (tmp_path / "compare.json").write_text(json.dumps({"seeds": [0, 1]}))
        assert status() == ""
        run.append_jsonl("metrics.jsonl", {"phase": "gigpo-real", "iteration": 3})  # an arm that was added
        assert "In progress: gigpo-real is at iteration 3." in status()
        run.mark("gigpo-real", {"iterations": 4})
        assert "Finished phases" in status(), "it is not evaluated"
        run.mark("eval-gigpo-real", {"greedy": rate(0.5), "sampled": rate(0.4)})
    assert status() == ""


def test_an_ablation_is_a_row_whether_the_run_is_finished_or_not(tmp_path: Path):
    path = full_run(tmp_path / "run")
    with RunDir.open(path, CONFIG) as run:
        run.mark("eval-dream-no-curriculum", {"greedy": rate(0.25), "sampled": rate(0.2)})
    (unfinished,) = [one for one in data.read(RunDir.view(path)).rows if one.key == "no_curriculum"]
    assert unfinished.label == "Dream, without curriculum" and unfinished.greedy and unfinished.greedy.value == 0.25
    with RunDir.open(path, CONFIG) as run:
        run.write_summary(SUMMARY | {"ablations": {"replay": row(0.3, 0.2, 0, 0, 900, 40.0)}})
    text = words(report.write(path).read_text("utf-8"))
    assert "Dream, without replay" in text and "no retrieved memories" in text and "Dream, without curriculum" in text


def test_every_metric_that_a_run_writes_is_explained(page: str, tmp_path: Path):
    run = RunDir.view(full_run(tmp_path / "run"))
    explained = {name for group in METRICS.values() for name in group}
    written = {key for line in run.read_jsonl("metrics.jsonl") for key in line} - {"phase", "iteration"}
    assert written <= explained
    assert set(SUMMARY["dream"]) | set(AUDIT["with_guard"]) <= explained  # type: ignore[call-overload]
    assert all(f"<code>{name}</code>" in page for name in explained)


def test_what_a_model_writes_stays_text(tmp_path: Path):
    path = full_run(tmp_path / "run")
    with RunDir.open(path, CONFIG) as run:
        run.episodes("dream-0030", [episode("x", reasoning=EVIL), episode(EVIL, success=False, reasoning=EVIL)])
        run.append_jsonl("metrics.jsonl", {"phase": EVIL, "iteration": 1})
        run.write_summary(SUMMARY | {"commit": EVIL, "budget": EVIL})
    page = report.write(path).read_text("utf-8")
    assert "&lt;script&gt;alert(" in page
    assert "script" not in Outline(page).tags
    assert "<b>bold" not in page


def test_the_header_names_the_mode_of_a_training_the_budget_of_a_quickstart_and_a_single_seed(tmp_path: Path):
    for name, config, seeds, expected in (
        ("trained", f'mode = "dream"\n{CONFIG}', [0], {"mode": "default", "seed": "0"}),
        ("quick", CONFIG, [0, 1], {"budget": "default", "seeds": "0, 1"}),
    ):
        with RunDir.open(tmp_path / name, config) as run:
            run.write_summary(SUMMARY | {"seeds": seeds})
        shown = dict(sentences.facts(data.read(RunDir.view(tmp_path / name))))
        assert expected.items() <= shown.items() and len({"mode", "budget", "seed", "seeds"} & shown.keys()) == 2


def test_a_run_that_has_just_begun_gives_a_page_that_says_so(tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG) as run:
        run.mark("logs", {"trajectories": 5, "transitions": 20})
        run.append_jsonl("metrics.jsonl", {"phase": "experience", "iteration": 25, "loss": 3.0})
        page = report.write(run.path).read_text("utf-8")  # while the run holds its lock
    text = words(page)
    assert "This run is unfinished" in text and "experience is at iteration 25" in text
    assert "No policy has been evaluated yet." in text and "No audit yet." in text


def test_without_a_summary_the_evaluations_that_are_done_are_shown(tmp_path: Path):
    with RunDir.open(tmp_path / "run", CONFIG) as run:
        run.mark("logs", {"transitions": 20})
        run.mark("eval-warm_start", {"greedy": rate(0.2, 50), "sampled": rate(0.1, 50), "real_steps": 300})
        run.mark("audit", AUDIT)
        text = words(report.write(run.path).read_text("utf-8"))
    assert "unfinished" in text and "Warm start" in text and "20.0 [" in text and "within 10 points" in text


def test_an_empty_run_directory_is_enough(tmp_path: Path):
    with RunDir.open(tmp_path / "run", "") as run:
        (run.path / "config.toml").unlink()
    assert Outline(report.write(tmp_path / "run").read_text("utf-8")).open == []


def test_missing_and_broken_values_leave_gaps_and_never_an_error(tmp_path: Path):
    with RunDir.open(tmp_path / "run", "seed = 1") as run:
        for i, value in enumerate([0.1, None, math.nan, math.inf, "high", 0.4]):
            run.append_jsonl("metrics.jsonl", {"phase": "dream", "iteration": i, "success": value, "probe_real_success": value})
        run.append_jsonl("metrics.jsonl", {"phase": "dream"})
        run.write_summary({"warm_start": {"real_success": 0.5}, "dream": {}, "audit": {"with_guard": {"gap": None}}})
        page = report.write(run.path).read_text("utf-8")
    assert Outline(page).open == []
    path = re.search(r'd="(M[^"]*)"', page)
    assert path and path[1].count("M") == 2, "the line is interrupted where the value is missing"


def test_the_report_covers_partial_observability_and_synthetic_tasks():
    def measured(value: float, n: int) -> dict[str, float]:
        return {"value": value, "low": value - 0.1, "high": min(1.0, value + 0.1), "n": n}

    glimpsed = {"revisits": {"faithful": measured(0.9, 50)}, "determined": {"exact": measured(0.8, 354)}}
    synthetic = {"new": measured(0.7, 1280), "solved": measured(0.6, 200), "real_solved": measured(1.0, 200)}
    (audit,) = data._audits({**AUDIT, "with_guard": {**AUDIT["with_guard"], **glimpsed}, "synthetic_tasks": synthetic}, [0])
    dream, again, determined, synthetic = sentences.fidelity(audit)
    assert "not informative" in dream and "of dreams succeed" in dream
    assert again == "Observed content stays consistent in 90.0 % [80.0, 100.0] of 50 revisits."
    assert "Of 354 real steps" in determined and "80.0 %" in determined
    assert "Of 1280 tasks that the curriculum generated, 70.0 % are new" in synthetic and "100.0 % of real training tasks" in synthetic
    assert not any("curriculum" in text for text in sentences.fidelity(data._audits(AUDIT, [0])[0]))


def test_an_audit_per_seed_is_shown_per_seed(tmp_path: Path):
    pooled = SUMMARY | {"seeds": [0, 1], "audit": [AUDIT, AUDIT], "dream": SUMMARY["dream"] | {"per_seed": [0.25, 0.274]}}  # type: ignore[operator]
    with RunDir.open(tmp_path / "all", CONFIG) as run:
        run.write_summary(pooled)
        text = words(report.write(run.path).read_text("utf-8"))
    assert "seed 0" in text and "seed 1" in text and "per seed 25.0, 27.4" in text


def test_the_intervals_of_several_seeds_are_over_seeds_and_the_change_is_paired(tmp_path: Path):
    def of(*seeds: float) -> dict[str, Any]:
        mean = seed_mean(seeds)
        found = row(mean.mean, mean.mean, 0, 0, 1, 1.0) | {"per_seed": list(seeds), "per_seed_sampled": list(seeds)}
        return found | {"seed_ci95": mean.interval, "seed_ci95_sampled": mean.interval}

    rows = {"warm_start": of(0.2, 0.3, 0.25), "sft": None, "dream": of(0.3, 0.38, 0.36), "s2r": None, "real_only": None}
    with RunDir.open(tmp_path / "all", CONFIG) as run:
        run.write_summary(SUMMARY | rows | {"seeds": [0, 1, 2], "gains": gains(rows)})
        text = words(report.write(run.path).read_text("utf-8"))
    assert "25.0 [12.6, 37.4]" in text and "95 % t intervals over seeds" in text and "over the episodes of one seed" not in text
    assert "The change, paired by seed, is +9.7 points [+5.9, +13.5] over 3 seeds; 5 seeds are asked for" in text
    assert "dream over warm_start: greedy +9.7 points [+5.9, +13.5] (not decided, 3 of 5 seeds)" in text


def test_the_fidelity_section_says_how_far_the_dream_can_mislead_and_where_the_theorem_says_nothing():
    same = Replay(True, True, True, 4, 4, False, True, False, 0.0)
    # eps_R = eps_P = 3 / 400: 2 (0.0075 / 0.01 + 2 * 0.99 * 0.0075 / 0.01 ** 2) = 298.5
    false = replace(same, real_success=False, agreeing_steps=3, diverged=True, differs=True, reward_error=1.0)
    replays = [false] * 3 + [same] * 97
    (audit,) = data._audits({"with_guard": AUDIT["with_guard"] | {"bound": measure(replays).to_json()}}, [0])
    said = sentences.fidelity(audit)[-1]
    assert said.startswith("Dream and real success of this policy differ by at most 8.5 points")
    assert "subtracts 298 from an improvement in the dream, which says nothing about success between 0 and 1" in said


def test_a_resumed_run_shows_each_iteration_once(tmp_path: Path):
    with RunDir.open(tmp_path / "run", "") as run:
        for i, success in ((0, 0.1), (1, 0.9), (1, 0.2)):
            run.append_jsonl("metrics.jsonl", {"phase": "dream", "iteration": i, "success": success})
    found = data.read(RunDir.view(tmp_path / "run"))
    assert [line["success"] for line in found.lines["dream"]] == [0.1, 0.2]


def test_what_an_interrupted_run_wrote_past_the_end_of_the_resumed_one_is_not_shown(tmp_path: Path):
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run:
        for i, success in ((0, 0.1), (1, 0.2), (2, 0.9), (3, 0.9), (1, 0.3), (2, 0.4)):  # went on from 1, and stopped at 2
            run.append_jsonl("metrics.jsonl", {"phase": "dream", "iteration": i, "success": success})
    assert [line["success"] for line in data.read(RunDir.view(tmp_path / "run")).lines["dream"]] == [0.1, 0.3, 0.4]


@pytest.mark.parametrize("writing", [True, False])
def test_reading_the_replay_log_leaves_it_alone(tmp_path: Path, writing: bool):
    path = full_run(tmp_path / "run")
    replay = ReplayBuffer.open(path / "replay" / "dream.sqlite", plugins.make("replay.encoders", "lexical"))
    replay.add(logs())
    if not writing:
        replay.close()

    def rows() -> dict[str, bytes]:  # what SQLite keeps beside a log while it is open holds none
        return {p.name: p.read_bytes() for p in (path / "replay").iterdir() if not p.name.endswith("-shm") and p.stat().st_size}

    before = rows()
    assert "row 2, demo" in words(report.write(path).read_text("utf-8"))
    assert rows() == before
    replay.close()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(RunDirError, match="not a run directory"):
        report.write(tmp_path)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 1, [0, 0.5, 1]), (0, 0.3, [0, 0.1, 0.2, 0.3]), (-4, 30, [0, 10, 20, 30]), (0, 29, [0, 10, 20])]
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]):
    assert charts.ticks(low, high) == pytest.approx(expected)


def test_a_long_run_is_thinned_and_keeps_its_last_value():
    series = charts.Series("s", [(float(i), float(i % 7)) for i in range(10_000)], "dream")
    chart = charts.lines("long", [series], x_label="x", y_label="y")
    assert chart and chart.svg.count("L") < 2 * charts.MOST and "<circle" not in chart.svg


def test_importing_the_report_loads_neither_torch_nor_templates():
    script = "import sys, dreamgym.report; sys.exit(bool({'torch', 'transformers', 'jinja2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_what_recall_rests_on_is_said_with_what_is_not_used(tmp_path: Path):
    run = data.read(RunDir.view(full_run(tmp_path / "run")))
    agreed = {"situation": "previous", "outcome_class": "continues", "right": 2190, "predicted": 2190, "used": True}
    unused = {"situation": "state", "outcome_class": "pays_or_ends", "right": 37, "predicted": 205, "used": False}
    unknown = {"situation": "instruction", "outcome_class": "continues", "right": 0, "predicted": 0, "used": True}
    found = {**run.phases, "dream": {**run.phases["dream"], "recall": [agreed, unused, unknown]}}
    texts = sentences.determinism(replace(run, phases=found))
    assert len(texts) == 2 and "100.0 % [99.8, 100.0] of 2,190 exactly; they answer in place of the model" in texts[0]
    assert texts[1].startswith("Of logged steps that pay or end") and "they are not used: 168 of 205 predictions are wrong" in texts[1]
    one_policy = {**found, "logs": {**found.get("logs", {}), "behaviours": 1}}
    first, *rest = sentences.determinism(replace(run, phases=one_policy))
    assert first.startswith("All logged episodes are by one policy") and rest == texts


def test_what_answers_wait_for_is_listed_the_best_known_first(tmp_path: Path):
    run = data.read(RunDir.view(full_run(tmp_path / "run")))
    assert sentences.waits(run) == []
    condition = {"shown_by": "check()", "line": "it is broken", "until": ["repair()"], "rows": 30}
    one = {"action": "start", "answer": "no\nnot now", "first_line": False, "reward": 0.0, "ends": False, "conditions": [condition] * 20}
    ends = {**one, "action": "leave", "ends": True, "right": 9, "predicted": 9}
    switch = {**one, "action": "flip", "answer": "off", "first_line": True, "right": 5, "predicted": 5}
    other = {"answer": "yes", "right": 38, "predicted": 40}
    found = [switch, {**one, "right": 199, "predicted": 200, "other": other}, ends, *[{**switch, "right": 4, "predicted": 4}] * 5]
    said = sentences.waits(replace(run, phases={**run.phases, "dream": {**run.phases["dream"], "conditions": found}}))
    assert said[0].sentence.startswith("start answers “no not now” while one of 20 conditions holds") and len(said[0].conditions) == 12
    assert "99.5 % [97.2, 99.9] of 200 logged steps" in said[0].sentence
    assert said[0].sentence.endswith("Once none of them holds any more, it answers “yes”: 95.0 % [83.5, 98.6] of 40.")
    assert "Once none" not in said[1].sentence
    assert said[1].sentence.startswith("leave ends the episode with reward 0") and said[2].sentence.startswith("flip answers first “off”")
    assert len(said) == 7 and said[-1] == ("Conditions are established for 2 more answers.", ())


def test_a_learned_verifier_is_described_by_what_its_threshold_rests_on_and_by_its_probes(tmp_path: Path):
    run = data.read(RunDir.view(full_run(tmp_path / "run")))
    assert sentences.verifiers(run) == []
    fitted = {**run.phases, "verifier": {"status": "uncertified under policy shift: calibrated on logs"}}
    assert "calibrated on logs" in sentences.verifiers(replace(run, phases=fitted))[0]
    rates = {
        name: asdict(wilson(k, 40))
        for name, k in (("false_success", 2), ("true_positive_rate", 30), ("accepted_false", 3), ("claims_true", 10))
    }
    judged = {"calibration": {"status": "certified"}, "probes": 40, "rates": rates}
    probed = {**fitted, "dream": {**run.phases["dream"], "verifier": judged}}
    (text,) = sentences.verifiers(replace(run, phases=probed))
    assert "learned from the logs, certified. Before it was fitted to them: 25.0 %" in text and "accepted 5.0 %" in text
    by_logs = {name: asdict(wilson(k, n)) for name, k, n in (("false_success", 10, 20), ("true_positive_rate", 60, 80))}
    by_probes = {name: asdict(wilson(k, n)) for name, k, n in (("false_success", 1, 20), ("true_positive_rate", 72, 80))}
    judged_real = {"verifiers": {"logs": by_logs, "probes": by_probes}}
    (text,) = sentences.verifiers(replace(run, phases={**probed, "eval-dream": judged_real}))
    assert "Of 100 real episodes of held-out tasks that the policy ended: fitted to logs alone, it accepts 50.0 %" in text
    assert "fitted to all its probes, it accepts 5.0 %" in text and "keeps 90.0 %" in text
