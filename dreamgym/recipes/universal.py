"""One experience model for several environments, told in its context which one it is dreaming: the paper's stated future work.

All environments share weights and tokenizer. Each keeps its own replay buffer, guard and horizon, so that nobody retrieves a neighbour's
pages. What sharing costs or brings is measured by held-out fidelity, beside a model of each environment alone with the same settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.config import dump
from dreamgym.errors import ConfigError
from dreamgym.llm import tiny
from dreamgym.recipes import factory, fidelity
from dreamgym.recipes.blocks import EnvBlock
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.experience import experience_rows, train_experience
from dreamgym.recipes.phases.logs import offline, prepare_logs
from dreamgym.runs.rundir import RunDir
from dreamgym.train import sft
from dreamgym.train.settings import SFTConfig


def compare(config: SharedConfig, envs: Sequence[EnvBlock], path: Path, *, held_out: int) -> dict[str, Any]:
    """Train one model on `envs` together and one on each alone, and measure all of them on held-out episodes of each environment.

    `config` gives everything but the environment. Every model has its run directory under `path`; the same call resumes. Returns, by
    environment, what `fidelity.measure_context` says of the `universal` model and of the `single` one.
    """
    together = train(config, envs, path / "universal")
    found: dict[str, Any] = {}
    for env in envs:
        alone = config.model_copy(update={"env": env})
        with RunDir.open(path / env.name, dump(alone)) as run, factory.start_workers(env) as workers:
            train_experience(run, prepare_logs(run, alone, workers))
        single = fidelity.held_out(path / env.name, held_out)
        found[env.name] = {"universal": fidelity.measure_context(together[env.name], held_out), "single": single}
    return found


def train(config: SharedConfig, envs: Sequence[EnvBlock], path: Path) -> dict[str, RunContext]:
    """One experience model on the logs of several environments, each with `config.logs` of its own. Returns the context of each, by name.

    `factory.dream` of any of them is that environment's dream. The same call on the same directory resumes.
    """
    names = [env.name for env in envs]
    if len(set(names)) < len(names) or len(names) < 2:
        raise ConfigError(f"A universal model needs two or more environments of different names, not {names}.")
    training = config.experience.training
    if training is None:
        raise ConfigError(f"A universal model is fitted to logs, and the experience model '{config.experience.name}' is not.")
    named = config.model_copy(update={"experience": config.experience.model_copy(update={"name_env": True})})
    configs = [named.model_copy(update={"env": env}) for env in envs]
    with RunDir.open(path, "\n".join(f"[environments.{i}]\n{_within(one, i)}" for i, one in enumerate(configs))) as run:
        suites = [factory.begin(one) for one in configs]
        for env, suite, one in zip(envs, suites, configs, strict=True):
            if not run.done(f"logs-{env.name}"):
                with factory.start_workers(env) as workers:
                    fresh = offline(suite, one, workers)
                run.episodes(f"logs-{env.name}", fresh)
                run.mark(f"logs-{env.name}", {"transitions": sum(len(episode.turns) for episode in fresh)})
        logs = [run.read_episodes(f"logs-{env.name}") for env in envs]
        place = path / "checkpoints" / "tokenizer"
        if not run.done("tokenizer"):
            rule_sets = [suite.rules for suite in suites]
            made = factory.shared_tokenizer(list(zip(logs, rule_sets, strict=True)), config.model.vocab_size)
            tiny.save(tiny.build(made, config.model.size, seed=config.seed), made, place)
            run.mark("tokenizer", {"vocabulary": len(made)})
        tokenizer = tiny.load(place)[1]
        words = factory.vocabulary(tokenizer)
        context = [RunContext(one, path, suite, own, tokenizer, words) for one, suite, own in zip(configs, suites, logs, strict=True)]
        if not run.done("experience"):
            _fit(run, context, training)
    return dict(zip(names, context, strict=True))


def _fit(run: RunDir, context: Sequence[RunContext], training: SFTConfig) -> None:
    """Eq. 5 over the rows of all environments, mixed."""
    rows = [row for one in context for row in experience_rows(one, factory.replay_in_memory(one))]
    model, first = context[0].load("tokenizer"), context[0]
    unfinished = run.path / "checkpoints" / "experience.pt"
    losses = sft.train(
        model,
        [row.ids for row in rows],
        [row.weights for row in rows],
        training,
        segments=[row.segments for row in rows],
        checkpoint=unfinished,
    )
    first.save(model, "experience")
    run.mark("experience", losses | {"sequences": len(rows), "tokens": sum(len(row.ids) for row in rows)})
    unfinished.unlink(missing_ok=True)


def _within(config: SharedConfig, place: int) -> str:
    """A configuration as blocks of `environments.<place>`, in one file with the others."""
    return "\n".join(f"[environments.{place}.{line[1:]}" if line.startswith("[") else line for line in dump(config).split("\n"))
