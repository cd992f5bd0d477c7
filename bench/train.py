"""The cost of one GRPO iteration in the dream, by part, beside TRL's GRPOTrainer over `transformers.generate`: same weights, one run.

    python bench/train.py [--json] [--full | --smoke] [--cpu] [--recompute] [--experience 15m]

An iteration is a rollout of the policy in the dream (eight episodes per task), the update, and the growth of the buffer. The same iteration
without recall (`experience.recall`), and without lockstep (`rollout(min_ready=0.25)`), is measured beside it.
TRL plays the same episodes through the same agent, prompts, retrieval and guard in its `rollout_func`; both its language models are
`transformers.generate` in bfloat16, without a cache between calls. The text is forced (`common/forced_text.py`): logged episodes of the
shop, the same for both, at real lengths, over models that were never trained.
Rewards are random, so that every group is mixed and both learners train on every row, in as many steps, in bfloat16. dreamgym's ratios
use the sampler's log-probabilities, as the quickstarts do; `--recompute` passes all rows through the model first, as TRL does.

`--experience` takes a larger experience model beside the same policy: what recall saves grows with it.
Every contender runs in a process of its own. Times are those of the faster of two iterations (at full size, of TRL's only one). `--cpu`
counts processor seconds, for a busy machine. Ratios above 1: dreamgym is faster.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from common import options as cli
from common.forced_text import ForcedText
from common.isolation import isolated

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard
from dreamgym.experience.models.finetuned import FinetunedConfig, FinetunedExperienceModel
from dreamgym.llm import tiny
from dreamgym.llm.sizes import SIZES
from dreamgym.logs.demonstrations import collect
from dreamgym.plugins import make
from dreamgym.policy.agent import Agent
from dreamgym.policy.templates.markers import Markers
from dreamgym.recipes import factory
from dreamgym.recipes.config import RunConfig
from dreamgym.rollout import DEFAULT_MIN_READY, group_by_task, rollout
from dreamgym.train.batch import sequences_of
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig
from dreamgym.types import Completion, Request, Task, Trajectory

GROUP = 8
SEED = 7  # of the rollout
STEPS = 4  # of the optimiser, an iteration
LR = 1e-6
Clock = Callable[[], float]
PARTS = ("generation", "experience_model", "retrieval", "guard", "learner")


@dataclass(frozen=True)
class Size:
    """The logged episodes of the buffer, the tasks of an iteration, and the clock."""

    logs: int
    tasks: int
    clock: Clock
    model: str = "1m"
    experience: str = "1m"
    old_logprobs: Literal["learner", "sampler"] = "sampler"
    recall: bool = True
    ready: float = 1.0


@dataclass
class Split:
    """Seconds by part. A part that runs inside another is counted as the inner one only."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inner: list[float] = field(default_factory=list)  # of the open calls, the seconds spent in parts inside them

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
    """Shared by both sides: the shop, its logs, a tokenizer of their texts, and the episodes to play. Built in each process."""

    def __init__(self, size: Size) -> None:
        self.size, self.config = size, RunConfig()
        self.suite = factory.make_suite(self.config)
        self.logs = collect(self.suite, size.logs, seed=0)
        self.tokenizer = factory.learn_tokenizer(self.logs, self.suite.rules, self.config.model.vocab_size)
        self.words = factory.make_vocabulary(self.tokenizer)
        self.tasks = [task for task in self.suite.tasks("dev", size.tasks, seed=factory.TASK_SEED) for _ in range(GROUP)]
        names = np.random.default_rng(0).choice(
            list(self.suite.scripted_policies), len(self.tasks), p=list(self.suite.scripted_policies.values())
        )
        episodes = [self.suite.demonstrate(task, str(name), seed=i) for i, (task, name) in enumerate(zip(self.tasks, names, strict=True))]
        self.experience = FinetunedConfig(**self.config.experience.settings | {"recall": size.recall})
        self.forced = ForcedText(episodes, self.words, self.suite.rules, self.experience.prompt_parts, seed=SEED)

    def model(self, seed: int) -> Any:
        """A fresh model; the policy is 0, the experience model 1."""
        return tiny.build(self.tokenizer, self.size.experience if seed else self.size.model, seed=seed)


class Player:
    """The agent and the dream of one side, over its language models."""

    def __init__(self, setting: Setting, policy: Any, dreamer: Any) -> None:
        self.setting, self.split, rules = setting, Split(setting.size.clock), setting.suite.rules
        self.agent = Agent(policy, Markers(setting.words), rules)
        self.replay = factory.open_replay(None, setting.logs)
        self.dream_tokens = Counter[str]()
        _count_tokens(dreamer, self.dream_tokens)
        guard = Guard(rules, setting.config.guard)
        model = FinetunedExperienceModel(dreamer, setting.words, self.replay, guard, setting.experience)
        self.dream = DreamBatch(model, rules, horizon=setting.suite.max_steps)
        for method in ("submit", "poll"):
            self.split.watch(policy, method, "generation")
            self.split.watch(dreamer, method, "experience_model")
        for method in ("search", "add"):
            self.split.watch(self.replay, method, "retrieval")
        for method in ("before", "review"):
            self.split.watch(guard, method, "guard")

    def play(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """One rollout with random rewards. Only the buffer's content differs from call to call."""
        size = self.setting.size
        found = rollout(self.agent, self.dream, tasks, seed=SEED, max_steps=self.setting.suite.max_steps, min_ready=size.ready)
        self.replay.add(found)
        return [_with_random_reward(episode, i) for i, episode in enumerate(found)]


def _count_tokens(llm: Any, counts: Counter[str]) -> None:
    """Count what a language model reads and writes."""
    submit, poll = llm.submit, llm.poll

    def submitted(requests: Sequence[Request]) -> list[int]:
        counts["read"] += sum(len(one.prompt) for one in requests)
        return submit(requests)

    def polled(tickets: Any) -> list[tuple[int, Completion]]:
        found = poll(tickets)
        counts["written"] += sum(len(one.ids) for _, one in found)
        return found

    llm.submit, llm.poll = submitted, polled


def _with_random_reward(episode: Trajectory, i: int) -> Trajectory:
    """The episode with a random final reward: a group always holds both values, and a masked episode counts too."""
    reward = float(i % GROUP == 0 or (i % GROUP > 1 and np.random.default_rng(i).random() < 0.5))
    last = episode.turns[-1]
    turns = (*episode.turns[:-1], replace(last, transition=replace(last.transition, reward=reward)))
    return replace(episode, turns=turns, error=None)


def ours(size: Size) -> dict[str, Any]:
    """Iterations of `loop.train` without a curriculum."""
    setting = Setting(size)
    setting.forced.force()
    model = setting.model(0)
    player = Player(setting, *(LocalEngine(one, setting.tokenizer, dtype="auto") for one in (model, setting.model(1))))
    settings = LearnerConfig(lr=LR, minibatches=STEPS, min_trajectories=1, old_logprobs=size.old_logprobs)
    learner = Learner(model, make("train.algos", "grpo"), settings)
    player.split.watch(learner, "update", "learner")
    measured = []
    for _ in range(2):
        player.split.seconds.clear()
        player.dream_tokens.clear()
        start = size.clock()
        episodes = player.play(setting.tasks)
        learner.update(group_by_task(episodes, GROUP))
        measured.append(_measured(size.clock() - start, player, episodes))
    return min(measured, key=lambda one: one["seconds"])


def trl(size: Size, iterations: int) -> dict[str, Any]:
    """TRL's trainer. Both models generate in bfloat16; the policy's copy is refreshed before every rollout."""
    from common.generate_llm import GenerateLLM
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    setting = Setting(size)
    tasks = {task.instruction: task for task in setting.tasks}
    model, copy = setting.model(0), setting.model(0).bfloat16()
    player = Player(setting, *(GenerateLLM(one, setting.tokenizer, setting.forced) for one in (copy, setting.model(1).bfloat16())))
    measured: list[dict[str, Any]] = []
    start = learning = 0.0
    played: list[Trajectory] = []

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        """A prompt is repeated once for each of its answers, in order; a whole conversation is one row."""
        nonlocal start, learning
        player.split.seconds.clear()
        player.dream_tokens.clear()
        start = size.clock()
        copy.load_state_dict(model.state_dict())
        played[:] = player.play([tasks[prompt] for prompt in prompts])
        out: dict[str, list[Any]] = {key: [] for key in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")}
        for i, episode in enumerate(played):
            (row,) = sequences_of(episode, i)
            begin = row.mask.index(1.0)
            out["prompt_ids"].append(row.ids[:begin])
            out["completion_ids"].append(row.ids[begin:])
            out["logprobs"].append(row.old_logprobs[begin:])
            out["env_mask"].append([int(m) for m in row.mask[begin:]])
            out["reward"].append(episode.total_reward)
        learning = size.clock()
        return out

    class Ends(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % STEPS == 0:
                end = size.clock()
                player.split.seconds["learner"] = end - learning
                measured.append(_measured(end - start, player, played))

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


def _measured(seconds: float, player: Player, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    completions = [turn.completion for episode in episodes for turn in episode.turns if turn.completion]
    by_part = {part: player.split.seconds[part] for part in PARTS}
    decided = Counter(step.info.decided_by for episode in episodes for step in episode.transitions)
    return {
        "seconds": seconds,
        "split": by_part | {"other": seconds - sum(by_part.values())},
        "episodes": len(episodes),
        "turns": len(completions),
        "recalled_share": decided["recalled"] / max(1, decided.total()),
        "dream_tokens": dict(player.dream_tokens),
        "policy_tokens": sum(len(one.ids) for one in completions),
        "row_tokens": sum(len(row.ids) for i, episode in enumerate(episodes) for row in sequences_of(episode, i)),
    }


def compared(arms: dict[str, dict[str, Any]], theirs: dict[str, Any], size: Size) -> dict[str, Any]:
    """The ratios and the measurements behind them. `arms` are ours, and ours without recall and without lockstep."""
    mine = arms["ours"]
    measured = "seconds" in theirs
    if measured and any(mine[key] != theirs[key] for key in ("episodes", "turns", "policy_tokens", "row_tokens")):
        raise SystemExit(f"The two sides played different episodes: {mine} and {theirs}.")
    return {
        "seconds_per_iteration": mine["seconds"],
        "split": mine["split"],
        "ratio_vs_trl_grpo": theirs["seconds"] / mine["seconds"] if measured else None,
        "learner_ratio_vs_trl_grpo": theirs["split"]["learner"] / mine["split"]["learner"] if measured else None,
        "recalled_share": mine["recalled_share"],
        "dream_tokens_saved": {kind: arms["no_recall"]["dream_tokens"][kind] - n for kind, n in mine["dream_tokens"].items()},
        "ratio_vs_no_recall": arms["no_recall"]["seconds"] / mine["seconds"],
        "ratio_vs_asynchronous": arms["asynchronous"]["seconds"] / mine["seconds"],
        "model": size.model,
        "experience_model_size": size.experience,
        "old_logprobs": size.old_logprobs,
        "tasks": size.tasks,
        "group_size": GROUP,
        **arms,
        "trl": theirs,
    }


def main() -> None:
    full = "the shop's quickstart: 32 tasks of 8 rollouts, a buffer of 5,000 logs"
    parser = cli.parser(__doc__, full=full, smoke="1 task, a buffer of 40 logs, the 100k model")
    parser.add_argument("--cpu", action="store_true", help="processor seconds of all threads instead of the clock's")
    parser.add_argument("--recompute", action="store_true", help="recompute the behaviour policy's log-probabilities, as TRL does")
    parser.add_argument("--experience", choices=list(SIZES), help="the experience model's size (default: the policy's)")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    logs, tasks, model = (5000, 32, "1m") if options.full else (40, 1, "100k") if options.smoke else (500, 4, "1m")
    size = Size(logs, tasks, clock, model, options.experience or model, "learner" if options.recompute else "sampler")
    sizes = {"ours": size, "no_recall": replace(size, recall=False), "asynchronous": replace(size, ready=DEFAULT_MIN_READY)}
    arms = {name: isolated(ours, one) for name, one in sizes.items()}
    found = compared(arms, isolated(trl, size, 1 if options.full else 2), size)
    found |= {"threads": torch.get_num_threads(), "clock": "processor" if options.cpu else "wall"}
    show(found)
    cli.finish(options, found)


def show(found: dict[str, Any]) -> None:
    """The table for a person."""
    print(
        f"{found['model']}, {found['tasks']} tasks of {found['group_size']} rollouts, {found['threads']} threads, {found['clock']} seconds"
    )
    for name in ("ours", "no_recall", "asynchronous", "trl"):
        one = found[name]
        if missing := one.get("missing"):
            print(f"  {name:<12} {missing}")
            continue
        split = "  ".join(f"{part} {seconds:.2f}" for part, seconds in one["split"].items())
        counts = f"{one['turns']} turns, {one['recalled_share']:.0%} recalled, "
        counts += f"rows of {one['row_tokens']} tokens, {one['policy_tokens']} of them sampled; "
        counts += f"the experience model read {one['dream_tokens']['read']} tokens and wrote {one['dream_tokens']['written']}"
        print(f"  {name:<12} {one['seconds']:7.2f} s  {one['peak_mb']:.0f} MB  {counts}\n        {split}")
    for key in ("ratio_vs_no_recall", "ratio_vs_asynchronous", "ratio_vs_trl_grpo", "learner_ratio_vs_trl_grpo"):
        print(f"  {key} = {'not measured' if found[key] is None else format(found[key], '.2f')}")


if __name__ == "__main__":
    main()
