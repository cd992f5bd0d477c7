"""Teachers: what a model must say to be believed, what becomes of it when it does not, and that nothing is paid for twice."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer
from scripted_chat import ScriptedChat

from dreamgym import cli, plugins
from dreamgym.envs import corridor
from dreamgym.errors import RunDirError, ServerError, UsageError
from dreamgym.experience.chat_requests import AskConfig, ask
from dreamgym.experience.json_replies import read_object
from dreamgym.experience.teacher import ChatTeacher
from dreamgym.logs.demonstrations import collect
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.runs.files import read_jsonl

CORRIDOR = corridor.make(length=4)
LOGS = collect(CORRIDOR, 8, seed=0)
PRICES = {"price_per_million_input": 2.0, "price_per_million_output": 8.0}


def episode_in(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The episode that a teacher is shown."""
    return json.loads(messages[1]["content"])


def good(messages: Sequence[Mapping[str, Any]]) -> str:
    """A teacher who does as it is told."""
    steps = [
        {"step": s["step"], "reasoning": f"The agent does {s['action']} in {s['state'].split(chr(10))[0]}."}
        for s in episode_in(messages)["steps"]
    ]
    tutorial = {"plan": "Walk to the door.", "success": "The right door opens.", "failure": "Another door opens."}
    return json.dumps({"tutorial": tutorial, "steps": steps})


def prose(_: Sequence[Mapping[str, Any]]) -> str:
    return "Certainly! The agent walks to the door and opens it."


def one_short(messages: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({**json.loads(good(messages)), "steps": json.loads(good(messages))["steps"][:-1]})


def corrected(messages: Sequence[Mapping[str, Any]]) -> str:
    """Says it right when it is told what was wrong."""
    return good(messages) if len(messages) > 2 else one_short(messages)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        server.answer = good
        yield server


@pytest.fixture
def host(server: FaultServer) -> Iterator[Callable[..., Any]]:
    engines: list[Any] = []

    def host(**options: Any) -> Any:
        settings = {"base_url": server.url, "model": "policy", "dialect": "chat", "backoff_s": 0.01, **PRICES}
        engines.append(plugins.make("engines", "server", **settings | options))
        return engines[-1]

    yield host
    for engine in engines:
        engine.close()


# --- what is written ---------------------------------------------------------------------------------------------------------------


def test_every_transition_gets_the_models_reasoning_and_the_first_the_tutorial(host: Any):
    teacher = ChatTeacher(host())
    annotated = teacher.annotate(LOGS)
    assert [t.id for t in annotated] == [t.id for t in LOGS]
    for before, after in zip(LOGS, annotated, strict=True):
        for old, new in zip(before.transitions, after.transitions, strict=True):
            assert new.info.reasoning == f"The agent does {old.action} in {old.state.text.split(chr(10))[0]}."
            assert new.with_reasoning(old.info.reasoning) == old
    assert teacher.counts["annotated"] == 8 and not teacher.problems


def test_the_teacher_sees_the_whole_episode_and_its_outcome():
    chat = ScriptedChat(good)
    ChatTeacher(chat).annotate(LOGS[:1])
    shown, trajectory = episode_in(chat.asked[0]), LOGS[0]
    assert (shown["task"], shown["success"]) == (trajectory.task.instruction, trajectory.success)
    assert [(s["state"], s["action"], s["reward"]) for s in shown["steps"]] == [
        (t.state.text, t.action, t.reward) for t in trajectory.transitions
    ]
    assert ["next_state" in s for s in shown["steps"]] == [False] * (len(shown["steps"]) - 1) + [True]
    assert "goal" not in shown


def test_an_annotation_survives_being_written_and_read(tmp_path: Path):
    annotated = ChatTeacher(ScriptedChat(good)).annotate(LOGS)
    write_trajectories(tmp_path / "a.jsonl", annotated)
    assert read_trajectories(tmp_path / "a.jsonl") == annotated


# --- what cannot be used -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (prose, "not one JSON object"),
        (one_short, "steps: write one for each"),
        (lambda m: good(m).replace('"plan"', '"plot"'), "'plan' is null"),
        (lambda m: good(m).replace('"step": 1', '"step": 7'), "object 1 of 'steps' is about step 7"),
        (lambda m: good(m)[:-1] + ', "steps": []}', "a key stands there twice"),
        (lambda m: good(m)[:40], "not one JSON object"),
        (lambda m: "[]", "a JSON list, not an object"),
        (lambda m: good(m)[:-1] + ', "reward": 1}', "'reward' was not asked for"),
        (lambda m: '{"tutorial": "x", "steps": "\ud800"}', "'tutorial' is no object"),
        (lambda m: "[" * 100_000, "not one JSON object"),
    ],
)
def test_what_is_no_annotation_is_asked_for_once_more_and_then_skipped_counted_and_kept(answer: Any, says: str, tmp_path: Path):
    chat = ScriptedChat(answer)
    teacher = ChatTeacher(chat, tmp_path / "replies.jsonl")
    assert teacher.annotate(LOGS[:1]) == []
    assert teacher.counts["unreadable"] == 1 and says in teacher.problems[LOGS[0].id]
    assert len(chat.asked) == 2 and says.split(" is about")[0] in chat.asked[1][-1]["content"]
    kept = read_jsonl(tmp_path / "replies.jsonl")
    assert [line["kind"] for line in kept] == ["unreadable", "unreadable"] and all(line["raw"] for line in kept)


def test_a_reply_that_cannot_be_read_stays_unreadable_when_asking_again_would_cost_too_much():
    chat = ScriptedChat(lambda _: "nonsense", price_in=1.0, price_out=1.0)
    how = AskConfig(max_tokens=16, max_cost=130e-6)  # the question takes 122 at most and 52 in truth, its correction more than the rest
    (reply,) = ask(chat, [[{"role": "user", "content": "x" * 200}]], lambda _, text: read_object(text, ["a"]), how, {"a": {}})
    assert (reply.kind, reply.raw, len(chat.asked)) == ("unreadable", "nonsense", 1)


def test_replies_that_another_process_has_paid_for_meanwhile_are_not_paid_for_again(tmp_path: Path):
    early, late = (ChatTeacher(ScriptedChat(good), tmp_path / "replies.jsonl") for _ in range(2))
    early.annotate(LOGS)  # after both were opened
    assert len(late.annotate(LOGS)) == 8 and late.counts["known"] == 8 and not late.chat.asked


def test_a_reply_that_is_corrected_counts_as_repaired():
    teacher = ChatTeacher(ScriptedChat(corrected))
    assert len(teacher.annotate(LOGS)) == 8
    assert teacher.counts["annotated"] == teacher.counts["repaired"] == 8


def test_thinking_and_a_code_fence_around_the_object_are_taken_off():
    teacher = ChatTeacher(ScriptedChat(lambda m: f"<think>{{hm}}</think>\n```json\n{good(m)}\n```"))
    assert len(teacher.annotate(LOGS)) == 8 and teacher.counts["repaired"] == 0


def test_broken_and_empty_episodes_are_not_asked_about():
    chat = ScriptedChat(good)
    teacher = ChatTeacher(chat)
    assert teacher.annotate([replace(LOGS[0], error="boom"), replace(LOGS[1], turns=()), LOGS[2]])[0].id == LOGS[2].id
    assert len(chat.asked) == 1 and teacher.counts["broken"] == teacher.counts["empty"] == 1


# --- a server that misbehaves ------------------------------------------------------------------------------------------------------


def test_a_busy_a_broken_and_a_hanging_server_are_asked_again(host: Any, server: FaultServer):
    server.faults.extend([("busy", 0.01), ("status", 500), "hang", "json", "cut"])
    assert len(ChatTeacher(host(timeout_s=0.5)).annotate(LOGS)) == 8


@pytest.mark.parametrize("fault", [("status", 500), "hang", ("busy", 0.01), ("status", 400)])
def test_an_episode_that_the_server_fails_for_good_is_skipped_and_counted(host: Any, server: FaultServer, fault: Any):
    server.faults.extend([fault] * (2 if fault == ("status", 400) else 1))  # of a refusal it may be the limits of length that are refused
    teacher = ChatTeacher(host(retries=0, timeout_s=0.3, concurrency=1))
    assert len(teacher.annotate(LOGS)) == 7
    assert teacher.counts["failed"] == 1 and "/chat/completions" in teacher.problems[LOGS[0].id]


def test_a_wrong_key_and_a_dead_server_end_it_at_once_with_what_to_do(host: Any, server: FaultServer):
    server.faults.append(("status", 401))
    with pytest.raises(ServerError, match="Expected a valid key"):
        ChatTeacher(host(concurrency=1)).annotate(LOGS)
    assert len(server.paths()) == 1
    server.faults.extend([("status", 503)] * 99)
    with pytest.raises(ServerError, match="status 503.*Check that the server is up"):
        ChatTeacher(host(retries=0, concurrency=1), config=AskConfig(give_up_after=3)).annotate(LOGS)
    assert len(server.paths()) == 4


def test_many_requests_are_under_way_at_once(host: Any, server: FaultServer):
    server.delay = 0.1
    ChatTeacher(host(concurrency=4)).annotate(LOGS)
    assert server.most_in_flight == 4


# --- nothing is paid for twice -----------------------------------------------------------------------------------------------------


def interrupting(after: int) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    said = 0

    def answer(messages: Sequence[Mapping[str, Any]]) -> str:
        nonlocal said
        said += 1
        if said > after:
            raise KeyboardInterrupt
        return good(messages)

    return answer


def test_after_an_interruption_only_what_is_missing_is_asked_for(tmp_path: Path):
    path = tmp_path / "replies.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ChatTeacher(ScriptedChat(interrupting(3)), path).annotate(LOGS)
    with open(path, "ab") as file:
        file.write(b'{"key": "torn')  # a crash in the middle of a line
    chat = ScriptedChat(good)
    teacher = ChatTeacher(chat, path)
    assert teacher.estimate(LOGS).requests == 5
    assert len(teacher.annotate(LOGS)) == 8
    assert [episode_in(m)["task"] for m in chat.asked] == [t.task.instruction for t in LOGS[3:]]
    assert (teacher.counts["known"], teacher.counts["annotated"]) == (3, 5)
    silent = ScriptedChat(lambda _: ServerError("must not be asked"))
    assert ChatTeacher(silent, path).annotate(LOGS) == teacher.annotate(LOGS) and silent.asked == []


def test_what_was_skipped_is_asked_for_again_with_other_seeds(host: Any, server: FaultServer, tmp_path: Path):
    server.answer = prose
    assert ChatTeacher(host(), tmp_path / "r.jsonl").annotate(LOGS[:1]) == []
    server.answer = good
    assert len(ChatTeacher(host(), tmp_path / "r.jsonl").annotate(LOGS[:1])) == 1
    seeds = [payload["seed"] for payload in server.payloads("/v1/chat/completions")]
    assert len(seeds) == len(set(seeds)) == 3


def test_another_episode_or_another_model_is_another_question(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    ChatTeacher(ScriptedChat(good), path).annotate(LOGS[:1])
    failed = replace(LOGS[0], success=not LOGS[0].success)
    other = ScriptedChat(good)
    other.model = "other"
    assert ChatTeacher(ScriptedChat(good), path).estimate([failed]).requests == 1
    assert ChatTeacher(other, path).estimate(LOGS[:1]).requests == 1
    assert ChatTeacher(ScriptedChat(good), path).estimate(LOGS[:1]).requests == 0


def test_two_processes_do_not_pay_for_the_same_replies(tmp_path: Path):
    first, second = (ChatTeacher(ScriptedChat(good), tmp_path / "r.jsonl") for _ in range(2))
    with first.ledger.owned(), pytest.raises(RunDirError, match="Another process is filling"):
        second.annotate(LOGS)


def test_requests_under_way_are_cancelled_when_the_caller_stops(host: Any, server: FaultServer):
    server.faults.extend(["hang"] * 4)
    engine = host(concurrency=5)
    server.answer = lambda messages: f"{len(messages)} messages"
    replies = engine.replies([[{"role": "user", "content": "hello"}]] * 5, max_tokens=9)
    assert next(replies)[1] == "1 messages"
    replies.close()
    assert server.disconnected.wait(5) and engine.usage.requests == 1


# --- money -------------------------------------------------------------------------------------------------------------------------


def test_the_estimate_is_near_what_is_then_used(host: Any):
    engine = host()
    teacher = ChatTeacher(engine)
    estimate = teacher.estimate(LOGS)
    teacher.annotate(LOGS)
    assert estimate.prompt_tokens == pytest.approx(engine.usage.prompt_tokens, rel=0.25)
    assert 0.5 * engine.usage.cost <= estimate.cost <= 3 * engine.usage.cost <= 3 * estimate.cost_at_most
    assert estimate.requests == 8 and teacher.estimate(LOGS).requests == 0


def test_no_request_is_sent_that_might_exceed_the_limit():
    chat = ScriptedChat(good, price_in=2.0, price_out=8.0)
    config = AskConfig(max_tokens=1000)
    one = ChatTeacher(chat, config=config).estimate(LOGS[:1])
    limit = 1.2 * one.cost_at_most / 2  # room for one at its dearest
    teacher = ChatTeacher(chat, config=config.model_copy(update={"max_cost": limit}))
    written = teacher.annotate(LOGS)
    assert 0 < len(written) < 8 and teacher.counts["unaffordable"] == 8 - len(written)
    assert chat.usage.cost <= limit and "max_cost" in teacher.problems[LOGS[-1].id]


def test_requests_under_way_count_as_if_they_cost_all_they_may(host: Any, server: FaultServer):
    server.delay = 0.05
    engine = host(concurrency=8)
    dearest = ChatTeacher(engine, config=AskConfig(max_tokens=1000)).estimate(LOGS).cost_at_most / 2 / 8
    teacher = ChatTeacher(engine, config=AskConfig(max_tokens=1000, max_cost=3 * dearest))
    written = teacher.annotate(LOGS)
    assert server.most_in_flight < 8 and engine.usage.cost <= 3 * dearest
    assert len(written) == 8  # as cheap replies come in, what was held back is free again


@pytest.mark.parametrize("says", [None, [], {}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 9}])
def test_a_host_that_does_not_tell_what_it_used_is_charged_the_most_and_reaches_the_limit(host: Any, server: FaultServer, says: Any):
    server.faults.extend([("change", lambda reply: reply.update(usage=says))] * 8)
    engine = host()
    dearest = ChatTeacher(engine, config=AskConfig(max_tokens=1000)).estimate(LOGS).cost_at_most / 2 / 8
    teacher = ChatTeacher(engine, config=AskConfig(max_tokens=1000, max_cost=3 * dearest))
    written = teacher.annotate(LOGS)
    assert 0 < len(written) <= 3 and teacher.counts["unaffordable"] == 8 - len(written)
    assert engine.usage.unreported == len(written) and 2 * dearest < engine.usage.cost <= 3 * dearest


def test_an_answer_that_was_lost_counts_as_billed_in_full(host: Any, server: FaultServer):
    server.faults.append("json")  # arrives, and is of no use: the engine asks again
    server.answer = lambda messages: '{"a": 1}'
    engine = host(concurrency=1, price_per_million_input=1.0, price_per_million_output=1.0)
    how = AskConfig(max_tokens=16, max_cost=250e-6)  # a question takes 122 at most and 52 in truth: 122 + 52 + 122 is too much
    chats = [[{"role": "user", "content": "x" * 200}]] * 2
    first, second = ask(engine, chats, lambda _, text: read_object(text, ["a"]), how, {"a": {}})
    assert engine.usage.lost_cost == pytest.approx(122e-6)
    assert (first.kind, second.kind, len(server.payloads("/v1/chat/completions"))) == ("clean", "unaffordable", 2)


def test_a_limit_without_prices_is_refused():
    with pytest.raises(UsageError, match="A limit of money needs prices"):
        ChatTeacher(ScriptedChat(good), config=AskConfig(max_cost=1.0)).annotate(LOGS)


# --- the command -------------------------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["dreamgym", "annotate", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_trajectories(tmp_path / "logs.jsonl", LOGS)
    return tmp_path / "logs.jsonl"


def test_the_command_annotates_a_file_and_goes_on_where_it_was(logs: Path, server: FaultServer, monkeypatch: Any, capsys: Any):
    out = logs.with_name("annotated.jsonl")
    options = [
        str(logs),
        "--out",
        str(out),
        "--base-url",
        server.url,
        "--model",
        "policy",
        "--price-input",
        "2",
        "--price-output",
        "8",
        "--json",
    ]
    code, said, _ = run(monkeypatch, capsys, *options, "--dry-run")
    assert code == 0 and json.loads(said)["estimate"]["requests"] == 8 and server.paths() == [] and not out.exists()
    code, said, _ = run(monkeypatch, capsys, *options, "--max-dollars", "5")
    found = json.loads(said)
    assert code == 0 and found["written"] == 8 and 0 < found["used"]["cost"] < 5
    assert all(t.info.reasoning.startswith("The agent does") for episode in read_trajectories(out) for t in episode.transitions)
    asked = len(server.paths())
    assert json.loads(run(monkeypatch, capsys, *options)[1])["counts"] == {"known": 8} and len(server.paths()) == asked
    code, said, _ = run(monkeypatch, capsys, *options[:-1])
    assert code == 0 and "8 of 8 episodes" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.write_text("not json\n"), "Line 1 of .* is not JSON"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "Line 8 of .* is not JSON.*Was it cut off"),
        (lambda path: path.write_text('{"a": 1}\n'), "Line 1 of .* is no episode"),
        (lambda path: path.write_text(""), "holds no episode"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "as UTF-8"),
    ],
)
def test_a_file_that_is_no_log_is_named_with_its_line(logs: Path, change: Any, says: str, monkeypatch: Any, capsys: Any):
    change(logs)
    code, _, err = run(monkeypatch, capsys, str(logs), "--out", str(logs) + ".out", "--base-url", "http://127.0.0.1:9", "--model", "m")
    assert code == 2
    assert re.search(says, err), err


def test_the_command_refuses_what_costs_too_much_or_names_what_is_wrong(logs: Path, server: FaultServer, monkeypatch: Any, capsys: Any):
    to = ["--base-url", server.url, "--model", "policy"]
    dear = [str(logs), "--out", str(logs) + ".out", *to, "--price-input", "2000", "--price-output", "8000", "--max-dollars", "0.01"]
    code, _, err = run(monkeypatch, capsys, *dear)
    assert code == 2 and "Nothing was sent" in err and server.paths() == []
    assert "--out is the file that is read" in run(monkeypatch, capsys, str(logs), "--out", str(logs), *to)[2]
    assert "'format' in the options" in run(monkeypatch, capsys, str(logs), "--out", "x", *to, "--format", "xml")[2]
    server.answer = prose
    code, _, err = run(monkeypatch, capsys, str(logs), "--out", str(logs) + ".out", *to)
    assert code == 2 and "No episode could be annotated. The first problem: unreadable: the reply is not one JSON object" in err


def test_the_engines_own_options_can_be_given(logs: Path, server: FaultServer, monkeypatch: Any, capsys: Any):
    to = [str(logs), "--out", str(logs) + ".out", "--base-url", server.url, "--model", "policy", "--temperature", "1"]
    options = ["--engine-option", "max_tokens_key=max_completion_tokens", "--engine-option", "retries=0", "--no-send-seed"]
    assert run(monkeypatch, capsys, *to, *options)[0] == 0
    sent = server.payloads("/v1/chat/completions")[0]
    assert "seed" not in sent
    assert sent["max_completion_tokens"] == 4096 and "max_tokens" not in sent and sent["temperature"] == 1.0
    assert "Did you mean 'timeout_s'" in run(monkeypatch, capsys, *to, "--engine-option", "timeout=3")[2]
    assert "Write NAME=VALUE" in run(monkeypatch, capsys, *to, "--engine-option", "dialect=vllm")[2]


@pytest.mark.slow  # the signal may come late on a busy machine: to be made independent of time
def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(logs: Path, server: FaultServer):
    out = logs.with_name("annotated.jsonl")
    to = [str(logs), "--out", str(out), "--base-url", server.url, "--model", "policy", "--concurrency", "1", "--json"]
    command = [sys.executable, "-m", "dreamgym", "annotate", *to]
    server.faults.extend([None, None, None, "hang"])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(cli.__file__).parents[2])
    until = time.monotonic() + 300
    while len(server.paths()) < 4 and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "the same command resumes" in err
    assert len(read_jsonl(out.with_name("annotated.replies.jsonl"))) == 3 and not out.exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(cli.__file__).parents[2])
    assert json.loads(again.stdout)["counts"] == {"known": 3, "annotated": 5, "repaired": 0}, again.stderr
    assert len(server.paths()) == 4 + 5
