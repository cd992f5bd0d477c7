"""The pilot of an estimate: what a logged episode holds, and what this machine does in a second, from a few dozen episodes and seconds.

It plays (or reads) `PILOT` episodes, counts their tokens as experience model and policy read them, and measures their models: a model from
scratch is fitted for a few steps and acts; of a pretrained one see `recipes.rates`.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.envs.batch import SyncBatchEnv
from dreamgym.errors import EnvironmentFailure, MissingModel, UsageError
from dreamgym.recipes import plan, rates
from dreamgym.recipes.config import CompareConfig, RunConfig, SharedConfig, TrainConfig
from dreamgym.recipes.factory import checked_suite, learn_tokenizer, make_vocabulary, replay_in_memory
from dreamgym.recipes.rates import Rates, Workload
from dreamgym.types import Action, Observation, StepResult, Task, Trajectory

if TYPE_CHECKING:
    from dreamgym.recipes.context import RunContext

Planned = CompareConfig | TrainConfig | RunConfig
"""What can be estimated."""
FIRST, FEW, PILOT = 1, 6, 48
"""Episodes of the pilot: the first, with which a browser may start, those of an environment that takes long, and of any other."""
FIT_S, ACT_TURNS = 2.0, 6
"""Seconds of fitting, and turns of acting, in which the rates of a small model are measured."""
SHARED_PREFIX = 32
"""Tokens at the beginning of all prompts from which on the engine computes them once."""
Row = tuple[Sequence[int], Sequence[float]]
"""Ids and their weights in training."""


@dataclass(frozen=True)
class Pilot:
    """What a logged episode holds on average, and what this machine does in a second."""

    steps: float
    successes: float  # share
    real_step_s: float
    experience_tokens: float = 0.0  # of the experience model's training rows, copies under other goals included
    answer_tokens: float = 0.0  # that it writes for the episode
    question_tokens: float = 0.0  # that its engine reads for the episode
    policy_tokens: float = 0.0  # of the policy's rows, prompts included
    reply_tokens: float = 0.0  # that it writes
    prompt_tokens: float = 0.0  # that its engine reads
    policy: Rates | None = None
    """The rates of the policy's model; None: not measured."""
    experience: Rates | None = None
    memory_gb: float = 0.0
    recorded: int = 0
    """Episodes of the files that the logs are read from; 0: scripted policies play them."""
    has_env: bool = True
    """Whether there is an environment to probe."""
    hides: bool = False
    """Whether an environment shows a part of its state at a time."""
    read_s: float = 0.0
    """Seconds of reading the episode for a learned verifier."""
    judged_s: float = 0.0
    """Seconds of fitting a learned verifier to it, once."""
    missing: str = ""
    """The pretrained model that is not here, by whose tokenizer nothing was counted."""
    unknown: str = ""
    """Why hours are unknown."""
    basis: str = ""
    """How the rates of pretrained models were measured."""
    load: float = 0.0
    """Other processes that wanted a core as the pilot began (the load average of one minute)."""


def measure(config: Planned) -> Pilot:
    """Run the pilot of a configuration. Nothing is kept."""
    from dreamgym.recipes.context import RunContext, silence_progress_bars
    from dreamgym.recipes.phases.logs import offline, read_logs

    silence_progress_bars()
    load = os.getloadavg()[0]
    suite = checked_suite(config, acts=False)
    files, recorded = config.logs.files or suite.log_files, 0
    for n in (FIRST, FEW, PILOT):  # the many only where the few are played at once
        few = config.model_copy(update={"logs": config.logs.model_copy(update={"trajectories": n, "transitions": None, "task_pairs": 0})})
        start = time.monotonic()
        try:
            logs = read_logs(files, suite) if files else offline(suite, few, None)
        except EnvironmentFailure:
            if n > FIRST:
                raise
            continue  # a run leaves out an episode in which the environment fails
        played_s = time.monotonic() - start
        if files:
            recorded, logs = len(logs), logs[:PILOT]
        if files or (n > FIRST and played_s > FIT_S):
            break
    steps = sum(len(t.turns) for t in logs)
    pilot = Pilot(
        steps=steps / len(logs),
        successes=sum(t.success for t in logs) / len(logs),
        real_step_s=0.0 if files else played_s / max(1, steps),
        recorded=recorded,
        has_env=suite.has_env,
        hides=suite.rules.partially_observed,
        load=load,
    )
    if missing := _missing(config):
        return replace(pilot, missing=missing, unknown=f"'{missing}' is not here")
    tokenizer = learn_tokenizer(logs, suite.rules, config.model.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        context = RunContext(few, Path(folder), suite, logs, tokenizer, make_vocabulary(tokenizer))
        return _measured(pilot, context, config)


def _measured(pilot: Pilot, context: RunContext, config: Planned) -> Pilot:
    """The pilot with the tokens of its episodes and the rates of its models."""
    from dreamgym.recipes.phases.warm_start import showable

    context = replace(context, logs=showable(context, context.logs)[0] or context.logs)  # what a run leaves out ends no estimate
    rows, dreamed = _experience_rows(context)
    acted: list[Row] = [row for t in context.logs if t.turns for row in context.policies.demonstrations(t)]
    n = len(context.logs)
    pilot = replace(
        pilot,
        experience_tokens=sum(len(ids) for ids, _ in rows) / n,
        answer_tokens=_weighted(dreamed) / n,
        policy_tokens=sum(len(ids) for ids, _ in acted) / n,
        reply_tokens=_weighted(acted) / n,
        unknown=_unmeasured(config),
    )
    read, judged = _judged_s(context)
    pilot = replace(pilot, read_s=read, judged_s=judged)
    if config.pretrained or config.experience.backbone:
        return _with_backbones(pilot, context, config, acted, rows, dreamed)
    if not pilot.unknown:
        reply = max(1, round(pilot.reply_tokens / max(1.0, pilot.steps)))
        small = _small_rates(context, rows or acted, reply)
        pilot = replace(pilot, policy=small, experience=small)
    return replace(pilot, memory_gb=_resident_gb())


def _with_backbones(
    pilot: Pilot, context: RunContext, config: Planned, acted: Sequence[Row], rows: Sequence[Row], dreamed: Sequence[Row]
) -> Pilot:
    """The pilot with the memory of pretrained models, what their engines read, and their rates: unknown on a machine without the memory."""
    from dreamgym.llm import backbones, tiny

    turns, n, basis = pilot.steps * len(context.logs), len(context.logs), list[str]()
    measured, engines = dict[str, Rates](), {"policy": config.policy.engine, "experience": config.experience.settings.get("engine") or {}}
    at_once = max((loop.block.tasks_per_iter * loop.block.group_size for loop in plan.loops_of(config)), default=1)
    full_precision = not any(loop.block.learner.bf16 for loop in plan.loops_of(config))
    models = {"policy": (config.policy.backbone, acted, acted), "experience": (config.experience.backbone, rows, dreamed)}
    read, cached = {"policy": 0.0, "experience": 0.0}, 0.0
    for role, (backbone, _, played) in models.items():
        if played and engines[role].get("name", "local") == "local":
            shape = backbones.outline(backbone) if backbone else None
            needed, budget = _cache(shape, engines[role], at_once * _mean(played))
            read[role] = _read(played, turns, again=needed > budget) / n
            cached += min(needed, budget)
    pilot = replace(
        pilot, prompt_tokens=read["policy"], question_tokens=read["experience"], memory_gb=(plan.peak_memory(config) + cached) / 1e9
    )
    try:
        plan.require_memory(config)
    except UsageError as error:
        pilot = replace(pilot, unknown=str(error))
    if pilot.unknown:
        return pilot
    for role, (backbone, trained, _) in models.items():
        fit = (config.warm_start if role == "policy" else config.experience.training) or config.warm_start
        fit = fit.model_copy(update={"optimiser": "adamw"} if backbone else {})
        if not trained:
            continue
        load = Workload(_median(trained), fit, engines[role], at_once, full_precision and role == "policy")
        if backbone:
            measured[role], how = rates.of_backbone(backbone, load)
            basis.append(how)
        else:

            def build() -> tuple[Any, Any]:
                small: Any = tiny.build(context.tokenizer, config.model.size, seed=0)
                return small.to(backbones.device(config.model.device)), context.tokenizer

            measured[role] = rates.measure_small_model(build, load)
    nothing = Rates(inf, inf, inf)  # of a model that reads and writes nothing
    return replace(
        pilot,
        policy=measured.get("policy", nothing),
        experience=measured.get("experience", nothing),
        basis="; ".join(dict.fromkeys(basis)),
    )


def _missing(config: SharedConfig) -> str:
    """The first pretrained model of the run that is not on this machine; "" for none."""
    from dreamgym.llm import backbones

    for models in plan.models_by_phase(config).values():
        for model in models:
            try:
                backbones.load_tokenizer(model.backbone)
            except MissingModel:
                return model.backbone.model
    return ""


def _unmeasured(config: SharedConfig) -> str:
    """Which engine of the run is none that the pilot measures, because it samples elsewhere or what it will be asked is not known; "" for
    none."""
    verifier = config.experience.verifier
    engines = {"policy.engine": config.policy.engine}
    if config.dreams:
        engines["experience.engine"] = config.experience.settings.get("engine") or {}
        engines["experience.verifier.engine"] = verifier.settings.get("engine") or {} if verifier else {}
    other = [f"{where} '{name}'" for where, engine in engines.items() if (name := engine.get("name", "local")) != "local"]
    if config.dreams and verifier and verifier.settings.get("features", "hashed") != "hashed":
        other.append(f"experience.verifier.features '{verifier.settings['features']}'")
    return "; ".join(f"what {name} takes is not measured" for name in other)


def _experience_rows(context: RunContext) -> tuple[list[Row], list[Row]]:
    """(training rows of the experience model, those among them that are of the episodes as they were logged)."""
    from dreamgym.recipes.phases.experience import experience_rows

    if not context.config.experience.training:
        return [], []
    level, row_sets = logging.getLogger("dreamgym").level, list[list[Row]]()
    plain = {"relabelled_goals": 0.0, "near_miss_goals": 0.0, "invalid_actions": 0.0}
    once = context.config.model_copy(update={"logs": context.config.logs.model_copy(update=plain)})
    logging.getLogger("dreamgym").setLevel(logging.ERROR)  # the run itself will say what is odd about its logs
    try:
        for variant in (context, replace(context, config=once)):
            row_sets.append([(row.ids, row.weights) for row in experience_rows(variant, replay_in_memory(variant))])
    finally:
        logging.getLogger("dreamgym").setLevel(level)
    return row_sets[0], row_sets[1]


def _weighted(rows: Sequence[Row]) -> int:
    """Tokens that the model writes."""
    return sum(sum(weight > 0 for weight in weights) for _, weights in rows)


def _mean(rows: Sequence[Row]) -> float:
    return sum(len(ids) for ids, _ in rows) / len(rows)


def _median(rows: Sequence[Row]) -> Row:
    """The row of median length among those that teach something."""
    teaching = sorted((row for row in rows if any(row[1][1:])), key=lambda row: len(row[0]))
    return teaching[len(teaching) // 2]


def _read(rows: Sequence[Row], turns: float, *, again: bool) -> float:
    """Tokens of prompts that an engine reads for these rows: what all begin with is read once, and the turns of a row extend each other.
    `again`: the cache is too small to keep rows between turns, so that each turn reads its row from the beginning."""
    texts = sorted(list(ids) for ids, _ in rows)  # what the first and the last begin with, all do
    shared = next((i for i, (a, b) in enumerate(zip(texts[0], texts[-1], strict=False)) if a != b), 0)
    new = sum(len(ids) for ids, _ in rows) - _weighted(rows) - (shared if shared >= SHARED_PREFIX else 0) * len(rows)
    return max(0.0, new) * ((max(1.0, turns / len(rows)) + 1) / 2 if again else 1.0)


def _cache(outline: Any, engine: dict[str, Any], tokens: float) -> tuple[float, float]:
    """(bytes of the keys and values of so many tokens, the engine's budget of them); a model from scratch needs next to nothing."""
    if outline is None:
        return 0.0, inf
    a_token, budget = rates.bytes_of_token(outline, engine)
    return a_token * tokens, budget


def _judged_s(context: RunContext) -> tuple[float, float]:
    """Seconds an episode of reading the logs for the learned verifier, and of fitting it; 0.0 where there is none, or too few episodes."""
    from dreamgym.experience.learned_verifier.calibration import CalibrationConfig
    from dreamgym.experience.learned_verifier.verifier import fit_verifier, prepare

    verifier = context.config.experience.verifier
    if verifier is None or verifier.name != "learned":
        return 0.0, 0.0
    start = time.monotonic()
    try:
        prepared = prepare(context.logs, context.suite.rules, seed=0)
        read = time.monotonic() - start
        fit_verifier(prepared, CalibrationConfig())
    except UsageError:  # a run of all the logs may do better, or will say so
        return 0.0, 0.0
    return read / len(context.logs), (time.monotonic() - start - read) / len(context.logs)


def _small_rates(context: RunContext, rows: Sequence[Row], reply: int) -> Rates:
    """The rates of the untrained small model, which stops after `reply` tokens, as replies do; prompts count with what is sampled."""
    from dreamgym.llm import backbones, tiny
    from dreamgym.train import sft

    config = context.config
    model: Any = tiny.build(context.tokenizer, config.model.size, seed=0)
    model.to(backbones.device(config.model.device))
    training = config.experience.training or config.warm_start
    settings = training.model_copy(update={"epochs": 1e3, "max_seconds": None})
    begun: list[tuple[float, float]] = []

    def watch(step: int, done: float, losses: dict[str, float]) -> bool:
        begun.append((done * settings.epochs, time.monotonic()))
        return begun[-1][1] - begun[0][1] > FIT_S

    sft.train(model, [ids for ids, _ in rows], [weights for _, weights in rows], settings, on_step=watch)
    (first, since), (last, until) = begun[0], begun[-1]
    fitted = (last - first) * sum(len(ids) for ids, _ in rows) / max(1e-9, until - since)  # without what batches leave empty
    start = time.monotonic()
    policy = config.policy.model_copy(update={"max_reply_tokens": reply})
    written = _acted(replace(context, config=config.model_copy(update={"policy": policy})), model)
    return Rates(fitted, inf, written / (time.monotonic() - start))


def _acted(context: RunContext, model: Any) -> int:
    """Tokens that the untrained policy writes in the first states of the recorded episodes."""
    from dreamgym.rollout import rollout

    logs = [t for t in context.logs if t.turns]
    env = _Recorded(logs)
    trajectories = rollout(context.agent(model), env, [t.task for t in logs], seed=0, max_steps=ACT_TURNS, name="pilot")
    return sum(len(turn.completion.ids) for t in trajectories for turn in t.turns if turn.completion)


class _Recorded(SyncBatchEnv):
    """Episodes that go on as they were recorded, whatever the action."""

    source, version = "real", 0

    def __init__(self, episodes: Sequence[Trajectory]) -> None:
        super().__init__()
        self.states = [[step.state for step in episode.transitions] for episode in episodes]
        self.at = [0] * len(episodes)

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return [states[0] for states in self.states]

    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        results = []
        for slot, action in zip(slots, actions, strict=True):
            self.at[slot] += 1
            over = self.at[slot] >= len(self.states[slot])
            state = self.states[slot][-1 if over else self.at[slot]]
            results.append(StepResult(state, 0.0, False, over, action=action))
        return results


def _resident_gb() -> float:
    """The most memory that this process has had, and that of its GPU."""
    import torch

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return (used + (torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0)) / 1e9
