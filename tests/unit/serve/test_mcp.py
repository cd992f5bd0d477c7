"""A dream over the Model Context Protocol, from a client's side."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from dreams import CANCEL_RULES, CANCEL_TASK, SUITE, TALK, TASKS, corridor_dream, talking_dream

pytest.importorskip("mcp")
from mcp.client.client import Client

from dreamgym.errors import UsageError
from dreamgym.experience.env import DreamBatch, DreamEnv
from dreamgym.recipes.serve import TokenRequired
from dreamgym.serve import check_address
from dreamgym.serve import mcp as served
from dreamgym.serve.sessions import DreamSessions, outcome


def talk(script: Any, *, single: bool = True) -> Any:
    """What `script(client, dream)` returns, with a server in this process."""

    async def run() -> Any:
        with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as dream:
            async with Client(served.make_server(dream, single=single)) as client:
                return await script(client, dream)

    return asyncio.run(run())


def test_an_episode_over_mcp_is_marked_as_simulated_and_tells_its_outcome():
    async def script(client: Any, dream: DreamSessions) -> Any:
        tools = (await client.list_tools()).tools
        begun = await client.call_tool("dream_start", {"task": TASKS[0].id, "seed": 1})
        steps = [await client.call_tool("act", {"action": action}) for action in ("dance", "right")]
        return tools, begun, steps, json.loads((await client.call_tool("dream_outcome", {})).content[0].text)

    tools, begun, steps, outcome = talk(script)
    assert [tool.name for tool in tools] == ["act", "dream_start", "dream_outcome"]
    assert all(tool.description.startswith("(simulated)") for tool in tools)
    assert "one line that holds one action of those in square brackets" in tools[0].description
    assert TASKS[0].instruction in begun.content[0].text and "room" in steps[1].content[0].text
    assert steps[0].meta["dreamgym"]["decided_by"] == "rule" and outcome == steps[1].meta["dreamgym"] | {"steps": 2}
    assert outcome["simulation"] and outcome["reward"] == 0.0 and not outcome["masked"]


@pytest.mark.parametrize("single", [True, False])
def test_an_episode_over_mcp_is_the_one_that_python_plays(single: bool):
    walk = ("right", "dance", "right", "open", "left")

    async def script(client: Any, dream: DreamSessions) -> Any:
        episodes = []
        for task in TASKS:
            begun = await client.call_tool("dream_start", {"task": task.id, "seed": 1})
            named = {} if single else {"dream_episode": begun.meta["dreamgym"]["dream_episode"]}
            steps = []
            for action in walk:
                steps.append(await client.call_tool("act", {"action": action, **named}))
                if steps[-1].meta["dreamgym"]["terminated"] or steps[-1].meta["dreamgym"]["truncated"]:
                    break
            episodes.append((begun.content[0].text, [(step.content[0].text, step.meta["dreamgym"]) for step in steps]))
        return episodes

    for task, (beginning, steps) in zip(TASKS, talk(script, single=single), strict=True):
        env = DreamEnv(DreamBatch(corridor_dream(), SUITE.rules, horizon=SUITE.max_steps))
        assert beginning.endswith(f"\nTask: {task.instruction}\n{env.reset(task).text}")
        played = [env.step(action) for action in walk[: len(steps)]]
        assert steps == [(step.observation.text, outcome(step)) for step in played]
        assert len(steps) == len(walk) or played[-1].terminated or played[-1].truncated


def test_what_a_client_does_wrong_is_an_error_of_its_call():
    async def script(client: Any, dream: DreamSessions) -> Any:
        early = await client.call_tool("act", {"action": "right"})
        wrong = [await client.call_tool("dream_start", one) for one in ({"seed": "one"}, {"task": 3}, {"seed": -1})]
        unknown = await client.call_tool("rm", {})
        good = await client.call_tool("dream_start", {})
        again = await client.call_tool("dream_start", {})
        return [early, *wrong, unknown], [good, again], len(dream)

    bad, good, n = talk(script)
    assert all(one.is_error for one in bad) and "dream_start first" in bad[0].content[0].text
    assert not any(one.is_error for one in good) and n == 1, "a new episode ends the one before it"


def test_two_clients_of_one_server_name_their_episodes():
    async def script(client: Any, dream: DreamSessions) -> Any:
        begun = [await client.call_tool("dream_start", {"task": task.id}) for task in TASKS[:2]]
        names = [one.meta["dreamgym"]["dream_episode"] for one in begun]
        nameless = await client.call_tool("act", {"action": "right"})
        return nameless, [await client.call_tool("act", {"action": "right", "dream_episode": name}) for name in names], begun

    nameless, steps, begun = talk(script, single=False)
    assert nameless.is_error and "dream_episode" in nameless.content[0].text and "dream_episode: " in begun[0].content[0].text
    assert not any(one.is_error for one in steps)


def test_the_agent_speaks_with_the_user_and_an_episode_ends_with_a_message():
    async def run() -> Any:
        with DreamSessions(talking_dream(), CANCEL_RULES, [CANCEL_TASK], horizon=6) as dream:
            async with Client(served.make_server(dream, single=True)) as client:
                await client.call_tool("dream_start", {})
                return [await client.call_tool(call.name, dict(call.arguments)) for call in TALK]

    asked, cancelled, ended = asyncio.run(run())
    assert "(the user says) yes" in asked.content[0].text and cancelled.content[0].text == "cancelled"
    assert ended.meta["dreamgym"]["terminated"] and ended.meta["dreamgym"]["reward"] == 1.0


def test_without_a_seed_tasks_differ_and_the_seed_is_in_the_metadata():
    async def script(client: Any, dream: DreamSessions) -> Any:
        drawn = [(await client.call_tool("dream_start", {})).meta["dreamgym"] for _ in range(12)]
        again = (await client.call_tool("dream_start", {"seed": drawn[-1]["seed"]})).meta["dreamgym"]
        return drawn, again

    drawn, again = talk(script)
    assert len({one["task"] for one in drawn}) > 1 and again["task"] == drawn[-1]["task"] and again["seed"] == drawn[-1]["seed"]


def test_recorded_tools_are_offered_as_they_are_and_may_not_have_our_names():
    class Desk:
        action_format = ""
        tools = ({"name": "get_user", "description": "Reads.", "parameters": {"properties": {"id": {"type": "string"}}}},)

    assert [tool.name for tool in served.tools_of(Desk())] == ["get_user", "respond", "dream_start", "dream_outcome"]  # type: ignore[arg-type]
    Desk.tools = ({"name": "dream_start", "description": "", "parameters": {}},)
    with pytest.raises(UsageError, match="dream_start"):
        served.tools_of(Desk())  # type: ignore[arg-type]


@pytest.mark.parametrize(("host", "token", "refused"), [("127.0.0.1", "", False), ("::1", "", False), ("0.0.0.0", "", True),
                                                        ("example.org", "", True), ("0.0.0.0", "s", False)])  # fmt: skip
def test_others_reach_a_dream_only_with_a_token(host: str, token: str, refused: bool):
    if not refused:
        return check_address(host, token)
    with pytest.raises(UsageError, match="--token-env"):
        check_address(host, token)


def test_without_the_token_there_is_no_answer():
    async def asked(header: bytes) -> list[Any]:
        sent: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            sent.append("let in")

        async def send(message: Any) -> None:
            sent.append(message.get("status"))

        await TokenRequired(app, "secret")({"type": "http", "headers": [(b"authorization", header)]}, None, send)
        return sent

    for header in (b"Bearer secret", b"bearer  secret"):
        assert asyncio.run(asked(header)) == ["let in"]
    for header in (b"Bearer secre", b"Basic secret", b"secret", b""):
        assert asyncio.run(asked(header))[0] == 401


STDIO = """
import asyncio, signal, sys
from dreams import SUITE, TASKS, corridor_dream
from dreamgym.serve.mcp import serve_stdio
from dreamgym.serve.sessions import DreamSessions
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as dream:
    asyncio.run(serve_stdio(dream))
"""
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


@pytest.mark.parametrize("ended_by", ["SIGINT", "SIGTERM", "end of input", "closed output"])
def test_a_server_over_standard_input_ends_when_it_is_interrupted_and_when_a_pipe_of_its_client_closes(ended_by: str):
    server = subprocess.Popen(
        [sys.executable, "-c", STDIO],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},  # `dreams` is of the tests
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None and server.stderr is not None
    try:
        server.stdin.write("no JSON\n" + json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}) + "\n")
        server.stdin.flush()
        assert "This is a simulation" in server.stdout.readline()
        interrupted = ended_by.startswith("SIG")
        if interrupted:
            server.send_signal(getattr(signal, ended_by))
        elif ended_by == "end of input":
            server.stdin.close()
        else:  # the answer to a further request has no reader
            server.stdout.close()
            server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}) + "\n")
            server.stdin.flush()
        assert (server.wait(60) == 0) is not interrupted
        assert interrupted or "BrokenPipe" not in server.stderr.read()
    finally:
        server.kill()
        server.wait()
