"""A dream as an agent loop of verl (https://verl.readthedocs.io, 0.9), and GRPO's advantages without masked episodes.

    export VERL_USE_EXTERNAL_MODULES=dreamgym.adapters.verl
    actor_rollout_ref.rollout.agent.default_agent_loop=dream
    actor_rollout_ref.rollout.agent.agent_loop_config_path=dream.yaml
    algorithm.adv_estimator=dream_grpo

    # dream.yaml
    - name: dream
      _target_: dreamgym.adapters.verl.DreamAgentLoop
      dream: {_target_: dreamgym.recipes.serve.shared_sessions, run: runs/mine}

The policy speaks its chat template as in our own rollouts: what was sampled is never encoded again. verl has no reward of None, and a 0
would count in the mean of the group. So an episode that the guard masks, or that failed, has a response mask of zeros, and `dream_grpo`
leaves such rows out of the mean; other estimators do not. An episode that outgrows verl's lengths is cut off, as at the horizon.

With a `window`, an episode is a list of rows, one for each conversation. verl's present trainer (`trainer.use_v1`, the default) takes
lists; an estimator sees their rows and not whose they are, except verl's own `grpo`, which compares the last row of each episode and gives
its advantage to the others. So `window` needs that estimator, and a masked episode is then an empty list, which is no member of its group.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4
from zlib import crc32

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.trainer.ppo.core_algos import register_adv_est

from dreamgym.adapters.episodes import record, token_rows
from dreamgym.adapters.versions import check_version
from dreamgym.errors import UsageError
from dreamgym.policy.agent import Conversation, next_prompt
from dreamgym.policy.loading import instruct_template
from dreamgym.serve.sessions import DreamSessions
from dreamgym.types import Completion, Trajectory, Transition, Turn

KNOWN = ("0.9", "0.10")  # the first version of verl that this was written for, and the first that it was not
TOO_LONG = "the first state does not fit into verl's prompt_length or response_length"


@register("dream")
class DreamAgentLoop(AgentLoopBase):
    """One dreamed episode a sample. The dataset's `extra_info` may name a `task` (an id or an instruction) and a `seed`; else the task is
    the text of the last message of `raw_prompt`, and the seed is drawn."""

    def __init__(
        self,
        *args: Any,
        dream: DreamSessions,
        max_reply_tokens: int = 256,
        template: dict[str, Any] | None = None,
        window: int | None = None,
        **kwargs: Any,
    ) -> None:
        """`dream` is one in a process, because verl makes an agent loop for every sample; `template` are the settings of
        `policy.loading.instruct_template`; `window` is how many turns a prompt shows before the present state, None for all.

        UsageError for a window with a trainer or an estimator that takes each row for an episode.
        """
        check_version("verl", *KNOWN)
        super().__init__(*args, **kwargs)
        self.dream, self.max_reply_tokens, self.window = dream, max_reply_tokens, window
        if window is not None:
            check_window(window, self.config)
        self.template = instruct_template(self.dream.rules, self.tokenizer, **(template or {}))
        self.limits = int(self.rollout_config.prompt_length), int(self.rollout_config.response_length)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """The episode as one row, token for token; with a window, its rows in order, and none for an episode that is masked or failed.
        `extra_fields["dream"]` is `adapters.episodes.record`."""
        given = dict(kwargs.get("extra_info") or {})
        name = str(given.get("task") or kwargs["raw_prompt"][-1]["content"])
        started, request = time.perf_counter(), uuid4().hex
        seed = int(given.get("seed", crc32(request.encode())))
        opened = await asyncio.wrap_future(self.dream.open(name, seed=seed))
        played = _Played(kwargs.get("global_steps"))
        try:
            episode = await self._play(opened, sampling_params, request, played)
        finally:
            await asyncio.wrap_future(self.dream.end(opened.session))
        metrics = AgentLoopMetrics(generate_sequences=played.sampled_s, tool_calls=time.perf_counter() - started - played.sampled_s)
        found = record(episode)
        rows = token_rows(episode, filler=self.template.stop[0])
        outputs = [
            AgentLoopOutput(
                prompt_ids=row.prompt,
                response_ids=row.response,
                response_mask=row.mask,
                response_logprobs=row.logprobs,
                reward_score=found["reward"] or 0.0,
                num_turns=2 * len(episode.turns),
                metrics=metrics if row is rows[-1] else AgentLoopMetrics(),
                extra_fields={"dream": found, "turn_scores": [], "tool_rewards": [], "reward_extra_info": {}, **played.global_steps},
            )
            for row in rows
        ]
        if self.window is None:
            (output,) = outputs
            return output
        return [] if episode.error else outputs

    async def _play(self, opened: Any, sampling: dict[str, Any], request: str, played: _Played) -> Trajectory:
        """The episode. `played` tells what verl wants to know of its sampling."""
        rules, template = self.dream.rules, self.template
        state, turns, error, terminated = opened.observation, list[Turn](), None, False
        talk, first, (longest_prompt, longest_response) = Conversation(request, opened.task.instruction), 0, self.limits
        for _ in range(self.dream.horizon):
            view = rules.view(state)
            ids = next_prompt(talk, view.text, template, window=self.window)
            first = first if first and ids[: len(talk.ids)] == talk.ids else len(ids)
            if first > longest_prompt or len(ids) - first + self.max_reply_tokens > longest_response:
                error = None if turns else TOO_LONG  # else it is cut off, as at the horizon: a failure of the policy
                break
            since = time.perf_counter()
            asked = sampling | {"max_tokens": self.max_reply_tokens, "stop_token_ids": list(template.stop)}
            output = await self.server_manager.generate(request_id=request, prompt_ids=ids, sampling_params=asked)
            played.add(output, time.perf_counter() - since)
            reply = tuple(output.token_ids)
            ended = bool(reply) and reply[-1] in template.stop
            text = self.tokenizer.decode(reply[:-1] if ended else reply, skip_special_tokens=False)
            if output.log_probs is not None and len(output.log_probs) != len(reply):
                raise UsageError(f"verl's server gave {len(output.log_probs)} log-probabilities for {len(reply)} tokens.")
            logprobs = tuple(output.log_probs or [0.0] * len(reply))
            completion = Completion(tuple(ids), reply, logprobs, text, "stop" if ended else "length")
            action = view.resolve(template.action_of(text, reply))
            result = await asyncio.wrap_future(self.dream.step(opened.session, action))
            step = Transition(state, result.action or action, result.observation, result.reward, result.terminated, result.info)
            turns.append(Turn(step, completion))
            state, error, terminated = result.observation, result.info.error, result.terminated
            if error or terminated or result.truncated:
                break
            talk.turns.append((view.text, reply))
            talk.ids = [*ids, *reply]
        success = error is None and bool(turns) and turns[-1].transition.succeeded
        return Trajectory(request, opened.task, "dream", tuple(turns), success, truncated=not terminated, error=error, behaviour="policy")


@dataclass
class _Played:
    """What verl wants to know of an episode: the seconds that the policy took, and between which of its versions it was sampled. Where
    nothing was sampled, that is the version at which the episode was asked for."""

    asked_at: int | None
    versions: list[int] = field(default_factory=list)
    sampled_s: float = 0.0

    def add(self, output: Any, seconds: float) -> None:
        self.sampled_s += seconds
        found = (getattr(output, "extra_fields", None) or {}).get
        self.versions += [version for name in ("min_global_steps", "max_global_steps") if (version := found(name)) is not None]

    @property
    def global_steps(self) -> dict[str, int]:
        versions = self.versions or ([] if self.asked_at is None else [self.asked_at])
        return {"min_global_steps": min(versions), "max_global_steps": max(versions)} if versions else {}


def check_window(window: int, config: Any) -> None:
    """UsageError for a window with a trainer or an estimator that takes each row for an episode."""
    if window < 0:
        raise UsageError(f"window={window} must be 0 (only the present state) or more, or None for all turns.")
    estimator = getattr(getattr(config, "algorithm", None), "adv_estimator", "grpo")
    if str(getattr(estimator, "value", estimator)) != "grpo":
        raise UsageError(
            f"A window makes several rows of an episode, and '{estimator}' takes each for one. Set algorithm.adv_estimator=grpo."
        )
    if getattr(getattr(config, "trainer", None), "use_v1", True) is False:
        raise UsageError("A window makes several rows of an episode, which verl's old trainer does not take. Set trainer.use_v1=True.")


@register_adv_est("dream_grpo")
def dream_grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns [B, T] of GRPO, whose groups (`index` [B]) are compared without the rows that have no trained token. A group
    with fewer than two others has no signal."""
    scores, counted = token_level_rewards.sum(dim=-1), response_mask.bool().any(dim=-1)
    advantages = torch.zeros_like(scores)
    groups: dict[Any, list[int]] = defaultdict(list)
    for row, group in enumerate(index):
        if counted[row]:
            groups[group].append(row)
    for rows in groups.values():
        if len(rows) > 1:
            centred = scores[rows] - scores[rows].mean()
            advantages[rows] = centred / (scores[rows].std() + epsilon) if norm_adv_by_std_in_grpo else centred
    spread = advantages.unsqueeze(-1) * response_mask
    return spread, spread
