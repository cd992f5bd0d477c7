"""`dreamgym transfer`: what a policy and an experience model of one environment are worth in another (the paper's Figure 3).

Every environment has a run directory of its own: logs, experience model, warm start, RL in the dream. Small models share one tokenizer of
the logs of all; pretrained ones share theirs. Then every policy acts in every environment, and every experience model predicts the next
states of every environment's held-out episodes, with that environment's memories and rules, beside the control without a model. A
universal model, fitted to the logs of all, is measured in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from dreamgym.errors import ConfigError, RunDirError
from dreamgym.recipes import inputs, tables
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.factory import TASK_SEED, checked_suite, shared_tokenizer, start_workers
from dreamgym.recipes.settings import require_plugins
from dreamgym.runs.files import read_json, write_atomic

POLICIES = ("warm_start", "dream")
UNIVERSAL = "universal"


def check(configs: Sequence[TrainConfig], path: Path | None = None, *, all_in_one: bool = False) -> None:
    """Whatever is wrong in one of the configurations, or does not fit the others, before anything is trained. `path` is the folder of the
    transfer, whose runs keep their files; `all_in_one`: a universal model is fitted too."""
    names = [config.env.name for config in configs]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"A transfer needs two or more environments of different names, not {names}.")
    for config in configs:
        require_plugins(config)
        checked_suite(inputs.located(config, path / config.env.name) if path else config)
        if config.mode != "dream" or not config.experience.fitted or config.exec:
            raise ConfigError(
                f"env {config.env.name}: a transfer takes policies that are trained in the dream of a fitted model, in this process. Set "
                "mode = 'dream', name such an experience model, and leave exec out."
            )
        if all_in_one and "name_env" not in config.experience.settings:
            raise ConfigError(
                f"env {config.env.name}: a universal model is told which environment it dreams, and experience.name = "
                f"'{config.experience.name}' is not. Use experience.name = 'finetuned'."
            )
        if not config.eval.tasks:
            raise ConfigError(f"env {config.env.name}: eval.tasks = 0 leaves nothing to act on. Set it above 0.")
    for name in ("model", "policy.backbone", "experience.backbone", "seed"):
        found = {config.env.name: attrgetter(name)(config) for config in configs}
        if len(set(map(str, found.values()))) > 1:
            each = "; ".join(f"{env} has {value}" for env, value in found.items())
            raise ConfigError(
                f"In a transfer, a policy acts in the other environments with its own model, and the settings {name} differ: {each}. "
                "Give every configuration the same seed, model and backbones."
            )


def run(
    configs: Sequence[TrainConfig], path: Path, *, held_out: int, all_in_one: bool = False, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """All runs and all pairs; writes `transfer.json` and `transfer.md` into `path` and returns what they say. The same call goes on where
    it was. `held_out` are the real episodes of each environment on which next states are predicted. `all_in_one` adds a universal
    experience model."""
    check(configs, path, all_in_one=all_in_one)
    from dreamgym.recipes import context, train, universal

    tokenizer = None
    if not all((path / config.env.name / "checkpoints" / "tokenizer").is_dir() for config in configs):
        tokenizer = _tokenizer([inputs.located(config, path / config.env.name) for config in configs])
    for config in configs:
        say(f"{config.env.name}: its own logs, experience model, warm start and dream")
        train.run(config, path / config.env.name, tokenizer=tokenizer, say=say)
    contexts = {config.env.name: context.open_context(path / config.env.name) for config in configs}
    if len({json.dumps(one.tokenizer.get_vocab(), sort_keys=True) for one in contexts.values()}) > 1:
        raise RunDirError(f"The runs in '{path}' do not share one tokenizer: some were made without the others. Give another folder.")
    pairs: dict[str, dict[str, Any]] = {name: {} for name in contexts}
    for source, target in _pairs(contexts):
        file = path / "pairs" / f"{source}-in-{target}-{held_out}.json"
        measured = partial(_measure, contexts[source], contexts[target], held_out)
        pairs[source][target] = _kept(file, measured, f"models of {source} in {target}", say)
    result = {"environments": list(contexts), "pairs": pairs, "seed": configs[0].seed, "held_out": held_out, "commit": context.commit()}
    if all_in_one:
        _write(path, result)  # for whoever ends it here, or finds that it fails
        say("one experience model of all environments")
        together = universal.train(contexts, path / UNIVERSAL)
        result[UNIVERSAL] = {
            name: _kept(path / "pairs" / f"{UNIVERSAL}-in-{name}-{held_out}.json", partial(_exact, one, held_out), f"it in {name}", say)
            for name, one in together.items()
        }
    _write(path, result)
    return result


def _write(path: Path, result: Mapping[str, Any]) -> None:
    write_atomic(path / "transfer.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
    write_atomic(path / "transfer.md", tables.markdown(title(result), *rows(result)))


def _kept(file: Path, measure: Callable[[], dict[str, Any]], what: str, say: Callable[[str], None]) -> dict[str, Any]:
    """What was measured, from its file where it was measured before."""
    if not file.exists():
        say(what)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(measure(), allow_nan=False) + "\n")
    return read_json(file) or {}


def _tokenizer(configs: Sequence[TrainConfig]) -> Any:
    """One tokenizer of the logs of all environments."""
    from dreamgym.recipes.phases.logs import offline, read_logs, sized

    sources = []
    for config in configs:
        suite = checked_suite(config)
        files = config.logs.files or suite.log_files
        with start_workers(config.effective_env, suite) as workers:
            logs = sized(read_logs(files, suite), config) if files else offline(suite, config, workers)
        sources.append((logs, suite.rules))
    return shared_tokenizer(sources, configs[0].model.vocab_size)


def _pairs(names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((source, target) for target in names for source in names)


def _measure(source: Any, target: Any, held_out: int) -> dict[str, Any]:
    """The models of one run in the environment of another: success of its policies, exactness of its experience model and the control."""
    from dreamgym.recipes.phases.evaluate import judge_policy

    mixed = replace(source, config=target.config, suite=target.suite, logs=target.logs)
    block, found = target.config.eval, dict[str, Any]()
    with start_workers(target.config.effective_env, target.suite) as workers:
        manned = replace(mixed, workers=workers)
        tasks = target.suite.tasks("test", block.tasks, seed=TASK_SEED)
        for policy in POLICIES:
            found[policy], _, _ = judge_policy(manned, policy, tasks, block.seed)
    return found | {"next_states_exact": _exact(mixed, held_out)}


def _exact(context: Any, held_out: int) -> dict[str, Any]:
    """Exactly predicted next states, of the experience model and of the control."""
    from dreamgym.recipes.fidelity import measure_context

    found = measure_context(context, held_out)
    return {arm: found[arm]["with_guard"]["state_exact_valid"] for arm in ("held_out", "no_model")}


def title(result: Mapping[str, Any]) -> str:
    """What the numbers are."""
    return (
        "Success in the real environment on held-out tasks, greedy / sampled, and next states predicted exactly on "
        f"{result['held_out']} held-out episodes, %; seed {result['seed']}, commit {result['commit']}"
    )


def rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(headings, a line for every model: where it was trained, what it is, and what it does in each environment)."""
    names = result["environments"]
    lines = []
    for source in names:
        for policy in POLICIES:
            found = [result["pairs"][source][target][policy] for target in names]
            lines.append([source, policy, *(f"{_percent(one['greedy'])} / {_percent(one['sampled'])}" for one in found)])
        exact = [result["pairs"][source][target]["next_states_exact"] for target in names]
        lines.append([source, "experience model", *(_percent(one["held_out"]) for one in exact)])
    if together := result.get(UNIVERSAL):
        lines.append(["all", "experience model", *(_percent(together[name]["held_out"]) for name in names)])
    control = [result["pairs"][target][target]["next_states_exact"]["no_model"] for target in names]
    lines.append(["none", "control without a model", *map(_percent, control)])
    return ["trained in", "model", *(f"in {name}" for name in names)], lines


def _percent(rate: Mapping[str, Any]) -> str:
    return f"{100 * rate['value']:.1f}"
