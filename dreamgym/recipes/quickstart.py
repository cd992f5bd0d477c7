"""The quickstart: every phase in order, the results table, and the checks that no phase did nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dreamgym import config as configuration
from dreamgym.errors import ConfigError, InvariantError, nearest
from dreamgym.recipes import fitting, parts, results
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.evaluation import audit, judge_policies
from dreamgym.recipes.practice import had_gradient, practise
from dreamgym.runlog import RunDir

ROWS = ("warm_start", "sft", "dream", "s2r", "real_only")
RUNS = {"small": "quickstart-small", "default": "quickstart", "full": "quickstart-full", "gpu": "quickstart-gpu"}


def budget_config(budget: str, env: str = "webshop") -> RunConfig:
    """The settings of a budget: small (minutes), default (20 to 40), full (three seeds and the baselines) or gpu; see `run_name`."""
    return configuration.read(RunConfig, config_folder() / f"{run_name(budget, env)}.toml")


def run_name(budget: str, env: str = "webshop") -> str:
    """What a quickstart's configuration and its run directory are called; ConfigError for a budget or an environment without one."""
    if budget not in RUNS:
        raise ConfigError(f"No budget '{budget}'.{nearest(budget, RUNS)} Known: {', '.join(RUNS)}.")
    name = RUNS[budget] if env == "webshop" else RUNS[budget].replace("quickstart", f"quickstart-{env}")
    if not (config_folder() / f"{name}.toml").is_file():
        known = sorted(path.stem for path in config_folder().glob("quickstart*.toml"))
        raise ConfigError(f"No quickstart of '{env}' with budget '{budget}': no {name}.toml. There are: {', '.join(known)}.")
    return name


def config_folder() -> Path:
    """Where the shipped configurations lie: in the installed package, or beside it in a source tree."""
    here = Path(__file__).resolve().parents[1]
    return here / "configs" if (here / "configs").is_dir() else here.parent / "configs"


def run_seeds(config: RunConfig, path: Path, *, budget: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """One run per seed, each in its own directory when there are several, and a summary over all of them."""
    if len(config.seeds) == 1:
        return run_one(config.model_copy(update={"seed": config.seeds[0]}), path, budget=budget, say=say)
    summaries = []
    for seed in config.seeds:
        one = config.model_copy(update={"seed": seed, "seeds": (seed,)})
        summaries.append(run_one(one, path / f"seed-{seed}", budget=budget, say=say))
    with parts.open_run(path / "all", config) as run:
        summary = pooled(summaries)
        run.write_summary(summary)
    return summary


def run_one(config: RunConfig, path: Path, *, budget: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All phases of one seed in one run directory. The same call on the same directory resumes."""
    parts.quiet()
    with parts.open_run(path, config) as run, parts.hire(config.env) as workers:
        parts.sign(run)
        say("1/7 logs: scripted behaviours of mixed skill in the real environment")
        shared = fitting.gather(run, config, workers)
        say("2/7 experience model: reasoning, next state, reward and end, from whole logged trajectories (Eq. 5)")
        fitting.train_experience(run, shared)
        say("3/7 warm start and SFT: the policy imitates the successful logs, briefly and for longer")
        fitting.warm_start(run, shared)
        fitting.converge_sft(run, shared, config.sft, patience=config.sft_patience)
        say(f"4/7 dream: {config.dream.algorithm.name} inside the experience model, without one real training step")
        practise(run, shared, "dream", start="warm", block=config.dream, world="dream")
        rows = ["warm", "sft", "dream"]
        if config.s2r.iterations:
            say("5/7 sim-to-real: the same loop in the real environment, a small budget")
            practise(run, shared, "s2r", start="dream", block=config.s2r, world="real")
            rows.append("s2r")
        if config.real_only.iterations:
            say("   real only: the same loop in the real environment from the warm start, a large budget")
            practise(run, shared, "real_only", start="warm", block=config.real_only, world="real")
            rows.append("real_only")
        say("6/7 evaluation: held-out tasks in the real environment, the same for every row")
        judge_policies(run, shared, rows)
        say("7/7 audit: dreams of the trained policy, replayed in the real environment")
        audit(run, shared, "dream")
        for ablation in config.ablations:
            say(f"   ablation: the dream without {ablation}, from the same warm start at the same budget")
            reduced, block = shared.without(ablation), config.dream.without(ablation)
            fitting.train_experience(run, reduced)
            practise(run, reduced, f"dream-no-{ablation}", start="warm", block=block, world="dream")
            judge_policies(run, shared, [f"dream-no-{ablation}"])
        summary = summarise(run, config, budget)
        run.write_summary(summary)
        require_work(run, config)
    return summary


def summarise(run: RunDir, config: RunConfig, budget: str) -> dict[str, Any]:
    """summary.json: one entry per row of the table, real transitions by kind, and the audit."""
    ablations = {ablation: results.ablation(run, ablation) for ablation in config.ablations}
    about = results.about(run, [config.seed]) | {"budget": budget}
    return results.table(run, ROWS) | {"ablations": ablations, "audit": run.data("audit"), "experience": run.data("experience")} | about


def pooled(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Several seeds as one summary: episodes pooled, with each seed's own value beside them."""
    rows: dict[str, Any] = {row: results.pool([summary[row] for summary in summaries]) for row in ROWS}
    last = summaries[-1]
    rows["ablations"] = {name: results.pool([summary["ablations"][name] for summary in summaries]) for name in last["ablations"]}
    return rows | {
        "audit": [summary["audit"] for summary in summaries],
        "seeds": [seed for summary in summaries for seed in summary["seeds"]],
        "commit": ", ".join(dict.fromkeys(summary["commit"] for summary in summaries)),
        "budget": last["budget"],
        "peak_rss_mb": max(summary["peak_rss_mb"] for summary in summaries),
    }


def require_work(run: RunDir, config: RunConfig) -> None:
    """Fail when a phase ran without doing its job: a quickstart that only looks alive is worse than one that stops."""
    dream = run.data("dream")
    problems = []
    if config.dream.iterations and not had_gradient(run, "dream"):
        problems.append("no dream iteration had a gradient: every group was all success or all failure")
    if config.dream.iterations and not dream["replay"]["dream"]:
        problems.append("the replay buffer did not grow: no dreamed transition passed the guard")
    invents = config.dream.curriculum.strategy == "variance" and config.dream.curriculum.synthetic_share
    if invents and config.dream.iterations and not dream["curriculum"].get("proposed"):
        problems.append("the curriculum proposed nothing: no group had any variance of returns")
    if config.dream.probe_every and dream["iterations"] >= config.dream.probe_every and not dream["probe_steps"]:
        problems.append("the gap meter never probed the real environment")
    if problems:
        raise InvariantError(f"'{run.path}' finished, but " + "; ".join(problems) + f". Look at {run.path}/metrics.jsonl.")
