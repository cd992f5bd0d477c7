"""The configuration of a command. No torch is imported here, so that a wrong setting is refused at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dreamgym import config as configuration
from dreamgym import plugins
from dreamgym.errors import ConfigError, UsageError, explain_errors, nearest
from dreamgym.recipes import inputs
from dreamgym.recipes.config import BaselineConfig, CompareConfig, RunConfig, SharedConfig, TrainConfig
from dreamgym.recipes.resume import read_by
from dreamgym.runs.rundir import CONFIG, RunDir, unfinished

BUDGETS = ("small", "default", "large", "gpu")
QUICKSTART_ENV = "telecom"
QUICKSTART_ENVS = (QUICKSTART_ENV, "webshop", "alfworld", "web")
PRETRAINED = ("smollm2",)
COMMANDS: Mapping[str, type[SharedConfig]] = {"train": TrainConfig, "quickstart": RunConfig, "compare": CompareConfig}
"""The configuration of each command. A quickstart's may be one of a comparison too, so it comes first."""
S = TypeVar("S", bound=SharedConfig)


def read(kind: type[S], file: Path, overrides: dict[str, Any] | None = None) -> S:
    """`config.read`. ConfigError names the command that the file is a configuration of, where it is another's, and a `seed` of the file
    that the command would not run."""
    try:
        config = configuration.read(kind, file, overrides)
    except ConfigError as error:
        if (other := command_of(file)) and not _reads(kind, file):
            raise ConfigError(
                f"'{file}' is a configuration of `dreamgym {other}`. Give it to that command, or correct it: {error}"
            ) from error
        raise
    if isinstance(config, BaselineConfig):
        seed = configuration.parse(configuration.find(file)).get("seed", config.seeds[0])
        if seed not in config.seeds:
            raise ConfigError(
                f"seed = {seed} in '{file}' is the setting of a single run, and seeds = {list(config.seeds)} are run. "
                f"Write seeds = [{seed}]."
            )
    return config


def command_of(file: Path) -> str:
    """The first command that a preset or a file is a configuration of; "" for none."""
    return next((name for name, kind in COMMANDS.items() if _reads(kind, file)), "")


def _reads(kind: type[SharedConfig], file: Path) -> bool:
    try:
        configuration.read(kind, file)
    except UsageError:
        return False
    return True


def train_settings(path: Path, file: Path | None, overrides: Sequence[str]) -> TrainConfig:
    """The configuration of a run: a file's, else the one that the run at `path` was made with, else the defaults; then `overrides`.

    UsageError where another command made that run.
    """
    changes = configuration.assignments(overrides)
    stored = path / CONFIG
    if stored.exists() and not file and "mode" not in RunDir.view(path).config:
        raise UsageError(
            f"'{path}' is the run of another command, such as `dreamgym quickstart`. Give `dreamgym train` a directory of its own."
        )
    if file or stored.exists():
        found = read(TrainConfig, file or stored, changes)
    else:
        found = configuration.resolve(TrainConfig, configuration.merge({}, changes), where="the overrides")
    require_plugins(found)
    RunDir.check(path, configuration.dump(found), read_by)
    if file or any(name.partition(".")[0] in ("env", "logs") for name in changes):
        inputs.require_same(path)
    if not (path / "episodes" / "logs.jsonl").exists():
        for one in found.logs.files:
            with explain_errors(one):
                one.open("rb").close()
    return found


def require_plugins(config: SharedConfig) -> None:
    """PluginError for the name of a plug-in that does not exist. Engines, algorithms and experience models were checked with their
    settings when the configuration was built."""
    plugins.require("envs", config.env.name)
    plugins.require("replay.stores", config.replay.store)
    plugins.require("replay.encoders", config.replay.encoder["name"])
    plugins.require("replay.indexes", config.replay.index)


def changes_of_seeds(overrides: Sequence[str]) -> dict[str, Any]:
    """`config.assignments` for a command that runs every seed of `seeds`. ConfigError for `seed`, which nothing would read."""
    changes = configuration.assignments(overrides)
    if "seed" in changes:
        raise ConfigError(f"'seed' is the setting of a single run. Write seeds=[{changes['seed']}].")
    return changes


def budget_config(budget: str, env: str = "", model: str = "", overrides: Sequence[str] = ()) -> RunConfig:
    """The settings of a budget: small, default (a quarter of an hour), large (three seeds and the baselines) or gpu; see `run_name`.

    `overrides` are KEY=VALUE. ConfigError for a key or a value that cannot be.
    """
    file = configuration.PRESETS / f"{run_name(budget, env, model)}.toml"
    found = configuration.read(RunConfig, file, changes_of_seeds(overrides))
    require_plugins(found)
    return found


def run_name(budget: str, env: str = "", model: str = "") -> str:
    """What a quickstart's configuration and its run directory are called; ConfigError for a budget, an environment or a pretrained model
    without one. `env` is "" for telecom, or for the shop with a pretrained model; `model` is "" for the small transformer."""
    if model:
        if model not in PRETRAINED:
            raise ConfigError(f"No quickstart with the model '{model}'.{nearest(model, PRETRAINED)} Known: {', '.join(PRETRAINED)}.")
        if budget != "default" or env not in ("", "webshop"):
            raise ConfigError(f"The quickstart with {model} has one budget, in the shop. Leave out the budget and the environment.")
        return f"quickstart-{model}"
    env = env or QUICKSTART_ENV
    if env not in QUICKSTART_ENVS:
        raise ConfigError(f"No quickstart of '{env}'.{nearest(env, QUICKSTART_ENVS)} Known: {', '.join(QUICKSTART_ENVS)}.")
    if budget in configuration.presets() and (other := command_of(Path(budget))) != "quickstart":
        raise ConfigError(
            f"'{budget}' is a preset of `dreamgym {other}` and no budget. Give it there with --config. Budgets: {', '.join(BUDGETS)}."
        )
    if budget not in BUDGETS:
        raise ConfigError(f"No budget '{budget}'.{nearest(budget, BUDGETS)} Known: {', '.join(BUDGETS)}.")
    if (name := _quickstart(env, budget)) not in (known := configuration.presets()):
        there = [other for other in BUDGETS if _quickstart(env, other) in known]
        elsewhere = [f"--env {other}" for other in QUICKSTART_ENVS if _quickstart(other, budget) in known]
        raise ConfigError(
            f"No quickstart of '{env}' with budget '{budget}': it has {', '.join(there)}. Try --budget {there[0]}"
            + (f", or {' or '.join(elsewhere)}." if elsewhere else ".")
        )
    return name


def _quickstart(env: str, budget: str) -> str:
    return "quickstart" + (f"-{env}" if env != QUICKSTART_ENV else "") + (f"-{budget}" if budget != "default" else "")


def policies(path: Path) -> list[str]:
    """The policies of a run whose training is finished, in the order in which that happened."""
    run = RunDir.view(path)
    return [
        name
        for name in run.finished()
        if not name.startswith(("experience", "tokenizer", "verifier")) and (path / "checkpoints" / name).is_dir()
    ]


def policy_of(path: Path, name: str | None = None) -> str:
    """The policy of that name; by default the one that came last and is no ablation. RunDirError where a run has none yet, UsageError for
    one that it does not have."""
    known = policies(path)
    if not known:
        raise unfinished(path, "has no policy yet")
    name = name or next((one for one in reversed(known) if "-no-" not in one), known[-1])
    require_policy(path, name)
    return name


def require_policy(path: Path, name: str) -> None:
    """UsageError for a policy that a run does not have."""
    if name not in (known := policies(path)):
        raise UsageError(f"'{path}' has no policy '{name:.64}'.{nearest(name, known)} Known: {', '.join(known)}.")
