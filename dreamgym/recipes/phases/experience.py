"""Fitting the experience model to the logs (Eq. 5)."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dreamgym import plugins
from dreamgym.evals.one_step import draw_questions, forecast
from dreamgym.experience import memory_answers
from dreamgym.experience.augmentation import insert_invalid_actions, near_miss_goals_of, relabel_goals
from dreamgym.experience.dataset import ExperienceRow, Variation, difficulty_levels, task_variations
from dreamgym.experience.memory_answers import ValidationStep
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.fit import finish, fit
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Prediction, Task, Trajectory

log = logging.getLogger(__name__)
MOST_VALIDATED = 60
"""Logged tasks that are held out for `experience.validation_share`, at most: more would say little more."""


def train_experience(run: RunDir, context: RunContext) -> None:
    """Eq. 5: fit the experience model to the logs, with memories retrieved as at inference; and its verifier, where that is fitted."""
    fit_verifier(run, context)
    name, training = context.experience_checkpoint, context.config.experience.training
    if run.done(name) or training is None:
        return
    training_logs, validation = validation_split(context)
    fitted = replace(context, logs=training_logs)
    rows = experience_rows(fitted, factory.replay_in_memory(fitted))
    model = context.load_experience_model("tokenizer")
    ids, weights, segments = [row.ids for row in rows], [row.weights for row in rows], [row.segments for row in rows]
    losses = fit(run, name, model, ids, weights, training, seed=context.config.seed, segments=segments)
    context.save_experience_model(model, name)
    del model
    if validation:
        run.mark(factory.validation_phase(name), compare_with_memory(fitted, validation))
    finish(run, name, losses | {"sequences": len(rows), "tokens": sum(len(row) for row in ids)})


def validation_split(context: RunContext) -> tuple[list[Trajectory], list[Trajectory]]:
    """The logs that the model is fitted to, and those on `experience.validation_share` of the tasks. The same run divides them alike."""
    share = context.config.experience.settings.get("validation_share", 0.0)
    keys = sorted({context.suite.task_key(trajectory.task) for trajectory in context.logs})
    random.Random(f"validation/{context.config.seed}").shuffle(keys)
    held = set(keys[: min(MOST_VALIDATED, round(share * len(keys)))])
    sides: tuple[list[Trajectory], list[Trajectory]] = [], []
    for trajectory in context.logs:
        sides[context.suite.task_key(trajectory.task) in held].append(trajectory)
    return sides


def compare_with_memory(context: RunContext, validation: Sequence[Trajectory]) -> dict[str, Any]:
    """`memory_answers.account` of the fitted model, greedy, and of the control without a model, on the steps of validation
    episodes that neither a rule nor a precedent answers. `context` has the logs that the model was fitted to."""
    rules = context.suite.rules
    questions, _ = draw_questions(validation, None, rules, misses=0.0, seed=context.config.seed)
    block = context.config.experience
    alone = block.model_copy(update={"temperature": 0.0, "validation_share": 0.0})
    likeliest = replace(context, config=context.config.model_copy(update={"experience": alone}))
    replay, predictions = factory.replay_in_memory(context), list[list[Prediction]]()
    for arm in (likeliest, context.without("model")):
        _, model = factory.make_dream(arm, replay, guarded=False)
        predictions.append(forecast(model, questions, forget=model.forget))
    right = [[one.next_state == q.truth.next_state for q, one in zip(questions, side, strict=True)] for side in predictions]
    steps = [
        ValidationStep(q.query.stream[1], q.kind, by_model and not one.info.has_verdict("unreadable"), by_memory)
        for q, one, by_model, by_memory in zip(questions, predictions[0], *right, strict=True)
        if one.info.decided_by == "generated"
    ]
    logged = [step for trajectory in (*context.logs, *validation) for step in trajectory.transitions]
    paying = {rules.action_kind(step.state, step.action) for step in logged if step.reward or step.terminated}
    return memory_answers.account(steps, paying)


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
