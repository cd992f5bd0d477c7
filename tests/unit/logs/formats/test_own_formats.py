"""Formats from outside of the package: a wrong answer is an error that names the method, and a right one is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from log_samples import written

from dreamgym.errors import PluginError
from dreamgym.logs.importing import import_logs

SOUND = """
from dreamgym.logs.records import Call, LoggedEpisode, Message, Result

class Format:
    name = "own"
    def recognises(self, value): return "talk" in value
    def units(self, value): return [value]
    def key(self, unit): return None
    def read(self, units, account):
        for unit in units:
            yield LoggedEpisode("e", (Message("user", unit["talk"]), Message("agent", "Done.")))

def make(): return Format()
"""


@pytest.fixture
def import_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Import a log with a format of this source."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def read(source: str, out: Path | None = None) -> int:
        (tmp_path / "own_formats").mkdir(exist_ok=True)
        (tmp_path / "own_formats" / "own.py").write_text(source)
        for name in [name for name in sys.modules if name.split(".")[0] == "own_formats"]:
            monkeypatch.delitem(sys.modules, name)
        sys.dont_write_bytecode = True
        return int(import_logs([written(tmp_path, [{"talk": "Hi."}])], out, form="own_formats.own")["episodes"])

    return read


def test_a_sound_format_is_read(import_with):
    assert import_with(SOUND) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("return Format()", "return 3", r"make\(\) of 'own_formats.own' gives a value of the type int, which has no recognises"),
        ("return Format()", "return None", "gives None, which has no recognises"),
        ("def key(", "def kye(", r"has no key\(\)"),
        ("return [value]", "return None", r"units\(\) of the log format 'own_formats.own' gives None. Expected an iterator of dicts"),
        ("return [value]", "return ['a']", "gives a value of the type str. Expected dicts"),
        ("return None", "return 7", r"key\(\) .* gives a value of the type int. Expected a text, or None"),
        ("yield LoggedEpisode(", "yield dict(id=", r"read\(\) .* gives a value of the type dict. Expected LoggedEpisodes"),
        ('("e", (Message', '(7, (Message', "an episode whose id is a value of the type int"),
        ('Message("user"', 'Message("human"', "a message of the role 'human' .known: system, user, agent, tool."),
        ('Message("user", unit["talk"])', 'unit', "whose messages are no tuple of Message"),
        ('"Done."', "None", "a message whose text is None"),
        ('"Done."', '"Done.", ({"name": "a"},)', "a message whose calls and results are no tuples of Call"),
        ('"Done."', '"Done.", (Call("1", "a", None),)', "a call of a whose arguments are None"),
        ('"Done."', '"Done.", (), (Result("1", None),)', "a call or result with None in the place of a text"),
    ],
)  # fmt: skip
def test_a_wrong_answer_names_the_method_and_what_it_is_to_give(import_with, right: str, wrong: str, says: str):
    source = SOUND.replace(right, wrong)
    source = source.replace('yield dict(id="e", (', 'yield dict(id="e", messages=(')
    with pytest.raises(PluginError, match=f"{says}.*docs/tutorials/logs.md"):
        import_with(source)


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ('unit["talk"]', 'unit["speech"]', r"read\(\) .* failed at log.jsonl, line 1: KeyError: 'speech' .own.py, line 1\d."),
        ('unit["talk"]', 'open("/nowhere/else").read()', r"read\(\) .* failed at log.jsonl, line 1: FileNotFoundError: .*'/nowhere/else' "),
        ('unit["talk"]', '__import__("json").loads("{")', r"read\(\) .* failed at .*: JSONDecodeError: Expecting .* .own.py, line 1\d."),
        ('return "talk" in value', "return value.talk", r"recognises\(\) .* failed: AttributeError: "),
        ("return [value]", "yield value.talk", r"units\(\) .* failed: AttributeError: "),
        ("return None", "return unit[0]", r"key\(\) .* failed: KeyError: "),
    ],
)
def test_an_error_in_the_code_of_a_format_names_the_method_and_the_places_and_not_the_output(
    import_with, tmp_path: Path, right: str, wrong: str, says: str
):
    with pytest.raises(PluginError, match=says) as raised:
        import_with(SOUND.replace(right, wrong), tmp_path / "episodes.jsonl")
    assert "episodes.jsonl" not in str(raised.value) and not (tmp_path / "episodes.jsonl").exists()


def test_a_module_that_is_not_found_is_answered_with_what_to_do(tmp_path: Path):
    log = written(tmp_path, [{"talk": "Hi."}])
    with pytest.raises(PluginError, match="No logs.formats plug-in 'own'. .* a name with a dot"):
        import_logs([log], None, form="own")
    with pytest.raises(PluginError, match="No module 'nowhere_formats.own'.*PYTHONPATH=. before the command"):
        import_logs([log], None, form="nowhere_formats.own")
