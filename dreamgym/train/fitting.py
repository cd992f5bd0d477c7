"""What `sft` and `dpo` share: settings, the optimiser, the schedule, and the checkpoint from which an interrupted fit resumes."""

from __future__ import annotations

import math
import time
from pathlib import Path

from torch import nn

from dreamgym.errors import UsageError
from dreamgym.train import checkpoint
from dreamgym.train.optimisers import Optimiser, adamw, muon
from dreamgym.train.settings import FitConfig
from dreamgym.train.weights import restore, state_of


class FitCheckpoint:
    """The file of an interrupted fit: model, optimiser, and the steps and seconds of training across interruptions."""

    EVERY_S = 30.0

    def __init__(self, path: Path | None, model: nn.Module, optimiser: Optimiser) -> None:
        """Restores model and optimiser where there is a file; None keeps none. RunDirError for a file that cannot be read, UsageError for
        one of another optimiser."""
        self.path, self.model, self.optimiser = path, model, optimiser
        self.step, self.before = 0, 0.0
        self.losses: dict[str, float] = {}  # of the last step: an interruption behind it leaves nothing else to report
        if path is not None and path.exists():
            state = checkpoint.load(path)
            restore(model, state["model"])
            try:
                optimiser.load_state_dict(state["optimiser"])
            except (KeyError, ValueError) as error:
                raise UsageError(
                    f"'{path}' was written under another optimiser. Continue with that optimiser, or remove the file to start again."
                ) from error
            self.step, self.before, self.losses = state["step"], state["seconds"], state["losses"]
        self.start = self.saved = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.start

    def save_if_due(self) -> None:
        if self.path is not None and time.monotonic() - self.saved > self.EVERY_S:
            self.saved = time.monotonic()
            progress = {"step": self.step, "seconds": self.seconds, "losses": self.losses}
            checkpoint.save(self.path, {"model": state_of(self.model), "optimiser": self.optimiser.state_dict(), **progress})


def optimiser_of(model: nn.Module, config: FitConfig) -> Optimiser:
    """The optimiser that the settings name, over the weights that have gradients."""
    make = muon if config.optimiser == "muon" else adamw
    return make(model, lr=config.lr, weight_decay=config.weight_decay)


def set_lr(optimiser: Optimiser, config: FitConfig, done: float, step: float) -> None:
    """Linear warm-up, then a cosine to `min_lr`, or to `lr` where that is less. `done`: the share of the fit before this step; `step`: the
    share that it is, a thousandth at least, because the clock may cut the steps of a warm-up short."""
    if done < config.warmup_ratio:
        lr = config.lr * min(1.0, (done + max(step, 1e-3)) / config.warmup_ratio)
    else:
        phase = (done - config.warmup_ratio) / (1 - config.warmup_ratio)
        least = min(config.min_lr, config.lr)
        lr = least + (config.lr - least) * 0.5 * (1 + math.cos(math.pi * phase))
    for group in optimiser.param_groups:
        group["lr"] = lr
