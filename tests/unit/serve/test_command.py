"""`dreamgym serve` refuses what it cannot serve before it loads a model."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from dreams import SUITE, TASKS, corridor_dream
from toy import command

from dreamgym.errors import UsageError
from dreamgym.recipes.serve import Dream
from dreamgym.runs.rundir import RunDir
from dreamgym.serve import address_of, bound, listen


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--protocol", "mpc"], "Did you mean 'mcp'"),
        (["--protocol", "openenv"], "give --port"),
        (["--host", "0.0.0.0", "--port", "8000"], "--token-env"),
        (["--token-env", "NO_SUCH_VARIABLE", "--port", "8000"], "is not set"),
        (["--port", "70000"], "65535"),
        ([], "is not a run directory"),
    ],
)
def test_a_server_that_cannot_be_started_is_refused_by_name(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    code, _, err = command(monkeypatch, capsys, "serve", tmp_path, *arguments)
    assert code == 2 and says in " ".join(err.split())


def test_a_secret_loses_the_newline_of_its_file_and_one_that_no_header_takes_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("uvicorn")
    monkeypatch.setattr(RunDir, "view", lambda path: None)
    arguments = "serve", tmp_path, "--token-env", "SECRET", "--port", "8000"
    for wrong in ("abc\ndef", "abcd\u00e9f"):
        monkeypatch.setenv("SECRET", wrong)
        code, _, err = command(monkeypatch, capsys, *arguments)
        assert code == 2 and "The secret in 'SECRET' holds a character" in " ".join(err.split()) and "abc" not in err
    seen: list[str] = []
    monkeypatch.setenv("SECRET", "abc\n")
    monkeypatch.setattr("dreamgym.serve.bound", lambda *_: [])
    monkeypatch.setattr("dreamgym.recipes.serve.open_dream", lambda run: Dream(corridor_dream(), SUITE.rules, TASKS, SUITE.max_steps))
    monkeypatch.setattr("dreamgym.recipes.serve.application", lambda *_, token, **more: seen.append(token))
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    command(monkeypatch, capsys, *arguments)
    assert seen == ["abc"]


def test_a_port_in_use_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def loaded(*_: Any) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(RunDir, "view", lambda path: None)
    monkeypatch.setattr("dreamgym.recipes.serve.open_dream", loaded)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = command(monkeypatch, capsys, "serve", tmp_path, "--port", port)
        assert code == 2 and f"127.0.0.1:{port} cannot be listened at (Address already in use). Give another --port" in " ".join(
            err.split()
        )
    assert "serving" not in out + err
    with pytest.raises(UsageError, match="a --host that is an address of this machine"):
        bound("192.0.2.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_free_is_bound_and_not_answered_before_the_server_listens(host: str):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sockets = bound(host, port)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    assert port in {one.getsockname()[1] for one in sockets}
    for one in sockets:
        one.close()


def test_of_two_programs_that_bind_a_port_before_either_listens_the_later_one_is_refused_by_name():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first, second = bound("127.0.0.1", port), bound("127.0.0.1", port)
    try:
        listen(first, "127.0.0.1", port)
        with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be listened at .Address already in use.. Give another --port"):
            listen(second, "127.0.0.1", port)
    finally:
        for one in (*first, *second):
            one.close()


def test_an_ipv6_address_is_in_brackets_in_an_address():
    assert (address_of("::1", 8000), address_of("127.0.0.1", 8000)) == ("[::1]:8000", "127.0.0.1:8000")
