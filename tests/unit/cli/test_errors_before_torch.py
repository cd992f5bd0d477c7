"""A configuration that cannot be right is refused before torch is imported, so within a second."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dreamgym.runs.rundir import RunDir

CASES = [
    ("env.options.lenght=4", "Did you mean 'length'"),
    ("env.options.length=-3", "greater than or equal to 3"),
    ("env.name=corridr", "Did you mean 'corridor'"),
    ("env.connect=foo:bar", "has an environment of its own"),
    ("env.connection.retries=3", "Set env.connect"),
    ("logs.mix.epxert=1.0", "Did you mean 'expert'"),
    ('logs.files=["nowhere.jsonl"]', "nowhere.jsonl"),
    ("model.size=3q", "No model size '3q'"),
    ("replay.store_options.x=1", "Unknown key 'x'"),
    ("replay.index_options.x=1", "Unknown key 'x'"),
    ("replay.encoder.x=1", "Unknown key 'x'"),
    ('replay.encoder={name="hidden"}', "needs a checkpoint"),
    ("policy.backbone.model=/nowhere warm_start.optimiser=adamw", "No model at '/nowhere'"),
    ("model.device=cuda", "device=cuda"),
    ("model.device=mps", "which macOS alone has"),
    ('policy.backbone={model="m",device="cuda:1"} warm_start.optimiser=adamw', "device=cuda:1"),
    ("policy.engine.x=1", "Unknown key 'x'"),
    ("experience.engine.x=1", "Unknown key 'x'"),
    ('experience.verifier={name="chta"}', "Did you mean 'chat'"),
    ('experience.verifier={name="learned",features="both"}', "leave out `features`"),
    ('experience.verifier={name="learned",features="both",backbone={model="/nowhere"}}', "No model at '/nowhere'"),
    ("rl.algorithm.name=grpoo", "Did you mean 'grpo'"),
    ("rl.learner.optimiser=x", "optimiser"),
]


def require_refusals(cases: list[tuple[str, str]], folder: Path, *, before: str) -> None:
    """One process in which torch cannot be imported tries all commands; each ends with code 2 and says its words. `before` is Python."""
    script = textwrap.dedent(f"""
        import sys
        sys.modules["torch"] = None  # importing it fails
        {before}
        from dreamgym import cli
        for command, _ in {cases!r}:
            sys.argv = ["dreamgym", *command.split()]
            print("##", command, file=sys.stderr)
            try:
                cli.main()
            except SystemExit as stop:
                print("exit", stop.code, file=sys.stderr)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=folder)
    answers = done.stderr.split("## ")[1:]
    assert len(answers) == len(cases), done.stderr
    for (_, says), answer in zip(cases, answers, strict=True):
        assert says in answer and "exit 2" in answer, answer


def test_every_kind_of_wrong_setting_is_refused_without_torch(tmp_path: Path):
    cases = [(f"train run env.name=corridor {setting}", says) for setting, says in CASES]
    no_gpu = "from dreamgym.llm import backbone_settings; backbone_settings.GPU_FILES = ()"
    require_refusals(cases, tmp_path, before=no_gpu)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["compare", "--config", "bad.toml"], ["quickstart", "--budget", "smal"]])
def test_other_commands_too(command: list[str], tmp_path: Path):
    (tmp_path / "bad.toml").write_text('[env]\nname = "corridor"\noptions = {lenght = 4}\n')
    script = f"import sys\nsys.modules['torch'] = None\nfrom dreamgym import cli\nsys.argv = ['dreamgym', *{command!r}]\ncli.main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 2 and "Did you mean" in done.stderr, done.stderr


PLACES = [
    ("train file", "'file' is a file, not a run directory"),
    ("train full env.name=corridor", "'full' is not a run"),
    ("train file/below env.name=corridor", "is a file, not a folder"),
    ("compare --config compare-logs --out file", "'file' is a file, not a folder"),
    ("compare --config compare-logs --out full", "'full' holds 'notes.txt', and no run"),
    ("compare --config compare-logs --out /proc/nope", "'/proc' cannot be written"),
    ("train /proc/nope/run env.name=corridor", "'/proc' cannot be written"),
    ("quickstart --env webshop --budget small --run /proc/nope", "'/proc' cannot be written"),
    ("compare file", "'file' is not a run directory"),
    ("compare full recorded", "'full' is not a run directory"),
    ("compare recorded", "has no summary.json"),
    ("compare comparison/seed-0", "'comparison' is a comparison, and not a run"),
    ("compare damaged", "is no comparison"),
    ("compare --dry-run", "give --config FILE"),
    ("compare", "Nothing to compare"),
    ("compare seeds=[0]", "'seeds=[0]' is no run directory. Settings change a configuration: give --config FILE"),
    ("compare recorded --config compare-small", "'recorded' is no setting"),
    ("compare --config compare-small seeds=[]", "seeds"),
    ("compare --config compare-small seed=3", "Write seeds=[3]"),
    ("compare --config compare-small seds=[1]", "Did you mean 'seeds'"),
    ("compare --config compare-small env.name=webshp", "Did you mean 'webshop'"),
    ('compare --config compare-small arms=["grpo-drem"]', "'grpo-drem' is no arm"),
    ("quickstart --env webshop dream.iteratons=5", "Did you mean 'iterations'"),
    ("quickstart --env webshop seeds=[]", "seeds"),
    ("quickstart --env webshop seed=3", "Write seeds=[3]"),
    ("quickstart --env webshop replay.index=exat", "Did you mean 'exact'"),
    ("quickstart --env small", "No quickstart of 'small'"),
    ("quickstart --env telecm", "Did you mean 'telecom'"),
    ("quickstart --env web --budget large", "Try --budget"),
    ("quickstart small", "'small' sets nothing. Write KEY=VALUE"),
    ("sweep eval.seed=1,2 --config compare-logs --out file/below", "is a file, not a folder"),
    ("sweep eval.seed=1,2 --config compare-logs --out full", "'full' holds 'notes.txt', and no run"),
    ("quickstart --env webshop --budget small --run file", "'file' is a file, not a folder"),
    ("quickstart --env webshop --budget small --run full", "'full' holds 'notes.txt', and no run"),
    ("eval recorded", "was made from logs alone"),
    ("compare --config train-grpo", "'train-grpo' is a configuration of `dreamgym train`"),
    ("sweep eval.seed=1,2 --config train-grpo", "'train-grpo' is a configuration of `dreamgym train`"),
    ("transfer train-grpo compare", "'compare' is a configuration of `dreamgym compare`"),
    ("train run --config quickstart-small", "'quickstart-small' is a configuration of `dreamgym quickstart`"),
    ("quickstart --budget train-grpo", "'train-grpo' is a preset of `dreamgym train` and no budget"),
    ("judge nowhere --model smollm2", "'nowhere' is not a run directory"),
    ("judge full --model smollm2", "'full' is not a run directory"),
    ("judge recorded --model smollm2", "'recorded' holds no dreamed episodes yet"),
    ("judge recorded --model smollm2 --dreams dream-0000", "The run has no episodes 'dream-0000'"),
    ("annotate nowhere.jsonl --out annotated.jsonl --model smollm2", "nowhere.jsonl"),
    ("annotate file --out file --model smollm2", "--out is the file that is read"),
]


def test_a_place_or_a_configuration_that_is_not_for_the_command_is_refused_without_torch(tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with RunDir.open(tmp_path / "recorded", "seed = 1\n") as run:
        run.mark("logs", {"has_env": False})
    RunDir.open(tmp_path / "comparison" / "seed-0", "seed = 0\n").close()
    for name in ("comparison", "damaged"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "compare.json").write_text("{}")
    require_refusals(PLACES, tmp_path, before="")
    assert {item.name for item in tmp_path.iterdir()} == {"file", "full", "recorded", "comparison", "damaged"}


def test_finished_runs_are_compared_without_torch(tmp_path: Path):
    rate = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 100}
    costs = ("real_transitions_offline", "real_transitions_online", "real_transitions_probe", "dream_transitions", "seconds")
    entry = {"real_success": 0.5, "ci95": [0.4, 0.6], "sampled": rate, "episodes": 100, **dict.fromkeys(costs, 1.0)}
    for seed in (0, 1):
        with RunDir.open(tmp_path / f"run-{seed}", f"seed = {seed}\n") as run:
            run.write_summary({"warm_start": entry, "seeds": [seed], "commit": "abc"})
    script = "import sys\nsys.modules['torch'] = None\nfrom dreamgym import cli\nsys.argv = ['dreamgym', *sys.argv[1:]]\ncli.main()"
    for command in ("compare run-0 run-1 --out both", "compare both"):
        done = subprocess.run([sys.executable, "-c", script, *command.split()], capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0 and "Warm start" in done.stdout and "50.0" in done.stdout, done.stderr
