"""Building the parts of a run, and keeping the ones that every phase shares."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dreamgym import layout, plugins
from dreamgym.agent import Agent
from dreamgym.chat_agent import ChatAgent
from dreamgym.config import Config, dump, filled, resolve
from dreamgym.envs import _workers
from dreamgym.envs._pool import EnvPool
from dreamgym.envs._workers import WorkerPool
from dreamgym.errors import ConfigError, RunDirError, UsageError
from dreamgym.experience.changes import tell
from dreamgym.experience.coverage import with_invalid_actions, with_near_goals, with_other_goals
from dreamgym.experience.dataset import ExperienceRow, RowBuilder, shown_memories, task_pairs, up_to
from dreamgym.experience.dreaming import told
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.model import ExperienceModel
from dreamgym.experience.precedents import Precedents
from dreamgym.experience.prompted import PromptedConfig, PromptedExperienceModel
from dreamgym.experience.recall import Recall
from dreamgym.layout import Vocabulary
from dreamgym.llm import backbones, hf, tiny
from dreamgym.logs.scripted import Job, collect, played
from dreamgym.protocols import Described, Domain, Family, PaysFractions, RealEnv
from dreamgym.recipes import memories
from dreamgym.recipes.config import Ablation, DreamerBlock, EnvBlock, SharedConfig
from dreamgym.recipes.policies import ChatPolicies, Policies, SmallPolicies
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.runlog import PROCESS, RunDir
from dreamgym.types import Trajectory

TRAIN_SEED, DEV_SEED, TEST_SEED = 0, 0, 0  # task lists are the same for every seed of a run, so that seeds differ in learning only


Dreamer = ExperienceModel | PromptedExperienceModel


@dataclass
class Parts:
    """What all phases of a run share: configuration, family, logs, tokenizer and where things lie."""

    config: SharedConfig
    path: Path
    family: Family
    logs: list[Trajectory]
    tokenizer: Any
    words: Vocabulary
    experience: str = "experience"  # the checkpoint that dreams
    workers: WorkerPool | None = None  # who plays real episodes; None: this process

    def without(self, ablation: Ablation) -> Parts:
        """The parts of an ablation: other settings, and its own experience model where those settings change what it reads or writes."""
        own = "experience" if ablation in ("curriculum", "task_generation", "guard") else f"experience-no-{ablation}"
        return replace(self, config=self.config.without(ablation), experience=own)

    def checkpoint(self, name: str) -> Path:
        """Where the model of that name lies."""
        return self.path / "checkpoints" / name

    @cached_property
    def policies(self) -> Policies:
        """How the policies of this run are made, kept and put to act."""
        block = self.config.policy
        if block.backbone is None:
            return SmallPolicies(self.tokenizer, self.words, self.family.domain, block, self.config.model.device)
        return ChatPolicies(block, self.family.domain, self.config.seed)

    def load(self, name: str) -> Any:
        """The small model saved under that name: an experience model, or fresh weights."""
        return tiny.load(self.checkpoint(name))[0].to(backbones.device(self.config.model.device))

    def save(self, model: Any, name: str) -> None:
        """Save a small model with the tokenizer as an ordinary Hugging Face checkpoint."""
        tiny.save(model, self.tokenizer, self.checkpoint(name))

    def policy(self, name: str) -> Any:
        """The policy's model saved under that name."""
        return self.policies.load(self.checkpoint(name))

    def save_policy(self, model: Any, name: str) -> None:
        """Keep a policy's model under that name."""
        self.policies.save(model, self.checkpoint(name))

    def agent(self, model: Any, *, exact: bool = False) -> Agent | ChatAgent:
        """The policy that samples from `model`, which may be in training; `exact`: at the model's own precision."""
        return self.policies.agent(model, exact=exact)

    def real(self) -> RealEnv:
        """Real environments: the workers', which everybody shares and whose steps add up, or a fresh set in this process."""
        return self.workers or EnvPool(self.family.env, self.family.domain)

    def behave(self, jobs: Sequence[Job]) -> list[Trajectory]:
        """Episodes by scripted behaviours, in order."""
        return self.workers.behave(jobs) if self.workers else played(self.family, jobs)

    def replay(self, name: str) -> ReplayBuffer:
        """The replay buffer of a loop, seeded with the logs when it is new."""
        block = self.config.replay
        return memories.open_replay(self.path / "replay" / memories.file_name(name, block), self.logs, block)

    def remembered(self, more: Sequence[Trajectory] = ()) -> ReplayBuffer:
        """A replay buffer in memory, of the logs and of `more` real episodes."""
        return memories.open_replay(None, [*self.logs, *more], self.config.replay)

    def dream(self, replay: ReplayBuffer, guard: GuardConfig | None = None, *, version: int = 1) -> tuple[DreamBatch, Dreamer]:
        """The experience model as an environment, and itself. Dreams carry its version."""
        watch = Guard(self.family.domain, guard or self.config.guard)
        if self.config.dreamer:
            model: Dreamer = self._asked(self.config.dreamer, replay, watch)
        else:
            engine = hf.HFEngine(self.load(self.experience), self.tokenizer, dtype="auto")
            engine.version = version
            memory = memories.consulted(replay, self.config)
            model = ExperienceModel(engine, self.words, memory, watch, self.config.experience, seed=self.config.seed)
        return DreamBatch(model, self.family.domain, horizon=self.family.max_steps, precedents=Precedents(replay)), model

    def _asked(self, block: DreamerBlock, replay: ReplayBuffer, guard: Guard) -> PromptedExperienceModel:
        """The instruct model that dreams, with the first states that the logs show."""
        domain = self.family.domain
        about = block.about or (domain.about if isinstance(domain, Described) else "")
        openings = {t.task.instruction: t.turns[0].transition.state.text for t in self.logs if t.turns}
        chat = plugins.named("llm", block.llm)
        settings = PromptedConfig.model_validate(block.model_dump(include=set(PromptedConfig.model_fields)))
        return PromptedExperienceModel(chat, replay, guard, settings, about=about, openings=openings, seed=self.config.seed)


def open_run(path: Path, config: Config) -> RunDir:
    """The run directory of this configuration, new or to go on with. A stored configuration that lacks today's newest keys means their
    defaults."""
    return RunDir.open(
        path,
        dump(config),
        fill=lambda stored: dump(filled(type(config), stored, where=str(path / "config.toml"))),
        free=("env.workers",),
    )


def open_parts(path: Path) -> Parts:
    """The shared parts of a run of any recipe that has its logs and its tokenizer, for reading."""
    quiet()
    run = RunDir.view(path)
    stored = {key: value for key, value in tomllib.loads(run.config_toml).items() if key in SharedConfig.model_fields}
    config = resolve(SharedConfig, stored, where=str(path / "config.toml"))
    if not run.done("tokenizer"):
        raise RunDirError(f"'{path}' has no tokenizer yet, so it holds no model. Give the command that made it again: it resumes.")
    tokenizer = tiny.load(path / "checkpoints" / "tokenizer")[1]
    return Parts(config, path, make_family(config), logs_of(run), tokenizer, vocabulary(tokenizer), latest_experience(run))


def logs_of(run: RunDir) -> list[Trajectory]:
    """The run's offline trajectories; RunDirError when they are fewer than its phases count: dreams would have no memory."""
    logs = run.read_episodes("logs")
    made = run.data("logs")["trajectories"] if run.done("logs") else 0
    if len(logs) != made:
        raise RunDirError(
            f"'{run.path / 'episodes' / 'logs.jsonl'}' holds {len(logs):,} trajectories, and phases.json says {made:,}. Copy the file from "
            "where the run was made, or make the run anew."
        )
    return logs


def latest_experience(run: RunDir) -> str:
    """The checkpoint of the run's experience model, after the last refresh while a policy practised in it."""
    dreamt = [run.data(name).get("dreams_with") for name in ("mixed", "dream") if run.done(name)]
    return next((name for name in dreamt if name), "experience")


def quiet() -> None:
    """Switch off the progress bars of transformers: ours say what is being done, theirs that a small file was read."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def sign(run: RunDir) -> None:
    """Note the commit that works on the run. A resume at another commit adds its own; looking at a finished run adds none."""
    commits = run.data(PROCESS)["commits"] if run.done(PROCESS) else []
    if run.summary() is None or not commits:
        run.mark(PROCESS, {"commits": list(dict.fromkeys([*commits, commit()]))})


def hire(env: EnvBlock) -> AbstractContextManager[WorkerPool | None]:
    """The worker processes that the environment is played in, ended with the block; None: it is played in this process."""
    return _workers.hire(env.name, env.options, env.workers)


def make_family(config: SharedConfig) -> Family:
    """The environment family of a run."""
    return plugins.make("envs", config.env.name, **config.env.options)


def begin(config: SharedConfig) -> Family:
    """The environment family of a run that begins; ConfigError for settings that cannot be right in it."""
    family = make_family(config)
    memories.check(config.replay)
    option = family.pays_fractions if isinstance(family, PaysFractions) else ""
    if option and (checked := config.checked_settings):
        raise ConfigError(
            f"env {family.name}: it pays fractions of a success ({option}), and the text check behind {', '.join(checked)} knows whole "
            f"successes only, so it would zero them. Set {', '.join(f'{name} = {off}' for name, off in checked.items())}, "
            "or change that option of the environment."
        )
    return family


def offline(family: Family, config: SharedConfig, workers: WorkerPool | None) -> list[Trajectory]:
    """Scripted offline trajectories: as many as are asked for, or as hold so many transitions."""
    play = workers.behave if workers else None
    return sized(collect(family, config.logs.trajectories, seed=config.seed, mix=config.logs.mix, play=play), config)


def sized(logs: list[Trajectory], config: SharedConfig) -> list[Trajectory]:
    """The first of the logs, as many as hold `logs.transitions`; all of them where that is not set."""
    return up_to(logs, config.logs.transitions) if config.logs.transitions else logs


def learn_tokenizer(logs: Sequence[Trajectory], domain: Domain, vocab_size: int) -> Any:
    """A tokenizer of the texts in the logs, which keeps the domain's atoms whole."""
    return shared_tokenizer([(logs, domain)], vocab_size)


def shared_tokenizer(sources: Sequence[tuple[Sequence[Trajectory], Domain]], vocab_size: int) -> Any:
    """One tokenizer of the logs of several environments, which keeps the atoms of all of them whole."""
    texts = []
    for logs, domain in sources:
        texts += [trajectory.task.instruction for trajectory in logs]
        for t in (transition for trajectory in logs for transition in trajectory.transitions):
            view = domain.view(t.state)
            texts += [t.state.text, t.action, view.text, view.refer(t.action), t.reasoning, t.next_state.text, told(domain, t)]
            texts.append(tell((t.state.text,), t.next_state.text).text)
    atoms = list(dict.fromkeys(atom for _, domain in sources for atom in domain.atoms))
    return tiny.train_tokenizer(texts, vocab_size=vocab_size, special=layout.MARKERS, atoms=atoms)


def vocabulary(tokenizer: Any) -> Vocabulary:
    """Marker ids and the text encoder of a tokenizer. UsageError for one that was made without some of the markers."""
    if missing := [marker for marker in layout.MARKERS if marker not in tokenizer.get_added_vocab()]:
        raise UsageError(
            f"The tokenizer lacks {', '.join(missing)}: it was made by an older version of dreamgym, or for something else. Make the run "
            "anew in another directory, or use the version that made it."
        )
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*layout.MARKERS, layout.END)}
    return Vocabulary(lambda text: tiny.encode(tokenizer, text), lambda ids: tokenizer.decode(ids), ids)


def experience_rows(parts: Parts, replay: ReplayBuffer) -> list[ExperienceRow]:
    """Training rows of the experience model: the logs, the logs under other goals, and task variations."""
    config, domain = parts.config, parts.family.domain
    tasks = list({t.task.instruction: t.task for t in parts.logs}.values())
    sound = [trajectory for trajectory in parts.logs if trajectory.turns and trajectory.error is None]
    other = with_other_goals(sound, domain, tasks, config.logs.other_goals, config.seed)
    near = with_near_goals(sound, domain, config.logs.near_goals, config.seed)
    if config.logs.invalid_actions:
        sound = with_invalid_actions(sound, domain, config.logs.invalid_actions, config.seed)
    builder = RowBuilder(parts.words, config.experience.pieces, config.segments, domain)
    return episode_rows(parts, [*sound, *other, *near], recall_of(parts, replay)) + [
        builder.task([builder.pieces.about(seed)], new.instruction) for seed, new in task_pairs(tasks, config.logs.task_pairs, config.seed)
    ]


def recall_of(parts: Parts, replay: ReplayBuffer) -> Recall:
    """Memories as the experience model of these parts is shown them. It reads all of the buffer once: keep it while the buffer is used."""
    experience = parts.config.experience
    return Recall(memories.consulted(replay, parts.config), parts.family.domain, k=experience.k, things=experience.recalls)


def episode_rows(parts: Parts, episodes: Sequence[Trajectory], recall: Recall) -> list[ExperienceRow]:
    """Whole episodes as training rows, with the memories that would be found for each step."""
    shown = shown_memories(episodes, recall)
    builder = RowBuilder(parts.words, parts.config.experience.pieces, parts.config.segments, parts.family.domain)
    return [row for episode, beside in zip(episodes, shown, strict=True) for row in builder.episode(episode, beside)]


def demonstrations(parts: Parts) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and weights of every successful logged episode, as the policy reads it."""
    shown = [episode for episode in parts.logs if episode.success and episode.error is None]
    rows = [row for episode in shown for row in parts.policies.demonstrations(episode)]
    return [ids for ids, _ in rows], [weights for _, weights in rows]


def commit() -> str:
    """The commit of the source tree, with a '+' when it has uncommitted changes; "unknown" outside a repository."""
    root = Path(__file__).resolve().parents[2]
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
