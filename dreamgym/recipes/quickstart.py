"""The quickstart: every phase in order, the results table, and the checks that no phase did nothing."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dreamgym import config as configuration
from dreamgym.errors import ConfigError, InvariantError, nearest
from dreamgym.evals.success import wilson
from dreamgym.recipes import parts, phases
from dreamgym.recipes.config import RunConfig
from dreamgym.runlog import RunDir

ROWS = ("warm_start", "sft", "dream", "s2r", "real_only")
ANCESTRY: dict[str, tuple[str, ...]] = {"warm": (), "sft": (), "s2r": ("dream", "s2r")}
"""The loops that made a policy, where that is not the loop of its own name alone."""
CHECKPOINTS = {"warm_start": "warm", "sft": "sft", "dream": "dream", "s2r": "s2r", "real_only": "real_only"}
RUNS = {"small": "quickstart-small", "default": "quickstart", "full": "quickstart-full"}


def budget_config(budget: str, env: str = "webshop") -> RunConfig:
    """The settings of a budget: small (minutes), default (under half an hour) or full (three seeds and the baselines); see `run_name`."""
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
    with RunDir.open(path / "all", configuration.dump(config)) as run:
        summary = pooled(summaries)
        run.write_summary(summary)
    return summary


def run_one(config: RunConfig, path: Path, *, budget: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All phases of one seed in one run directory. The same call on the same directory resumes."""
    from transformers.utils import logging as hub_logging

    hub_logging.disable_progress_bar()  # ours say what is being done; theirs would say that a small file was read
    with RunDir.open(path, configuration.dump(config)) as run:
        _sign(run)
        say("1/7 logs: scripted behaviours of mixed skill in the real environment")
        shared = phases.gather(run, config)
        say("2/7 experience model: reasoning, next state, reward and end, from whole logged trajectories (Eq. 5)")
        phases.train_experience(run, shared)
        say("3/7 warm start and converged SFT: the policy imitates the successful logs")
        phases.warm_start(run, shared)
        phases.converge_sft(run, shared)
        say(f"4/7 dream: {config.dream.algorithm.name} inside the experience model, without one real training step")
        phases.practise(run, shared, "dream", start="warm", block=config.dream, dreaming=True)
        rows = ["warm", "sft", "dream"]
        if config.s2r.iterations:
            say("5/7 sim-to-real: the same loop in the real environment, a small budget")
            phases.practise(run, shared, "s2r", start="dream", block=config.s2r, dreaming=False)
            rows.append("s2r")
        if config.real_only.iterations:
            say("   real only: the same loop in the real environment from the warm start, a large budget")
            phases.practise(run, shared, "real_only", start="warm", block=config.real_only, dreaming=False)
            rows.append("real_only")
        say("6/7 evaluation: held-out tasks in the real environment, the same for every row")
        phases.judge_policies(run, shared, rows)
        say("7/7 audit: dreams of the trained policy, replayed in the real environment")
        phases.audit(run, shared, "dream")
        for ablation in config.ablations:
            say(f"   ablation: the dream without {ablation}, from the same warm start at the same budget")
            reduced = shared.without(ablation)
            phases.train_experience(run, reduced)
            phases.practise(run, reduced, f"dream-no-{ablation}", start="warm", block=reduced.config.dream, dreaming=True)
            phases.judge_policies(run, shared, [f"dream-no-{ablation}"])
        summary = summarise(run, config, budget)
        run.write_summary(summary)
        require_work(run, config)
    return summary


def _sign(run: RunDir) -> None:
    """Note the commit that works on the run. A resume at another commit adds its own; looking at a finished run adds none."""
    commits = run.data("process")["commits"] if run.done("process") else []
    if run.summary() is None or not commits:
        run.mark("process", {"commits": list(dict.fromkeys([*commits, parts.commit()]))})


def summarise(run: RunDir, config: RunConfig, budget: str) -> dict[str, Any]:
    """summary.json: one entry per row of the table, real transitions by kind, and the audit."""
    offline = run.data("logs")["transitions"]
    rows: dict[str, Any] = {row: _row(run, row, offline) for row in ROWS}
    audit = run.data("audit")
    if rows["dream"]:
        watched = audit["with_guard"]
        rows["dream"] |= {
            "dream_success": watched["dream_success"]["value"],
            "false_success": watched["false_success"]["value"],
            "false_failure": watched["false_failure"]["value"],
        }
    return rows | {
        "ablations": {ablation: _row(run, f"dream-no-{ablation}", offline) for ablation in config.ablations},
        "audit": audit,
        "experience": run.data("experience"),
        "seeds": [config.seed],
        "commit": ", ".join(run.data("process")["commits"]),
        "budget": budget,
        "peak_rss_mb": max((run.summary() or {}).get("peak_rss_mb", 0.0), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _row(run: RunDir, row: str, offline: int) -> dict[str, Any] | None:
    """One policy: success, what it cost in real and dreamed transitions along its whole ancestry, and seconds."""
    name = CHECKPOINTS.get(row, row)
    if not run.done(f"eval-{name}"):
        return None
    judged = run.data(f"eval-{name}")
    loops = {loop: run.data(loop) for loop in ANCESTRY.get(name, (name,))}
    own = [f"experience-{name.removeprefix('dream-')}"] if name.startswith("dream-no-") else []
    fitted = ["experience", "sft" if name == "sft" else "warm", *filter(run.done, own)]
    probes = sum(loop["probe_steps"] for loop in loops.values()) + (run.data("sft")["real_steps_dev"] if name == "sft" else 0)
    return {
        "real_success": judged["greedy"]["value"],
        "ci95": [judged["greedy"]["low"], judged["greedy"]["high"]],
        "sampled": judged["sampled"],
        "episodes": judged["greedy"]["n"],
        "real_transitions_offline": offline,
        "real_transitions_online": sum(loop["steps"] for name, loop in loops.items() if not name.startswith("dream")),
        "real_transitions_probe": probes,
        "dream_transitions": sum(loop["steps"] for name, loop in loops.items() if name.startswith("dream")),
        "seconds": sum(run.data(phase)["seconds"] for phase in fitted) + sum(loop["seconds"] for loop in loops.values()),
    }


def pooled(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Several seeds as one summary: episodes pooled, with each seed's own value beside them."""
    rows: dict[str, Any] = {}
    for row in ROWS:
        found = [summary[row] for summary in summaries]
        rows[row] = None if any(entry is None for entry in found) else _pool_row(found)
    last = summaries[-1]
    rows["ablations"] = {name: _pool_row([summary["ablations"][name] for summary in summaries]) for name in last["ablations"]}
    return rows | {
        "audit": [summary["audit"] for summary in summaries],
        "seeds": [seed for summary in summaries for seed in summary["seeds"]],
        "commit": last["commit"],
        "budget": last["budget"],
        "peak_rss_mb": max(summary["peak_rss_mb"] for summary in summaries),
    }


def _pool_row(found: list[dict[str, Any]]) -> dict[str, Any]:
    n = sum(entry["episodes"] for entry in found)
    wins = sum(round(entry["real_success"] * entry["episodes"]) for entry in found)
    sampled = wilson(sum(round(e["sampled"]["value"] * e["sampled"]["n"]) for e in found), sum(e["sampled"]["n"] for e in found))
    rate = wilson(wins, n)
    counts: dict[str, Any] = {
        key: sum(entry[key] for entry in found) / len(found) for key in found[0] if key.startswith(("real_trans", "dream_trans", "seconds"))
    }
    rates: dict[str, Any] = {
        key: sum(entry[key] for entry in found) / len(found)
        for key in ("dream_success", "false_success", "false_failure")
        if key in found[0]
    }
    return {
        "real_success": rate.value,
        "ci95": [rate.low, rate.high],
        "sampled": {"value": sampled.value, "low": sampled.low, "high": sampled.high, "n": sampled.n},
        "per_seed": [entry["real_success"] for entry in found],
        "per_seed_sampled": [entry["sampled"]["value"] for entry in found],
        "episodes": n,
        **counts,
        **rates,
    }


def require_work(run: RunDir, config: RunConfig) -> None:
    """Fail when a phase ran without doing its job: a quickstart that only looks alive is worse than one that stops."""
    lines = [line for line in run.read_jsonl("metrics.jsonl") if line["phase"] == "dream"]
    dream = run.data("dream")
    problems = []
    if config.dream.iterations and not any(line.get("grad_norm", 0) > 0 for line in lines):
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
