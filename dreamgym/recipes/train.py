"""`dreamgym train`: one policy, in the dream, in the real environment, in one after the other, or in both at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.envs.base import EnvSuite
from dreamgym.errors import InvariantError, counted
from dreamgym.evals import held_out, next_actions
from dreamgym.experience import memory_answers, recall
from dreamgym.recipes import context, early_stops, inputs, masking, plan, tables
from dreamgym.recipes.arms import RL_ARMS
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.factory import start_workers, validation_phase
from dreamgym.recipes.fidelity import measure_recorded
from dreamgym.recipes.gains import gains
from dreamgym.recipes.label import labelled
from dreamgym.recipes.phases.audit import audit
from dreamgym.recipes.phases.evaluate import evaluate_policies
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.gap import measure_gap
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.next_actions import measure_next_actions
from dreamgym.recipes.phases.rl import failures, had_gradient, run_rl_phase
from dreamgym.recipes.phases.uncertified import dream_uncertified, repeat_recorded
from dreamgym.recipes.phases.warm_start import warm_start
from dreamgym.runs.rundir import RunDir


def run(
    config: TrainConfig, path: Path, *, suite: EnvSuite | None = None, tokenizer: Any = None, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """All phases in one run directory; returns its summary. The same call on the same directory goes on where it was interrupted.

    `suite` is what `factory.checked_suite` gives, where it was called already, and `tokenizer` one that several runs share.
    """
    context.silence_progress_bars()
    opened = context.open_run(path, config, given=suite is None)
    with opened as directory, start_workers(inputs.located(config, path).effective_env, suite) as workers:
        context.record_commit(directory)
        context.report_changed_settings(directory, say)
        say("logs: " + (", ".join(map(str, config.logs.files)) or f"those of the environment suite '{config.env.name}'"))
        shared = prepare_logs(directory, config, workers, suite, tokenizer)
        if config.dreams:
            if not directory.done(shared.experience_checkpoint):
                say("experience model: " + ("whole logged trajectories (Eq. 5)" if config.experience.fitted else config.experience.name))
            train_experience(directory, shared)
            for line in _memory_answers(directory, shared):
                say(line)
        if not directory.done("warm_start"):
            say("warm start: " + ("the policy imitates the successful logs" if config.warm_start.epochs else "none"))
        warm_start(directory, shared, start="experience" if config.start == "experience" else "tokenizer")
        repeat_recorded(directory, shared)
        loops = list(plan.loops_of(config))
        for loop in loops:
            how = f"{loop.block.algorithm.name}, {counted(loop.block.iterations, 'iteration')}, {WHERE[loop.source]}"
            say(f"{loop.name}: " + ("done" if directory.done(loop.name) else how))
            run_rl_phase(directory, shared, loop)
            if early := _early(directory, loop):
                say(early)
        names = [loop.name for loop in loops]
        if "evaluation" not in shared.skipped:
            say("evaluation: held-out tasks in the real environment")
        evaluate_policies(directory, shared, ["warm_start", *names])
        if config.mode != "real":
            audit(directory, shared, names[0])
            measure_gap(directory, shared, names[0])
        table = tables.table(directory, ["warm_start", *RL_ARMS])
        summary = table | {
            "gains": gains(table),
            "ablations": {},
            **tables.about(directory, [config.seed]),
            "budget": config.mode,
            "skipped": shared.skipped,
        }
        measured = {"audit": "audit", "gap": f"gap-{names[0]}"}
        summary |= {key: directory.data(phase) for key, phase in measured.items() if directory.done(phase)}
        if not shared.suite.has_env:
            summary |= _from_logs_alone(directory, shared, config, names, say)
        if warnings := _warnings(directory, shared, config, names, summary):
            summary["warnings"] = warnings
            for warning in warnings:
                say(f"warning: {warning}")
        if labels := labelled(path):
            summary["labelled"] = labels
        directory.write_summary(summary)
        if shared.suite.has_env:
            _require_work(directory, config)
    return summary


def _warnings(
    directory: RunDir, shared: context.RunContext, config: TrainConfig, names: Sequence[str], measured: Mapping[str, Any]
) -> list[str]:
    """What speaks against what a run learned: masked dreams of its RL phases `names`, and without an environment also what none could have
    prevented, such as predictions of held-out steps and next actions (`measured`)."""
    texts = list[str]()
    if not shared.suite.has_env:
        predicted = measured.get("fidelity", {})
        texts = [_without_gradient(directory, config), held_out.warning(predicted), held_out.unpaid(predicted)]
        texts.append(next_actions.warning(measured["next_actions"]))
    lines = directory.read_jsonl("metrics.jsonl")
    return [text for text in (*texts, *(masking.warning(name, lines) for name in names)) if text]


def _early(directory: RunDir, loop: plan.Loop) -> str:
    """That a loop ended before its last iteration, or had none, and why; "" where it did not."""
    record = directory.data(loop.name)
    if not (reason := record.get("stop_reason")):
        return ""
    if not record["iterations"]:
        return f"{loop.name}: no RL, {reason}. The policy stays {loop.init_policy}; what follows measures it as it is."
    return early_stops.sentence(loop.name, reason, early_stops.kept_policy(reason, loop.init_policy))


def _from_logs_alone(
    directory: RunDir, shared: context.RunContext, config: TrainConfig, names: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """What a run without an environment measures of its dreams and policies."""
    measured = dict[str, Any]()
    if config.dreams:
        say("fidelity: recorded episodes that were held out, and dreams whose success is uncertified")
        measure_recorded(directory, shared)
        dream_uncertified(directory, shared, ["warm_start", *names])
        off = ["recalled: nothing, because experience.recall = false"] if config.experience.settings.get("recall") is False else []
        measured["recall"] = off or recall.account(directory.data(names[0]).get("recall", ()))
        measured["recall"] += _memory_answers(directory, shared)
    say("next actions: of every policy, beside those of recorded successes")
    measure_next_actions(directory, shared, ["warm_start", *names])
    phases = ("recorded_replay", "fidelity", "uncertified", "next_actions")
    return measured | {phase: directory.data(phase) for phase in phases if directory.done(phase)}


def _memory_answers(directory: RunDir, shared: context.RunContext) -> list[str]:
    """What memory answers in place of the experience model, in a line; nothing where the two were not compared."""
    phase = validation_phase(shared.experience_checkpoint)
    return [memory_answers.sentence(directory.data(phase))] if directory.done(phase) else []


WHERE = {"dream": "in the dream", "real": "in the real environment", "mixed": "in the dream and the real environment"}


def _require_work(directory: RunDir, config: TrainConfig) -> None:
    """Fail when the first loop never moved the policy. A later one may find nothing left to learn."""
    if warning := _without_gradient(directory, config):
        raise InvariantError(warning)


def _without_gradient(directory: RunDir, config: TrainConfig) -> str:
    """A message that the first loop never moved the policy; "" where it did."""
    first = next(plan.loops_of(config))
    name = first.name
    if not first.block.iterations or had_gradient(directory, name):
        return ""
    record = directory.data(name) if directory.done(name) else {}
    if (reason := record.get("stop_reason")) and not record["iterations"]:
        return (
            f"'{directory.path}' finished without RL: {reason}. Its policy is that of the warm start. Fit the experience model longer "
            "(experience.training.epochs) in a new run directory."
        )
    if errors := failures(directory, name):
        return (
            f"'{directory.path}' finished, but every rollout of '{name}' failed, most of the first with: {errors.most_common(1)[0][0]}. "
            f"Nothing was learned. The episodes are in {directory.path}/episodes."
        )
    lines = [line for line in directory.read_jsonl("metrics.jsonl") if line["phase"] == name]
    if lines and all(line.get("success") == 1 for line in lines):
        return (
            f"'{directory.path}' finished, but no iteration of '{name}' had a gradient: every rollout succeeded, already with that of "
            "the warm start. Give it harder tasks, or see whether the dream accepts too much: dreamgym fidelity."
        )
    alike = "the rollouts of every task ended alike"
    rates = [line["success"] for line in lines if line.get("success") is not None]
    if rates and not any(rates):
        alike = f"every rollout failed (success {WHERE[first.source]} 0 %)"
    return (
        f"'{directory.path}' finished, but no iteration of '{name}' had a gradient: {alike}. Give it a better warm start "
        f"(warm_start.epochs, {config.warm_start.epochs:g} here, in a new run directory), easier tasks or more iterations, and look at "
        f"{directory.path}/metrics.jsonl."
    )
