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
from dreamgym.recipes import fidelity, fitting
from dreamgym.recipes import parts as build
from dreamgym.recipes.config import EnvBlock, SharedConfig
from dreamgym.recipes.parts import Parts
from dreamgym.runlog import RunDir
from dreamgym.train import sft


def compare(config: SharedConfig, envs: Sequence[EnvBlock], path: Path, *, held_out: int) -> dict[str, Any]:
    """Train one model on `envs` together and one on each alone, and measure all of them on held-out episodes of each environment.

    `config` gives everything but the environment. Every model has its run directory under `path`; the same call resumes. Returns, by
    environment, what `fidelity.measure_parts` says of the `universal` model and of the `single` one.
    """
    together = train(config, envs, path / "universal")
    found: dict[str, Any] = {}
    for env in envs:
        alone = config.model_copy(update={"env": env})
        with RunDir.open(path / env.name, dump(alone)) as run, build.hire(env) as workers:
            fitting.train_experience(run, fitting.gather(run, alone, workers))
        single = fidelity.held_out(path / env.name, held_out)
        found[env.name] = {"universal": fidelity.measure_parts(together[env.name], held_out), "single": single}
    return found


def train(config: SharedConfig, envs: Sequence[EnvBlock], path: Path) -> dict[str, Parts]:
    """One experience model on the logs of several environments, each with `config.logs` of its own. Returns the parts of each, by name.

    `Parts.dream` of any of them is that environment's dream. The same call on the same directory resumes.
    """
    names = [env.name for env in envs]
    if len(set(names)) < len(names) or len(names) < 2:
        raise ConfigError(f"A universal model needs two or more environments of different names, not {names}.")
    named = config.model_copy(update={"experience": config.experience.model_copy(update={"named": True})})
    configs = [named.model_copy(update={"env": env}) for env in envs]
    with RunDir.open(path, "\n".join(f"[environments.{i}]\n{_within(one, i)}" for i, one in enumerate(configs))) as run:
        families = [build.begin(one) for one in configs]
        for env, family, one in zip(envs, families, configs, strict=True):
            if not run.done(f"logs-{env.name}"):
                with build.hire(env) as workers:
                    fresh = build.offline(family, one, workers)
                run.episodes(f"logs-{env.name}", fresh)
                run.mark(f"logs-{env.name}", {"transitions": sum(len(episode.turns) for episode in fresh)})
        logs = [run.read_episodes(f"logs-{env.name}") for env in envs]
        place = path / "checkpoints" / "tokenizer"
        if not run.done("tokenizer"):
            domains = [family.domain for family in families]
            made = build.shared_tokenizer(list(zip(logs, domains, strict=True)), config.model.vocab_size)
            tiny.save(tiny.build(made, config.model.size, seed=config.seed), made, place)
            run.mark("tokenizer", {"vocabulary": len(made)})
        tokenizer = tiny.load(place)[1]
        words = build.vocabulary(tokenizer)
        parts = [Parts(one, path, family, own, tokenizer, words) for one, family, own in zip(configs, families, logs, strict=True)]
        if not run.done("experience"):
            _fit(run, parts)
    return dict(zip(names, parts, strict=True))


def _fit(run: RunDir, parts: Sequence[Parts]) -> None:
    """Eq. 5 over the rows of all environments, mixed."""
    rows = [row for one in parts for row in build.experience_rows(one, one.remembered())]
    model, first = parts[0].load("tokenizer"), parts[0]
    unfinished = run.path / "checkpoints" / "experience.pt"
    losses = sft.train(
        model,
        [row.ids for row in rows],
        [row.weights for row in rows],
        first.config.experience_training,
        segments=[row.segments for row in rows],
        checkpoint=unfinished,
    )
    first.save(model, "experience")
    run.mark("experience", losses | {"rows": len(rows), "tokens": sum(len(row.ids) for row in rows)})
    unfinished.unlink(missing_ok=True)


def _within(config: SharedConfig, place: int) -> str:
    """A configuration as blocks of `environments.<place>`, in one file with the others."""
    return "\n".join(f"[environments.{place}.{line[1:]}" if line.startswith("[") else line for line in dump(config).split("\n"))
