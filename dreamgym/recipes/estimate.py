"""What an experiment will take, before it starts: tokens, memory and hours, from a few dozen logged episodes and seconds of this machine.

A pilot plays (or reads) `PILOT` episodes, counts their tokens as experience model and policy read them, fits the untrained model for a
few steps, and lets it act. Everything else is arithmetic on the settings. Estimates are high where RL goes well: episodes get
shorter, rules and recall answer steps, and groups without a signal are not learned from.
"""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.envs.batch import SyncBatchEnv
from dreamgym.errors import UsageError
from dreamgym.experience.verifiers.learned import ProbesConfig
from dreamgym.recipes.blocks import RLBlock
from dreamgym.recipes.config import CompareConfig, SharedConfig, TrainConfig
from dreamgym.recipes.factory import checked_suite, learn_tokenizer, replay_in_memory, vocabulary
from dreamgym.recipes.rows import MODES, OFFLINE, ROWS, World, row_of
from dreamgym.types import Action, Observation, StepResult, Task, Trajectory

if TYPE_CHECKING:
    from dreamgym.recipes.context import RunContext

FIRST, FEW, PILOT = 1, 6, 48
"""Episodes of the pilot: the first, with which a browser may start, those of an environment that takes long, and of any other."""
FIT_S, ACT_TURNS = 2.0, 6
"""Seconds of fitting, and turns of acting, that the rates are measured in."""
RECOMPUTED = 1 / 3
"""What one more forward pass costs beside a forward and a backward one."""


@dataclass(frozen=True)
class Pilot:
    """What a logged episode holds on average, and what this machine does in a second. A rate of 0.0 was not measured."""

    steps: float
    successes: float  # share
    experience_tokens: float  # of the experience model's training rows
    answer_tokens: float  # that it writes for the episode
    policy_tokens: float  # of the policy's rows, prompts included
    reply_tokens: float  # that it writes
    real_step_s: float
    fitted_per_s: float
    sampled_per_s: float  # prompts included
    memory_gb: float
    recorded: int = 0
    """Episodes of the files that the logs are read from; 0: scripted policies play them."""
    has_env: bool = True
    """Whether there is an environment to probe."""
    read_s: float = 0.0
    """Of reading the episode for a learned verifier."""
    judged_s: float = 0.0
    """Of fitting one to it, once."""


@dataclass(frozen=True)
class Cost:
    """Tokens, real steps, memory and hours. Hours are None where the machine was not measured: a pretrained model is not loaded for it."""

    fitted_tokens: float = 0.0
    """Read by supervised fits, every epoch counted."""
    sampled_tokens: float = 0.0
    """Written by policies and experience models."""
    learned_tokens: float = 0.0
    """Read by RL updates, prompts included."""
    real_steps: float = 0.0
    memory_gb: float = 0.0
    hours: float | None = 0.0

    def __add__(self, other: Cost) -> Cost:
        hours = None if self.hours is None or other.hours is None else self.hours + other.hours
        return Cost(
            self.fitted_tokens + other.fitted_tokens,
            self.sampled_tokens + other.sampled_tokens,
            self.learned_tokens + other.learned_tokens,
            self.real_steps + other.real_steps,
            max(self.memory_gb, other.memory_gb),
            hours,
        )

    def __str__(self) -> str:
        tokens = (
            f"{_short(self.fitted_tokens)} tokens fitted, {_short(self.sampled_tokens)} sampled, {_short(self.learned_tokens)} learned from"
        )
        real, memory = f"{_short(self.real_steps)} real steps", f"{self.memory_gb:.1f} GB of memory"
        if self.hours is None:
            return f"{tokens}; {real}; {memory} before activations of training; hours unknown: a pretrained model is not measured"
        return f"{tokens}; {real}; {memory} or more; about {_hours(self.hours)} on this machine"


def of(configs: Sequence[CompareConfig | TrainConfig]) -> Cost:
    """What all of them take together, one after the other; a comparison with all of its seeds."""
    total = Cost()
    for config in configs:
        seeds = len(config.seeds) if isinstance(config, CompareConfig) else 1
        one = cost(config, measure(config))
        for _ in range(seeds):
            total += one
    return total


def cost(config: CompareConfig | TrainConfig, pilot: Pilot) -> Cost:
    """What one seed takes."""
    n = _episodes(config, pilot)
    fitted = n * pilot.experience_tokens * (config.experience.training.epochs if config.experience.training else 0.0)
    wins = n * pilot.successes * pilot.policy_tokens
    fitted += wins * config.warm_start.epochs
    sampled = learned = 0.0
    real = n * pilot.steps * (not pilot.recorded)
    evaluated = 1
    if isinstance(config, CompareConfig):
        offline = [arm for arm in config.arms if arm in OFFLINE]
        fitted += wins * config.sft.epochs * bool(offline)
        evaluated += len({*config.arms, *([config.ablated] if config.ablations else [])}) + len(config.ablations)
        for name in config.ablations:
            training = config.without(name).experience.training if config.refitted_without(name) else None
            fitted += n * pilot.experience_tokens * (training.epochs if training else 0.0)
    else:
        evaluated += sum(1 for _ in _loops(config))
    refits, loops = 0, list(_loops(config))
    for block, world, probes in loops:
        episodes = block.iterations * block.tasks_per_iter * block.group_size
        dreamed = {"dream": 1.0, "real": 0.0, "mixed": 1.0 - block.real_share}[world]
        sampled += episodes * (pilot.reply_tokens + dreamed * pilot.answer_tokens)
        learned += episodes * pilot.policy_tokens * block.learner.epochs * (1 + RECOMPUTED * (block.learner.old_logprobs == "learner"))
        real += min(episodes * (1 - dreamed) * pilot.steps, block.max_real_steps or float("inf"))
        if world != "real" and block.probe_every and pilot.has_env:
            real += block.iterations // block.probe_every * block.probe_tasks * pilot.steps
        if probes and probes.every and pilot.has_env:
            tried = block.iterations // probes.every
            steps = min(tried * probes.episodes * pilot.steps, probes.max_real_steps)
            real, refits = real + steps, refits + tried
            sampled += steps / pilot.steps * pilot.reply_tokens * (probes.by == "rollouts")
    acted = 2 * config.eval.tasks * evaluated  # greedy and sampled
    real += acted * pilot.steps
    sampled += acted * pilot.reply_tokens
    hours = None
    if pilot.fitted_per_s:
        computing = (fitted + learned) / pilot.fitted_per_s + sampled / pilot.sampled_per_s
        judging = pilot.read_s * (1 + sum(bool(probes) for *_, probes in loops)) + pilot.judged_s * (1 + refits)
        hours = (computing + real * pilot.real_step_s + n * judging) / 3600
    return Cost(fitted, sampled, learned, real, pilot.memory_gb, hours)


def measure(config: CompareConfig | TrainConfig) -> Pilot:
    """Run the pilot of a configuration. Nothing is kept."""
    from dreamgym.recipes.context import RunContext, silence_progress_bars
    from dreamgym.recipes.phases.experience import experience_rows
    from dreamgym.recipes.phases.logs import offline, read_logs

    silence_progress_bars()
    suite = checked_suite(config)
    files, recorded = config.logs.files or suite.log_files, 0
    for n in (FIRST, FEW, PILOT):  # the many only where the few are played at once
        logs_block = config.logs.model_copy(update={"trajectories": n, "transitions": None, "task_pairs": 0})
        few = config.model_copy(update={"logs": logs_block})
        start = time.monotonic()
        logs = read_logs(files, suite) if files else offline(suite, few, None)
        played_s = time.monotonic() - start
        if files:
            recorded, logs = len(logs), logs[:PILOT]
        if files or (n > FIRST and played_s > FIT_S):
            break
    tokenizer = learn_tokenizer(logs, suite.rules, config.model.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        context = RunContext(few, Path(folder), suite, logs, tokenizer, vocabulary(tokenizer))
        n, steps = len(logs), sum(len(t.turns) for t in logs)
        level = logging.getLogger("dreamgym").level
        logging.getLogger("dreamgym").setLevel(logging.ERROR)  # the run itself will say what is odd about its logs
        try:
            rows = experience_rows(context, replay_in_memory(context)) if config.experience.training else []
        finally:
            logging.getLogger("dreamgym").setLevel(level)
        acts = [row for t in logs if t.turns for row in context.policies.demonstrations(t)]
        counts: dict[str, Any] = {
            "recorded": recorded,
            "has_env": suite.has_env,
            "steps": steps / n,
            "successes": sum(t.success for t in logs) / n,
            "experience_tokens": sum(len(row.ids) for row in rows) / n,
            "answer_tokens": sum(sum(weight > 0 for weight in row.weights) for row in rows) / n,
            "policy_tokens": sum(len(ids) for ids, _ in acts) / n,
            "reply_tokens": sum(sum(weight > 0 for weight in weights) for _, weights in acts) / n,
            "real_step_s": 0.0 if files else played_s / max(1, steps),
        }
        if config.pretrained or config.experience.backbone:
            acted, dreamed = (sum(lengths) / max(1, len(lengths)) for lengths in ([len(i) for i, _ in acts], [len(r.ids) for r in rows]))
            return Pilot(**counts, fitted_per_s=0.0, sampled_per_s=0.0, memory_gb=_outlined_gb(config, acted, dreamed))
        reply = max(1, round(counts["reply_tokens"] / max(1.0, counts["steps"])))
        fitted, sampled = _rates(context, [(row.ids, row.weights) for row in rows] or acts, reply)
        read, judged = _judged_s(context)
        gb = _resident_gb()
        return Pilot(**counts, fitted_per_s=fitted, sampled_per_s=sampled, memory_gb=gb, read_s=read, judged_s=judged)


def _loops(config: CompareConfig | TrainConfig) -> Iterator[tuple[RLBlock, World, ProbesConfig | None]]:
    """The RL loops of one seed, each with its world, and the probes of the learned verifier where one judges its dreams."""
    if isinstance(config, TrainConfig):
        world = ROWS[MODES["dream" if config.mode == "s2r" else config.mode]].world
        yield config.rl, world, _probes(config, world)
        if config.mode == "s2r":
            yield config.s2r.after(config.rl), "real", None
        return
    done = set[str]()
    for arm in [*config.arms, *([config.ablated] if config.ablations else [])]:
        algorithm, _, mode = arm.rpartition("-")
        if arm in OFFLINE:
            continue
        if mode == "s2r":
            yield config.s2r.after(config.block(arm)), "real", None
            arm = f"{algorithm}-dream"
        if arm not in done:
            done.add(arm)
            world = row_of(arm).world
            yield config.block(arm), world, _probes(config, world)
    for name in config.ablations:
        yield config.block(config.ablated).without(name), "dream", _probes(config.without(name), "dream")


def _probes(config: SharedConfig, world: World) -> ProbesConfig | None:
    found = config.experience.verifier
    return ProbesConfig.model_validate(found.settings["probes"]) if found and found.name == "learned" and world != "real" else None


def _episodes(config: SharedConfig, pilot: Pilot) -> float:
    """How many episodes the logs hold."""
    if pilot.recorded:
        return float(pilot.recorded)
    limit = config.logs.transitions
    return min(config.logs.trajectories, limit / pilot.steps) if limit else config.logs.trajectories


def _judged_s(context: RunContext) -> tuple[float, float]:
    """Seconds an episode of reading the logs for the learned verifier, and of fitting it; 0.0 where there is none, or too few episodes."""
    from dreamgym.experience.learned_verifier.calibration import CalibrationConfig
    from dreamgym.experience.learned_verifier.verifier import fit_verifier, prepare

    if _probes(context.config, "dream") is None:
        return 0.0, 0.0
    start = time.monotonic()
    try:
        prepared = prepare(context.logs, context.suite.rules, seed=0)
        read = time.monotonic() - start
        fit_verifier(prepared, CalibrationConfig())
    except UsageError:  # a run of all the logs may do better, or will say so
        return 0.0, 0.0
    return read / len(context.logs), (time.monotonic() - start - read) / len(context.logs)


def _rates(context: RunContext, rows: Sequence[tuple[Sequence[int], Sequence[float]]], reply: int) -> tuple[float, float]:
    """(tokens fitted a second, tokens sampled a second) by the untrained small model, which stops after `reply` tokens, as replies do."""
    from dreamgym.llm import backbones, tiny
    from dreamgym.train import sft

    config = context.config
    model: Any = tiny.build(context.tokenizer, config.model.size, seed=0)
    model.to(backbones.device(config.model.device))
    training = config.experience.training or config.warm_start
    begun: list[tuple[int, float]] = []

    def watch(step: int, done: float, losses: dict[str, float]) -> bool:
        begun.append((step, time.monotonic()))
        return begun[-1][1] - begun[0][1] > FIT_S

    settings = training.model_copy(update={"epochs": 1e3, "seconds": None})
    sft.train(model, [ids for ids, _ in rows], [weights for _, weights in rows], settings, on_step=watch)
    (first, since), (last, until) = begun[0], begun[-1]
    fitted = (last - first) * training.batch_tokens / max(1e-9, until - since)
    start = time.monotonic()
    policy = config.policy.model_copy(update={"max_reply_tokens": reply})
    written = _acted(replace(context, config=config.model_copy(update={"policy": policy})), model)
    return fitted, written / (time.monotonic() - start)


def _acted(context: RunContext, model: Any) -> int:
    """Tokens that the untrained policy writes in the first states of the recorded episodes."""
    from dreamgym.rollout import rollout

    logs = [t for t in context.logs if t.turns]
    env = _Recorded(logs)
    found = rollout(context.agent(model), env, [t.task for t in logs], seed=0, max_steps=ACT_TURNS, name="pilot")
    return sum(len(turn.completion.ids) for t in found for turn in t.turns if turn.completion)


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
        found = []
        for slot, action in zip(slots, actions, strict=True):
            self.at[slot] += 1
            over = self.at[slot] >= len(self.states[slot])
            state = self.states[slot][-1 if over else self.at[slot]]
            found.append(StepResult(state, 0.0, False, over, action=action))
        return found


def _resident_gb() -> float:
    """The most memory that this process has had, and that of its GPU."""
    import torch

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return (used + (torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0)) / 1e9


def _outlined_gb(config: CompareConfig | TrainConfig, acted: float, dreamed: float) -> float:
    """What the pretrained models of a run need, by their configuration files: weights, optimiser, and keys and values of the rollouts of an
    iteration, where a policy's row holds `acted` tokens and an experience model's `dreamed`. Frozen weights that both share count once."""
    from dreamgym.llm import backbones

    wanted = [
        (config.policy.backbone, config.policy.engine, acted),
        (config.experience.backbone, config.experience.settings.get("engine") or {}, dreamed),
    ]
    at_once = max((block.tasks_per_iter * block.group_size for block, *_ in _loops(config)), default=0)
    cached = sum(_cached(engine, backbones.outline(one), at_once * tokens) for one, engine, tokens in wanted if one)
    return (backbones.memory_of_all([one for one, *_ in wanted if one]) + cached) / 1e9


def _cached(engine: Mapping[str, Any], model: Any, tokens: float) -> float:
    """Bytes of the keys and values of so many tokens in the model's dtype, as far as the engine's budget goes; 0.0 for an engine that is
    not in this process."""
    from dreamgym.engines.local import causal_lm
    from dreamgym.engines.local.config import LocalConfig
    from dreamgym.engines.local.engine import plan

    if engine.get("name", "local") != "local":
        return 0.0
    settings = LocalConfig.model_validate({key: value for key, value in engine.items() if key != "name"})
    shape = causal_lm.plain(model).config.get_text_config()
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    of_token = 2 * shape.num_hidden_layers * heads * size * plan(model, settings).cache_dtype.itemsize
    return min(float(settings.cache_bytes), of_token * tokens)


def _short(n: float) -> str:
    """A count as people say it: 950, 12 k, 3.4 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.2g} {unit}" if n < 10 * size else f"{n / size:,.0f} {unit}"
    return f"{n:.0f}"


def _hours(hours: float) -> str:
    return f"{60 * hours:.0f} minutes" if hours < 1.5 else f"{hours:.1f} hours"
