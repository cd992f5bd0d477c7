"""Episodes of a dream as an agent loop of verl; runs where the package is installed (`make test-peers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl")
import numpy as np
import torch
from chat_model import bytes_tokenizer
from dreams import SUITE, TASKS, corridor_dream
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from dreamgym.adapters.verl import DreamAgentLoop, check_window, dream_grpo
from dreamgym.errors import UsageError
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
        versions = {"min_global_steps": 3, "max_global_steps": 2 + len(self.asked)}
        return TokenOutput(token_ids=ids, log_probs=logprobs, extra_fields=versions)


def played(
    dream: DreamSessions, texts: Sequence[str], *, response_length: int = 2000, window: int | None = None, **info: Any
) -> tuple[Any, Server]:
    """One output, or, with a window, a list of them; and what answered."""
    tokenizer = bytes_tokenizer()
    server = Server(tokenizer, texts)
    rollout = SimpleNamespace(prompt_length=2000, response_length=response_length)
    config = DictConfigWrap(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))
    settings: dict[str, Any] = {"max_reply_tokens": 40, "template": {"instructions": INSTRUCTIONS}, "window": window}
    loop = DreamAgentLoop(config, server, tokenizer, None, None, DictConfigWrap({}), dream=dream, **settings)
    given = {"global_steps": 3, "raw_prompt": [{"role": "user", "content": TASKS[0].instruction}], "extra_info": {"seed": 1, **info}}
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
    assert (out.extra_fields["min_global_steps"], out.extra_fields["max_global_steps"]) == (3, 2 + len(texts))


def test_a_conversation_that_outgrows_the_lengths_is_cut_off_and_a_first_state_that_does_not_fit_fails(dream: DreamSessions):
    out, server = played(dream, ["Action: dance"] * 9, response_length=100)
    assert any(out.response_mask) and len(out.response_ids) <= 100 and 0 < len(server.asked) < 9
    found = out.extra_fields["dream"]
    assert found["truncated"] and not found["failed"] and not found["success"], "it counts as a failure of the policy"
    assert out.reward_score == found["reward"] == 0.0
    rows, _ = played(dream, ["Action: dance"] * 9, response_length=100, window=9)
    assert [row.response_mask for row in rows] == [out.response_mask]
    out, _ = played(dream, ["Action: dance"] * 9, response_length=10)
    assert out.response_mask == [0] and out.extra_fields["dream"]["failed"]
    assert out.extra_fields["min_global_steps"] == out.extra_fields["max_global_steps"] == 3  # verl counts them for every row
    assert played(dream, ["Action: dance"] * 9, response_length=10, window=1)[0] == []


@pytest.mark.parametrize("window", [0, 1, 2])
def test_an_episode_with_a_window_is_a_list_of_rows_that_hold_every_reply_once(dream: DreamSessions, window: int):
    expert = SUITE.demonstrate(TASKS[0], "expert", seed=0)
    texts = [f"Action: {step.action}" for step in expert.transitions]
    whole, _ = played(dream, texts)
    rows, server = played(dream, texts, window=window)
    replies = [[*server.tokenizer.encode(text), server.tokenizer.eos_token_id] for text in texts]
    assert len(rows) == max(1, len(texts) - window)
    conversations = [row.prompt_ids + row.response_ids for row in rows]
    assert all(any(whole_row[: len(asked)] == asked for whole_row in conversations) for asked in server.asked)
    sampled = [i for row in rows for i, one in zip(row.response_ids, row.response_mask, strict=True) if one]
    assert sampled == [i for reply in replies for i in reply]
    assert [p for row in rows for p, one in zip(row.response_logprobs, row.response_mask, strict=True) if one] == [
        -i / 100 for i in range(len(sampled))
    ]
    assert {row.reward_score for row in rows} == {whole.reward_score} and "reward_extra_info" in rows[-1].extra_fields
    assert all(row.extra_fields["dream"] == whole.extra_fields["dream"] for row in rows)


def test_a_window_needs_a_trainer_and_an_estimator_that_know_whose_a_row_is():
    for block, says in (({"algorithm": {"adv_estimator": "dream_grpo"}}, "adv_estimator=grpo"), ({"trainer": {"use_v1": False}}, "use_v1")):
        with pytest.raises(UsageError, match=says):
            check_window(1, SimpleNamespace(**{name: SimpleNamespace(**one) for name, one in block.items()}))
    check_window(0, SimpleNamespace(algorithm=SimpleNamespace(adv_estimator="grpo"), trainer=SimpleNamespace(use_v1=True)))
    with pytest.raises(UsageError, match="window=-1"):
        check_window(-1, SimpleNamespace())


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


def test_verls_trainer_compares_the_last_rows_of_episodes_and_gives_their_advantage_to_the_others():
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    keys = ["u_0_0", "u_0_1", "u_0_2", "u_1_0"]  # an episode of three rows, one of one row, and a masked one that is no member
    rewards = torch.zeros(4, 2)
    rewards[:, -1] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    batch = {"token_level_rewards": rewards, "response_mask": torch.ones(4, 2)}
    data = DataProto.from_dict(tensors=batch, non_tensors={"uid": np.array(["u"] * 4, dtype=object)})
    found = compute_advantage_for_multi_trajectories(data, keys, "grpo", norm_adv_by_std_in_grpo=False)
    assert found.batch["advantages"][:, 0].tolist() == [-0.5, -0.5, -0.5, 0.5]
