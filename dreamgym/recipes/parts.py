"""Building the parts of a run, and keeping the ones that every phase shares."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dreamgym import layout, plugins
from dreamgym.agent import Agent, demonstration
from dreamgym.envs._pool import EnvPool
from dreamgym.experience.dataset import ExperienceRow, RowBuilder, shown_memories, task_pairs, with_other_goals
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.model import ExperienceModel
from dreamgym.layout import Vocabulary
from dreamgym.llm import hf, tiny
from dreamgym.protocols import Domain, Family
from dreamgym.recipes.config import Ablation, RunConfig
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Trajectory

TRAIN_SEED, DEV_SEED, TEST_SEED = 0, 0, 0  # task lists are the same for every seed of a run, so that seeds differ in learning only


@dataclass
class Parts:
    """What all phases of a run share: configuration, family, logs, tokenizer and where things lie."""

    config: RunConfig
    path: Path
    family: Family
    logs: list[Trajectory]
    tokenizer: Any
    words: Vocabulary
    experience: str = "experience"  # the checkpoint that dreams

    def without(self, ablation: Ablation) -> Parts:
        """The parts of an ablation: other settings, and its own experience model where those settings change what it reads or writes."""
        own = "experience" if ablation == "curriculum" else f"experience-no-{ablation}"
        return replace(self, config=self.config.without(ablation), experience=own)

    def checkpoint(self, name: str) -> Path:
        """Where the model of that name lies."""
        return self.path / "checkpoints" / name

    def load(self, name: str) -> Any:
        """The model saved under that name."""
        return tiny.load(self.checkpoint(name))[0]

    def save(self, model: Any, name: str) -> None:
        """Save a model with the tokenizer as an ordinary Hugging Face checkpoint."""
        tiny.save(model, self.tokenizer, self.checkpoint(name))

    def agent(self, model: Any) -> Agent:
        """The policy that samples from `model`, which may be in training."""
        return Agent(hf.HFEngine(model, self.tokenizer, dtype="auto"), self.words, self.family.domain)

    def real(self) -> EnvPool:
        """A fresh set of real environments, with its own count of steps."""
        return EnvPool(self.family.env, self.family.domain)

    def replay(self, name: str) -> ReplayBuffer:
        """The replay buffer of a loop, seeded with the logs when it is new."""
        return open_replay(self.path / "replay" / f"{name}.sqlite", self.logs)

    def dream(self, replay: ReplayBuffer, guard: GuardConfig | None = None) -> tuple[DreamBatch, ExperienceModel]:
        """The trained experience model as an environment."""
        engine = hf.HFEngine(self.load(self.experience), self.tokenizer, dtype="auto")
        engine.version = 1
        watch = Guard(self.family.domain, guard or self.config.guard)
        model = ExperienceModel(engine, self.words, replay, watch, self.config.experience, seed=self.config.seed)
        return DreamBatch(model, self.family.domain, horizon=self.family.max_steps), model


def make_family(config: RunConfig) -> Family:
    """The environment family of a run."""
    return plugins.make("envs", config.env.name, **config.env.options)


def open_replay(path: Path | None, logs: Sequence[Trajectory]) -> ReplayBuffer:
    """A replay buffer over the default encoder, seeded with real trajectories when it is empty."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    buffer = ReplayBuffer.open(path, plugins.make("replay.encoders", "lexical"))
    if len(buffer) == 0:
        buffer.add(logs)
    return buffer


def learn_tokenizer(logs: Sequence[Trajectory], domain: Domain, vocab_size: int) -> Any:
    """A tokenizer of the texts in the logs, which keeps the domain's atoms whole."""
    texts = [trajectory.task.instruction for trajectory in logs]
    for trajectory in logs:
        for t in trajectory.transitions:
            view = domain.view(t.state)
            texts += [t.state.text, t.action, view.text, view.refer(t.action), t.reasoning, t.next_state.text]
    return tiny.train_tokenizer(texts, vocab_size=vocab_size, special=layout.MARKERS, atoms=domain.atoms)


def vocabulary(tokenizer: Any) -> Vocabulary:
    """Marker ids and the text encoder of a tokenizer."""
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*layout.MARKERS, layout.END)}
    return Vocabulary(lambda text: tiny.encode(tokenizer, text), lambda ids: tokenizer.decode(ids), ids)


def experience_rows(parts: Parts, replay: ReplayBuffer) -> list[ExperienceRow]:
    """Training rows of the experience model: the logs, the logs under other goals, and task variations."""
    config, domain = parts.config, parts.family.domain
    tasks = list({t.task.instruction: t.task for t in parts.logs}.values())
    sound = [trajectory for trajectory in parts.logs if trajectory.turns and trajectory.error is None]
    episodes = sound + with_other_goals(sound, domain, tasks, config.logs.other_goals, config.seed)
    shown = shown_memories(episodes, replay, domain, k=config.experience.k, recall=config.experience.recall)
    builder = RowBuilder(parts.words, config.experience.pieces, config.segments)
    rows = [row for episode, memories in zip(episodes, shown, strict=True) for row in builder.episode(episode, memories)]
    return rows + [builder.task([seed], new) for seed, new in task_pairs(tasks, config.logs.task_pairs, config.seed)]


def demonstrations(parts: Parts) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and weights of every successful logged episode, in the agent's layout."""
    rows = [demonstration(trajectory, parts.words, parts.family.domain) for trajectory in parts.logs if trajectory.success]
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
