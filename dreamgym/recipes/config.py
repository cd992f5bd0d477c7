"""The settings of a whole run, by command: quickstart, train and compare. Their blocks are in `recipes.blocks`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from dreamgym import exec as executors
from dreamgym import plugins
from dreamgym.config import Config, build
from dreamgym.errors import ConfigError
from dreamgym.experience.guard import GuardConfig
from dreamgym.policy.settings import PolicyConfig
from dreamgym.recipes.ablations import ABLATIONS
from dreamgym.recipes.arms import MODES, OFFLINE_ARMS
from dreamgym.recipes.blocks import (
    MOST,
    MOST_ROLLOUTS,
    AblationName,
    AlgorithmConfig,
    ConvergedConfig,
    EnvConfig,
    EvalConfig,
    ExperienceConfig,
    LogsConfig,
    ModelConfig,
    ReplayConfig,
    RLConfig,
    VerifierConfig,
    WarmStartConfig,
)
from dreamgym.train.settings import DPOConfig


class SharedConfig(Config):
    """What every recipe needs: environment, logs, experience model, warm start, and how policies are judged."""

    seed: int = Field(default=0, ge=0)
    """Seed of everything that is drawn."""
    env: EnvConfig = EnvConfig()
    rules: Literal["suite", "induced", "none"] = "suite"
    """What a run knows of the environment's texts beside the logs: the suite's `TextRules`; or their state mapping and what follows from
    the tools' schemas, alone (`none`) or with what the logs show of actions and ends (`induced`: `rules.toml` of the run, which a person
    can read and correct; see `envs.induction`)."""
    logs: LogsConfig = LogsConfig()
    model: ModelConfig = ModelConfig()
    replay: ReplayConfig = ReplayConfig()
    policy: PolicyConfig = PolicyConfig()
    experience: ExperienceConfig = ExperienceConfig.model_validate({})
    guard: GuardConfig = GuardConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    eval: EvalConfig = EvalConfig()
    exec: dict[str, Any] = Field(default_factory=dict)
    """Where the rollouts of RL are played, by `name` with its settings: `{name = "ray", workers = 8}`. Empty: in this process."""

    @field_validator("exec")
    @classmethod
    def _known_executor(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if settings:
            executors.check_settings(settings)
        return settings

    @model_validator(mode="after")
    def _check_executor(self) -> Self:
        overlapped = [name for name, rl in self if isinstance(rl, RLConfig) and rl.async_rollouts]
        if not self.exec:
            if overlapped:
                raise ConfigError(
                    f"{overlapped[0]}.async_rollouts plays rollouts elsewhere while this process learns: it needs exec, such as "
                    'exec = {name = "ray", workers = 2}.'
                )
            return self
        counted = [("experience", self.experience.name)] if self.dream_served and not self.experience.fitted else []
        if (verifier := self.experience.verifier) and (verifier.settings.get("engine") or {}).get("name") == "server":
            counted.append(("experience.verifier", verifier.name))
        for where, name in counted:
            raise ConfigError(
                f"{where}.engine: the requests and the cost of '{name}' are counted in one process, and exec plays in several. Leave exec "
                "out: a server works on many requests of one process at once."
            )
        if self.env.connection.max_calls:
            raise ConfigError("env.connection.max_calls is counted in one process, and exec plays in several. Leave one of them out.")
        return self

    @property
    def effective_env(self) -> EnvConfig:
        """The environment as the run sees it: with the suite's rules or without."""
        return self.env if self.rules == "suite" else self.env.without_rules()

    @property
    def pretrained(self) -> bool:
        """Whether a backbone acts."""
        return self.policy.backbone is not None

    @property
    def policy_served(self) -> bool:
        """Whether a server samples the policy's actions."""
        return bool(self.policy.engine.get("name") == "server")

    @property
    def dream_served(self) -> bool:
        """Whether a server samples what the experience model says."""
        return bool((self.experience.settings.get("engine") or {}).get("name") == "server")

    @property
    def starts_as_experience(self) -> bool:
        """Whether a policy begins as the weights of the experience model."""
        return not self.pretrained

    @property
    def dreams(self) -> bool:
        """Whether an experience model is needed at all."""
        return True

    @property
    def real_phases(self) -> tuple[str, ...]:
        """The settings that ask for RL in the real environment."""
        return ()

    @property
    def checked_settings(self) -> dict[str, str]:
        """Settings that take a text check of whole successes for what the environment would pay, with the values that switch them off."""
        if not self.dreams:
            return {}
        shares = {"logs.relabelled_goals": self.logs.relabelled_goals, "logs.near_miss_goals": self.logs.near_miss_goals}
        refreshed = {name: block for name, block in self if isinstance(block, RLConfig) and block.on_gap == "refresh"}
        shares |= {f"{name}.refresh.relabelled_goals": block.refresh.relabelled_goals for name, block in refreshed.items()}
        return ({"guard.grounding": "false"} if self.guard.grounding else {}) | {name: "0" for name, share in shares.items() if share}

    @model_validator(mode="after")
    def _check_backbone_rates(self) -> Self:
        acts = {"warm_start": self.warm_start if self.warm_start.epochs else None, "sft": getattr(self, "sft", None)}
        fitted = [(name, block, "policy") for name, block in acts.items() if self.pretrained]
        fitted += [("experience.training", self.experience.training, "experience")] if self.experience.backbone else []
        for name, block, whose in fitted:
            if block and block.optimiser == "muon":
                raise ConfigError(
                    f"{name}.optimiser = 'muon' is for models trained from scratch, and {whose}.backbone is pretrained. Set "
                    f"{name}.optimiser = 'adamw' and a rate for it, such as {name}.lr = 1e-4 for adapters."
                )
        return self

    @model_validator(mode="after")
    def _check_grants(self) -> Self:
        if self.experience.verifier and self.experience.verifier.grants and self.guard.only_success_ends:
            raise ConfigError(
                "experience.verifier.grants pays ends that the experience model calls failures, and with guard.only_success_ends a failure "
                "is no end. Leave one of them out."
            )
        return self

    @model_validator(mode="after")
    def _check_rollouts(self) -> Self:
        groups: dict[str, int] = {name: block.group_size for name, block in self if isinstance(block, RLConfig)}
        for name, block in self:
            if not isinstance(block, RLConfig | SimToReal):
                continue
            whose = name if name in groups else next(iter(groups))  # the second stage keeps the groups of the first
            if block.tasks_per_iter * groups[whose] > MOST_ROLLOUTS:
                raise ConfigError(
                    f"{name}.tasks_per_iter = {block.tasks_per_iter:,} groups of {whose}.group_size = {groups[whose]:,} are more than "
                    f"{MOST_ROLLOUTS:,} rollouts an iteration, and all are in memory at once. Lower one of them."
                )
        return self

    @model_validator(mode="after")
    def _check_synthetic_tasks(self) -> Self:
        plugin = plugins.load("experience.models", self.experience.name)
        if not getattr(plugin, "VARIES_TASKS", True):
            for name, block in self:
                if isinstance(block, RLConfig) and block.iterations and block.curriculum.synthetic_share:
                    raise ConfigError(
                        f"{name}.curriculum.synthetic_share = {block.curriculum.synthetic_share} asks for generated tasks, and the "
                        f"experience model '{self.experience.name}' generates none. Set it to 0."
                    )
        return self

    def without(self, ablation: str) -> Self:
        """The same settings with the ablation's changes of the experience model or the guard; `RLConfig.without` is for those of a loop."""
        changes = {name: ABLATIONS[ablation].block(name) for name in ("experience", "guard")}
        if "name" in changes["experience"]:
            judge, read = self.experience.verifier, self.experience.backbone
            if judge and read and judge.settings.get("backbone", read) is None:  # another experience model is judged by the same verifier
                judge = VerifierConfig.model_validate(judge.model_dump() | {"backbone": read.model_dump()})
            kept = {"verifier": judge, "horizon": self.experience.horizon}
            return self.model_copy(update={"experience": ExperienceConfig.model_validate(kept | changes["experience"])})
        model_settings, verifier = self.experience.settings, self.experience.verifier
        for key in [key for key in changes["experience"] if key.startswith("verifier.")]:
            _, block, name = key.split(".")
            if verifier is None or name not in verifier.settings.get(block, {}):
                raise ConfigError(f"experience.verifier has no setting '{block}.{name}' for the ablation '{ablation}'. Leave it out.")
            settings = verifier.settings[block] | {name: changes["experience"].pop(key)}
            changes["experience"]["verifier"] = VerifierConfig.model_validate(verifier.model_dump() | {block: settings})
        if not changes["experience"].keys() <= {*model_settings, "verifier"}:
            raise ConfigError(f"The experience model '{self.experience.name}' has no setting for the ablation '{ablation}'. Leave it out.")
        return self.model_copy(update={name: getattr(self, name).model_copy(update=values) for name, values in changes.items() if values})

    def refitted_without(self, ablation: str) -> bool:
        """Whether an ablation needs an experience model of its own: its settings differ from these in what one reads or writes."""
        current = {"name": self.experience.name, **self.experience.settings}
        unread = ("retrieval",) if current.get("k") == 0 else ()  # no prompt has memories
        return any(current.get(key) != value for key, value in ABLATIONS[ablation].refitting.items() if key not in unread)

    @property
    def ablates_logged_reasoning(self) -> bool:
        """Whether a reasoning that is the logs' own is taken away: used by `factory.check_reasoning`."""
        plugin = plugins.load("experience.models", self.experience.name)
        as_logged = getattr(plugin, "REASONS_AS_LOGGED", False) and self.experience.settings.get("reasoning") is True
        return as_logged and "reasoning" in getattr(self, "ablations", ())

    def unread(self, block: RLConfig) -> dict[str, str]:
        """Settings that nothing reads in a dream of this loop, as ablations name them, and what switches them off."""
        settings, drawn, switched_off = self.experience.settings, block.curriculum, dict[str, str]()
        if settings.get("k") == 0:
            switched_off["experience.retrieval"] = "experience.k = 0"
        if settings.get("recall") is False:
            switched_off["experience.conditions"] = "experience.recall = false"
        if not self.guard.grounding:
            switched_off |= dict.fromkeys(("guard.mask_disputed", "guard.mask_doubtful"), "guard.grounding = false")
        if drawn.strategy == "uniform":
            switched_off["curriculum.synthetic_share"] = 'curriculum.strategy = "uniform"'
        elif not drawn.proposals:
            switched_off["curriculum.synthetic_share"] = "curriculum.proposals = 0"
        elif int(most := block.tasks_per_iter * (1 + block.max_refills) * drawn.synthetic_share) == 0:
            switched_off["curriculum.synthetic_share"] = f"tasks_per_iter = {block.tasks_per_iter}, of which it is {most:g} tasks"
        return switched_off


S = TypeVar("S", bound=SharedConfig)


def _check_initial_policy(self: S) -> S:
    """ConfigError where the policy would start as an experience model of another kind. A finished run is read without this check: its
    shared settings do not say how it started."""
    ways = 'Set policy.backbone, or start = "scratch".' if hasattr(self, "start") else "Set policy.backbone."
    if self.starts_as_experience and self.experience.backbone:
        raise ConfigError(f"A small policy starts as a small experience model, and experience.backbone is pretrained. {ways}")
    if self.starts_as_experience and not self.experience.fitted:
        raise ConfigError(f"A small policy starts as a fitted experience model, and experience.name = '{self.experience.name}'. {ways}")
    return self


class BaselineConfig(SharedConfig):
    """A configuration with several seeds and the converged imitation of the logs to compare with."""

    _starts = model_validator(mode="after")(_check_initial_policy)

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    sft: ConvergedConfig = ConvergedConfig()
    sft_patience: int = Field(default=4, ge=1)
    """Number of evaluations on development tasks, one every two epochs, without a rise before imitation is taken to have converged."""

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            raise ValueError(f"seed {twice[0]} is given twice, and one run is not two")
        return seeds


def _check_ablations(config: RunConfig | CompareConfig, block: RLConfig) -> None:
    """ConfigError for an ablation that would train the same again and report it as another thing."""
    for name in config.ablations:
        config.without(name)  # ConfigError for settings that there are none of
        unread, changes = config.unread(block), ABLATIONS[name].changes
        same = [key for key, value in changes.items() if _setting(config, block, key) == value]
        if all(key in same or key in unread for key in changes):
            have = ", ".join(f"{key} = {changes[key]!r}" for key in same)
            why = [f"the settings have {have} already"] if same else []
            why += [f"{key} does nothing with {unread[key]}" for key in changes if key not in same]
            raise ConfigError(f"The ablation '{name}' changes nothing here: {'; '.join(why)}. Leave it out.")


def _setting(config: SharedConfig, block: RLConfig, key: str) -> Any:
    """The value of a setting as ablations name it; those of a curriculum are of the loop."""
    value: Any = block if key.startswith("curriculum.") else config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


class SimToReal(Config):
    """The second stage of sim-to-real: RL in the real environment from the dream's policy, with the dream's settings but for these. It
    draws from all training tasks: those of the logs are what the dream has taught already."""

    iterations: int = Field(default=8, ge=0, le=MOST)
    """Number of RL iterations (one rollout batch and one update each); 0 leaves the stage out of a quickstart."""
    tasks_per_iter: int = Field(default=8, ge=1, le=MOST)
    """Number of tasks that an iteration rolls out."""
    max_real_steps: int | None = Field(default=2000, ge=1)
    """Stop when an iteration as long as the longest so far could exceed this many real steps; the first always runs."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Stop after this many seconds of this stage; the dream's own `max_seconds` does not apply here."""
    learner: dict[str, Any] = Field(default_factory=dict)
    """Settings of the learner that differ from the dream's; `lr` is 1e-4 and `minibatches` is 1 unless they are given."""
    algorithm: dict[str, Any] = Field(default_factory=dict)
    """Settings of the algorithm that differ from the dream's. With the `name` of another algorithm, all of its settings."""

    def after(self, block: RLConfig) -> RLConfig:
        """The block of the second stage. ConfigError for a setting that there is none of."""
        dream = block.model_dump()
        changed = self.algorithm.get("name", block.algorithm.name) != block.algorithm.name
        overrides = {
            **self.model_dump(include={"iterations", "tasks_per_iter", "max_real_steps", "max_seconds"}),
            "logged_tasks": False,
            "learner": dream["learner"] | {"lr": 1e-4, "minibatches": 1} | self.learner,
            "algorithm": self.algorithm if changed else _over(dream["algorithm"], self.algorithm),
        }
        return build(RLConfig, dream | overrides, prefix="s2r.")


def _over(below: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """`values` laid over `below`, table by table."""
    both = {key: _over(below[key], value) for key, value in values.items() if isinstance(value, dict) and isinstance(below.get(key), dict)}
    return below | values | both


class RunConfig(BaselineConfig):
    """Everything a quickstart run is made of."""

    dream: RLConfig = RLConfig()
    s2r: SimToReal = SimToReal(iterations=0)
    real_only: RLConfig = RLConfig(iterations=0)
    equal_budget: bool = False
    """Also train in the real environment with the settings of `dream`: as many transitions and optimiser steps as the dream arm takes."""
    ablations: tuple[AblationName, ...] = ()
    """Further dreams from the same warm start at the same budget, each without one part of the method."""

    @model_validator(mode="after")
    def _check_dream_ablations(self) -> Self:
        _check_ablations(self, self.dream)
        return self

    @model_validator(mode="after")
    def _check_s2r(self) -> Self:
        self.s2r.after(self.dream)
        return self

    @property
    def real_phases(self) -> tuple[str, ...]:
        """The settings that ask for RL in the real environment."""
        loops = tuple(f"{name}.iterations" for name in ("s2r", "real_only") if getattr(self, name).iterations)
        return (*loops, *(["equal_budget"] if self.equal_budget else []))


Mode = Literal["dream", "real", "s2r", "mixed"]
"""Where a policy is trained: `s2r` is the dream and then the real environment; `mixed` is both in every iteration."""


class TrainConfig(SharedConfig):
    """One policy: `dreamgym train`."""

    _starts = model_validator(mode="after")(_check_initial_policy)

    mode: Mode = "dream"
    """Where RL plays: in the dream, in the real environment, in the dream and then in the real environment, or in both at once."""
    start: Literal["experience", "scratch"] = "experience"
    """What the warm start of a small policy begins as: the experience model's weights, or fresh ones. From scratch, mode
    `real` needs no experience model and trains none. A backbone starts as itself."""
    rl: RLConfig = RLConfig()
    s2r: SimToReal = SimToReal()

    @property
    def starts_as_experience(self) -> bool:
        """Whether the policy begins as the weights of the experience model."""
        return self.start == "experience" and not self.pretrained

    @property
    def real_phases(self) -> tuple[str, ...]:
        """The settings that ask for RL in the real environment."""
        return () if self.mode == "dream" else (f"mode = '{self.mode}'",)

    @property
    def dreams(self) -> bool:
        """Whether an experience model is needed: for RL in its dream, or as the start of the policy."""
        return self.mode != "real" or self.starts_as_experience

    @model_validator(mode="after")
    def _check_s2r(self) -> Self:
        self.s2r.after(self.rl)
        return self

    @model_validator(mode="after")
    def _check_refresh(self) -> Self:
        if self.rl.on_gap == "refresh" and not self.experience.fitted:
            raise ConfigError(f"rl.on_gap = 'refresh' needs a fitted experience model, and experience.name = '{self.experience.name}'.")
        return self


class CompareConfig(BaselineConfig):
    """Several ways to a policy from the same logs, experience model and warm start: `dreamgym compare`."""

    arms: tuple[str, ...] = ("sft", "dpo", *(f"{name}-{mode}" for name in ("grpo", "ppo") for mode in ("real", "dream", "s2r")))
    """`sft`, `dpo`, or an algorithm and a mode, such as `gigpo-dream`: the rows of the paper's Table 1."""
    ablations: tuple[AblationName, ...] = ()
    """What is taken from `ablated`: the rows of the paper's Table 2."""
    ablated: str = "grpo-dream"
    algorithms: dict[str, dict[str, Any]] = Field(default_factory=lambda: {"grpo": {"entropy_coef": 0.01}})
    """Settings of algorithms by name, for all arms that use them."""
    dream: RLConfig = RLConfig()
    real: RLConfig = RLConfig()
    mixed: RLConfig = RLConfig()
    s2r: SimToReal = SimToReal()
    dpo: DPOConfig = DPOConfig()

    @property
    def dreams(self) -> bool:
        """Whether an experience model is needed: for an arm or an ablation that dreams, or as the start of the policy."""
        dreaming = [arm for arm in self.arms if arm not in OFFLINE_ARMS and not arm.endswith("-real")]
        return self.starts_as_experience or bool(dreaming or self.ablations)

    @field_validator("arms")
    @classmethod
    def _known(cls, arms: tuple[str, ...]) -> tuple[str, ...]:
        for arm in arms:
            if arm not in OFFLINE_ARMS and arm.rpartition("-")[2] not in MODES:
                raise ValueError(f"'{arm}' is no arm. Write sft, dpo, or an algorithm and one of {', '.join(MODES)}: grpo-dream")
        return arms

    @model_validator(mode="after")
    def _check_arms(self) -> Self:
        """Every arm's algorithm and settings are checked before anything is trained."""
        for block in (self.dream, self.real, self.mixed):
            if block.algorithm != RLConfig().algorithm or self.s2r.algorithm:
                raise ConfigError("Arms name their algorithms. Give settings under [algorithms.NAME], not under a loop's `algorithm`.")
        if self.ablations and not self.ablated.endswith("-dream"):
            raise ConfigError(f"ablated = '{self.ablated}' is no dream, so it has no parts to take away. Name one such as grpo-dream.")
        _check_ablations(self, self.block(self.ablated) if self.ablations else RLConfig())
        if set(OFFLINE_ARMS) & set(self.arms) and not self.sft.epochs:
            raise ConfigError("sft.epochs = 0 leaves out what the arms sft and dpo need. Set it above 0, or leave out the arms.")
        if "dpo" in self.arms and self.policy.window is not None:
            raise ConfigError("The arm dpo compares whole episodes, and policy.window cuts them into turns. Leave out one of them.")
        arms = [arm for arm in (*self.arms, *([self.ablated] if self.ablations else [])) if arm not in OFFLINE_ARMS]
        self.s2r.after(self.dream)
        for arm in arms:
            block = self.block(arm)
            if arm.endswith("-s2r"):
                self.s2r.after(block)
        for name, settings in self.algorithms.items():
            if settings != CompareConfig.model_fields["algorithms"].get_default(call_default_factory=True).get(name):
                AlgorithmConfig.model_validate({"name": name, **settings})
        return self

    def block(self, arm: str) -> RLConfig:
        """The first loop of an arm, with the arm's algorithm."""
        name, _, mode = arm.rpartition("-")
        block: RLConfig = {"real": self.real, "mixed": self.mixed}.get(mode, self.dream)
        return RLConfig.model_validate(block.model_dump() | {"algorithm": {"name": name, **self.algorithms.get(name, {})}})
