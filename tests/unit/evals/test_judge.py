"""The judge of dreamed transitions, and what shows whether to believe it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corridor_dynamics import transition_table
from fault_server import FaultServer
from scripted_chat import ScriptedChat

from dreamgym import cli
from dreamgym.config import build, dump
from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import UsageError
from dreamgym.evals.judge import QUESTIONS, JudgeConfig, Judged, draw, exact_steps, judge, report
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.config import TrainConfig
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.files import read_jsonl
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import bootstrap, kappa, spearman
from dreamgym.types import Observation, Task, Trajectory

CORRIDOR = corridor.make(length=5)
REAL = EnvPool(CORRIDOR.env, CORRIDOR.rules)
TABLE = transition_table(CORRIDOR)
LOGS = collect(CORRIDOR, 40, seed=0)
Messages = Sequence[Mapping[str, Any]]


def dreamed(episode: Trajectory, i: int) -> Trajectory:
    """An episode as a dream would have it: every third one skips a room at its first step."""
    first = episode.turns[0].transition
    wrong = replace(first, next_state=Observation("room 9 of 5\n[left] [right] [open]"))
    turns = (replace(episode.turns[0], transition=wrong), *episode.turns[1:]) if i % 3 == 0 else episode.turns
    return replace(episode, id=f"dream/{i}", source="dream", turns=turns)


DREAMS = [dreamed(episode, i) for i, episode in enumerate(collect(CORRIDOR, 60, seed=1))]


def says(score: int, *, other: int = 2) -> str:
    scores = {name: score if name in ("consistency", "hallucination") else other for name in QUESTIONS}
    return json.dumps({"reasoning": "I looked.", **scores})


def honest(messages: Messages) -> str:
    """A judge that knows the corridor by heart."""
    asked = json.loads(messages[1]["content"])
    claim = asked["claim"]
    for outcome in TABLE.get((asked["task"], asked["state"], asked["action"]), ()):
        right = (outcome.state, outcome.reward, outcome.terminated) == (claim["next_state"], claim["reward"], claim["done"])
        return says(2 if right else 0)
    return says(2 if (claim["next_state"], claim["reward"]) == (asked["state"], 0) else 0)


def lazy(_: Messages) -> str:
    return says(2)


def judged_by(answer: Callable[[Messages], str], *, config: JudgeConfig | None = None, **options: Any) -> dict[str, Any]:
    config = config or JudgeConfig(n=40, controls=20)
    cases = draw(DREAMS, LOGS, config, real=REAL)
    return report(judge(ScriptedChat(answer), cases, config, **options))


def test_an_honest_judge_ranks_real_above_corrupted_and_agrees_with_the_environment():
    found = judged_by(honest)
    assert found["controls"]["passed"] and found["controls"]["reason"] == ""
    assert found["real"]["judge_consistency"]["value"] == 2.0 and found["corrupted"]["judge_consistency"]["value"] == 0.0
    assert found["controls"]["judge_above"]["value"] == 1.0 and set(found["controls"]["corruptions"]) == {"frozen", "success", "swapped"}
    dream = found["dream"]["judge_consistency"]
    assert 0 < dream["low"] <= dream["value"] <= dream["high"] < 2 and dream["n"] == 40
    assert found["agreement"]["dream"]["judge_kappa"] == pytest.approx(1.0) == found["agreement"]["dream"]["judge_spearman"]
    assert 0 < found["judge_relative"] < 1 and found["judge_retest"]["value"] == 1.0


def test_a_lazy_judge_that_always_says_two_fails_its_controls():
    found = judged_by(lazy)
    assert not found["controls"]["passed"] and "does not tell corrupted transitions from real ones" in found["controls"]["reason"]
    assert found["dream"]["judge_consistency"]["value"] == 2.0 and found["judge_relative"] is None
    assert found["agreement"]["dream"]["judge_spearman"] is None and found["agreement"]["dream"]["judge_kappa"] == 0.0


def test_a_judge_that_ranks_real_above_corrupted_by_luck_is_not_believed():
    cases = draw(DREAMS, LOGS, JudgeConfig(n=2, controls=12), real=REAL)

    def scored(real: list[int], bad: list[int]) -> dict[str, Any]:
        left = {"real": iter(real), "corrupted": iter(bad), "dream": iter([1, 1])}
        return report([Judged(case, dict.fromkeys(QUESTIONS, next(left[case.kind]))) for case in cases])

    lucky = scored([2, 0] * 5 + [2, 2], [2, 0] * 6)  # higher by a sixth, which half of all such judges are
    assert lucky["controls"]["judge_difference"]["value"] == pytest.approx(1 / 6) and lucky["controls"]["judge_difference"]["low"] < 0
    assert not lucky["controls"]["passed"] and "does not tell" in lucky["controls"]["reason"] and lucky["judge_relative"] is None
    clear = scored([2] * 10 + [0, 0], [0] * 10 + [2, 2])
    assert clear["controls"]["passed"] and clear["judge_relative"] == pytest.approx((1 - 1 / 3) / (5 / 3 - 1 / 3))


def test_a_judge_of_too_few_controls_is_not_believed():
    found = judged_by(honest, config=JudgeConfig(n=10, controls=5))
    assert not found["controls"]["passed"] and "fewer than 10 controls" in found["controls"]["reason"]


def test_a_judge_that_scores_by_position_is_found_out_by_the_retest():
    def first_is_bad(messages: Messages) -> str:
        order = [name for name in sorted(QUESTIONS, key=lambda name: messages[0]["content"].index(f'- "{name}"'))]
        return json.dumps({"reasoning": "r", **{name: 0 if name == order[0] else 2 for name in QUESTIONS}})

    assert judged_by(first_is_bad)["judge_retest"]["value"] == 0.5


def test_the_judge_is_not_told_which_is_which():
    chat = ScriptedChat(lazy)
    config = JudgeConfig(n=30, controls=15, retests=0)
    cases = draw(DREAMS, LOGS, config, real=REAL)
    judge(chat, cases, config)
    kinds = [case.kind for case in cases]
    assert sorted(kinds) != kinds and {kind: kinds.count(kind) for kind in kinds} == {"dream": 30, "real": 15, "corrupted": 15}
    for messages in chat.asked:
        assert list(json.loads(messages[1]["content"])) == ["task", "history", "state", "action", "claim"]
        assert not any(word in messages[1]["content"] for word in ("dream", "corrupt", "demo", "expert", "noisy", "verdict", "reasoning"))
    assert len({messages[0]["content"] for messages in chat.asked}) > 5  # the questions come in many orders


def test_corrupted_transitions_are_never_right():
    config = JudgeConfig(n=1, controls=40)
    cases = [case for case in draw(DREAMS, LOGS, config) if case.kind == "corrupted"]
    for case in cases:
        outcomes = TABLE.get((case.instruction, case.claim.state.text, case.claim.action))
        claimed = (case.claim.next_state.text, case.claim.reward, case.claim.terminated)
        right = [(o.state, o.reward, o.terminated) for o in outcomes] if outcomes else [(case.claim.state.text, 0.0, False)]
        assert claimed not in right, case


def test_exactness_is_known_up_to_the_first_difference():
    episode = max(LOGS, key=lambda t: len(t.turns))
    synthetic = replace(episode, task=replace(episode.task, goal=None))
    same, other, unknown = exact_steps([episode, dreamed(episode, 0), synthetic], REAL)
    assert same == [True] * len(episode.turns)
    assert other == [False] + [None] * (len(episode.turns) - 1)
    assert set(unknown) == {None}


def test_replies_are_kept_and_not_paid_for_again(tmp_path: Path):
    found = judged_by(honest, replies=tmp_path / "r.jsonl")
    lines = read_jsonl(tmp_path / "r.jsonl")
    assert lines and all(line["raw"] for line in lines)

    def silent(_: Messages) -> str:
        raise AssertionError("asked again")

    assert judged_by(silent, replies=tmp_path / "r.jsonl") == found


def test_what_the_judge_does_not_say_in_the_form_is_counted():
    found = judged_by(lambda m: honest(m) if "room 1 " not in m[1]["content"] else "Looks fine to me: 2, 2, 2, 2.")
    assert 0 < found["judge_unreadable"] < 80
    assert judged_by(lambda _: says(3))["judge_unreadable"] == 80


def test_without_dreams_or_logs_there_is_nothing_to_judge():
    with pytest.raises(UsageError, match="no dreamed transition"):
        draw([], LOGS, JudgeConfig())
    with pytest.raises(UsageError, match="no real transition"):
        draw(DREAMS, [], JudgeConfig())


def test_the_statistics_as_worked_by_hand():
    assert spearman([1, 2, 3], [10, 30, 20]) == pytest.approx(0.5) and spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 1, 2, 3], [0, 0, 1, 1]) == pytest.approx(0.9428090)  # ties at their mean rank
    assert kappa([True, True, False, False], [True, False, False, False]) == pytest.approx(0.5) and kappa([True], [True]) is None
    interval = bootstrap([[0.0, 2.0] * 50], lambda values: float(values.mean()), 0)
    assert interval.value == 1.0 and interval.low == pytest.approx(0.8, abs=0.05) and interval.high == pytest.approx(1.2, abs=0.05)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`dreamgym judge` of the run in `tmp_path`: its code, its output and its errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["dreamgym", "judge", str(tmp_path / "run"), "--model", "policy", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


def test_the_command_judges_a_run(tmp_path: Path, command: Callable[..., tuple[int, str, str]]):
    with RunDir.open(tmp_path / "run", '[env]\nname = "corridor"\n\n[env.options]\nlength = 5\n') as run:
        run.episodes("logs", LOGS)

    with FaultServer() as server:
        server.answer = honest
        to = ["--base-url", server.url, "--n", "20", "--controls", "12"]
        code, _, err = command(*to)
        assert code == 2 and "no dreamed episodes yet" in err
        with RunDir.open(tmp_path / "run", (run.path / "config.toml").read_text()) as again:
            again.episodes("dream-0010", DREAMS)
        assert "Did you mean 'dream-0010'?" in command(*to, "--dreams", "dream-0020")[2]
        code, out, err = command(*to, "--json")
        found = json.loads(out)
        assert code == 0 and found["controls"]["passed"] and found["agreement"]["dream"]["judge_kappa"] == 1.0, err
        assert json.loads((tmp_path / "run/judge/policy-dream-0010.json").read_text()) == found
        asked = len(server.paths())
        code, out, _ = command(*to)
        assert code == 0 and "controls: passed" in out and len(server.paths()) == asked


def test_a_missing_run_or_one_without_dreams_is_refused_before_the_model_is_loaded(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
):
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("dreamgym.recipes.chat_server.open_chat", loaded)
    code, _, err = command()
    assert code == 2 and "is not a run directory" in err
    with RunDir.open(tmp_path / "run", '[env]\nname = "corridor"\n') as run:
        run.episodes("logs", LOGS)
    code, _, err = command()
    assert code == 2 and "no dreamed episodes yet" in err
    code, _, err = command("--dreams", "lgs")
    assert code == 2 and "Did you mean 'logs'" in err


class Connected:
    """The corridor behind `env.connect`."""

    def __init__(self) -> None:
        self.env = CORRIDOR.require_env()

    def reset(self, task: Task) -> str:
        return CORRIDOR.rules.abstract(self.env.reset(task)).text

    def step(self, action: str) -> tuple[str, float, bool]:
        raw, reward, terminated = self.env.step(action)
        return CORRIDOR.rules.abstract(raw).text, reward, terminated


@pytest.mark.parametrize("settings", [{}, {"connect": "python:test_judge:Connected"}])
@pytest.mark.parametrize("rules", ["suite", "none"])
def test_a_run_of_logs_is_judged_beside_the_environment_that_it_is_connected_to(
    settings: dict[str, str], rules: str, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
):
    write_trajectories(tmp_path / "logs.jsonl", LOGS)
    env = {"name": "logs", "options": {"files": [str(tmp_path / "logs.jsonl")]}, **settings}
    with RunDir.open(tmp_path / "run", dump(build(TrainConfig, {"rules": rules, "env": env}))) as run:
        run.episodes("logs", LOGS)
        run.episodes("dream-0010", DREAMS)
    with FaultServer() as server:
        server.answer = honest
        code, out, err = command("--base-url", server.url, "--n", "20", "--controls", "12", "--json")
    assert code == 0, err
    found = json.loads(out)["agreement"]["dream"]
    assert (found["n"] > 10, found["judge_kappa"]) == ((True, 1.0) if settings else (False, None))


@pytest.mark.parametrize("text", ["seed = 1\n", "env = 3\n", "[env]\nworkers = 2\n"])
def test_a_run_that_names_no_environment_is_not_judged_in_another(text: str, tmp_path: Path, command: Callable[..., tuple[int, str, str]]):
    with RunDir.open(tmp_path / "run", text) as run:
        run.episodes("logs", LOGS)
        run.episodes("dream-0010", DREAMS)
    code, _, err = command("--base-url", "http://localhost:1/v1")
    assert code == 2 and "config.toml' names no environment. Expected env.name" in err
