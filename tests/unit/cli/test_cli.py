"""Errors and interruptions on the command line: the message and the exit code."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dreamgym import cli
from dreamgym.errors import DreamGymError
from dreamgym.recipes import doctor
from dreamgym.runs.rundir import RunDir


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    monkeypatch.setattr("sys.argv", ["dreamgym", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr().err


def raising(error: BaseException) -> Any:
    def call() -> None:
        raise error

    return call


def test_an_interrupted_command_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(doctor, "examine", raising(KeyboardInterrupt()))
    code, text = said(monkeypatch, capsys, "doctor")
    assert code == 130 and "the same command resumes" in text


def test_sigterm_unwinds_like_an_interruption_and_leaves_no_handler_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tidied: list[str] = []

    def busy() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            tidied.append("files")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(doctor, "examine", busy)
    code, text = said(monkeypatch, capsys, "doctor")
    assert code == 143 and "the same command resumes" in text and tidied == ["files"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_made_on_purpose_is_one_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(doctor, "examine", raising(DreamGymError("No space left on the disk for 'x'.")))
    assert said(monkeypatch, capsys, "doctor") == (2, "error: No space left on the disk for 'x'.\n")


def test_the_quickstart_without_its_package_says_how_to_install_it_and_which_one_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "loguru", None)  # as where the extra is not installed
    monkeypatch.chdir(tmp_path)
    code, text = said(monkeypatch, capsys, "quickstart", "--budget", "small")
    assert code == 2 and "needs loguru. Install it with: pip install 'dreamgym[tau2]'" in text
    assert "The quickstart in the shop needs no extra: dreamgym quickstart --env webshop" in text
    code, text = said(monkeypatch, capsys, "quickstart", "--env", "telecom")
    assert code == 2 and "needs loguru" in text and "in the shop" not in text, "an environment that is asked for is the one to install"
    assert not any(tmp_path.iterdir())


def test_an_unfinished_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    RunDir.open(tmp_path / "run", "seed = 0\n").close()
    for command in ("fidelity", "summary"):
        code, text = said(monkeypatch, capsys, command, str(tmp_path / "run"))
        assert code == 2 and "not finished" in text and "resumes" in text
