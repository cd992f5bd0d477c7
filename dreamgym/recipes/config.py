"""The settings of a whole run: one block per component, each defined beside its component."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from dreamgym import plugins
from dreamgym.config import Config
from dreamgym.curriculum import CurriculumConfig
from dreamgym.errors import ConfigError
from dreamgym.experience.dataset import SegmentWeights
from dreamgym.experience.guard import GuardConfig
from dreamgym.experience.model import ExperienceConfig
from dreamgym.train.learner import LearnerConfig
from dreamgym.train.sft import SFTConfig

Ablation = Literal["curriculum", "task_generation", "replay", "shuffled", "reasoning", "history", "guard"]
"""What is taken away. As in the paper's Table 2 and Figure 4: variance sampling and task generation, task generation alone, retrieved
memories, the reasoning trace, history. And two controls: memories that were drawn at random, and no guard."""
UNGUARDED = GuardConfig(admissibility=False, grounding=False, mask_disputed=False)


class EnvBlock(Config):
    """The real environment."""

    name: str = "webshop"
    options: dict[str, Any] = Field(default_factory=dict)


class LogsBlock(Config):
    """The offline trajectories everything starts from."""

    trajectories: int = 5000
    transitions: int | None = Field(default=None, ge=1)
    """Keep only the first whole trajectories that hold so many transitions: data sizes as in the paper's Figure 5, each within the next."""
    mix: dict[str, float] = Field(default_factory=dict)
    """Shares of the scripted behaviours; empty: those of the environment family."""
    invalid_actions: float = Field(default=0.0, ge=0, le=1)
    """Share of logged steps before which the experience model also sees an action that the state does not admit."""
    near_goals: float = Field(default=0.0, ge=0, le=1)
    """Share of finished episodes copied under an instruction that differs in one word, so that the outcome flips."""
    other_goals: float = 0.3
    """Share of finished episodes copied under another instruction, so that the experience model sees wrong purchases."""
    task_pairs: int = 1000
    """Training rows for task variation."""


class ModelBlock(Config):
    """The small transformer that plays experience model and policy."""

    size: str = "1m"
    vocab_size: int = 2048


class AlgorithmBlock(Config):
    """A policy-gradient algorithm by its name in `train/algos` or its dotted path, and beside the name its own settings:
    `{name = "ppo", gamma = 0.95}`. They are checked and filled in by the algorithm itself, so that an unknown key is an error here."""

    model_config = ConfigDict(extra="allow")
    name: str = "grpo"

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        named = {"name": cls.model_fields["name"].default, **values}
        if not isinstance(named["name"], str):
            raise ConfigError(f"An algorithm's name is text such as 'grpo', not {named['name']!r}.")
        return {"name": named["name"], **plugins.make("train.algos", **named).config.model_dump()}


class RefreshBlock(Config):
    """How an experience model learns from real episodes that were probed (co-evolution)."""

    training: SFTConfig = SFTConfig(epochs=4.0, lr=1e-3, batch_tokens=4096)
    """Of the probed episodes and as many tokens of the logs, so that nothing is forgotten."""
    other_goals: float = Field(default=0.5, ge=0, le=1)
    """Share of probed episodes that are copied under another instruction."""


class RLBlock(Config):
    """One call of the loop."""

    algorithm: AlgorithmBlock = AlgorithmBlock.model_validate({"entropy_coef": 0.01})
    iterations: int = 60
    tasks_per_iter: int = Field(default=32, ge=1)
    group_size: int = Field(default=8, ge=1)
    """Rollouts of each task; algorithms that compare them need two or more."""
    train_tasks: int = 2000
    max_real_steps: int | None = None
    """Stop before an iteration as long as the longest so far would use more real steps; only for loops in the real environment."""
    max_seconds: float | None = None
    """Stop after this many seconds of training, for budgets in time; the iterations done are recorded."""
    learner: LearnerConfig = LearnerConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    probe_every: int = 10
    """Iterations between gap measurements; 0 never probes."""
    probe_tasks: int = Field(default=48, ge=1)
    max_gap: float = 0.15
    """Dream success minus real success beyond which the gap counts as open."""
    on_gap: Literal["warn", "stop", "rollback", "refresh"] = "rollback"
    """What an open gap does. Two in a row stop the loop, or stop it and bring back the last good policy. Refresh, at once: the experience
    model is fitted to the real episodes that were probed, they join the replay buffer, and the same policy goes on in the new dream."""
    refresh: RefreshBlock = RefreshBlock()

    @field_validator("group_size")
    @classmethod
    def _comparable(cls, size: int, info: ValidationInfo) -> int:
        algorithm = info.data.get("algorithm")  # absent when it is itself invalid
        if size < 2 and algorithm and plugins.make("train.algos", **algorithm.model_dump()).grouped:
            raise ValueError(f"must be greater than or equal to 2, because {algorithm.name} compares rollouts of the same task")
        return size

    @field_validator("curriculum")
    @classmethod
    def _measurable(cls, curriculum: CurriculumConfig, info: ValidationInfo) -> CurriculumConfig:
        if info.data.get("group_size") == 1 and curriculum.strategy == "variance":
            raise ValueError("groups of one have no variance to choose tasks by: use group_size >= 2, or strategy = 'uniform'")
        return curriculum


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
        if ablation == "guard":
            return self.model_copy(update={"guard": UNGUARDED})
        if ablation in ("curriculum", "task_generation"):
            changed: dict[str, Any] = {"synthetic_share": 0.0} | ({"strategy": "uniform"} if ablation == "curriculum" else {})
            sampled = self.dream.curriculum.model_copy(update=changed)
            return self.model_copy(update={"dream": self.dream.model_copy(update={"curriculum": sampled})})
        changes: dict[str, dict[str, Any]] = {
            "replay": {"k": 0},
            "shuffled": {"retrieval": "shuffled"},
            "reasoning": {"reasoning": False},
            "history": {"history": 0},
        }
        return self.model_copy(update={"experience": self.experience.model_copy(update=changes[ablation])})
