"""TRL's GRPOTrainer in a dream, through the adapter; runs where the package is installed (`make test-peers`)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")
from instruct import INSTRUCTIONS, SUITE, TASKS, instructed, real_success, recorded_dream
from trl import GRPOConfig, GRPOTrainer

from dreamgym.adapters.trl import DreamRollouts
from dreamgym.statistics import seed_mean

SEEDS = range(4)


@pytest.mark.slow
def test_rl_in_a_dream_by_trl_raises_real_success(tmp_path: Path):
    gains = []
    for seed in SEEDS:
        policy = instructed(seed, epochs=20.0)
        before = real_success(policy, 40)
        rollouts = DreamRollouts(
            recorded_dream(), SUITE.rules, TASKS, max_steps=SUITE.max_steps, seed=seed, max_reply_tokens=8, instructions=INSTRUCTIONS
        )
        args = GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            seed=seed,
            max_steps=16,
            per_device_train_batch_size=len(TASKS) * 16,
            num_generations=16,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            scale_rewards="none",
        )
        GRPOTrainer(
            policy.model, rollouts.reward, args, rollouts.dataset(), processing_class=policy.tokenizer, rollout_func=rollouts
        ).train()
        gains.append(real_success(policy, 40) - before)
        print(f"seed {seed}: {before:.3f} {gains[-1]:+.3f}")
    low = seed_mean(gains).low
    assert low is not None and low > 0, gains
