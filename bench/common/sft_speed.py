"""Supervised training on packed rows, beside TRL's SFTTrainer: same model, same rows, same tokens per optimiser step and precision."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

STEP_TOKENS = 4096
WARM_STEPS = 2  # not timed


def rows_of(training: dict[str, int], vocabulary: int = 2048) -> list[list[int]]:
    """Rows of uneven lengths around `training["length"]`; every token but the first of a row has a loss."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(training["length"] // 2, training["length"] * 3 // 2, training["rows"])
    return [rng.integers(10, vocabulary, int(n)).tolist() for n in lengths]


class _StepTimes:
    """Loss tokens per second of the steps after the warm-up."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def tick(self) -> None:
        self.marks.append(time.perf_counter())

    def result(self, rows: list[list[int]]) -> dict[str, float]:
        seconds = self.marks[-1] - self.marks[WARM_STEPS - 1]
        share = (len(self.marks) - WARM_STEPS) / len(self.marks)
        return {"seconds": seconds, "tokens_per_s": share * sum(len(row) - 1 for row in rows) / seconds, "steps": len(self.marks)}


def sft_training(model_of: Callable[[str], Any], size: str, training: dict[str, int], bf16: bool) -> dict[str, float]:
    """`dreamgym.train.sft`: rows alike in length share a step, and no padding is computed."""
    from dreamgym.train import sft
    from dreamgym.train.settings import SFTConfig

    rows, times = rows_of(training), _StepTimes()
    config = SFTConfig(epochs=1.0, lr=1e-3, batch_tokens=STEP_TOKENS, bf16=bf16)
    sft.train(model_of(size), rows, [[1.0] * len(row) for row in rows], config, on_step=lambda *_: times.tick())
    return times.result(rows)


def trl_training(model_of: Callable[[str], Any], tokenizer: Any, size: str, training: dict[str, int], bf16: bool) -> dict[str, float]:
    """TRL with packing "wrapped" (concatenated rows cut at the context length), its only packing without flash attention."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    rows, times = rows_of(training), _StepTimes()

    class Ticks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.tick()

    context = 1024
    with tempfile.TemporaryDirectory() as folder:
        settings = SFTConfig(
            output_dir=folder, packing=True, packing_strategy="wrapped", max_length=context, bf16=bf16, use_cpu=True,
            per_device_train_batch_size=STEP_TOKENS // context, num_train_epochs=1, learning_rate=1e-3, report_to="none",
            save_strategy="no", logging_strategy="no", gradient_checkpointing=False, disable_tqdm=True, dataloader_num_workers=0,
        )  # fmt: skip
        data = Dataset.from_dict({"input_ids": rows})
        SFTTrainer(model_of(size), args=settings, train_dataset=data, processing_class=tokenizer, callbacks=[Ticks()]).train()
    return times.result(rows)
