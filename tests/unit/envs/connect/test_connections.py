"""Connected environments: what they do wrong ends one episode, and the others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.envs import corridor
from dreamgym.envs.connect.limits import CallBudget
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.envs.wrappers import connected
from dreamgym.errors import ConfigError, EnvironmentFailure, UsageError
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.blocks import EnvConfig
from dreamgym.runs.episodes import write_trajectories
from dreamgym.types import StepResult, Task

TASK = Task("t1", "Fix it.", "corridor")
HERE = "test_connections"
OPTIONS = {"files": ["corridor"]}


class Counter:
    """Counts to three; an action is a sum that the environment adds, or a way to go wrong."""

    def __init__(self, bad_resets: int = 0) -> None:
        self.bad_resets = bad_resets

    def reset(self, task: Task) -> str:
        if self.bad_resets:
            self.bad_resets -= 1
            raise OSError("not yet")
        self.n = 0
        return f"{task.id}: 0"

    def step(self, action: str) -> tuple[dict[str, Any], float, bool]:
        if action == "hang":
            time.sleep(30)
        if action == "exit":
            sys.exit(3)
        if action == "interrupt":
            raise KeyboardInterrupt
        if action == "raise":
            raise ValueError("broken\nTraceback")
        if action in ("nan", "inf"):
            return {"text": "lost"}, float(action), True
        self.n += int(action)
        return {"text": "x" * 300_000 if action == "0" else str(self.n)}, float(self.n >= 3), self.n >= 3


class Switch:
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        return f"{name} {arguments}"


class Walk(gymnasium.Env[str, str]):
    observation_space = gymnasium.spaces.Text(9)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return f"at 0 {(options or {})['task']}", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"at {action}", 1.0, action == 3, action == 2, {}


gymnasium.register("dreamgym/Walk-v0", Walk, disable_env_checker=True, order_enforce=False)
FLAKY: list[Counter] = []


def flaky() -> Counter:
    """Fails to reset twice, over all that are made."""
    if not FLAKY:
        FLAKY.append(Counter(bad_resets=2))
    return FLAKY[0]


def scored(task: Task, steps: list[Any]) -> bool:
    return "u1" in str(steps[-1][1]["text"])


def unscored(task: Task, steps: list[Any]) -> None:
    """A score that forgets to return one."""


def undefined(task: Task, steps: list[Any]) -> float:
    return float("nan")


class Table(Counter):
    def reset(self, task: Task) -> dict[str, Any]:  # type: ignore[override]
        return {"position": 3}


def pool(connect: str, **connection: Any) -> EnvPool:
    name, options = build(EnvConfig, {"name": "logs", "options": OPTIONS, "connect": connect, "connection": connection}).plugin
    suite = plugins.make("envs", name, **options)
    assert suite.has_env
    return EnvPool(suite.require_env, suite.rules)


def act(env: Any, *actions: str) -> list[StepResult]:
    return [env.step([0], [action])[0] for action in actions]


def test_a_python_function_gives_an_environment() -> None:
    env = pool(f"python:{HERE}:Counter")
    assert env.start([TASK], seed=0)[0].text == "t1: 0"
    one, two = act(env, "1", "2")
    assert (one.observation.text, one.terminated, two.reward, two.terminated) == ("1", False, 1.0, True) and env.steps == 2


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("hang", "No answer in 0.3 s"),
        ("raise", "ValueError: broken"),
        ("exit", "The environment failed: SystemExit: 3"),
        ("interrupt", "The environment failed: KeyboardInterrupt"),
        ("0", "300,000 characters is longer"),
        ("jump", "ValueError"),
        ("nan", "The environment returned the reward nan. Expected a finite number."),
        ("inf", "The environment returned the reward inf."),
    ],
)
def test_what_goes_wrong_is_a_failed_rollout_and_the_next_episode_goes_on(action: str, said: str) -> None:
    env = pool(f"python:{HERE}:Counter", timeout_s=0.3)
    env.start([TASK, TASK], seed=0)
    assert said in (act(env, action)[0].info.error or "") and act(env, "1")[0].info.error
    assert env.step([1], ["1"])[0].info.error is None, "another episode is not touched"
    assert env.repeat([(TASK, [action]), (TASK, ["1"])])[0] is None
    env.start([TASK], seed=0)
    assert act(env, "3")[0].terminated


class Echo:
    """Answers with what it was asked; slowly where that is `slow`."""

    def reset(self, task: Task) -> str:
        time.sleep(1.0 if task.id == "slow" else 0.0)
        return f"start of {task.id}"

    def step(self, action: str) -> tuple[str, float, bool]:
        time.sleep(1.0 if action == "slow" else 0.0)
        return f"result of {action}", 0.0, False


@pytest.mark.parametrize("interrupted", ["reset", "step"])
def test_an_answer_that_was_interrupted_is_not_taken_for_that_of_the_next_request(interrupted: str) -> None:
    env = pool(f"python:{HERE}:Echo").make_env()
    env.reset(TASK)
    interrupt = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        interrupt.start()
        env.reset(replace(TASK, id="slow")) if interrupted == "reset" else env.step("slow")
    with pytest.raises(EnvironmentFailure, match="connection is gone"):
        env.step("a")
    assert env.reset(replace(TASK, id="t2"))["text"] == "start of t2"
    assert [env.step(action)[0]["text"] for action in "bc"] == ["result of b", "result of c"]


class Lasting(Echo):
    """Takes its time to close, as one does that logs out."""

    closed = 0

    def close(self) -> None:
        time.sleep(0.3)
        Lasting.closed += 1


def test_closing_waits_until_the_environment_is_closed_but_not_for_one_that_does_not_answer() -> None:
    env = pool(f"python:{HERE}:Lasting").make_env()
    env.reset(TASK)
    env.close()
    assert Lasting.closed == 1
    lost = pool(f"python:{HERE}:Lasting", timeout_s=0.2).make_env()
    with pytest.raises(EnvironmentFailure, match="No answer"):
        lost.reset(replace(TASK, id="slow"))
    begun = time.monotonic()
    lost.close()
    assert time.monotonic() - begun < 0.2


def test_a_reset_is_tried_again_and_one_that_never_succeeds_is_a_failed_rollout() -> None:
    FLAKY.clear()
    assert pool(f"python:{HERE}:flaky", retries=2).start([TASK], seed=0)[0].text == "t1: 0"
    FLAKY.clear()
    env = pool(f"python:{HERE}:flaky", retries=1)
    env.start([TASK], seed=0)
    assert "OSError: not yet" in (act(env, "1")[0].info.error or "")


def test_gymnasium_truncation_is_no_end_of_the_task() -> None:
    env = pool("gymnasium:dreamgym/Walk-v0")
    assert env.start([TASK], seed=0)[0].text == "at 0 t1"
    ended = act(env, "2")[0]
    assert ended.truncated and not ended.terminated
    env.start([TASK], seed=0)
    assert act(env, "3")[0].terminated


def test_a_module_before_the_id_is_imported_and_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registers_late.py").write_text(
        f"import gymnasium\nfrom {HERE} import Walk\ngymnasium.register('Late-v0', Walk, disable_env_checker=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert pool("gymnasium:registers_late:Late-v0").start([TASK], seed=0)[0].text == "at 0 t1"
    with pytest.raises(ConfigError, match="no_such_module"):
        pool("gymnasium:no_such_module:Late-v0")


@pytest.mark.parametrize(
    ("action", "text"), [("go 1", "at 1"), ("walk-1", "at 1"), ("jump", "at 0 t1\nNo such"), ("7", "at 0 t1\nNo such")]
)
def test_the_number_in_an_action_is_taken_and_a_wrong_action_changes_nothing(action: str, text: str) -> None:
    env = pool("gymnasium:dreamgym/Walk-v0")
    env.start([TASK], seed=0)
    one, two = act(env, action, "3")
    assert one.observation.text.startswith(text) and not one.info.error and not one.terminated and two.terminated
    assert text[-7:] != "No such" or (one.reward == 0.0 and "from 0 to 3" in one.observation.text)


def test_calls_are_limited_in_an_episode_and_in_all() -> None:
    env = pool(f"python:{HERE}:Switch", score=f"{HERE}:scored", max_calls_per_episode=3)
    env.start([TASK], seed=0)
    one, two = act(env, "a()\nb()", 'get(id="u1")')
    assert (one.truncated, two.truncated, two.terminated, two.reward) == (False, True, False, 1.0)
    budget = CallBudget(env, 3, [0])
    budget.start([TASK], seed=0)
    act(budget, "a()\nb()")
    assert budget.seconds == env.seconds > 0
    with pytest.raises(UsageError, match="max_calls.*it resumes"):
        act(budget, "a()\nb()")


def test_what_is_repeated_ends_where_its_episode_is_cut_and_only_what_was_done_is_charged() -> None:
    env = pool("gymnasium:dreamgym/Walk-v0")
    used = [0]
    budget = CallBudget(env, 5, used)
    walks = [(TASK, ["1", "2", "3"]), (TASK, ["3", "1", "1"]), (replace(TASK, source="synthetic"), ["1"] * 9)]
    cut, ended, unknown = budget.repeat(walks)
    assert cut and [step.action for step in cut] == ["1", "2"] and ended and len(ended) == 1 and unknown is None
    assert used == [3] and env.steps == 3
    with pytest.raises(UsageError, match="no room for 3 more"):
        budget.repeat([(TASK, ["1", "2", "3"])])


def test_tools_are_called_and_an_action_that_is_no_call_reaches_none() -> None:
    env = pool(f"python:{HERE}:Switch", score=f"{HERE}:scored")
    env.start([TASK], seed=0)
    wrong, right, end = act(env, "garbage", 'get(id="u1")', 'respond(content="done")')
    assert "Error" in wrong.observation.text and not wrong.info.error
    assert "get {'id': 'u1'}" in right.observation.text and end.terminated and end.reward == 1.0
    env.start([TASK], seed=0)
    empty, end = act(env, "respond()", 'respond(content="done")')
    assert "Error: the arguments: content is missing." in empty.observation.text and not empty.terminated and end.terminated


def test_a_long_conversation_of_short_results_is_no_long_result() -> None:
    env = pool(f"python:{HERE}:Switch", score=f"{HERE}:scored", max_result_chars=100)
    env.start([TASK], seed=0)
    assert not any(step.info.error for step in act(env, *(f'get(id="u{n}")' for n in range(40))))
    assert "longer than env.connection.max_result_chars = 100" in (act(env, f'get(id="{"u" * 200}")')[0].info.error or "")


def test_a_score_that_gives_no_number_is_a_failed_rollout() -> None:
    env = pool(f"python:{HERE}:Switch", score=f"{HERE}:unscored")
    env.start([TASK], seed=0)
    assert f"The score '{HERE}:unscored' failed: TypeError" in (act(env, 'respond(content="done")')[0].info.error or "")
    env = pool(f"python:{HERE}:Switch", score=f"{HERE}:undefined")
    env.start([TASK], seed=0)
    assert f"The score '{HERE}:undefined' returned the reward nan" in (act(env, 'respond(content="done")')[0].info.error or "")


def test_a_state_without_what_the_suite_reads_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"a table of 'position', and the rules of 'corridor' read 'text'"):
        pool(f"python:{HERE}:Table").start([TASK], seed=0)


@pytest.mark.parametrize("last", ["submit(answer=4)", 'respond(content="4")'])
def test_a_final_call_is_made_and_ends_the_episode_and_so_does_a_message_to_the_user(last: str) -> None:
    env = pool(f"python:{HERE}:Switch", score=f"{HERE}:scored", final_calls=["submit"])
    env.start([TASK], seed=0)
    unread, ended = act(env, 'submit("4")', last)
    assert "Error" in unread.observation.text and not unread.terminated and ended.terminated
    assert ("submit {'answer': 4}" in ended.observation.text) is last.startswith("submit")


@pytest.mark.parametrize(
    ("connect", "words"),
    [
        ("gym:X-v0", "Known: gymnasium:ENV_ID, mcp:COMMAND or URL, python:module:function"),
        ("gymnasiun:X", "Did you mean 'gymnasium'"),
        ("python:", "names no connection"),
        ("python:json", "Write python:module:function"),
        ("python:json:nothing", "^env.connect = 'python:json:nothing' cannot be loaded: .*PYTHONPATH=. before the command"),
        ("gymnasium:Nowhere-v0", "Register it"),
    ],
)
def test_a_connection_that_cannot_be_is_refused_at_once(connect: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pool(connect)


def test_a_suite_with_an_environment_takes_no_connection() -> None:
    with pytest.raises(ConfigError, match="has an environment of its own"):
        plugins.make("envs", "dreamgym.envs.wrappers.connected", suite="corridor", connect=f"python:{HERE}:Counter")
    with pytest.raises(ConfigError, match="Set env.connect"):
        build(EnvConfig, {"connection": {"retries": 1}})


@pytest.mark.parametrize("wrapper", ["placeholders", "renamed"])
def test_a_wrapper_that_translates_takes_no_connection_which_would_bypass_it(wrapper: str) -> None:
    options = {"suite": "logs", "options": OPTIONS}
    with pytest.raises(ConfigError, match="translates what an environment reads"):
        plugins.make(
            "envs",
            "dreamgym.envs.wrappers.connected",
            suite=f"dreamgym.envs.wrappers.{wrapper}",
            options=options,
            connect=f"python:{HERE}:Counter",
        )


def test_too_few_recorded_tasks_to_hold_any_out_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_trajectories(tmp_path / "few.jsonl", collect(corridor.make(), 12, seed=0))
    suite = connected.make(suite="logs", options={"files": [tmp_path / "few.jsonl"]}, connect=f"python:{HERE}:Counter")
    assert suite.tasks("train", 100) and not caplog.records
    assert not suite.tasks("test", 100) and "of fewer than 20 none is held out" in caplog.text


PATH = {"PYTHONPATH": os.pathsep.join(sys.path)}  # servers get a bare environment
MCP = f"mcp:{sys.executable} {Path(__file__).parents[3] / 'support' / 'mcp_desk.py'}"


def test_an_mcp_server_is_called_over_stdio_and_what_it_says_is_data() -> None:
    pytest.importorskip("mcp")
    env = pool(MCP, options=PATH, score=f"{HERE}:scored")
    env.start([TASK], seed=0)
    one, failed, unknown, end = act(env, 'look(id="u1")\nlook(id="u2")', "fail()", "no_such()", 'respond(content="done")')
    assert "u1 is user 1" in one.observation.text and "u2 is user 2" in one.observation.text
    assert "Error" in failed.observation.text and "there is no tool no_such" in unknown.observation.text
    assert end.terminated and end.reward == 1.0 and not any(step.info.error for step in (one, failed, unknown, end))
    env.start([TASK], seed=0)
    assert "u1 is user 1" in act(env, 'look(id="u1")')[0].observation.text, "an episode has a session of its own"
    env.envs[0].close()  # type: ignore[attr-defined]


def test_the_text_of_an_embedded_file_and_structured_content_alone_are_what_an_mcp_tool_returned() -> None:
    pytest.importorskip("mcp")
    env = pool(MCP, options=PATH, score=f"{HERE}:scored")
    env.start([TASK], seed=0)
    manual, balance = act(env, "manual()", "balance()")
    assert "The manual:\nTurn it off and on again.\n(image)" in manual.observation.text
    assert '{"balance": 12}' in balance.observation.text
    env.envs[0].close()  # type: ignore[attr-defined]


NOTEBOOK = """
import io, sys
sys.stderr = io.StringIO()
from dreamgym.envs.connect import ConnectionConfig, mcp
from dreamgym.types import Task
server = mcp.StdioServerParameters(command=sys.executable, args=[sys.argv[1]], env={"PYTHONPATH": sys.argv[2]})
tools = mcp.McpTools(server, ConnectionConfig())
tools.begin(Task("t", "look", "desk"))
print(sorted(tools.names))
tools.close()
"""


def test_an_mcp_server_is_called_from_a_notebook_whose_error_stream_is_no_file() -> None:
    pytest.importorskip("mcp")
    given = [sys.executable, "-c", NOTEBOOK, MCP.split()[-1], PATH["PYTHONPATH"]]
    assert "look" in subprocess.run(given, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(("action", "said"), [("hang()", "No answer"), ("die()", "Connection closed"), ("large()", "longer than")])
def test_an_mcp_server_that_misbehaves_fails_one_episode(action: str, said: str) -> None:
    pytest.importorskip("mcp")
    env = pool(MCP, options=PATH, score=f"{HERE}:scored", timeout_s=10.0)
    env.start([TASK], seed=0)
    error = act(env, action)[0].info.error
    assert error and said in error and act(env, action)[0].info.error
    env.start([TASK], seed=0)
    assert act(env, 'look(id="u1")')[0].info.error is None
    env.envs[0].close()  # type: ignore[attr-defined]


@pytest.fixture
def http_desk() -> Iterator[str]:
    """The address of the server over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(__file__).parents[3] / "support" / "mcp_desk.py")
    server = subprocess.Popen([sys.executable, program, "--http", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.1)
        yield f"mcp:http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait(20)


def test_an_mcp_server_is_called_over_http_and_its_end_fails_one_episode(http_desk: str) -> None:
    pytest.importorskip("mcp")
    env = pool(http_desk, score=f"{HERE}:scored", retries=0)
    env.start([TASK], seed=0)
    one, failed, end = act(env, 'look(id="u1")', "fail()", 'respond(content="done")')
    assert "u1 is user 1" in one.observation.text and "Error" in failed.observation.text
    assert end.terminated and end.reward == 1.0 and not any(step.info.error for step in (one, failed, end))
    env.start([TASK], seed=0)
    assert "u2 is user 2" in act(env, 'look(id="u2")')[0].observation.text, "one server for all sessions"
    assert act(env, "die()")[0].info.error, "the server ended"
    env.envs[0].close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("target", "said"), [(MCP + " --empty", "lists no tools"), ("mcp:/no/such/program", "No session")])
def test_an_mcp_server_without_tools_or_that_is_not_there_is_a_failed_rollout(target: str, said: str) -> None:
    pytest.importorskip("mcp")
    env = pool(target, options=PATH, score=f"{HERE}:scored", retries=0, timeout_s=10)
    env.start([TASK], seed=0)
    assert said in (act(env, "look()")[0].info.error or "")


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[Any]]]:
    """The address of a server that refuses every message with status 401, and the headers it was sent."""
    seen: list[Any] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/mcp", seen
        server.shutdown()


def test_options_are_headers_for_an_mcp_server_at_a_url_and_its_refusal_is_told(refusing: tuple[str, list[Any]]) -> None:
    pytest.importorskip("mcp")
    url, seen = refusing
    env = pool(f"mcp:{url}", options={"Authorization": "Bearer abc\n"}, score=f"{HERE}:scored", retries=0)
    env.start([TASK], seed=0)
    error = act(env, "look()")[0].info.error or ""
    assert f"No session with the MCP server at {url}" in error and "status 401" in error
    assert seen[0]["authorization"] == "Bearer abc"
    env.envs[0].close()  # type: ignore[attr-defined]
    for wrong in ({"Authorization": "Bearer a\nb"}, {"An option": 1}):
        with pytest.raises(ConfigError, match="the options are HTTP headers") as refused:
            pool(f"mcp:{url}", options=wrong, score=f"{HERE}:scored")
        assert "Bearer" not in str(refused.value)


def test_a_connection_that_was_dropped_leaves_no_event_loop_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    loops: list[asyncio.AbstractEventLoop] = []
    made = asyncio.new_event_loop
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loops.append(made()) or loops[-1])  # type: ignore[func-returns-value]
    env = pool("mcp:/no/such/program", score=f"{HERE}:scored", retries=2, timeout_s=10)
    env.start([TASK], seed=0)
    assert "No session" in (act(env, "look()")[0].info.error or "") and len(loops) == 3
    deadline = time.monotonic() + 30
    while not all(loop.is_closed() for loop in loops) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all(loop.is_closed() for loop in loops)


def children(command: str) -> list[str]:
    """Those of this process that run a command."""
    listed = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(command)]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the ps of Linux")
def test_an_mcp_server_that_never_answers_is_ended_at_every_try() -> None:
    pytest.importorskip("mcp")
    env = pool("mcp:sleep 613", score=f"{HERE}:scored", retries=1, timeout_s=1.0)
    env.start([TASK], seed=0)
    assert "in 1 s" in (act(env, "look()")[0].info.error or "") and children("sleep 613")
    env.envs[0].close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while children("sleep 613") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not children("sleep 613")


def test_a_reset_tool_that_fails_begins_no_episode_and_an_unknown_one_stops_the_command() -> None:
    pytest.importorskip("mcp")
    env = pool(MCP, options=PATH, score=f"{HERE}:scored", reset_tool="fail", retries=0)
    env.start([TASK], seed=0)
    assert "'fail' (env.connection.reset_tool) began no episode" in (act(env, 'look(id="u1")')[0].info.error or "")
    with pytest.raises(ConfigError, match=r"reset_tool = 'lok'.*Did you mean 'look'.*die, fail, hang"):
        pool(MCP, options=PATH, score=f"{HERE}:scored", reset_tool="lok").start([TASK], seed=0)


def test_a_final_call_that_reaches_no_tool_ends_no_episode_and_an_unknown_one_stops_the_command() -> None:
    pytest.importorskip("mcp")
    with pytest.raises(ConfigError, match=r"final_calls = 'lok'.*Did you mean 'look'.*die, fail, hang"):
        pool(MCP, options=PATH, score=f"{HERE}:scored", final_calls=["respond", "lok"]).start([TASK], seed=0)
    env = pool(MCP, options=PATH, score=f"{HERE}:scored", final_calls=["look", "refuse"])
    env.start([TASK], seed=0)
    refused, unknown, reached = act(env, "refuse()", "lok()", 'look(id="u1")')
    assert "Error: Invalid params" in refused.observation.text and not refused.terminated and not refused.info.error
    assert not unknown.terminated and reached.terminated and reached.reward == 1.0
    env.envs[0].close()  # type: ignore[attr-defined]


def test_tools_without_a_score_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="Set env.connection.score"):
        pool(f"python:{HERE}:Switch")
    pytest.importorskip("mcp")
    with pytest.raises(ConfigError, match="Set env.connection.score"):
        pool(MCP)


class Mortal(Counter):
    def step(self, action: str) -> tuple[dict[str, Any], float, bool]:
        if action == "die":
            os._exit(3)
        return super().step(action)


@pytest.mark.slow
def test_an_episode_whose_worker_died_is_not_acted_in_twice() -> None:
    name, options = build(EnvConfig, {"name": "logs", "options": OPTIONS, "connect": f"python:{HERE}:Mortal"}).plugin
    with WorkerPool(name, options, workers=1, repeats=False) as workers:
        workers.start([TASK, TASK], seed=0)
        first, second = workers.step([0, 1], ["1", "die"])
        assert first.info.error is None and "not acted in twice" in (second.info.error or "")
        assert "not acted in twice" in (workers.step([0], ["1"])[0].info.error or "")
        assert workers.start([TASK], seed=0)[0].text == "t1: 0"
