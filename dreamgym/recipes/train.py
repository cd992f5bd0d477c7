"""`dreamgym train`: one policy, in the dream, in the real environment, in one after the other, or in both at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dreamgym import config as configuration
from dreamgym.errors import InvariantError, UsageError
from dreamgym.recipes import fitting, parts, results
from dreamgym.recipes.config import RLBlock, TrainConfig, World
from dreamgym.recipes.evaluation import audit, judge_policies
from dreamgym.recipes.practice import had_gradient, practise
from dreamgym.runlog import CONFIG, RunDir

ROWS = ("warm_start", "dream", "s2r", "real_only", "mixed")
Loop = tuple[str, str, RLBlock, World]
"""The name of a loop and of the policy it makes, the policy it starts from, its settings, and where it collects."""


def settings(path: Path, file: Path | None, overrides: Sequence[str]) -> TrainConfig:
    """The configuration of a run: a file's, else the one that the run at `path` was made with, else the defaults; then `overrides`.

    UsageError where another command made that run.
    """
    changes = configuration.assignments(overrides)
    stored = path / CONFIG
    if stored.exists() and not file and "mode" not in configuration.parse(stored):
        raise UsageError(
            f"'{path}' is the run of another command, such as `dreamgym quickstart`. Give `dreamgym train` a directory of its own."
        )
    if file or stored.exists():
        return configuration.read(TrainConfig, file or stored, changes)
    return configuration.resolve(TrainConfig, configuration.merge({}, changes), where="the overrides")


def run(config: TrainConfig, path: Path, *, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All phases in one run directory; returns its summary. The same call on the same directory goes on where it was interrupted."""
    parts.quiet()
    with parts.open_run(path, config) as directory, parts.hire(config.env) as workers:
        parts.sign(directory)
        say("logs: " + (", ".join(map(str, config.logs.files)) or "scripted behaviours in the real environment"))
        shared = fitting.gather(directory, config, workers)
        if config.dreams:
            say("experience model: " + ("an instruct model, asked" if config.dreamer else "whole logged trajectories (Eq. 5)"))
            fitting.train_experience(directory, shared)
        say("warm start: " + ("the policy imitates the successful logs" if config.policy.warm_start else "none, the backbone as it came"))
        fitting.warm_start(directory, shared, start="experience" if config.start == "experience" else "tokenizer")
        for name, start, block, world in loops(config):
            say(f"{name}: {block.algorithm.name}, {block.iterations} iterations, {WHERE[world]}")
            practise(directory, shared, name, start=start, block=block, world=world)
        names = [name for name, *_ in loops(config)]
        say("evaluation: held-out tasks in the real environment")
        judge_policies(directory, shared, ["warm", *names])
        if config.mode != "real" and config.eval.paired:
            audit(directory, shared, names[0])
        summary = results.table(directory, ROWS) | {"ablations": {}, **results.about(directory, [config.seed]), "budget": config.mode}
        if directory.done("audit"):
            summary["audit"] = directory.data("audit")
        directory.write_summary(summary)
        _require_work(directory, config)
    return summary


WHERE = {"dream": "in the dream", "real": "in the real environment", "mixed": "in the dream and the real environment"}


def loops(config: TrainConfig) -> list[Loop]:
    """The calls of the loop that a mode stands for, in order."""
    if config.mode == "real":
        return [("real_only", "warm", config.rl, "real")]
    if config.mode == "mixed":
        return [("mixed", "warm", config.rl, "mixed")]
    dream: Loop = ("dream", "warm", config.rl, "dream")
    return [dream] if config.mode == "dream" else [dream, ("s2r", "dream", config.s2r.after(config.rl), "real")]


def _require_work(directory: RunDir, config: TrainConfig) -> None:
    """Fail when the first loop never moved the policy. A later one may find nothing left to learn."""
    name, _, block, _ = loops(config)[0]
    if block.iterations and not had_gradient(directory, name):
        raise InvariantError(
            f"'{directory.path}' finished, but no iteration of '{name}' had a gradient: the rollouts of every task ended alike. "
            f"Give it a better warm start, easier tasks or more iterations, and look at {directory.path}/metrics.jsonl."
        )
