"""The offline baselines: imitation until it converges, and preferences between logged episodes."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np

from dreamgym.errors import InvariantError, UsageError
from dreamgym.evals.success import evaluate, success
from dreamgym.experience.augmentation import relabel_goals
from dreamgym.policy.agent import Agent
from dreamgym.recipes import tables
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.factory import TASK_SEED
from dreamgym.recipes.phases.fit import finish, fit, progress_watch
from dreamgym.recipes.phases.warm_start import demonstrations, showable
from dreamgym.runs.rundir import RunDir
from dreamgym.train import dpo, sft
from dreamgym.train.settings import DPOConfig, SFTConfig
from dreamgym.types import Trajectory

log = logging.getLogger(__name__)


def converge_sft(run: RunDir, context: RunContext, config: SFTConfig, *, patience: int) -> None:
    """The offline baseline: the same start and the same logs, trained until success on development tasks stops rising.

    The policy is the best of its checkpoints and the warm start on development tasks, so it is never below the warm start there. Without an
    environment it is the last checkpoint. The rate falls to nothing over `sft.epochs`, so that a curve that ends flat says nothing of
    longer ones: in telecom 36 passes solve some ten points more than twelve, sampled.
    """
    if run.done("sft"):
        return
    model = context.policies.initial_model(context.checkpoint("experience"))
    ids, weights = demonstrations(context)
    if "choice of SFT on development tasks" in context.skipped:
        losses = fit(run, "sft", model, ids, weights, config, seed=context.config.seed)
        context.save_policy(model, "sft")
        return finish(run, "sft", losses)
    agent, real = context.agent(model), context.real_env()
    dev = context.suite.tasks("dev", context.config.eval.dev_tasks, seed=TASK_SEED)
    lengths = list(map(len, ids))
    ends = [0]  # of the epochs so far, in steps
    curve: list[dict[str, Any]] = run.data("sft-curve")["curve"] if run.done("sft-curve") else []

    def epochs(step: int) -> float:
        """The number of passes that `step` steps make."""
        while ends[-1] < step:
            ends.append(ends[-1] + len(sft.one_pass(lengths, config, seed=context.config.seed, epoch=len(ends) - 1)))
        return float(np.interp(step, ends, range(len(ends))))

    def judge(step: int, policy: Any = model, acts: Agent = agent) -> bool:
        """Measure, keep the best, and say whether it has stopped rising; what an interrupted training measured from here on is dropped."""
        epoch, before, began = epochs(step), real.steps, real.seconds
        curve[:] = [seen for seen in curve if seen["epoch"] < epoch]
        steps, batch = context.suite.max_steps, context.suite.max_parallel
        rates = [success(evaluate(acts, real, dev, max_steps=steps, temperature=t, seed=7, batch=batch)).value for t in (0.0, 1.0)]
        if all(rates[0] > seen["greedy"] for seen in curve):
            context.save_policy(policy, "sft")
        spent = (curve[-1]["real_steps"] if curve else 0) + real.steps - before
        waited = tables.total([curve[-1].get("real_seconds") if curve else 0.0, real.seconds - began])
        curve.append({"epoch": epoch, "greedy": rates[0], "sampled": rates[1], "real_steps": spent, "real_seconds": waited})
        run.mark("sft-curve", {"curve": curve})
        best = max(range(len(curve)), key=lambda k: curve[k]["greedy"])
        return len(curve) - 1 - best >= patience

    def look(step: int) -> bool:
        """Every two epochs: publish the weights and measure them."""
        if epochs(step) % 2:
            return False
        context.policies.publish(agent.llm, model, step)
        return judge(step)

    if not curve:
        start = context.load_policy("warm_start")
        judge(0, start, context.agent(start))
    losses = fit(run, "sft", model, ids, weights, config, seed=context.config.seed, on_step=look)
    if len(curve) == 1:
        context.policies.publish(agent.llm, model, int(losses["optimiser_steps"]))
        judge(int(losses["optimiser_steps"]))
    record = {"dev_success": max(seen["greedy"] for seen in curve), "curve": curve, "real_steps_dev": curve[-1]["real_steps"]}
    record["real_seconds"] = curve[-1].get("real_seconds")
    finish(run, "sft", losses | record)


def train_dpo(run: RunDir, context: RunContext, config: DPOConfig) -> None:
    """The other offline baseline: from converged SFT, DPO on logged successes and failures of the same task."""
    if run.done("dpo"):
        return
    compared, why = showable(context, preferences(context))
    if why:
        log.warning("%s. DPO compares the others.", why)
    pairs = dpo.dpo_pairs(compared, context.config.seed)
    if not pairs:
        raise UsageError("DPO needs logs in which a task was solved once and missed once. Log tasks more than once, or leave DPO out.")
    chosen, rejected = ([_whole(context, pair[side]) for pair in pairs] for side in (0, 1))
    model = context.load_policy("sft")
    with progress_watch(run, "dpo") as watch:
        checkpoint = run.path / "checkpoints" / "dpo.pt"
        losses = dpo.train(model, chosen, rejected, config, seed=context.config.seed, on_step=watch, checkpoint=checkpoint)
    context.save_policy(model, "dpo")
    finish(run, "dpo", losses | {"demonstrations": len(pairs), "tokens": sum(len(ids) for ids, _ in (*chosen, *rejected))})


def _whole(context: RunContext, episode: Trajectory) -> tuple[list[int], list[float]]:
    """An episode as one row; InvariantError when a window cuts it."""
    rows = context.policies.demonstrations(episode)
    if len(rows) != 1:
        raise InvariantError(
            f"DPO compares whole episodes, and policy.window = {context.config.policy.window} cuts '{episode.id}' into rows."
        )
    return rows[0]


def preferences(context: RunContext) -> list[Trajectory]:
    """The logs, and for each success an episode of another task under this one's instruction: scripted logs seldom try a task twice.

    The copy is a failure by the suite's text check, as in the experience model's own training.
    """
    seed, rules = context.config.seed, context.suite.rules
    ended = [t for t in context.logs if t.error is None and t.turns and t.transitions[-1].terminated]
    wins = [t for t in context.logs if t.success]
    rng = random.Random(f"preferences/{seed}")
    copies = []
    for win in wins if ended else ():
        other = rng.choice(ended)
        if other.task.id != win.task.id:
            copies += relabel_goals([other], rules, [win.task], 1.0, seed)
    return [*context.logs, *copies]
