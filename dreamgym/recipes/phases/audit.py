"""The audit of a dream: its episodes under the trained policy, replayed in the real environment."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from dreamgym.evals.attribution import Attribution, decided_json
from dreamgym.evals.bound import measure
from dreamgym.evals.determined_steps import determined_accuracy
from dreamgym.evals.paired_replay import Fidelity, by_support, compare, masked_episodes, paired_episodes, summarise
from dreamgym.evals.revisit_consistency import revisit_rate
from dreamgym.evals.success import evaluate
from dreamgym.evals.synthetic_tasks import measure_synthetic_tasks
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.verifier_audit import verifiers_json
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Task, Trajectory


def audit(run: RunDir, context: RunContext, name: str) -> None:
    """Paired replay of fresh dreams under the trained policy: with the guard, without it, and in the control without a model."""
    if run.done("audit") or "audit" in context.skipped:
        return
    block = context.config.eval
    tasks = trained_on(run, context, name, block.paired_replays)
    record: dict[str, Any] = {"policy": name}
    for arm, measured, episodes in replay_arms(after(run, context, name), name, tasks, seed=block.seed):
        record[arm] = measured
        run.episodes(f"audit-{arm}", episodes[:40], completions=False)
    run.mark("audit", record | _synthetic_tasks_json(context, run.data(name), tasks))


def replay_arms(
    context: RunContext, name: str, tasks: Sequence[Task], *, seed: int, done: Collection[str] = ()
) -> Iterator[tuple[str, dict[str, Any], list[Trajectory]]]:
    """Fresh dreams of the policy `name`, one a task, repeated in the real environment: by arm, the measures and the episodes.

    The arms are the dream with the guard, without it, and the control without a model, with the guard; those in `done` are left out.
    """
    agent = context.agent(context.load_policy(name))
    control = context.without("model") if "k" in context.config.experience.settings else None
    arms = {"with_guard": (context, True), "without_guard": (context, False)} | ({"no_model": (control, True)} if control else {})
    for arm, (of, guarded) in arms.items():
        if arm in done:
            continue
        dream, experience = factory.make_dream(of, factory.replay_in_memory(of), guarded=guarded)
        episodes = evaluate(agent, dream, tasks, max_steps=context.suite.max_steps, temperature=1.0, seed=seed, name=f"audit/{arm}")
        pairs = paired_episodes(episodes, context.real_env())
        cut = dream.horizon if dream.horizon < context.suite.max_steps else None
        replays = [compare(dreamed, real, answered_by=experience.answers_by, horizon=cut) for dreamed, real in pairs]
        left_out = masked_episodes(episodes, context.real_env())
        context.close_real()
        steps = [step.info for episode in episodes for step in episode.transitions]
        counts = {"unreadable": experience.counts["unreadable"], "masked": sum(episode.masked for episode in episodes)}
        measured = (
            fidelity_json(summarise(replays, left_out))
            | {name: fidelity_json(part) | {"share": asdict(share)} for name, (part, share) in by_support(replays, left_out).items()}
            | counts
            | _partial_observability_json(context, experience, episodes)
            | {
                "bound": measure(replays, left_out=len(episodes) - len(replays)).to_json(),
                "decided_by": decided_json(steps, [step for replay in replays for step in replay.judged]),
                "real_steps": sum(replay.steps for replay in [*replays, *left_out]),
            }
        )
        if not guarded and (verifiers := verifiers_json(of, pairs)):
            measured |= {"verifiers": verifiers}
        yield arm, measured, episodes


def trained_on(run: RunDir, context: RunContext, phase: str, n: int) -> list[Task]:
    """At most `n` tasks like those that an RL phase drew from: what its policy dreams is measured on them."""
    return factory.training_tasks(context, n, logged=run.data(phase).get("logged_tasks", False))


def after(run: RunDir, context: RunContext, phase: str) -> RunContext:
    """The context with the experience model and the verifier as an RL phase left them."""
    record = run.data(phase)
    return replace(
        context,
        experience_checkpoint=record.get("dreams_with", context.experience_checkpoint),
        verifier_checkpoint=record.get("judged_with", context.verifier_checkpoint),
    )


def _synthetic_tasks_json(context: RunContext, phase: dict[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """Whether the curriculum's synthetic tasks are new and can be done, where the suite can tell and some were accepted."""
    if not context.suite.can_ground_tasks or not phase.get("synthetic_tasks"):
        return {}
    measured = measure_synthetic_tasks(phase["curriculum"], phase["synthetic_tasks"], tasks, context.suite, context.demonstrate)
    return {"synthetic_tasks": asdict(measured)}


def _partial_observability_json(context: RunContext, model: ExperienceModel, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Measures of a partially observed world: whether dreamed places stay as they were, and whether the model knows what follows from what
    was seen.

    The latter is asked of real episodes by the usual scripted policy; of none where the suite has no scripted policies.
    """
    rules, block, policies = context.suite.rules, context.config.eval, context.suite.scripted_policies
    if not rules.partially_observed:
        return {}
    real: list[Trajectory] = []
    if policies:
        tasks = context.suite.tasks("dev", min(64, block.dev_tasks), seed=factory.TASK_SEED)
        usual = max(policies, key=lambda name: policies[name])
        real = context.demonstrate([(task, usual, 0) for task in tasks])
    steps = sum(len(episode.turns) for episode in real)
    return {
        "revisits": {"faithful": asdict(revisit_rate(episodes, rules))},
        "determined": {"exact": asdict(determined_accuracy(model, real, rules))},
        "determined_real_steps": steps,
    }


def attribution(episodes: Sequence[Trajectory]) -> Attribution:
    """What decided the steps of dreamed episodes."""
    decided = Attribution()
    decided.add(step.info for episode in episodes for step in episode.transitions)
    return decided


def fidelity_json(measured: Fidelity) -> dict[str, Any]:
    """A Fidelity as nested plain values."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(measured)))
    return plain | {"gap": measured.gap, "accepted_false": asdict(measured.accepted_false)}
