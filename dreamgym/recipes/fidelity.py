"""Held-out fidelity of a run's experience model: teacher-forced predictions of real transitions that it has never seen, and near misses."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from dreamgym.envs.base import EnvSuite, check_split
from dreamgym.errors import UsageError
from dreamgym.evals.one_step import ahead, apply_guard, draw_questions, forecast, known_parts, measure
from dreamgym.evals.success import evaluate
from dreamgym.logs.demonstrations import Play, collect
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext, latest_experience, open_context
from dreamgym.recipes.phases.logs import HELD_OUT
from dreamgym.recipes.settings import require_policy
from dreamgym.runs.files import read_jsonl, write_atomic
from dreamgym.runs.progress import progress
from dreamgym.runs.rundir import RunDir, unfinished
from dreamgym.types import Prediction, Trajectory

SEED = 1_000_003  # of held-out episodes: no run's logs are drawn with it
SPLIT = "dev"  # the test split stays unseen until a policy is judged
MISSES = 0.5  # near misses per real step
MOST_RECORDED = 400  # held-out episodes that a run without an environment measures by itself
LISTED = 100_000  # pages of an inventory that are looked at; beyond that a dreamed item may exist though it counts as unknown


def held_out(path: Path, n: int, *, split: str = SPLIT, policy: str = "") -> dict[str, Any]:
    """`measure_context` of a run with `n` held-out episodes, computed once: later calls read `fidelity/held-out-<n>.json` of the run,
    `<split>-<n>.json` for another split than dev, and `<policy>-on-<split>-<n>.json` for episodes of one of its policies."""
    check_split(split)
    if not RunDir.view(path).done("experience"):
        raise unfinished(path, "has no experience model yet")
    kept, name = _file(path, n, split, policy), latest_experience(RunDir.view(path))
    if not kept.exists() or read_jsonl(kept)[0].get("experience", "experience") != name:  # refreshed since
        found = {"experience": name, **measure_context(open_context(path), n, split=split, policy=policy)}
        write_atomic(kept, json.dumps(found, allow_nan=False) + "\n")
    return read_jsonl(kept)[0]


def latest(path: Path) -> dict[str, Any] | None:
    """What `held_out` measured with the most episodes so far; None when it never did."""
    kept = sorted((path / "fidelity").glob("held-out-*.json"), key=lambda file: int(file.stem.rpartition("-")[2]))
    return read_jsonl(kept[-1])[0] if kept else None


def measure_context(context: RunContext, n: int, *, seed: int = SEED, split: str = SPLIT, policy: str = "") -> dict[str, Any]:
    """The experience model of `context` and the control without a model, on the same `n` held-out episodes of `split`, as plain values.

    Each is asked once, with its guard off; what the guard makes of its answers is computed from them. `state_exact_generated` of both is
    over the steps that the model generated. With `policy`, the episodes are sampled ones of that policy of the run in the environment, and
    there are no near misses. Without an environment they are recorded ones that the run held out, at most `n` of them, and there are no
    near misses either.
    """
    rules = context.suite.rules
    if context.suite.has_env:
        with factory.start_workers(context.config.effective_env, context.suite) as workers:
            manned = replace(context, workers=workers)
            if policy:
                questions, counts = draw_questions(
                    sampled_episodes(manned, policy, n, seed=seed, split=split), None, rules, misses=0.0, seed=seed
                )
            else:
                episodes = held_out_episodes(context.suite, n, seed=seed, split=split, play=manned.demonstrate)
                questions, counts = draw_questions(episodes, manned.real_env(), rules, misses=MISSES, seed=seed)
    elif policy:
        raise UsageError(f"'{context.path}' has no environment in which '{policy}' could act. Leave the policy out.")
    else:
        questions, counts = draw_questions(recorded_episodes(context, n, split=split), None, rules, misses=0.0, seed=seed)
    known = _existing(context.suite, context.logs)
    logged = {(t.action, t.next_state.text) for trajectory in context.logs for t in trajectory.transitions}
    arms = {"held_out": context, "no_model": context.without("model")}
    answers: dict[str, dict[str, list[Prediction]]] = {}
    with progress(len(arms), "held-out transitions") as advance:
        for name, of in arms.items():
            _, model = factory.make_dream(of, factory.replay_in_memory(of), guarded=False)
            raw = forecast(model, questions, forget=model.forget)
            from_memory = [model.retriever.answer(question.query) is not None for question in questions]
            guarded = apply_guard(factory.make_guard(context), questions, raw, from_memory)
            answers[name] = {"with_guard": guarded, "without_guard": raw}
            advance(1)
    found: dict[str, Any] = {name: {} for name in arms}
    for kind in ("with_guard", "without_guard"):
        generated = [one.info.decided_by == "generated" for one in answers["held_out"][kind]]
        for name in arms:
            measured = measure(questions, answers[name][kind], known=known, logged=logged, generated=generated)
            found[name][kind] = measured.to_json()
        found["held_out"][kind]["over_no_model"] = ahead(questions, answers["held_out"][kind], answers["no_model"][kind]).json()
    found["held_out"] = (
        counts | {"split": split, "episodes_seed": seed, "recorded": not context.suite.has_env, "policy": policy} | found["held_out"]
    )
    return found


def sampled_episodes(context: RunContext, policy: str, n: int, *, seed: int, split: str) -> list[Trajectory]:
    """`n` real episodes of a policy on the tasks of a split that the run kept from its training, several times where they are fewer.
    UsageError for a policy that the run does not have, and for a split without tasks."""
    require_policy(context.path, policy)
    block = context.config.eval
    tasks = context.suite.tasks(split, {"dev": block.dev_tasks, "test": block.tasks}.get(split, n), seed=factory.TASK_SEED)
    if not tasks:
        raise UsageError(f"'{context.path}' kept no {split} tasks. Give another split.")
    agent, drawn = context.agent(context.load_policy(policy)), list(islice(cycle(tasks), n))
    steps, batch = context.suite.max_steps, context.suite.max_parallel
    return evaluate(agent, context.real_env(), drawn, max_steps=steps, temperature=1.0, seed=seed, batch=batch, name=f"{policy}/fidelity")


def recorded_episodes(context: RunContext, n: int, *, split: str = SPLIT) -> list[Trajectory]:
    """At most `n` of the recorded episodes that a run held out, on the tasks of a split. UsageError where there are none."""
    run = RunDir.view(context.path)
    held = run.read_episodes(HELD_OUT)
    if run.data("logs").get("held_out_by", "task") == "task":
        block = context.config.eval
        tasks = context.suite.tasks(split, {"dev": block.dev_tasks, "test": block.tasks}.get(split, 0), seed=factory.TASK_SEED)
        keys = set(map(context.suite.task_key, tasks))
        held = [episode for episode in held if context.suite.task_key(episode.task) in keys]
    elif split != SPLIT:
        held = []
    held = [episode for episode in held if episode.error is None and episode.turns]
    if not held:
        raise UsageError(
            f"'{context.path}' held out no recorded episode of the split '{split}', so there is nothing to measure on. "
            + ("Record more tasks." if split == SPLIT else f"Without an environment episodes of the split '{SPLIT}' alone are held out.")
        )
    random.Random(f"held-out/{split}").shuffle(held)
    return held[:n]


def measure_recorded(run: RunDir, context: RunContext) -> None:
    """The phase `fidelity` of a run without an environment: `measure_context` on the recorded episodes that it held out."""
    if run.done("fidelity"):
        return
    try:
        found = measure_context(context, MOST_RECORDED)
    except UsageError as error:
        found = {"held_out": None, "reason": str(error)}
    run.mark("fidelity", found)


def held_out_episodes(suite: EnvSuite, n: int, *, seed: int, split: str = SPLIT, play: Play | None = None) -> list[Trajectory]:
    """Fresh real episodes by the scripted policies on the tasks of a split, which share no target with training tasks.

    One half is of the suite's usual mix and one of its best scripted policies, so that there are terminals of both kinds.
    """
    half = n // 2
    best = {"expert": 1.0} if "expert" in suite.scripted_policies else None
    usual = collect(suite, n - half, seed=seed, split=split, play=play)
    return usual + collect(suite, half, seed=seed + 1, mix=best, split=split, play=play)


def _existing(suite: EnvSuite, logs: Sequence[Trajectory]) -> set[str]:
    """The parts of every page in the logs and, where the suite can list its world, of everything there."""
    pages = {t.next_state.text for trajectory in logs for t in trajectory.transitions}
    listed = islice(suite.inventory(), LISTED)
    return known_parts([*pages, *(page.text for page in listed)])


def _file(path: Path, n: int, split: str, policy: str) -> Path:
    of = f"{policy}-on-{split}" if policy else "held-out" if split == SPLIT else split
    return path / "fidelity" / f"{of}-{n}.json"
