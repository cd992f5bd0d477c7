"""`dreamgym judge`: an instruct model scores a run's dreamed transitions, and the controls score the instruct model."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

from dreamgym.config import resolve
from dreamgym.envs.connect.limits import CallBudget
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import RunDirError, UsageError, nearest
from dreamgym.evals.judge import JudgeConfig, draw, judge, report
from dreamgym.protocols import Chat, RealEnv
from dreamgym.recipes.annotate import used
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.factory import make_suite, start_workers
from dreamgym.recipes.inputs import located
from dreamgym.runs.files import write_atomic
from dreamgym.runs.progress import progress
from dreamgym.runs.rundir import CONFIG, RunDir, unfinished

AUDIT = "audit-with_guard"


def judge_run(chat: Chat, path: Path, config: JudgeConfig, *, dreams: str | None = None) -> dict[str, Any]:
    """Judge transitions of a run's dreamed episodes (`dreams` names their file; by default the audit's, else the last RL phase's).

    Writes `judge/<model>-<dreams>.json` into the run, and the replies beside it; the same call goes on where it was interrupted. Of a run
    without an environment, the agreement is that on the controls alone.
    """
    run, name = RunDir.view(path), dreams_of(path, dreams)
    episodes, logs = run.read_episodes(name), run.read_episodes("logs")
    shared = located(_shared_config(run), path)
    suite, limit = make_suite(shared), shared.env.connection.max_calls
    dreamed = [episode for episode in episodes if episode.source == "dream"]
    with start_workers(shared.effective_env, suite) as workers, closing(EnvPool(suite.require_env, suite.rules)) as pool:
        real: RealEnv | None = (workers or pool) if suite.has_env else None
        cases = draw(dreamed, logs, config, real=CallBudget(real, limit, [0]) if real and limit else real)
    stem = path / "judge" / re.sub(r"[^\w.-]+", "-", f"{chat.model}-{name}")
    with progress(len(cases) + min(config.retests, len(cases)), "judging") as advance:
        judged = judge(chat, cases, config, replies=stem.with_name(f"{stem.name}.replies.jsonl"), watch=advance)
    if all(one.scores is None for one in judged):
        raise UsageError(f"The judge said nothing that could be read. The first problem: {judged[0].problem}")
    found = {"judge": chat.model, "dreams": name, "cases": len(cases), **report(judged, seed=config.seed), "used": used(chat.usage)}
    write_atomic(stem.with_name(f"{stem.name}.json"), json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def dreams_of(path: Path, dreams: str | None = None) -> str:
    """The name of the episodes to judge. RunDirError where there is no run or it has no dreams, UsageError for a name that it does not
    have: it costs nothing, so it can come before a model is loaded."""
    run = RunDir.view(path)
    name, known = dreams or _latest(run), run.episode_names()
    if name not in known:
        raise UsageError(f"The run has no episodes '{name}'.{nearest(name, known)} Known: {', '.join(known) or 'none'}.")
    return name


def _shared_config(run: RunDir) -> SharedConfig:
    """The environment and the rules of the run's configuration, and no more of it, so that no model is needed. RunDirError where the run
    names no environment."""
    config, where = run.config, str(run.path / CONFIG)
    if not isinstance(env := config.get("env"), dict) or "name" not in env:
        raise RunDirError(f"'{where}' names no environment. Expected env.name, which every run writes: restore the file.")
    return resolve(SharedConfig, {key: config[key] for key in ("env", "rules") if key in config}, where=where)


def _latest(run: RunDir) -> str:
    names = run.episode_names()
    rl_phases = [name for name in names if re.fullmatch(r"([a-z]+-)?(dream|mixed)-\d+", name)]
    if AUDIT not in names and not rl_phases:
        raise unfinished(run.path, "holds no dreamed episodes yet")
    return AUDIT if AUDIT in names else rl_phases[-1]
