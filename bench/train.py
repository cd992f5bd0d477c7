"""What an iteration of GRPO in the dream costs, part by part, beside TRL's GRPOTrainer over `transformers.generate`: same weights, one run.

    python bench/train.py [--json] [--full] [--cpu] [--recompute]

An iteration is a rollout of the policy in the dream (episodes in lockstep, a group of eight to a task), the update, and the buffer's
growth. TRL's side plays the same episodes through the same agent, prompts, retrieval and guard, in its `rollout_func`; both its language
models are `transformers.generate`, from the beginning of every prompt, in bfloat16. What is said comes from logged episodes of the shop
(`_script`), so that both sides play the same ones, at real lengths, over models that were never trained.
Rewards are drawn by lot, so that every group is mixed and both learners train on every row, in as many steps, in bfloat16. Ours takes its
ratios against the sampler's log-probabilities as they came, as the quickstart does; `--recompute` passes all rows through the model first,
as TRL does.

Every contender runs in a process of its own. Times are of the best of two iterations (of TRL's only one, at full size); `--cpu` counts
processor seconds instead of the clock's, for a machine that is busy. Ratios above 1: ours is faster.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from _alone import alone
from _script import Script

from dreamgym.agent import Agent
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard
from dreamgym.experience.model import ExperienceModel
from dreamgym.llm import tiny
from dreamgym.llm.hf import HFEngine
from dreamgym.logs.scripted import collect
from dreamgym.plugins import make
from dreamgym.recipes import memories
from dreamgym.recipes import parts as build
from dreamgym.recipes.config import RunConfig
from dreamgym.rollout import group_by_task, rollout
from dreamgym.train.batch import rows_of
from dreamgym.train.learner import Learner, LearnerConfig
from dreamgym.types import Task, Trajectory

GROUP = 8
SEED = 7  # of the rollout
STEPS = 4  # of the optimiser, an iteration
LR = 1e-6
Clock = Callable[[], float]
PARTS = ("generation", "experience_model", "retrieval", "guard", "learner")


@dataclass(frozen=True)
class Size:
    """How much is remembered before, and played in an iteration; and the clock that it is timed by."""

    logs: int
    tasks: int
    clock: Clock
    model: str = "1m"
    old: Literal["learner", "sampler"] = "sampler"


@dataclass
class Split:
    """Seconds by part. What a part calls inside another part is counted as the inner one's."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inner: list[float] = field(default_factory=list)  # of the calls under way, the seconds spent in parts inside them

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Time the calls of `owner.method`."""
        call = getattr(owner, method)

        def timed(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            start = self.clock()
            try:
                return call(*arguments, **named)
            finally:
                spent = self.clock() - start
                self.seconds[part] += spent - self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent

        setattr(owner, method, timed)


class Setting:
    """What both sides share: the shop, its logs, a tokenizer of their texts, and the episodes to play. Made anew in each process."""

    def __init__(self, size: Size) -> None:
        self.size, self.config = size, RunConfig()
        self.family = build.make_family(self.config)
        self.logs = collect(self.family, size.logs, seed=0)
        self.tokenizer = build.learn_tokenizer(self.logs, self.family.domain, self.config.model.vocab_size)
        self.words = build.vocabulary(self.tokenizer)
        self.tasks = [task for task in self.family.tasks("dev", size.tasks, seed=build.DEV_SEED) for _ in range(GROUP)]
        names = np.random.default_rng(0).choice(list(self.family.behaviours), len(self.tasks), p=list(self.family.behaviours.values()))
        episodes = [self.family.behave(task, str(name), seed=i) for i, (task, name) in enumerate(zip(self.tasks, names, strict=True))]
        self.script = Script(episodes, self.words, self.family.domain, self.config.experience.pieces, seed=SEED)

    def model(self, seed: int) -> Any:
        """A fresh model; the policy is 0, the experience model 1."""
        return tiny.build(self.tokenizer, self.size.model, seed=seed)


class Player:
    """One side's agent and dream, over the language models it is given."""

    def __init__(self, setting: Setting, policy: Any, dreamer: Any) -> None:
        self.setting, self.split, domain = setting, Split(setting.size.clock), setting.family.domain
        self.agent = Agent(policy, setting.words, domain)
        self.replay = memories.open_replay(None, setting.logs)
        guard = Guard(domain, setting.config.guard)
        model = ExperienceModel(dreamer, setting.words, self.replay, guard, setting.config.experience)
        self.dream = DreamBatch(model, domain, horizon=setting.family.max_steps)
        self.split.watch(policy, "generate", "generation")
        self.split.watch(dreamer, "generate", "experience_model")
        for method in ("search", "add"):
            self.split.watch(self.replay, method, "retrieval")
        for method in ("before", "review"):
            self.split.watch(guard, method, "guard")

    def play(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """One rollout, the same every time but for what the buffer has come to hold; rewards by lot."""
        found = rollout(self.agent, self.dream, tasks, seed=SEED, max_steps=self.setting.family.max_steps)
        self.replay.add(found)
        return [_drawn(episode, i) for i, episode in enumerate(found)]


def _drawn(episode: Trajectory, i: int) -> Trajectory:
    """The episode with a reward by lot at its end: a group always holds both kinds, and one that the guard masked counts too."""
    reward = float(i % GROUP == 0 or (i % GROUP > 1 and np.random.default_rng(i).random() < 0.5))
    last = episode.turns[-1]
    turns = (*episode.turns[:-1], replace(last, transition=replace(last.transition, reward=reward)))
    return replace(episode, turns=turns, error=None)


def ours(size: Size) -> dict[str, Any]:
    """Iterations as `loop.train` makes them, without a curriculum."""
    setting = Setting(size)
    setting.script.force()
    model = setting.model(0)
    player = Player(setting, *(HFEngine(one, setting.tokenizer, dtype="auto") for one in (model, setting.model(1))))
    learner = Learner(model, make("train.algos", "grpo"), LearnerConfig(lr=LR, minibatches=STEPS, min_trajectories=1, old=size.old))
    player.split.watch(learner, "update", "learner")
    measured = []
    for _ in range(2):
        player.split.seconds.clear()
        start = size.clock()
        episodes = player.play(setting.tasks)
        learner.update(group_by_task(episodes, GROUP))
        measured.append(_measured(size.clock() - start, player.split, episodes))
    return min(measured, key=lambda one: one["seconds"])


def trl(size: Size, iterations: int) -> dict[str, Any]:
    """TRL's trainer. Both models generate in bfloat16; the policy's copy is made anew for every rollout."""
    from _generate import GenerateLLM
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    setting = Setting(size)
    tasks = {task.instruction: task for task in setting.tasks}
    model, copy = setting.model(0), setting.model(0).bfloat16()
    player = Player(setting, *(GenerateLLM(one, setting.tokenizer, setting.script) for one in (copy, setting.model(1).bfloat16())))
    measured: list[dict[str, Any]] = []
    start = learning = 0.0
    played: list[Trajectory] = []

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Prompts come as often as they are to be answered, in order; a whole conversation is one row."""
        nonlocal start, learning
        player.split.seconds.clear()
        start = size.clock()
        copy.load_state_dict(model.state_dict())
        played[:] = player.play([tasks[prompt] for prompt in prompts])
        out: dict[str, list[Any]] = {key: [] for key in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")}
        for i, episode in enumerate(played):
            (row,) = rows_of(episode, i)
            begin = row.mask.index(1.0)
            out["prompt_ids"].append(row.ids[:begin])
            out["completion_ids"].append(row.ids[begin:])
            out["logprobs"].append(row.logprobs[begin:])
            out["env_mask"].append([int(m) for m in row.mask[begin:]])
            out["reward"].append(episode.total_reward)
        learning = size.clock()
        return out

    class Ends(TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step % STEPS == 0:
                end = size.clock()
                player.split.seconds["learner"] = end - learning
                measured.append(_measured(end - start, player.split, played))

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=True, per_device_train_batch_size=size.tasks * GROUP // STEPS, steps_per_generation=STEPS,
            gradient_accumulation_steps=1, num_generations=GROUP, max_steps=STEPS * iterations, learning_rate=LR, beta=0.0,
            loss_type="dapo", epsilon_high=0.28, max_completion_length=4096, gradient_checkpointing=False, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, shuffle_dataset=False, dataloader_num_workers=0,
            remove_unused_columns=False,
        )  # fmt: skip
        GRPOTrainer(
            model, lambda reward, **_: reward, args=settings, train_dataset=Dataset.from_dict({"prompt": list(tasks)}),
            processing_class=setting.tokenizer, rollout_func=rollouts, callbacks=[Ends()],
        ).train()  # fmt: skip
    return min(measured, key=lambda one: one["seconds"])


def _measured(seconds: float, split: Split, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    said = [turn.completion for episode in episodes for turn in episode.turns if turn.completion]
    by_part = {part: split.seconds[part] for part in PARTS}
    return {
        "seconds": seconds,
        "split": by_part | {"other": seconds - sum(by_part.values())},
        "episodes": len(episodes),
        "turns": len(said),
        "policy_tokens": sum(len(one.ids) for one in said),
        "row_tokens": sum(len(row.ids) for i, episode in enumerate(episodes) for row in rows_of(episode, i)),
    }


def compared(mine: dict[str, Any], theirs: dict[str, Any], size: Size) -> dict[str, Any]:
    """The ratios, and what they were computed from."""
    there = "seconds" in theirs
    if there and any(mine[key] != theirs[key] for key in ("episodes", "turns", "policy_tokens", "row_tokens")):
        raise SystemExit(f"The two sides played different episodes: {mine} and {theirs}.")
    return {
        "seconds_per_iteration": mine["seconds"],
        "split": mine["split"],
        "ratio_vs_trl_grpo": theirs["seconds"] / mine["seconds"] if there else None,
        "learner_ratio_vs_trl_grpo": theirs["split"]["learner"] / mine["split"]["learner"] if there else None,
        "model": size.model,
        "old_logprobs": size.old,
        "tasks": size.tasks,
        "group_size": GROUP,
        "ours": mine,
        "trl": theirs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--full", action="store_true", help="the quickstart's iteration: 32 tasks of 8 rollouts, a memory of 5,000 logs")
    parser.add_argument("--cpu", action="store_true", help="processor seconds of all threads instead of the clock's")
    parser.add_argument("--recompute", action="store_true", help="compute the behaviour policy's log-probabilities anew, as TRL does")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    size = Size(logs=5000, tasks=32, clock=clock) if options.full else Size(logs=500, tasks=4, clock=clock)
    size = replace(size, old="learner" if options.recompute else "sampler")
    found = compared(alone(ours, size), alone(trl, size, 1 if options.full else 2), size)
    found |= {"threads": torch.get_num_threads(), "clock": "processor" if options.cpu else "wall"}
    show(found)
    if options.json:
        print(json.dumps(found))


def show(found: dict[str, Any]) -> None:
    """The table for a person."""
    print(
        f"{found['model']}, {found['tasks']} tasks of {found['group_size']} rollouts, {found['threads']} threads, {found['clock']} seconds"
    )
    for name in ("ours", "trl"):
        one = found[name]
        if missing := one.get("missing"):
            print(f"  {name:<5} {missing}")
            continue
        split = "  ".join(f"{part} {seconds:.2f}" for part, seconds in one["split"].items())
        counts = f"{one['turns']} turns, rows of {one['row_tokens']} tokens, {one['policy_tokens']} of them sampled"
        print(f"  {name:<5} {one['seconds']:7.2f} s  {one['peak_mb']:.0f} MB  {counts}\n        {split}")
    for key in ("ratio_vs_trl_grpo", "learner_ratio_vs_trl_grpo"):
        print(f"  {key} = {'not measured' if found[key] is None else format(found[key], '.2f')}")


if __name__ == "__main__":
    main()
