"""A dream as what TRL's GRPOTrainer trains in (https://huggingface.co/docs/trl): a `rollout_func`.

    dream = dg.open_dream("runs/mine")
    rollouts = DreamRollouts(dream.batch(), dream.rules, dream.tasks, max_steps=dream.horizon)
    GRPOTrainer(model, rollouts.reward, args, rollouts.dataset(), rollout_func=rollouts)

Whole episodes are played in one batch, with our own engine over the trainer's weights: the tokens that were sampled are those that are
trained. For TRL's own sampling, with vLLM if it is told to, see `adapters.trl_tools`.

TRL leaves a completion whose reward is None out of its group's mean and gives it the advantage 0: so it does with an episode that the
guard masks, or that failed. Its tokens are masked as well, so that it counts in no mean over tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from dreamgym.adapters.episodes import record, token_row
from dreamgym.adapters.versions import check_version
from dreamgym.envs.base import TextRules
from dreamgym.errors import UsageError
from dreamgym.policy.agent import Agent
from dreamgym.policy.loading import instruct_template
from dreamgym.protocols import BatchEnv
from dreamgym.rollout import rollout
from dreamgym.types import DecidedBy, Task

KNOWN = ("1.16", "2.0")
"""The first version of TRL that this was written for, and the first that it was not."""


class DreamRollouts:
    """A `rollout_func` of GRPOTrainer: one episode per prompt, whole conversations, in `env`, real or dreamed.

    `template` are the settings of `policy.loading.instruct_template`. Prompts are the tasks' instructions; one that no task has is a
    synthetic task. A resumed trainer plays the episodes that it would have played.
    """

    def __init__(
        self,
        env: BatchEnv,
        rules: TextRules,
        tasks: Sequence[Task],
        *,
        max_steps: int,
        seed: int = 0,
        max_reply_tokens: int | None = None,
        **template: Any,
    ) -> None:
        check_version("trl", *KNOWN)
        self.env, self.rules, self.tasks, self.max_steps, self.seed = env, rules, list(tasks), max_steps, seed
        self.max_reply_tokens, self.template = max_reply_tokens, template
        self._known = {task.instruction: task for task in reversed(self.tasks)}
        self._agent: Agent | None = None
        self._place = (-1, 0)  # the trainer's step, and how many rollouts it has asked for there

    def dataset(self) -> Any:
        """The tasks as a `datasets.Dataset`: `prompt` is the instruction."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": instruction} for instruction in self._known])

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """What TRL asks a rollout function for, one row a prompt, and `dream`: what must be known of each episode beside its tokens."""
        agent = self._agent = self._agent or self._made(trainer)
        step = int(trainer.state.global_step)
        self._place = (step, self._place[1] + 1 if self._place[0] == step else 0)
        part = (step * 1024 + self._place[1]) * trainer.accelerator.num_processes + trainer.accelerator.process_index
        tasks = [self._task(prompt) for prompt in prompts]
        episodes = rollout(
            agent,
            self.env,
            tasks,
            seed=(self.seed << 40) + part,
            max_steps=self.max_steps,
            temperature=trainer.args.temperature,
            name=f"trl/{part}",
        )
        rows = [token_row(episode, filler=agent.template.stop[0]) for episode in episodes]
        return {
            "prompt_ids": [row.prompt for row in rows],
            "completion_ids": [row.response for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "dream": [record(episode) for episode in episodes],
        }

    def reward(
        self, completions: Sequence[Any], dream: Sequence[Mapping[str, Any]], log_metric: Any = None, **_: Any
    ) -> list[float | None]:
        """The reward function: the sum of the episode's rewards; None for one that the guard masked or that failed. Logs who decided."""
        if log_metric is not None:
            for name in ("masked", "failed", "success"):
                log_metric(f"dream/{name}", sum(bool(one[name]) for one in dream) / len(dream))
            decided = Counter(by or "environment" for one in dream for by in one["decided_by"])
            for by in (*get_args(DecidedBy), "environment"):
                log_metric(f"dream/decided_by_{by}", decided[by] / max(1, decided.total()))
        return [one["reward"] for one in dream]

    def _task(self, prompt: Any) -> Task:
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        return self._known.get(text) or Task("trl", text, self.rules.name, source="synthetic")

    def _made(self, trainer: Any) -> Agent:
        """An agent that samples from the trainer's weights; UsageError for a trainer that samples or keeps them in its own way."""
        from dreamgym.engines.local import make

        args = trainer.args
        if args.use_vllm or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise UsageError(
                "DreamRollouts samples from whole weights in the trainer's own process: no vLLM, FSDP or DeepSpeed. "
                "Leave those out, or use environment_factory, where TRL samples."
            )
        if args.top_p != 1.0 or args.top_k or args.min_p or args.repetition_penalty != 1.0 or args.generation_kwargs:
            raise UsageError(
                "DreamRollouts samples by the temperature alone. Leave top_p, top_k, min_p, repetition_penalty and generation_kwargs as "
                "they are."
            )
        model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
        template = instruct_template(self.rules, tokenizer, **self.template)
        return Agent(
            make(module=model, tokenizer=tokenizer, full_precision=True), template, self.rules, max_reply_tokens=self.max_reply_tokens
        )
