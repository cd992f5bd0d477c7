"""`dreamgym serve` refuses what it cannot serve before it loads a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy import command


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
