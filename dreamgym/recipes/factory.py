"""Builds what a configuration names: suites, tokenizers, replay buffers, experience models, dreams, curricula.

torch is imported by the functions that need it: `checked_suite` refuses settings before that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym import plugins
from dreamgym.curriculum.task_curriculum import TaskCurriculum, Vary
from dreamgym.curriculum.wording_support import WordingSupport
from dreamgym.envs import worker_pool
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.errors import ConfigError, UsageError
from dreamgym.experience.action_support import ActionSupport
from dreamgym.experience.dataset import TrainingRows
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard, SecondOpinion
from dreamgym.experience.memory_answers import MemoryAnswers
from dreamgym.experience.pipeline import ExperienceModel, ModelInputs
from dreamgym.experience.prompts import encode_delta
from dreamgym.experience.state_delta import encode
from dreamgym.experience.verifiers import VerifierInputs, verdicts_of
from dreamgym.llm.backbone_settings import check_backbone, check_device
from dreamgym.llm.sizes import MAX_POSITIONS, shape_of
from dreamgym.llm.vocabulary import END, MARKERS, Vocabulary
from dreamgym.logs.demonstrations import check_mix
from dreamgym.protocols import Encoder, Verifier
from dreamgym.protocols import ReplayBuffer as AnyReplay
from dreamgym.recipes import plan
from dreamgym.recipes.blocks import UNGUARDED, EnvConfig, ReplayConfig, RLConfig
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.plugin_checks import check_encoder, check_verifier
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Task, Trajectory

if TYPE_CHECKING:
    from dreamgym.experience.models.no_model import NoModel
    from dreamgym.recipes.context import RunContext


TASK_SEED = 0  # task lists are the same for every seed of a run, so that seeds differ in learning only


def start_workers(env: EnvConfig, suite: EnvSuite | None = None) -> AbstractContextManager[WorkerPool | None]:
    """The worker processes that the environment is played in, ended with the block; None: it is played in this process. `suite` is the
    environment's, where it is made already: whether its episodes repeat is asked of it."""
    repeats = True
    if env.workers:
        repeats = not env.connect and (suite or plugins.make("envs", env.plugin[0], **env.plugin[1])).repeats
    return worker_pool.start_workers(*env.plugin, env.workers, repeats=repeats)


def make_suite(config: SharedConfig) -> EnvSuite:
    """The environment suite of a run."""
    name, options = config.effective_env.plugin
    return plugins.make("envs", name, **options)


def checked_suite(config: SharedConfig, *, acts: bool = True) -> EnvSuite:
    """The environment suite of a run that begins; ConfigError for settings that cannot be right in it, and UsageError where it `acts` in an
    environment that cannot be acted in."""
    suite = make_suite(config)
    shape_of(config.model.size)
    answer = config.experience.settings.get("max_answer_tokens", 0)
    if config.experience.fitted and config.experience.backbone is None and answer >= MAX_POSITIONS:
        raise ConfigError(
            f"experience.max_answer_tokens = {answer} leaves no room for a question: the small model reads {MAX_POSITIONS} tokens."
        )
    check_device(config.model.device)
    check_backbone(config.policy.backbone)
    check_backbone(config.experience.backbone)
    check_backbone(config.experience.verifier_backbone)
    check_mix(suite, config.logs.mix)
    check_replay(config.replay)
    check_reasoning(config, explained=bool(config.rules == "suite" or config.logs.files or suite.log_files))
    if config.real_phases and not suite.has_env:
        raise ConfigError(
            f"env {suite.name} has no environment to act in, and {', '.join(config.real_phases)} needs one. Train in the dream alone."
        )
    if acts and suite.has_env and (acting := plan.acts_for_real(config)):
        try:
            suite.check_env()
        except UsageError as error:
            raise UsageError(
                f"{error} The run acts in the real environment by {', '.join(acting)}; without these it needs none."
            ) from error
    option = suite.fractional_reward_option
    if option and (checked := config.checked_settings):
        raise ConfigError(
            f"env {suite.name}: it pays fractions of a success ({option}), and the text check behind {', '.join(checked)} knows whole "
            f"successes only, so it would zero them. Set {', '.join(f'{name} = {off}' for name, off in checked.items())}, "
            "or change that option of the environment."
        )
    return suite


def check_reasoning(config: SharedConfig, *, explained: bool) -> None:
    """ConfigError for the ablation `reasoning` where no logged step is explained: it would train the same again, reported as another
    thing."""
    if config.ablates_logged_reasoning and not explained:
        rules = "" if config.rules == "suite" else f' (rules = "{config.rules}")'
        raise ConfigError(
            f"The ablation 'reasoning' changes nothing here: no step of the logs is explained{rules}, so that the experience model has no "
            "reasoning. Leave it out, or annotate the logs: dreamgym annotate."
        )


def held_out_tasks(suite: EnvSuite, config: SharedConfig) -> list[Task]:
    """The development and test tasks of a run, which nothing may learn from. Without an environment no policy is tested, and the test tasks
    are training data."""
    evaluation, tested = config.eval, config.eval.tasks if suite.has_env else 0
    return suite.tasks("dev", evaluation.dev_tasks, seed=TASK_SEED) + suite.tasks("test", tested, seed=TASK_SEED)


def held_out_test(suite: EnvSuite, config: SharedConfig) -> Callable[[Task], bool]:
    """Whether a task is one of those; they are listed when somebody asks."""

    @cache
    def keys() -> frozenset[Any]:
        return frozenset(map(suite.task_key, held_out_tasks(suite, config)))

    return lambda task: suite.task_key(task) in keys()


def learn_tokenizer(logs: Sequence[Trajectory], rules: TextRules, vocab_size: int) -> Any:
    """A tokenizer of the texts in the logs, which keeps the rules' atoms whole."""
    return shared_tokenizer([(logs, rules)], vocab_size)


def shared_tokenizer(sources: Sequence[tuple[Sequence[Trajectory], TextRules]], vocab_size: int) -> Any:
    """One tokenizer of the logs of several environments, which keeps the atoms of all of them whole."""
    from dreamgym.llm import tiny

    texts = []
    for logs, rules in sources:
        texts += [trajectory.task.instruction for trajectory in logs]
        for t in (transition for trajectory in logs for transition in trajectory.transitions):
            view = rules.view(t.state)
            texts += [view.text, view.refer(t.action), t.info.reasoning, encode_delta(rules, t)]
            if not rules.from_schemas:  # else nobody reads or writes a state but as its latest turn
                texts += [t.state.text, t.action, t.next_state.text, encode((t.state.text,), t.next_state.text).text]
    token_patterns = list(dict.fromkeys(atom for _, rules in sources for atom in rules.token_patterns))
    return tiny.train_tokenizer(texts, vocab_size=vocab_size, special=MARKERS, token_patterns=token_patterns)


def make_vocabulary(tokenizer: Any) -> Vocabulary:
    """Marker ids and the text encoder of a tokenizer. UsageError for one that was made without some of the markers."""
    if missing := [marker for marker in MARKERS if marker not in tokenizer.get_added_vocab()]:
        raise UsageError(
            f"The tokenizer lacks {', '.join(missing)}: it was made by an older version of dreamgym, or for something else. Make the run "
            "anew in another directory, or use the version that made it."
        )
    from dreamgym.llm import tiny

    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    return Vocabulary(lambda text: tiny.encode(tokenizer, text), lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False), ids)


def replay_buffer(context: RunContext, name: str) -> ReplayBuffer:
    """The replay buffer of a loop, seeded with the logs when it is new."""
    block = context.config.replay
    return open_replay(context.path / "replay" / file_name(name, block), context.logs, block)


def replay_in_memory(context: RunContext, more: Sequence[Trajectory] = ()) -> ReplayBuffer:
    """A replay buffer in memory, of the logs and of `more` real episodes."""
    return open_replay(None, [*context.logs, *more], context.config.replay)


def open_replay(path: Path | None, logs: Sequence[Trajectory], block: ReplayConfig | None = None) -> ReplayBuffer:
    """The buffer whose log is at `path` (None: in memory only), seeded with real trajectories when it is empty."""
    block = block or ReplayConfig()
    if path is None:
        block = block.model_copy(update={"store": "sqlite", "store_options": {}})
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    buffer = ReplayBuffer.open(path, encoder(block.encoder), block.settings)
    if len(buffer) == 0:
        buffer.add(logs)
    return buffer


def check_replay(block: ReplayConfig) -> None:
    """Make all that can be made without a log. ConfigError, PluginError or MissingExtra where it cannot be."""
    plugins.make("replay.stores", block.store, path=None, encoder="", dim=1, **block.store_options).close()
    check_encoder(block.encoder["name"], encoder(block.encoder))
    open_replay(None, [], block)


def file_name(name: str, block: ReplayConfig) -> str:
    """What the log of a loop is called: `dream.sqlite`."""
    return f"{name}.{block.store.rpartition('.')[2]}"


def encoder(settings: dict[str, Any]) -> Encoder:
    """The encoder of that name and those settings: one in a process, because its cache of texts is worth keeping.

    `{"name": "hidden", "checkpoint": "runs/first/checkpoints/experience"}` encodes with the hidden states of a model that a run saved.
    """
    return _encoder(json.dumps(settings, sort_keys=True, default=str))


@cache
def _encoder(settings: str) -> Encoder:
    values = json.loads(settings)
    if values.get("name") == "hidden":
        values |= _model(values.pop("checkpoint", None))
    instance: Encoder = plugins.make_named("replay.encoders", values)
    return instance


def _model(checkpoint: Any) -> dict[str, Any]:
    """What the encoder by hidden states is made of. Its weights go by the hash of their file, so that others are other vectors."""
    weights = Path(checkpoint) / "model.safetensors" if isinstance(checkpoint, str) else None
    if weights is None or not weights.is_file():
        wrong = f"no weights at '{weights}'" if weights else "it needs a checkpoint"
        raise ConfigError(
            f"replay.encoder hidden: {wrong}. Set checkpoint to the folder of a trained model, "
            "such as runs/quickstart/checkpoints/experience."
        )
    from dreamgym.llm import tiny

    model, tokenizer = tiny.load(Path(checkpoint))
    return {
        "model": model,
        "encode": lambda text: tiny.encode(tokenizer, text),
        "weights": hashlib.blake2b(weights.read_bytes(), digest_size=8).hexdigest(),
    }


def make_guard(context: RunContext) -> Guard:
    """The guard of a run: its rules, and the second opinion of its verifier where it has one."""
    block, verifier = context.config.experience.verifier, make_verifier(context)
    second = SecondOpinion(verifier, block.on_disagreement, block.applies_to, block.grants) if block and verifier else None
    return Guard(context.suite.rules, context.config.guard, second)


def make_verifier(context: RunContext) -> Verifier | None:
    """The verifier of a run, as its checkpoint is where it is fitted; None for a run without any."""
    block = context.config.experience.verifier
    if block is None:
        return None
    verifier: Verifier = plugins.make("experience.verifiers", block.name, inputs=verifier_inputs(context), **block.settings)
    check_verifier(block.name, verifier)
    return verifier


def check_unfitted_verifier(context: RunContext) -> None:
    """UsageError where the verifier of a run is none, or answers about two logged ends what is no list of verdicts, before anything is
    fitted. One that has to be fitted first is checked when it is made, and those of the package may ask a server."""
    block = context.config.experience.verifier
    if not block or not context.config.dreams or "." not in block.name or hasattr(plugins.load("experience.verifiers", block.name), "fit"):
        return
    if verifier := make_verifier(context):
        ended = [episode for episode in context.logs if episode.turns][:2]
        verdicts_of(verifier, [(one.task.instruction, one.transitions[:-1], one.transitions[-1]) for one in ended])


def verifier_inputs(context: RunContext) -> VerifierInputs:
    """What the verifier of a run is made of, or fitted to."""
    return VerifierInputs(
        context.suite.rules,
        context.logs,
        context.config.seed,
        context.checkpoint(context.verifier_checkpoint),
        context.verifier_cache,
        context.config.experience.backbone,
        held_out_test(context.suite, context.config),
    )


def make_dream(context: RunContext, replay: AnyReplay, *, guarded: bool = True, version: int = 1) -> tuple[DreamBatch, ExperienceModel]:
    """The experience model as an environment, and itself. Dreams carry its version. Not `guarded`: every prediction is accepted."""
    block, name = context.config.experience, context.experience_checkpoint
    inputs = _inputs(context, replay, make_guard(context) if guarded else Guard(context.suite.rules, UNGUARDED))
    if block.fitted:
        module = None if context.external_publisher and context.config.dream_served else context.load_experience_model(name)
        inputs = replace(
            inputs, module=module, checkpoint=context.checkpoint(name), version=version, external_publisher=context.external_publisher
        )
    model: ExperienceModel = plugins.make("experience.models", block.name, inputs=inputs, **block.settings)
    if kinds := answered_by_memory(context):
        control: NoModel = plugins.make("experience.models", "no_model", inputs=inputs, recall=False)  # the model has recalled already
        model.memory_answers = MemoryAnswers(control, kinds, context.suite.rules)
    horizon = min(context.suite.max_steps, block.horizon or context.suite.max_steps)
    return DreamBatch(model, context.suite.rules, horizon=horizon, support=ActionSupport(replay)), model


def validation_phase(checkpoint: str) -> str:
    """The name of the phase that compared the experience model of that name with memory."""
    return f"{checkpoint}-validation"


def answered_by_memory(context: RunContext) -> frozenset[str]:
    """The kinds of actions that memory answers, as measured when the experience model was fitted. The name of a refreshed model begins with
    that of the first."""
    if not context.config.experience.settings.get("validation_share"):
        return frozenset()
    run, name = RunDir.view(context.path), context.experience_checkpoint
    phases = [phase for phase in run.finished() if phase.endswith("-validation") and name.startswith(phase.removesuffix("-validation"))]
    return frozenset(run.data(max(phases, key=len))["kinds"]) if phases else frozenset()


def row_builder(context: RunContext, replay: AnyReplay) -> TrainingRows:
    """Training rows of the experience model. It reads the whole buffer once: keep it as long as the buffer."""
    block = context.config.experience
    builder: TrainingRows = plugins.load("experience.models", block.name).row_builder(
        _inputs(context, replay, Guard(context.suite.rules, context.config.guard)), **block.settings
    )
    return builder


def _inputs(context: RunContext, replay: AnyReplay, guard: Guard) -> ModelInputs:
    return ModelInputs(guard, replay, context.logs, context.config.seed, context.experience_vocabulary, context.fitted_models.tokenizer)


def make_curriculum(context: RunContext, block: RLConfig, replay: AnyReplay, vary: Vary | None) -> TaskCurriculum:
    """The curriculum of a loop. `vary` is the loop's experience model, as it is whenever tasks are varied; without it, no task is
    generated."""
    suite = context.suite
    config = block.curriculum if vary else block.curriculum.model_copy(update={"synthetic_share": 0.0})
    # of the logs alone: what else is real in the buffer depends on when the loop was interrupted
    pages = {m.next_state: m for m in replay.memories(env=suite.name) if m.source == "demo"}
    return TaskCurriculum(
        training_tasks(context, block.train_tasks, logged=block.logged_tasks),
        config,
        rules=suite.rules,
        vary=vary,
        memories=lambda: pages.values(),
        supported=None if _judges_feasibility(suite.rules) else WordingSupport(t.task.instruction for t in context.logs),
        held_out=[task.instruction for task in held_out_tasks(suite, context.config)],
        seed=context.config.seed,
    )


def training_tasks(context: RunContext, n: int, *, logged: bool) -> list[Task]:
    """At most `n` of the real tasks that a loop draws from: those of the training split, or of the logs alone."""
    if not logged:
        return context.suite.tasks("train", n, seed=TASK_SEED)
    return list({t.task.id: t.task for t in context.logs}.values())[:n]


def _judges_feasibility(rules: TextRules) -> bool:
    """Whether rules know which synthetic tasks can be fulfilled, so that not the wording alone decides."""
    return getattr(rules.feasible, "__func__", None) is not TextRules.feasible
