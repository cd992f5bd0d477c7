"""The settings of a whole run: one block per component, each defined beside its component."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dreamgym.config import Config
from dreamgym.curriculum import CurriculumConfig
from dreamgym.experience.dataset import SegmentWeights
from dreamgym.experience.guard import GuardConfig
from dreamgym.experience.model import ExperienceConfig
from dreamgym.train.algos.grpo import GRPOConfig
from dreamgym.train.learner import LearnerConfig
from dreamgym.train.sft import SFTConfig

Ablation = Literal["curriculum", "replay", "reasoning"]
"""What is taken away: task generation and variance sampling, retrieved memories, or the reasoning trace (the paper's Table 2)."""


class EnvBlock(Config):
    """The real environment."""

    name: str = "webshop"
    options: dict[str, Any] = Field(default_factory=dict)


class LogsBlock(Config):
    """The offline trajectories everything starts from."""

    trajectories: int = 5000
    other_goals: float = 0.3
    """Share of finished episodes copied under another instruction, so that the experience model sees wrong purchases."""
    task_pairs: int = 1000
    """Training rows for task variation."""


class ModelBlock(Config):
    """The small transformer that plays experience model and policy."""

    size: str = "1m"
    vocab_size: int = 2048


class RLBlock(Config):
    """One call of the loop."""

    iterations: int = 60
    tasks_per_iter: int = Field(default=32, ge=1)
    group_size: int = Field(default=8, ge=2)
    train_tasks: int = 2000
    max_real_steps: int | None = None
    """Stop before an iteration as long as the longest so far would use more real steps; only for loops in the real environment."""
    max_seconds: float | None = None
    """Stop after this many seconds of training, for budgets in time; the iterations done are recorded."""
    algorithm: GRPOConfig = GRPOConfig(entropy_coef=0.01)
    learner: LearnerConfig = LearnerConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    probe_every: int = 10
    """Iterations between gap measurements; 0 never probes."""
    probe_tasks: int = Field(default=48, ge=1)
    max_gap: float = 0.15
    """Dream success minus real success beyond which the gap counts as open."""
    on_gap: Literal["warn", "stop", "rollback"] = "rollback"


class EvalBlock(Config):
    """The final evaluation in the real environment, on held-out tasks."""

    tasks: int = 1000
    dev_tasks: int = 300
    seed: int = 1
    paired: int = 1024
    """Dreamed episodes replayed in the real environment to measure the dream under the trained policy."""


class RunConfig(Config):
    """Everything a quickstart run is made of."""

    seed: int = 0
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    env: EnvBlock = EnvBlock()
    logs: LogsBlock = LogsBlock()
    model: ModelBlock = ModelBlock()
    experience: ExperienceConfig = ExperienceConfig()
    segments: SegmentWeights = SegmentWeights()
    experience_training: SFTConfig = SFTConfig(epochs=4.0, lr=5e-3, batch_tokens=4096)
    guard: GuardConfig = GuardConfig()
    warm: SFTConfig = SFTConfig(epochs=5.0, lr=1e-3, batch_tokens=4096)
    sft: SFTConfig = SFTConfig(epochs=30.0, lr=1e-3, batch_tokens=4096)
    sft_patience: int = 2
    dream: RLBlock = RLBlock()
    s2r: RLBlock = RLBlock(iterations=0)
    real_only: RLBlock = RLBlock(iterations=0)
    ablations: tuple[Ablation, ...] = ()
    """Further dreams from the same warm start at the same budget, each without one part of the method."""
    eval: EvalBlock = EvalBlock()

    def without(self, ablation: Ablation) -> RunConfig:
        """The same settings without one part of the method."""
        if ablation == "curriculum":
            uniform = self.dream.curriculum.model_copy(update={"strategy": "uniform", "synthetic_share": 0.0})
            return self.model_copy(update={"dream": self.dream.model_copy(update={"curriculum": uniform})})
        changes: dict[str, dict[str, Any]] = {"replay": {"k": 0}, "reasoning": {"reasoning": False}}
        return self.model_copy(update={"experience": self.experience.model_copy(update=changes[ablation])})
