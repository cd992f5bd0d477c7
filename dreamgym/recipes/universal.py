"""One experience model for several environments, told in its context which one it is dreaming: the paper's stated future work.

All environments share weights and tokenizer. Each keeps its own replay buffer, guard and horizon, so that nobody retrieves a neighbour's
pages. `dreamgym transfer --universal` measures it beside the model of each environment alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dreamgym.config import dump
from dreamgym.recipes import factory, inputs
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.experience import experience_rows
from dreamgym.recipes.phases.fit import finish, fit
from dreamgym.runs.rundir import RunDir


def train(contexts: Mapping[str, RunContext], path: Path) -> dict[str, RunContext]:
    """One experience model on the logs of runs that share a tokenizer, fitted as the first of them says. Returns the context of each to
    dream with: `factory.make_dream` of any of them is that environment's dream, judged by the verifier of its own run. The same call on the
    same directory resumes."""
    named = {}
    for name, context in contexts.items():
        experience = context.config.experience.model_copy(update={"name_env": True, "validation_share": 0.0})  # fitted to all tasks
        named[name] = replace(
            context,
            path=path,
            config=context.config.model_copy(update={"experience": experience}),
            experience_checkpoint="experience",  # and not the one that the run refreshed
            verifier_checkpoint=str(context.checkpoint(context.verifier_checkpoint).absolute()),  # of the run: nothing fits one here
        )
    stored = [inputs.as_stored(one.config, contexts[name].path) for name, one in named.items()]  # so that the folder can be moved
    with RunDir.open(path, "\n".join(f"[environments.{i}]\n{_within(config, i)}" for i, config in enumerate(stored))) as run:
        if not run.done("experience"):
            rows = [row for one in named.values() for row in experience_rows(one, factory.replay_in_memory(one))]  # Eq. 5, mixed
            first = next(iter(contexts.values()))
            model, training = first.load_experience_model("tokenizer"), first.config.experience.training
            assert training is not None
            ids, weights, segments = [row.ids for row in rows], [row.weights for row in rows], [row.segments for row in rows]
            losses = fit(run, "experience", model, ids, weights, training, seed=first.config.seed, segments=segments)
            next(iter(named.values())).save_experience_model(model, "experience")
            finish(run, "experience", losses | {"sequences": len(rows), "tokens": sum(len(row) for row in ids)})
    return named


def _within(config: SharedConfig, place: int) -> str:
    """A configuration as blocks of `environments.<place>`, in one file with the others."""
    return "\n".join(f"[environments.{place}.{line[1:]}" if line.startswith("[") else line for line in dump(config).split("\n"))
