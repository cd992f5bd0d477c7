"""A configuration for recorded episodes alone: `dreamgym init train.toml --logs episodes.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dreamgym.errors import UsageError
from dreamgym.runs.episodes import read_trajectories
from dreamgym.tool_calls import calls_of
from dreamgym.types import Trajectory

FEW = 50
"""Episodes below which little can be learned."""
CALLING = 0.9
"""The share of actions that are tool calls from which the suite `tools` is chosen."""
CHARS_A_TOKEN = 3.5


def settings_for(logs: Path) -> str:
    """Commented TOML that `dreamgym train RUN --config` takes as it stands. UsageError for logs that nothing can be learned from."""
    episodes = read_trajectories(logs)
    scored = [episode for episode in episodes if episode.scored]
    wins = sum(episode.success for episode in scored)
    if not scored:
        raise UsageError(
            f"No episode of '{logs}' has a known outcome, so there is no success to learn. Import the logs again with --success, "
            "--success-ids or --success-score."
        )
    if not wins:
        raise UsageError(f"No episode of '{logs}' succeeds, so there is nothing to start a policy from. Record more, or better ones.")
    tools = logs.with_name(f"{logs.stem}.tools.json")
    suite, options = _suite(episodes, logs.resolve(), tools.resolve())
    longest = max(len(episode.turns) for episode in episodes)
    texts = [len(step.next_state.text) for episode in episodes for step in episode.transitions]
    answer = min(1024, max(160, 32 * round(max(texts) / CHARS_A_TOKEN / 32)))
    mean = sum(texts) / len(texts) / CHARS_A_TOKEN
    explained = any(step.info.reasoning for episode in episodes for step in episode.transitions)
    steps = sum(len(episode.turns) for episode in episodes)
    lines = [
        f"# {len(episodes):,} episodes, {steps:,} steps, the longest of {longest}; {wins:,} successes, {len(scored) - wins:,} failures,",
        f"# {len(episodes) - len(scored):,} of unknown outcome. The mean next state has about {mean:.0f} tokens.",
        *(f"# {warning}" for warning in warnings(episodes)),
        "",
        'rules = "suite"           # of logs alone: at most the tools\' schemas',
        "",
        "[env]",
        f'name = "{suite}"',
        f"options = {{{options}}}",
        "",
        "[logs]",
        "relabelled_goals = 0.0    # no rule judges another goal",
        "task_pairs = 0            # tasks are not varied",
        "",
        "[model]",
        f"vocab_size = {4096 if sum(texts) > 2_000_000 else 2048}",
        "",
        "[experience]",
        f"history = {min(32, longest)}",
        f"max_answer_tokens = {answer}",
        f"reasoning = {str(explained).lower()}         # {'the logs explain steps' if explained else 'no step of the logs is explained'}",
        "replayed_starts = true",
        "",
        "[rl]",
        "probe_every = 0           # there is no environment to probe",
        "",
        "[rl.curriculum]",
        "synthetic_share = 0.0",
        "",
        "[eval]",
        "tasks = 0                 # nothing is measured in a real environment",
        "paired_replays = 0",
    ]
    return "\n".join(lines) + "\n"


def warnings(episodes: Sequence[Trajectory]) -> list[str]:
    """What these episodes are too few or too alike for."""
    scored = [episode for episode in episodes if episode.scored]
    wins = sum(episode.success for episode in scored)
    found = []
    if len(episodes) < FEW:
        found.append(f"Warning: {len(episodes)} episodes are few. Expect a dream that is right about little.")
    if wins == len(scored):
        found.append("Warning: all known outcomes are successes. The experience model sees no failure and will call most ends successes.")
    if len({episode.behaviour for episode in episodes}) == 1:
        found.append("Warning: all episodes are of one policy. What other policies would do is not in these logs.")
    return found


def _suite(episodes: Sequence[Trajectory], logs: Path, tools: Path) -> tuple[str, str]:
    """The suite for these episodes, and its options as TOML."""
    actions = [step.action for episode in episodes for step in episode.transitions]
    files = f"files = [{json.dumps(str(logs))}]"
    if sum(map(_is_call, actions)) < CALLING * len(actions):
        return "logs", files
    return "tools", files + (f", tools = {json.dumps(str(tools))}" if tools.is_file() else "")


def _is_call(action: str) -> bool:
    try:
        return bool(calls_of(action))
    except UsageError:
        return False
