"""What a run will do, by its settings alone: its RL loops, and the pretrained models that are in memory in each of its phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dreamgym.engines.instruct import InstructConfig
from dreamgym.experience.verifiers.learned import ProbesConfig
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.recipes.ablations import ablated
from dreamgym.recipes.arms import MODES, OFFLINE_ARMS, RolloutSource, arm_of
from dreamgym.recipes.blocks import RLConfig
from dreamgym.recipes.config import CompareConfig, RunConfig, SharedConfig, TrainConfig

if TYPE_CHECKING:
    from dreamgym.llm.memory import LoadedModel


class Loop(NamedTuple):
    """A call of the RL loop."""

    name: str
    """The name of the phase and of the policy that it makes."""
    init_policy: str
    """The policy that it starts from."""
    block: RLConfig
    source: RolloutSource
    config: SharedConfig
    """The settings of its experience model and guard: those of the run, or of an ablation."""
    ablation: str = ""
    """The part of the method that it is without; "" for none."""

    @property
    def probes(self) -> ProbesConfig | None:
        """The probes of the learned verifier, where one judges its dreams."""
        verifier = self.config.experience.verifier
        learned = verifier and verifier.name == "learned" and self.source != "real"
        return ProbesConfig.model_validate(verifier.settings["probes"]) if verifier and learned else None


def loops_of(config: SharedConfig) -> Iterator[Loop]:
    """The RL loops of one seed, in order."""
    if isinstance(config, TrainConfig):
        yield _loop("dream" if config.mode == "s2r" else MODES[config.mode], config.rl, config)
        if config.mode == "s2r":
            yield _loop("s2r", config.s2r.after(config.rl), config)
    elif isinstance(config, RunConfig):
        yield _loop("dream", config.dream, config)
        if config.s2r.iterations:
            yield _loop("s2r", config.s2r.after(config.dream), config)
        if config.real_only.iterations:
            yield _loop("real_only", config.real_only, config)
        if config.equal_budget:
            yield _loop("real_equal", config.dream, config)
        yield from _ablations("dream", config.dream, config)
    elif isinstance(config, CompareConfig):
        yield from _arms(config)
        if config.ablations:
            yield from _ablations(config.ablated, config.block(config.ablated), config)


def acts_for_real(config: SharedConfig) -> list[str]:
    """By what a run acts in its real environment, in words: loops and settings. What makes its logs is not among them."""
    acting = ["eval.tasks"] if config.eval.tasks else []
    has_sft = isinstance(config, RunConfig) and config.sft.epochs
    if (has_sft or (isinstance(config, CompareConfig) and set(OFFLINE_ARMS) & set(config.arms))) and config.eval.dev_tasks:
        acting.append("the choice of a checkpoint of SFT (eval.dev_tasks)")
    for loop in loops_of(config):
        probes, block = loop.probes, loop.block
        if loop.source != "dream" and block.iterations:
            acting.append(f"the loop {loop.name}")
        elif 0 < block.probe_every <= block.iterations or (probes and probes.after(block.iterations)):
            acting.append(f"the probes of {loop.name}")
    if config.dreams and config.eval.gap_tasks:
        acting.append("eval.gap_tasks")
    if config.dreams and config.eval.paired_replays and not isinstance(config, CompareConfig):
        acting.append("eval.paired_replays")
    return acting


def _loop(name: str, block: RLConfig, config: SharedConfig) -> Loop:
    """The loop that makes an arm."""
    arm = arm_of(name)
    return Loop(name, arm.init_policy, block, arm.source, config)


def _ablations(policy: str, block: RLConfig, config: RunConfig | CompareConfig) -> Iterator[Loop]:
    for name in config.ablations:
        yield ablation_loop(policy, name, block, config)


def ablation_loop(policy: str, ablation: str, block: RLConfig, config: SharedConfig) -> Loop:
    """The loop of `policy` without one part of the method; `block` and `config` are those of the whole."""
    return _loop(ablated(policy, ablation), block.without(ablation), config.without(ablation))._replace(ablation=ablation)


def _arms(config: CompareConfig) -> Iterator[Loop]:
    done = set[str]()
    for arm in [*config.arms, *([config.ablated] if config.ablations else [])]:
        if arm in OFFLINE_ARMS:
            continue
        algorithm, _, mode = arm.rpartition("-")
        first = f"{algorithm}-dream" if mode == "s2r" else arm
        if first not in done:
            yield _loop(first, config.block(first), config)
        if first != arm and arm not in done:
            yield _loop(arm, config.s2r.after(config.block(arm)), config)
        done |= {first, arm}


def models_by_phase(config: SharedConfig) -> dict[str, list[LoadedModel]]:
    """The pretrained models that are in memory at once, by the phase. Models from scratch are small beside them."""
    from dreamgym.llm.memory import LoadedModel

    policy, dream, by_phase = config.policy.backbone, config.experience.backbone, dict[str, list[LoadedModel]]()
    if config.dreams:
        by_phase["experience"] = ([LoadedModel("experience.backbone", dream)] if dream else []) + _verifier_backbone(config)
    if policy:
        by_phase["warm_start"] = [LoadedModel("policy.backbone", policy)]
    for loop in loops_of(config):
        models, algorithm = list(by_phase.get("warm_start", [])), loop.block.algorithm.model_dump()
        if policy and algorithm.get("kl_coef"):
            models.append(LoadedModel("the reference of kl_coef", policy, trains=False))
        critic = algorithm.get("critic")
        if policy and isinstance(critic, Mapping) and critic.get("kind") == "separate":
            models.append(LoadedModel("the critic", policy))
        if loop.source != "real":
            models += [*_experience_models(loop.config), *_verifier_models(loop.config)]
            if loop.block.on_gap == "refresh" and loop.block.probe_every and loop.config.experience.backbone:
                models.append(LoadedModel("the refreshed experience.backbone", loop.config.experience.backbone))
        by_phase[loop.name] = models
    return {name: models for name, models in by_phase.items() if models}


def worker_models(config: SharedConfig) -> list[LoadedModel]:
    """The pretrained models that a remote worker samples from itself."""
    from dreamgym.llm.memory import LoadedModel

    policy = None if config.policy_served else config.policy.backbone
    acting = [LoadedModel("policy.backbone", policy, trains=False)] if policy else []
    dreaming = _experience_models(config) if config.dreams and not config.dream_served else []
    return [*acting, *dreaming, *(_verifier_models(config) if config.dreams else [])]


def require_memory(config: SharedConfig) -> None:
    """UsageError where the models of a phase take more memory together than this machine has."""
    from dreamgym.llm import memory

    for models in models_by_phase(config).values():
        memory.require_memory(models)


def peak_memory(config: SharedConfig) -> int:
    """Bytes that the models of the phase that holds most take at least."""
    from dreamgym.llm import memory

    return max((sum(memory.memory_of_each(models)) for models in models_by_phase(config).values()), default=0)


def _experience_models(config: SharedConfig) -> list[LoadedModel]:
    """What a dream samples from: the fitted experience model, or an engine that answers chats in this process."""
    from dreamgym.llm.memory import LoadedModel

    block, models = config.experience, list[LoadedModel]()
    if block.backbone:
        models.append(LoadedModel("experience.backbone", block.backbone, trains=False))
    elif backbone := _instruct(block.settings.get("engine")):
        models.append(LoadedModel("experience.engine", backbone, trains=False, frozen=True))
    return models


def _verifier_models(config: SharedConfig) -> list[LoadedModel]:
    """What the verifier of a dream reads claims with, which stays in the process that dreams wherever the dream is sampled."""
    from dreamgym.llm.memory import LoadedModel

    block, models = config.experience, list[LoadedModel]()
    settings = block.verifier.settings if block.verifier else {}
    if backbone := _instruct(settings.get("engine")):
        models.append(LoadedModel("experience.verifier.engine", backbone, trains=False, frozen=True))
    return models + _verifier_backbone(config)


def _verifier_backbone(config: SharedConfig) -> list[LoadedModel]:
    """The pretrained model that a learned verifier reads claims with, also when it is fitted."""
    from dreamgym.llm.memory import LoadedModel

    block = config.experience
    settings = block.verifier.settings if block.verifier else {}
    if settings.get("features", "hashed") != "hashed" and (read := settings.get("backbone") or block.settings.get("backbone")):
        plain = BackboneConfig.model_validate(read).model_copy(update={"lora": None, "markers": False})
        return [LoadedModel("experience.verifier.backbone", plain, trains=False, frozen=True)]
    return []


def _instruct(engine: Mapping[str, Any] | None) -> BackboneConfig | None:
    """The model of the engine `instruct`; None for other engines, whose memory is not counted."""
    if not engine or engine.get("name") != "instruct":
        return None
    return InstructConfig.model_validate({key: value for key, value in engine.items() if key != "name"}).backbone
