"""Episodes of a dream as an agent loop of verl; runs where the package is installed (`make test-peers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
import torch
from chat_model import bytes_tokenizer
from dreams import SUITE, TASKS, corridor_dream
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from dreamgym.adapters.verl import DreamAgentLoop, dream_grpo
from dreamgym.serve.sessions import DreamSessions

INSTRUCTIONS = "Write an action."


@pytest.fixture
def dream() -> Iterator[DreamSessions]:
    with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as sessions:
        yield sessions


class Server:
    """Replies with the bytes of given texts, and log-probabilities that count up."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts, self.asked, self.said = tokenizer, iter(texts), list[list[int]](), 0

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.asked.append(list(prompt_ids))
        ids = [*self.tokenizer.encode(next(self.texts)), self.tokenizer.eos_token_id]
        logprobs = [-(self.said + i) / 100 for i in range(len(ids))]
        self.said += len(ids)
        assert sampling_params["stop_token_ids"] and sampling_params["temperature"] == 1.0
        return TokenOutput(token_ids=ids, log_probs=logprobs)


def played(dream: DreamSessions, texts: Sequence[str], *, response_length: int = 2000, **info: Any) -> tuple[AgentLoopOutput, Server]:
    tokenizer = bytes_tokenizer()
    server = Server(tokenizer, texts)
    rollout = SimpleNamespace(prompt_length=2000, response_length=response_length)
    config = DictConfigWrap(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))
    loop = DreamAgentLoop(
        config, server, tokenizer, None, None, DictConfigWrap({}), dream=dream, max_reply_tokens=40, template={"instructions": INSTRUCTIONS}
    )
    given = {"raw_prompt": [{"role": "user", "content": TASKS[0].instruction}], "extra_info": {"seed": 1, **info}}
    return asyncio.run(loop.run({"temperature": 1.0}, **given)), server


def test_an_episode_is_one_row_of_the_sampled_tokens_with_a_mask_and_log_probabilities_by_position(dream: DreamSessions):
    expert = SUITE.demonstrate(TASKS[0], "expert", seed=0)
    texts = [f"Action: {step.action}" for step in expert.transitions]
    out, server = played(dream, texts)
    tokenizer = server.tokenizer
    whole = out.prompt_ids + out.response_ids
    assert out.prompt_ids == server.asked[0] and all(whole[: len(asked)] == asked for asked in server.asked)
    sampled = [i for i, one in zip(out.response_ids, out.response_mask, strict=True) if one]
    assert sampled == [i for text in texts for i in (*tokenizer.encode(text), tokenizer.eos_token_id)]
    assert out.response_mask[-1] == 1  # verl writes the reward there
    assert [p for p, one in zip(out.response_logprobs or [], out.response_mask, strict=True) if one] == [
        -i / 100 for i in range(len(sampled))
    ]
    found = out.extra_fields["dream"]
    assert out.reward_score == found["reward"] == float(expert.success) and len(found["decided_by"]) == len(texts)
    assert out.num_turns == 2 * len(texts) and len(dream) == 0


def test_a_conversation_that_does_not_fit_is_a_failed_rollout_without_a_trained_token(dream: DreamSessions):
    out, _ = played(dream, ["Action: dance"] * 9, response_length=100)
    assert not any(out.response_mask) and len(out.response_ids) <= 100
    assert out.extra_fields["dream"]["failed"] and out.extra_fields["dream"]["reward"] is None
    out, _ = played(dream, ["Action: dance"] * 9, response_length=10)
    assert out.response_mask == [0] and out.extra_fields["dream"]["failed"]


def test_a_row_without_trained_tokens_is_out_of_the_mean_of_its_group():
    scores, mask = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]), torch.ones(6, 3)
    mask[3] = 0
    mask[5] = 0
    rewards = torch.zeros(6, 3)
    rewards[:, -1] = scores
    advantages, _ = dream_grpo(rewards, mask, index=[0, 0, 0, 0, 1, 1], norm_adv_by_std_in_grpo=False)
    assert torch.allclose(advantages[:, 0], torch.tensor([1 / 3, -2 / 3, 1 / 3, 0.0, 0.0, 0.0]))
    assert not advantages[3].any()


def test_without_masked_rows_the_advantages_are_those_of_verl():
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    torch.manual_seed(0)
    rewards, mask, index = torch.zeros(8, 4), torch.ones(8, 4), [0, 0, 0, 0, 1, 1, 1, 1]
    rewards[:, -1] = torch.rand(8)
    for scaled in (True, False):
        ours = dream_grpo(rewards.clone(), mask, index, norm_adv_by_std_in_grpo=scaled)[0]
        theirs = compute_grpo_outcome_advantage(rewards.clone(), mask, index, norm_adv_by_std_in_grpo=scaled)[0]
        assert torch.allclose(ours, theirs, atol=1e-6)
