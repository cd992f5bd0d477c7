"""Fitting the experience model to the logs (Eq. 5)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from dreamgym import plugins
from dreamgym.experience.augmentation import insert_invalid_actions, near_miss_goals_of, relabel_goals
from dreamgym.experience.dataset import ExperienceRow, Variation, difficulty_levels, task_variations
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.fit import finish, fit
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Task

log = logging.getLogger(__name__)


def train_experience(run: RunDir, context: RunContext) -> None:
    """Eq. 5: fit the experience model to the logs, with memories retrieved as at inference; and its verifier, where that is fitted."""
    fit_verifier(run, context)
    name, training = context.experience_checkpoint, context.config.experience.training
    if run.done(name) or training is None:
        return
    rows = experience_rows(context, factory.replay_in_memory(context))
    model = context.load_experience_model("tokenizer")
    ids, weights, segments = [row.ids for row in rows], [row.weights for row in rows], [row.segments for row in rows]
    losses = fit(run, name, model, ids, weights, training, seed=context.config.seed, segments=segments)
    context.save_experience_model(model, name)
    finish(run, name, losses | {"sequences": len(rows), "tokens": sum(len(row) for row in ids)})


def fit_verifier(run: RunDir, context: RunContext) -> None:
    """The phase `verifier`: fit the plug-in that gives the second opinion to the logs, where it has a `fit`."""
    block, name = context.config.experience.verifier, context.verifier_checkpoint
    fitting = getattr(plugins.load("experience.verifiers", block.name), "fit", None) if block else None
    if run.done(name) or block is None or fitting is None:
        return
    start = time.monotonic()
    record = fitting(factory.verifier_inputs(context), **block.settings)
    for message in record.get("messages", ()):
        log.warning("%s", message)
    run.mark(name, {**record, "seconds": time.monotonic() - start})


def experience_rows(context: RunContext, replay: ReplayBuffer) -> list[ExperienceRow]:
    """Training rows of the experience model: the logs, the logs under other goals, and task variations."""
    config, rules = context.config, context.suite.rules
    tasks = list({t.task.instruction: t.task for t in context.logs}.values())
    sound = [trajectory for trajectory in context.logs if trajectory.turns and trajectory.error is None]
    other = relabel_goals(sound, rules, tasks, config.logs.relabelled_goals, config.seed)
    near = near_miss_goals_of(sound, rules, config.logs.near_miss_goals, config.seed)
    if config.logs.invalid_actions:
        sound = insert_invalid_actions(sound, rules, config.logs.invalid_actions, config.seed)
    builder = factory.row_builder(context, replay)
    return builder.episodes([*sound, *other, *near]) + builder.tasks(_variations(context, tasks))


def _variations(context: RunContext, tasks: Sequence[Task]) -> list[Variation]:
    """Training examples of M_task, as the experience model will be asked."""
    config, settings = context.config, context.config.experience.settings
    levels = difficulty_levels(context.logs) if settings.get("task_levels") else None
    return task_variations(tasks, config.logs.task_pairs, config.seed, seeds=settings.get("seeds_per_prompt", 1), levels=levels)
