"""The state of a run that its phases share, and where things are in its directory."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dreamgym.config import Config, dump, resolve
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.connect.limits import CallBudget
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.induction import from_toml
from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.envs.wrappers.induced_rules import InducedRules
from dreamgym.errors import RunDirError, UsageError, explain_errors
from dreamgym.experience.fitted_models import FittedModels
from dreamgym.llm import backbones, tiny
from dreamgym.llm.vocabulary import Vocabulary
from dreamgym.logs.demonstrations import Job, play_failing_fast, played, without_failed
from dreamgym.policy.agent import Agent
from dreamgym.policy.loading import Policies
from dreamgym.protocols import RealEnv
from dreamgym.recipes import inputs
from dreamgym.recipes.arms import DREAM_ARMS
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.factory import make_suite, make_vocabulary
from dreamgym.recipes.resume import read_by
from dreamgym.runs.rundir import PROCESS, RunDir, unfinished
from dreamgym.types import Trajectory

log = logging.getLogger(__name__)
INDUCED = "rules.toml"
"""The file of induced rules in a run directory."""
NEED_ENV = ("evaluation", "probes", "audit", "gap", "choice of SFT on development tasks")


@dataclass
class RunContext:
    """What all phases of a run share: configuration, suite, logs, tokenizer, and where things are."""

    config: SharedConfig
    path: Path
    suite: EnvSuite
    logs: list[Trajectory]
    tokenizer: Any
    vocabulary: Vocabulary
    experience_checkpoint: str = "experience"  # the checkpoint that dreams
    verifier_checkpoint: str = "verifier"  # the checkpoint that judges dreams, where one is fitted
    workers: WorkerPool | None = None  # they play real episodes; None: this process does
    calls: list[int] = field(default_factory=lambda: [0])  # made so far in a connected environment with a limit of them
    pools: dict[int, EnvPool] = field(default_factory=dict)  # real environments of this process, by the identity of their suite
    verifier_cache: dict[Any, Any] = field(default_factory=dict)  # what the verifiers of the run keep for each other
    external_publisher: bool = False  # whether another process publishes the weights that servers sample from

    def without(self, ablation: str) -> RunContext:
        """The context of an ablation: other settings, and its own experience model where those settings change what it reads or writes."""
        checkpoint = f"experience-no-{ablation}"
        if not self.config.refitted_without(ablation) and not self.checkpoint(checkpoint).is_dir():
            checkpoint = "experience"
        return replace(self, config=self.config.without(ablation), experience_checkpoint=checkpoint)

    def checkpoint(self, name: str) -> Path:
        """The folder of the model of that name."""
        return self.path / "checkpoints" / name

    @cached_property
    def policies(self) -> Policies:
        """How the policies of this run are created, saved and run."""
        config = self.config
        return Policies(
            config.policy,
            self.suite.rules,
            self.tokenizer,
            self.vocabulary,
            served=self.checkpoint("served"),
            device=config.model.device,
            seed=config.seed,
        )

    @cached_property
    def fitted_models(self) -> FittedModels:
        """How the experience models of this run are made and kept."""
        config = self.config
        return FittedModels(config.experience.backbone, self.tokenizer, device=config.model.device, seed=config.seed)

    @cached_property
    def experience_vocabulary(self) -> Vocabulary | None:
        """The markers and the text encoder of the experience model; None for a backbone that keeps its vocabulary."""
        backbone = self.fitted_models.backbone
        if backbone is None:
            return self.vocabulary
        return make_vocabulary(self.fitted_models.tokenizer) if backbone.markers else None

    def load_experience_model(self, name: str) -> Any:
        """The experience model saved under that name, or "tokenizer": one that was fitted to nothing yet."""
        RunDir.view(self.path).require_unchanged(name)
        return self.fitted_models.load(self.checkpoint(name))

    def save_experience_model(self, model: Any, name: str) -> None:
        """Save an experience model with its tokenizer as an ordinary checkpoint, or its adapters."""
        self.fitted_models.save(model, self.checkpoint(name))

    def load_policy(self, name: str) -> Any:
        """The policy's model saved under that name."""
        RunDir.view(self.path).require_unchanged(name)
        return self.policies.load(self.checkpoint(name))

    def save_policy(self, model: Any, name: str) -> None:
        """Keep a policy's model under that name."""
        self.policies.save(model, self.checkpoint(name))

    def agent(self, model: Any, *, full_precision: bool = False) -> Agent:
        """The policy that samples from `model`, which may be in training; `full_precision`: at the model's own precision."""
        return self.policies.agent(model, full_precision=full_precision, external_publisher=self.external_publisher)

    @cached_property
    def skipped(self) -> dict[str, str]:
        """The phases that this run leaves out, and why."""
        if not self.suite.has_env:
            return dict.fromkeys(NEED_ENV, "the run has logs and no environment")
        off = {"evaluation": "eval.tasks", "audit": "eval.paired_replays"}
        evaluation = self.config.eval
        return {phase: f"{name} = 0" for phase, name in off.items() if not getattr(evaluation, name.removeprefix("eval."))}

    def real_env(self) -> RealEnv:
        """Real environments, which all phases share and whose steps add up: the workers', or those of this process. `close_real` ends the
        latter."""
        pool: WorkerPool | EnvPool | None = self.workers or self.pools.get(id(self.suite))
        if pool is None:
            pool = self.pools[id(self.suite)] = EnvPool(self.suite.require_env, self.suite.rules)
        limit = self.config.env.connection.max_calls
        return CallBudget(pool, limit, self.calls) if limit else pool

    def close_real(self) -> None:
        """End the real environments of this process, such as connections. Who acts in them again gets new ones."""
        for pool in self.pools.values():
            pool.close()

    def demonstrate(self, jobs: Sequence[Job]) -> list[Trajectory]:
        """Episodes by scripted policies, in order, less those that the environment failed in (`logs.demonstrations.without_failed`)."""
        return without_failed(play_failing_fast(self.workers.demonstrate if self.workers else partial(played, self.suite), jobs))


def open_run(path: Path, config: Config, *, given: bool = True) -> RunDir:
    """The run directory of this configuration, new or to resume. RunDirError where files that it names were changed since the run was made
    from them, unless the configuration is not `given`, but the run's own."""
    if given:
        inputs.require_same(path)
    return RunDir.open(path, dump(config), read_by=read_by)


def report_changed_settings(run: RunDir, say: Callable[[str], None]) -> None:
    """Name the settings that a resume changed: no phase that reads them has begun."""
    for name in run.changed:
        say(f"changed for the rest of the run: {name}")


def open_context(path: Path) -> RunContext:
    """The context of a run of any recipe that has its logs and its tokenizer, for reading."""
    silence_progress_bars()
    run = RunDir.view(path)
    config = shared_config(run)
    if not run.done("tokenizer"):
        raise unfinished(path, "has no tokenizer yet, so it holds no model")
    run.require_unchanged("tokenizer")
    tokenizer, suite = tiny.load(path / "checkpoints" / "tokenizer")[1], make_suite(config)
    if config.rules == "induced":
        suite.rules = induced_rules(path, suite.rules)
    logs = drop_too_long(logs_of_run(run), tokenizer, config)
    return RunContext(config, path, suite, logs, tokenizer, make_vocabulary(tokenizer), latest_experience(run), latest_verifier(run))


def shared_config(run: RunDir) -> SharedConfig:
    """The settings of a run that all recipes have, its input files located."""
    stored = {key: value for key, value in run.config.items() if key in SharedConfig.model_fields}
    return inputs.located(resolve(SharedConfig, stored, where=str(run.path / "config.toml")), run.path)


def induced_rules(path: Path, inner: TextRules) -> InducedRules:
    """The rules in a run's `rules.toml`, as its logs show them or as somebody corrected them."""
    with explain_errors(path / INDUCED):
        text = (path / INDUCED).read_text(encoding="utf-8")
    return InducedRules(inner, from_toml(text, str(path / INDUCED)))


def drop_too_long(logs: list[Trajectory], tokenizer: Any, config: SharedConfig) -> list[Trajectory]:
    """The logs without episodes that hold a state which no context of the models has room for: a state is never cut."""
    if config.pretrained and not config.experience.fitted:
        return logs
    settings, backbone = config.experience.settings, config.experience.backbone
    if backbone:
        tokenizer, whose = backbones.load_tokenizer(backbone), f"'{backbone.model}'"
        limit = backbones.positions(backbone)
    else:
        limits = (settings.get("max_context"), settings.get("engine", {}).get("max_context"), config.policy.engine.get("max_context"))
        limit, whose = max([tiny.MAX_POSITIONS, *(limit for limit in limits if isinstance(limit, int))]), "the small model"
    fits: dict[str, bool] = {}

    def has_room(text: str) -> bool:
        if text not in fits:  # no token is shorter than a byte
            fits[text] = len(text.encode("utf-8", "replace")) <= limit or len(tiny.encode(tokenizer, text)) <= limit
        return fits[text]

    kept = [episode for episode in logs if all(has_room(state.text) for t in episode.transitions for state in (t.state, t.next_state))]
    if len(kept) < len(logs):
        message = (
            f"{len(logs) - len(kept)} of {len(logs)} logged episodes hold a state of more than {limit:,} tokens, for which {whose} "
            "has no context"
        )
        if not any(episode.success for episode in kept):
            raise UsageError(f"{message}, and no success is left without them. Shorten the states, or raise experience.max_context.")
        log.warning("%s. They are left out.", message)
    return kept


def logs_of_run(run: RunDir) -> list[Trajectory]:
    """The run's offline trajectories; RunDirError when they are fewer than its phases count: dreams would have no memory."""
    logs = run.read_episodes("logs")
    expected = run.data("logs")["trajectories"] if run.done("logs") else 0
    if len(logs) != expected:
        raise RunDirError(
            f"'{run.path / 'episodes' / 'logs.jsonl'}' holds {len(logs):,} trajectories, and phases.json says {expected:,}. Copy the file "
            "from where the run was made, or make the run anew."
        )
    return logs


def latest_experience(run: RunDir) -> str:
    """The checkpoint of the run's experience model, after the last refresh while a policy was trained in it."""
    checkpoints = [run.data(name).get("dreams_with") for name in reversed(DREAM_ARMS) if run.done(name)]
    return next((name for name in checkpoints if name), "experience")


def latest_verifier(run: RunDir) -> str:
    """The checkpoint of the run's verifier, after the last refit while a policy was trained against it."""
    checkpoints = [run.data(name).get("judged_with") for name in reversed(DREAM_ARMS) if run.done(name)]
    return next((name for name in checkpoints if name), "verifier")


def silence_progress_bars() -> None:
    """Switch off the progress bars of transformers: ours say what is being done, theirs that a small file was read."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def record_commit(run: RunDir) -> None:
    """Note the commit that works on the run. A resume at another commit adds its own; looking at a finished run adds none."""
    commits = run.data(PROCESS)["commits"] if run.done(PROCESS) else []
    if run.summary() is None or not commits:
        run.mark(PROCESS, {"commits": list(dict.fromkeys([*commits, commit()]))})


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
