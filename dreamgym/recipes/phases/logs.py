"""The logs that everything starts from: scripted or recorded episodes, without held-out tasks, and the tokenizer of their texts."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dreamgym import exec as executors
from dreamgym.engines import check_engine
from dreamgym.envs.base import EnvSuite, in_split, with_reasoning
from dreamgym.envs.induction import induce, to_toml
from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.envs.wrappers.induced_rules import shown_by
from dreamgym.errors import InvariantError
from dreamgym.experience import fitted_models
from dreamgym.experience.dataset import up_to
from dreamgym.llm import backbones, tiny
from dreamgym.llm.sizes import parameters
from dreamgym.logs.demonstrations import collect
from dreamgym.policy.loading import check_policy, check_publication
from dreamgym.recipes import factory, inputs, plan
from dreamgym.recipes.arms import OFFLINE_ARMS
from dreamgym.recipes.blocks import EvalConfig
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.context import INDUCED, RunContext, drop_too_long, induced_rules, logs_of_run
from dreamgym.recipes.phases.warm_start import check_demonstrations
from dreamgym.recipes.recorded import require_logs, tools_lacking
from dreamgym.runs.episodes import read_trajectories
from dreamgym.runs.files import require_space
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Trajectory, Turn

log = logging.getLogger(__name__)
HELD_OUT = "held-out"
"""The name of a run's episodes that nothing learns from."""
BYTES_A_PARAMETER = 20  # float32 weights before and after a phase, the copy that replaces a checkpoint, and Adam's two moments


def prepare_logs(
    run: RunDir,
    config: SharedConfig,
    workers: WorkerPool | None = None,
    suite: EnvSuite | None = None,
    tokenizer: Any = None,
) -> RunContext:
    """Offline trajectories, and the tokenizer of their texts. `workers` are what `factory.start_workers` gives for the configuration, and
    `suite` is what `factory.checked_suite` gives, where it was called already, and `tokenizer` one that several runs share.

    ConfigError for settings that cannot be right in this environment.
    """
    if config.env.workers and workers is None:
        raise InvariantError(
            f"env.workers = {config.env.workers}, and no workers were started. Use `factory.start_workers(config.effective_env)`."
        )
    backbones.device(config.model.device)  # a GPU that is not here is told before anything is made
    config = inputs.located(config, run.path)
    suite = suite or factory.checked_suite(config)
    if run.summary() is None:
        check_models(run, config, suite)
    if not run.done("logs"):
        _write_logs(run, config, suite, workers)
        config = inputs.located(config, run.path)
    logs = logs_of_run(run)
    if run.summary() is None:
        factory.check_reasoning(config, explained=any(step.info.reasoning for episode in logs for step in episode.transitions))
    if config.rules == "induced":
        if not (run.path / INDUCED).exists():
            run.write_atomic(INDUCED, to_toml(induce(logs, shown_by(suite.rules), suite.rules.without_actions)))
        suite.rules = induced_rules(run.path, suite.rules)
    path = run.path / "checkpoints" / "tokenizer"
    if not run.done("tokenizer"):
        tokenizer = tokenizer or factory.learn_tokenizer(logs, suite.rules, config.model.vocab_size)
        tiny.save(tiny.build(tokenizer, config.model.size, seed=config.seed), tokenizer, path)
        run.mark("tokenizer", {"vocabulary": len(tokenizer)})
    run.require_unchanged("tokenizer")
    tokenizer = tiny.load(path)[1]
    logs = drop_too_long(logs, tokenizer, config)
    context = RunContext(config, run.path, suite, logs, tokenizer, factory.make_vocabulary(tokenizer), workers=workers)
    if run.summary() is None and not run.done("warm_start"):
        factory.check_unfitted_verifier(context)
        if imitates(config):
            check_demonstrations(context)
    return context


def imitates(config: SharedConfig) -> bool:
    """Whether a policy of the run is fitted to the successful logs."""
    sft, arms = getattr(config, "sft", None), getattr(config, "arms", OFFLINE_ARMS)
    return bool(config.warm_start.epochs or (sft and sft.epochs and set(arms) & set(OFFLINE_ARMS)))


def check_models(run: RunDir, config: SharedConfig, suite: EnvSuite) -> None:
    """Refuse what cannot work before hours are spent: models that do not load or do not fit into memory or onto the disk, servers that do
    not answer or do not take weights, workers that do not start."""
    if config.exec:
        executors.try_out(config.exec)
    for temperature in temperatures(config):
        trained = check_policy(config.policy, suite.rules, device=config.model.device, temperature=temperature)
    experience, verifier = config.experience, config.experience.verifier
    if experience.backbone and config.dreams:
        trained += fitted_models.check_backbone(experience.backbone, experience.settings["engine"])
    plan.require_memory(config)
    require_space(run.path, BYTES_A_PARAMETER * (trained + parameters(config.model.size, config.model.vocab_size)))
    if not experience.fitted and (engine := experience.settings.get("engine")):
        check_engine(engine, where="experience.engine")
    if verifier and (engine := verifier.settings.get("engine")):
        check_engine(engine, where="experience.verifier.engine")
    check_publication(config.policy, run.path / "checkpoints" / "served")


def _write_logs(run: RunDir, config: SharedConfig, suite: EnvSuite, workers: WorkerPool | None) -> None:
    """Read or collect the logs, hold some out, and keep both in the run."""
    held_inputs = inputs.take(run, config, suite)
    files, began = config.logs.files or suite.log_files, time.monotonic()
    logs = sized(read_logs(files, suite), config) if files else offline(suite, config, workers)
    waited = 0.0 if files else time.monotonic() - began  # scripted policies take next to none of it
    if files:
        warn_of_unknown_tasks(logs, suite)
    if doubts := suite.doubts(logs):
        log.warning("%s", doubts)
    divided = without_held_out(logs, suite, config)
    run.episodes(HELD_OUT, divided.held_out)
    run.episodes("logs", divided.training)
    wins = sum(t.success for t in divided.training)
    if not wins:
        raise InvariantError("No logged trajectory succeeds, so there is nothing to start a policy from. Collect more, or better ones.")
    if not suite.has_env and config.eval.tasks not in (0, EvalConfig().tasks):
        log.warning(
            "eval.tasks = %d is not used: there is no environment to evaluate a policy in. Fidelity is measured on recorded episodes of "
            "eval.dev_tasks = %d tasks. Set eval.tasks = 0.",
            config.eval.tasks,
            config.eval.dev_tasks,
        )
    unscored = sum(not t.scored for t in divided.training)
    record = {
        "trajectories": len(divided.training),
        "transitions": sum(len(t.turns) for t in divided.training),
        "successes": wins,
        "held_out": len(divided.held_out),
        "real_seconds": waited,
        "held_out_by": divided.by,
        "has_env": suite.has_env,
        "inputs": held_inputs,
        "behaviours": len({t.behaviour for t in divided.training}),
        **({"unscored": unscored} if unscored else {}),
        **({"workers_replaced": workers.restarts} if workers else {}),
    }
    run.mark("logs", record)


def temperatures(config: SharedConfig) -> list[float]:
    """The temperatures at which the loops of a run sample actions to learn from; 1 where it has no loop."""
    return sorted({loop.block.learner.temperature for loop in plan.loops_of(config) if loop.block.iterations}) or [1.0]


@dataclass(frozen=True)
class DividedLogs:
    """Episodes to learn from, and those that nothing may learn from, which are told apart by their task or one by one."""

    training: list[Trajectory]
    held_out: list[Trajectory]
    by: Literal["task", "episode"]


def without_held_out(logs: Sequence[Trajectory], suite: EnvSuite, config: SharedConfig) -> DividedLogs:
    """The logs without episodes on tasks that policies and dreams will be judged by.

    Without an environment, fidelity is measured on those episodes alone. Where none of them is on a held-out task, because few tasks were
    recorded often, the share of a development split is held out by the episodes' ids.
    """
    held = list(map(factory.held_out_test(suite, config), (episode.task for episode in logs)))
    by: Literal["task", "episode"] = "task"
    if not suite.has_env and not any(held):
        held, by = [in_split(episode.id, "dev") for episode in logs], "episode"
    if gone := sum(held):
        why = "on held-out tasks" if by == "task" else "held out by their ids, because no held-out task was recorded"
        log.warning("%d of %d logged episodes are %s. They are left out.", gone, len(logs), why)
    sides = [[episode for episode, out in zip(logs, held, strict=True) if out == side] for side in (False, True)]
    return DividedLogs(sides[0], sides[1], by)


def warn_of_unknown_tasks(logs: Sequence[Trajectory], suite: EnvSuite) -> None:
    """Say which recorded tasks the suite cannot tell from held-out ones."""
    tasks = {episode.task.id: episode.task for episode in logs}
    if unknown := sorted(name for name, task in tasks.items() if not suite.knows_task(task)):
        log.warning(
            "%d of %d logged tasks, such as '%s', cannot be told from held-out ones: the environment '%s' lists no such task, or several "
            "with this instruction. They may be both trained and measured on. Give recorded tasks the ids that the environment knows.",
            len(unknown),
            len(tasks),
            unknown[0],
            suite.name,
        )


def read_logs(files: Sequence[Path], suite: EnvSuite) -> list[Trajectory]:
    """The episodes of files as logs: whoever acted, they are demonstrations now, without tokens of their own.

    A step without reasoning is explained by the suite's scripted teacher. UsageError for what cannot be logs (`require_logs`),
    and for a file of tools that lacks theirs (`tools_lacking`).
    """
    file_episodes = [(file, episode) for file in files for episode in read_trajectories(file)]
    require_logs(file_episodes, suite.name)
    logged = [with_reasoning(suite.recorded(episode), suite.rules, keep=True) for _, episode in file_episodes]
    tools_lacking(logged, suite)
    return [replace(episode, source="demo", turns=tuple(Turn(step) for step in episode.transitions)) for episode in logged]


def offline(suite: EnvSuite, config: SharedConfig, workers: WorkerPool | None) -> list[Trajectory]:
    """Scripted offline trajectories: as many as are asked for, or as hold so many transitions."""
    play, logs = workers.demonstrate if workers else None, config.logs
    return sized(collect(suite, logs.trajectories, seed=config.seed, tasks=logs.tasks, mix=logs.mix, play=play), config)


def sized(logs: list[Trajectory], config: SharedConfig) -> list[Trajectory]:
    """The first of the logs, as many as hold `logs.transitions`; all of them where that is not set."""
    return up_to(logs, config.logs.transitions) if config.logs.transitions else logs
