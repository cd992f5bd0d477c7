"""The blocks of a run's configuration, one per component; settings of a component alone are defined beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from dreamgym import plugins
from dreamgym.config import Config, build
from dreamgym.curriculum.task_curriculum import CurriculumConfig
from dreamgym.envs.connect import ConnectionConfig
from dreamgym.errors import ConfigError, nearest
from dreamgym.experience.guard import GuardConfig
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.recipes.ablations import ABLATIONS
from dreamgym.recipes.plugin_checks import check_algorithm
from dreamgym.replay.buffer import ReplayBufferConfig
from dreamgym.train.settings import LearnerConfig, SFTConfig

UNGUARDED = GuardConfig.model_validate(ABLATIONS["guard"].block("guard"))


def _known_ablation(name: str) -> str:
    if name not in ABLATIONS:
        raise ValueError(f"no ablation '{name}'.{nearest(name, ABLATIONS)} Known: {', '.join(ABLATIONS)}")
    return name


AblationName = Annotated[str, AfterValidator(_known_ablation)]


MOST = 10_000_000
"""The largest number of things that a run counts: more would not fit in memory."""
MOST_ROLLOUTS = 1_000_000
"""The largest number of rollouts of an iteration, which are all in memory at once."""


class EnvConfig(Config):
    """The real environment."""

    name: str = "webshop"
    """A suite: a plug-in of `envs`, or a module by its dotted path."""
    options: dict[str, Any] = Field(default_factory=dict)
    connect: str = ""
    """A real environment for a suite that has none: "gymnasium:ENV_ID", "mcp:COMMAND or URL", or "python:module:function"."""
    connection: ConnectionConfig = ConnectionConfig()
    """Time-outs, limits and the score of that environment."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Processes that real episodes, scripted ones too, are played in; 0: this one. They change speed and safety, not results: one that
    dies, or is silent for 15 minutes about a reset, a step or a scripted episode, is replaced, and what it was playing is redone; in a
    connected environment, which may not repeat itself, it is a failed rollout."""

    @property
    def plugin(self) -> tuple[str, dict[str, Any]]:
        """The name and the options of the suite plug-in."""
        if not self.connect:
            return self.name, self.options
        connection = self.connection.model_dump()
        return "dreamgym.envs.wrappers.connected", {
            "suite": self.name, "options": self.options, "connect": self.connect, "connection": connection
        }  # fmt: skip

    @model_validator(mode="after")
    def _connected(self) -> Self:
        if not self.connect and self.connection != ConnectionConfig():
            raise ConfigError("env.connection is for a connected environment. Set env.connect, or leave it out.")
        return self

    def without_rules(self) -> EnvConfig:
        """The same environment with the state mapping of its rules alone, and what follows from its tools' schemas."""
        return self.model_copy(update={"name": WITHOUT_RULES, "options": {"suite": self.name, "options": self.options}})


WITHOUT_RULES = "dreamgym.envs.wrappers.without_rules"


class LogsConfig(Config):
    """The offline trajectories everything starts from."""

    files: tuple[Path, ...] = ()
    """Episodes as a run or `dreamgym annotate` writes them (JSON Lines), all of them; without files, scripted policies are played."""
    trajectories: int = Field(default=5000, ge=1, le=MOST)
    """Number of scripted episodes; files are read whole."""
    tasks: int | None = Field(default=None, ge=1, le=MOST)
    """Number of distinct tasks that scripted episodes are played on, each several times; not set: as many as there are."""
    transitions: int | None = Field(default=None, ge=1)
    """Keep only the first whole trajectories with at least this many transitions: the data sizes of the paper's Figure 5, each within the
    next."""
    mix: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Shares of the scripted policies; empty: those of the environment suite."""
    invalid_actions: float = Field(default=0.0, ge=0, le=1)
    """Share of logged steps before which the experience model also sees an action that the state does not admit."""
    near_miss_goals: float = Field(default=0.0, ge=0, le=1)
    """Share of finished episodes copied under an instruction that differs in one word, so that the outcome flips."""
    relabelled_goals: float = Field(default=0.3, ge=0, le=1)
    """Share of finished episodes copied under another instruction, so that the experience model sees the wrong task done."""
    task_pairs: int = Field(default=1000, ge=0, le=MOST)
    """Number of training rows for task variation."""


class ReplayConfig(ReplayBufferConfig):
    """The replay buffers that dreams are grounded in: every loop has its own, and all begin with the logs."""

    encoder: dict[str, Any] = {"name": "lexical"}
    """phi(s, a) of the paper: a plug-in of `replay/encoders` by `name`, with its settings: `{name = "minilm", action_weight = 0.3}`."""

    @field_validator("encoder")
    @classmethod
    def _named(cls, encoder: dict[str, Any]) -> dict[str, Any]:
        named = {"name": "lexical", **encoder}
        if not isinstance(named["name"], str):
            raise ValueError('an encoder\'s name is text such as "lexical"')
        return named

    @property
    def settings(self) -> ReplayBufferConfig:
        """The settings of the buffer itself."""
        return ReplayBufferConfig.model_validate(self.model_dump(exclude={"encoder"}))


class ModelConfig(Config):
    """The small transformer that plays experience model and policy."""

    size: str = "1m"
    """A size of `llm.sizes`: 1m, 4m, 15m and larger ones."""
    vocab_size: int = Field(default=2048, ge=1, le=1_000_000)
    """Tokens of its tokenizer, which is trained on the logs."""
    device: str = Field(default="cpu", pattern=r"^(auto|(cpu|cuda|mps|xpu)(:\d{1,3})?)$")
    """Where it learns and samples: "cpu", "cuda", "cuda:1", or "auto" for a GPU where there is one. A GPU pays for large sizes and batches;
    the same seed gives other numbers there."""


class VerifierConfig(Config):
    """A second opinion on what the rules of the guard let pass: a plug-in of `experience/verifiers` by name, or a module by its dotted
    path, with its own settings beside it, such as `{name = "chat", engine = {base_url = "..."}}`. The plug-in checks and completes them."""

    model_config = ConfigDict(extra="allow")
    name: str
    on_disagreement: Literal["mask", "zero", "keep"] = "mask"
    """What a refusal does: leave the episode out, take the reward and keep the step out of memory, or only write the reasons down. The
    default of `learned` and `text_check` is to take the reward."""
    applies_to: Literal["ends", "all"] = "ends"
    """Which predictions are looked at: those that pay or end the episode, or every one."""
    grants: bool = False
    """Whether an end that the experience model calls a failure is paid where the verifier accepts it as a success, so that the verifier
    decides the reward of every end. What it does not accept, or is not sure of, stays the failure that the model sees."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "name" not in values:
            return values
        completed = _plugin_settings("experience.verifiers", values, ("on_disagreement", "applies_to", "grants"), "experience.verifier.")
        default = getattr(plugins.load("experience.verifiers", completed["name"]), "ON_DISAGREEMENT", None)
        return ({"on_disagreement": default} if default else {}) | completed

    @property
    def settings(self) -> dict[str, Any]:
        """The plug-in's own settings."""
        return dict(self.__pydantic_extra__ or {})


def _plugin_settings(group: str, values: dict[str, Any], ours: Sequence[str], prefix: str) -> dict[str, Any]:
    """`values` with the settings that the plug-in they name has, checked and completed by it; `ours` are not the plug-in's."""
    if not isinstance(name := values["name"], str):
        raise ConfigError(f"{prefix}name is the name of a plug-in as text, not {name!r:.100}.")
    kept = {key: value for key, value in values.items() if key in (*ours, "name")}
    schema, own = getattr(plugins.load(group, name), "Config", Config), {k: v for k, v in values.items() if k not in kept}
    known = (*schema.model_fields, *ours)
    for key in sorted(own.keys() - schema.model_fields.keys()):
        if (meant := nearest(key, known)) == nearest(key, ours):  # the plug-in's own error would not name it, nor any of `ours`
            raise ConfigError(f"Unknown key '{prefix}{key}' in configuration.{meant} Known: {', '.join(known)}.")
    return build(schema, own, prefix=prefix).model_dump() | kept


class ExperienceConfig(Config):
    """The experience model: a plug-in of `experience/models` by name, or a module by its dotted path, with its own settings beside it, such
    as `{name = "prompted", k = 5}`. The plug-in checks and completes them."""

    model_config = ConfigDict(extra="allow")
    name: str = "finetuned"
    """`finetuned`, `no_model`, `prompted`, `finetuned_chat`, `released`, or a module by its dotted path."""
    training: SFTConfig | None = None
    """The fit to the logs (Eq. 5), of a model that needs one."""
    verifier: VerifierConfig | None = None
    """The verifier that gives a second opinion on its predictions, after the rules of the guard; not set: no verifier."""
    horizon: int | None = Field(default=None, ge=1)
    """Steps after which a dream is cut off; not set: as many as the environment allows. `dreamgym fidelity` measures how long dreams are
    right."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        completed = _plugin_settings(
            "experience.models", {"name": "finetuned", **values}, ("training", "verifier", "horizon"), "experience."
        )
        fitted = hasattr(plugins.load("experience.models", completed["name"]), "row_builder")
        training = completed.get("training")
        if training is not None and not fitted:
            raise ConfigError(
                f"experience.training is for models that are fitted to the logs, and '{completed['name']}' is not. Remove it."
            )
        if fitted and training in (None, EXPERIENCE_TRAINING, EXPERIENCE_TRAINING.model_dump()):  # nobody has changed it
            training = BACKBONE_TRAINING if completed.get("backbone") else EXPERIENCE_TRAINING
        return completed | {"training": training}

    @model_validator(mode="after")
    def _check_verifier(self) -> Self:
        check = getattr(plugins.load("experience.verifiers", self.verifier.name), "check", None) if self.verifier else None
        if self.verifier and check:
            check(self.backbone, **self.verifier.settings)
        return self

    def documented_by(self) -> tuple[type[Config], ...]:
        return type(self), getattr(plugins.load("experience.models", self.name), "Config", Config)

    @property
    def fitted(self) -> bool:
        """Whether the model is fitted to the logs before use."""
        return self.training is not None

    @property
    def settings(self) -> dict[str, Any]:
        """The plug-in's own settings."""
        return dict(self.__pydantic_extra__ or {})

    @property
    def backbone(self) -> BackboneConfig | None:
        """The pretrained model that is fitted; None where the small transformer is, or nothing."""
        return _backbone(self.settings.get("backbone"))

    @property
    def verifier_backbone(self) -> BackboneConfig | None:
        """The pretrained model of its own that the verifier reads claims with; None for none."""
        return _backbone(self.verifier.settings.get("backbone")) if self.verifier else None


def _backbone(settings: Any) -> BackboneConfig | None:
    return BackboneConfig.model_validate(settings) if settings else None


BACKBONE_TRAINING = SFTConfig(epochs=1.0, lr=2e-4, batch_tokens=2048)
EXPERIENCE_TRAINING = SFTConfig(optimiser="muon", epochs=4.0, lr=5e-3, batch_tokens=4096)


class ConvergedConfig(SFTConfig):
    """The supervised fit of the SFT baseline."""

    optimiser: Literal["adamw", "muon"] = "muon"
    epochs: float = Field(default=10.0, ge=0, le=1e6)
    """Passes over the successful logs; 0 leaves the baseline out. The rate falls to nothing over them, so that success stops rising at
    their end in any case: only a fit of more passes says whether these are enough."""
    lr: float = Field(default=5e-3, gt=0)
    """The highest learning rate."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Positions per optimiser step, padding included."""


class WarmStartConfig(ConvergedConfig):
    """The supervised fit that gives the policy that RL starts from."""

    epochs: float = Field(default=5.0, ge=0, le=1e6)
    """Passes over the successful logs. 0 skips the warm start: RL begins at the experience model's weights, or at the backbone as it is."""


class AlgorithmConfig(Config):
    """A policy-gradient algorithm by its name in `train/algos` or its dotted path, and beside the name its own settings:
    `{name = "ppo", gamma = 0.95}`. They are checked and filled in by the algorithm itself, so that an unknown key is an error here."""

    model_config = ConfigDict(extra="allow")
    name: str = "grpo"
    """`grpo`, `ppo`, `gspo`, `gigpo`, `reinforce`, or a module by its dotted path."""

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        named = {"name": cls.model_fields["name"].default, **values}
        if not isinstance(named["name"], str):
            raise ValueError("an algorithm's name is text such as 'grpo'")
        try:
            algorithm = plugins.make_named("train.algos", named)
        except ConfigError as error:
            raise ValueError(str(error).rstrip(".")) from error  # pydantic names the block that it is of
        check_algorithm(named["name"], algorithm)
        return {"name": named["name"], **algorithm.config.model_dump()}

    def documented_by(self) -> tuple[type[Config], ...]:
        return type(self), type(plugins.make_named("train.algos", self.model_dump()).config)


class RefreshConfig(Config):
    """How an experience model learns from real episodes that were probed (co-evolution)."""

    training: SFTConfig = SFTConfig(epochs=4.0, lr=1e-3, batch_tokens=4096)
    """The fit to the probed episodes and as many tokens of the logs, so that nothing is forgotten."""
    relabelled_goals: float = Field(default=0.5, ge=0, le=1)
    """Share of probed episodes that are copied under another instruction."""


class RLConfig(Config):
    """Settings of one RL loop."""

    algorithm: AlgorithmConfig = AlgorithmConfig.model_validate({"entropy_coef": 0.01})
    iterations: int = Field(default=60, ge=0, le=MOST)
    """Number of RL iterations (one rollout batch and one update each)."""
    tasks_per_iter: int = Field(default=32, ge=1, le=MOST)
    """Number of tasks that an iteration rolls out."""
    group_size: int = Field(default=8, ge=1, le=MOST)
    """Number of rollouts of each task; algorithms that compare them need two or more."""
    max_refills: int = Field(default=0, ge=0, le=10)
    """Dynamic sampling (DAPO, arXiv:2503.14476): how often an iteration may draw further tasks until `tasks_per_iter` groups differ in
    their returns. All episodes are charged, counted and remembered."""
    real_share: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of an iteration's groups that a mixed loop rolls out in the real environment."""
    clusters: int = Field(default=0, ge=0, le=MOST)
    """Number of clusters of similar instructions, for algorithms without groups: a task is valued by the returns of its cluster (DreamGym,
    section 4.2). 0 values every task by its own rollouts."""
    train_tasks: int = Field(default=2000, ge=1, le=MOST)
    """Training tasks that the curriculum chooses from."""
    logged_tasks: bool = False
    """Train only on tasks of the logs, whose hidden state the dream can recall as far as the logs show it (`experience.task_recall`)."""
    max_real_steps: int | None = Field(default=None, ge=1)
    """Stop when an iteration as long as the longest so far could exceed this many real steps; the first always runs."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Stop after this many seconds of training, for budgets in time; the iterations done are recorded."""
    learner: LearnerConfig = LearnerConfig()
    async_rollouts: bool = False
    """Play the rollouts of the next iteration while the learner updates, by the weights before that update: one step off policy. Goes with
    `exec`, and with an importance weight for what other weights sampled: `learner.old_logprobs = "sampler"`, or the algorithm's
    `importance_cap`."""
    curriculum: CurriculumConfig = CurriculumConfig()
    probe_every: int = Field(default=10, ge=0)
    """Number of iterations between gap measurements; 0 never probes."""
    probe_tasks: int = Field(default=48, ge=1, le=MOST)
    """Number of tasks of a gap measurement."""
    max_gap: float = Field(default=0.15, ge=-1, le=1)
    """Dream success minus real success beyond which the gap counts as open."""
    on_gap: Literal["warn", "stop", "rollback", "refresh"] = "rollback"
    """What an open gap does. Two in a row stop the loop, or stop it and bring back the last good policy. Refresh, at once: the experience
    model is fitted to the real episodes that were probed, they join the replay buffer, and the same policy goes on in the new dream."""
    refresh: RefreshConfig = RefreshConfig()

    def without(self, ablation: str) -> RLConfig:
        """The same loop with the ablation's changes of the curriculum."""
        changes = ABLATIONS[ablation].block("curriculum")
        return self.model_copy(update={"curriculum": self.curriculum.model_copy(update=changes)}) if changes else self

    @field_validator("learner")
    @classmethod
    def _check_old_logprobs(cls, learner: LearnerConfig, info: ValidationInfo) -> LearnerConfig:
        algorithm = info.data.get("algorithm")  # absent when it is itself invalid
        if algorithm and (conflict := learner.conflict(algorithm)):
            raise ValueError(conflict)
        return learner

    @field_validator("async_rollouts")
    @classmethod
    def _check_async_rollouts(cls, async_rollouts: bool, info: ValidationInfo) -> bool:
        algorithm, learner = info.data.get("algorithm"), info.data.get("learner")
        if async_rollouts and info.data.get("max_refills"):
            raise ValueError("goes with max_refills = 0: further tasks are drawn when an iteration's rollouts are known")
        if (
            async_rollouts
            and algorithm
            and learner
            and learner.old_logprobs == "learner"
            and not algorithm.model_dump().get("importance_cap")
        ):
            raise ValueError(
                "needs importance weights, because other weights sampled the rollouts: set learner.old_logprobs = 'sampler', or "
                "algorithm.importance_cap"
            )
        return async_rollouts

    @field_validator("group_size")
    @classmethod
    def _check_group_size(cls, size: int, info: ValidationInfo) -> int:
        algorithm = info.data.get("algorithm")  # absent when it is itself invalid
        if size < 2 and algorithm and plugins.make_named("train.algos", algorithm.model_dump()).grouped:
            raise ValueError(f"must be greater than or equal to 2, because {algorithm.name} compares rollouts of the same task")
        return size

    @field_validator("max_refills")
    @classmethod
    def _check_refills(cls, refills: int, info: ValidationInfo) -> int:
        algorithm = info.data.get("algorithm")
        if refills and algorithm and not plugins.make_named("train.algos", algorithm.model_dump()).grouped:
            raise ValueError(f"must be 0, because {algorithm.name} learns from groups without variance too")
        return refills

    @field_validator("curriculum")
    @classmethod
    def _check_curriculum(cls, curriculum: CurriculumConfig, info: ValidationInfo) -> CurriculumConfig:
        if info.data.get("group_size") == 1 and curriculum.strategy == "variance" and not info.data.get("clusters"):
            raise ValueError("groups of one have no variance to choose tasks by: use group_size >= 2, clusters, or strategy = 'uniform'")
        return curriculum


class EvalConfig(Config):
    """The final evaluation in the real environment, on held-out tasks."""

    tasks: int = Field(default=1000, ge=0, le=MOST)
    """Number of test tasks; 0 skips the evaluation."""
    dev_tasks: int = Field(default=300, ge=1, le=MOST)
    """Development tasks, by which a checkpoint of a fit is chosen."""
    seed: int = Field(default=1, ge=0)
    """Seed of the sampled rollouts."""
    paired_replays: int = Field(default=1024, ge=0, le=MOST)
    """Number of dreamed episodes of each arm of the audit, replayed in the real environment. 0 skips the audit."""
    uncertified_dreams: int = Field(default=1024, ge=0, le=MOST)
    """Number of dreamed episodes of each policy in a run without an environment. 0 skips them."""
    gap_tasks: int = Field(default=0, ge=0, le=MOST)
    """Training tasks that a policy of the dream plays once in the dream and once in the real environment, sampled: the gap. It can be
    measured where a dream draws what the world hides. Elsewhere, unless `paired_replays` is 0, its dreams' actions are repeated in the real
    environment as well. 0 leaves it out."""
