"""A configuration of `dreamgym train` made from recorded episodes, with an account of what they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import TextRules
from dreamgym.errors import PluginError, UsageError
from dreamgym.llm import tiny
from dreamgym.recipes import factory
from dreamgym.runs.episodes import read_trajectories
from dreamgym.tool_calls import calls_of
from dreamgym.types import Observation, Trajectory

FEW_EPISODES = 50  # below which the account warns
CONTEXT = 3600  # tokens of a small model's 4,096 that a whole episode may take
SAMPLE = 300  # episodes from which a vocabulary is tried
VOCABULARIES = (2048, 4096)
WORTH = 0.9  # a larger vocabulary is taken where it shortens episodes to this share or less


@dataclass(frozen=True)
class LogAccount:
    """What recorded episodes hold. Token counts are of the chosen vocabulary."""

    episodes: int
    steps: int
    successes: int
    failures: int
    unknown: int  # episodes without an outcome
    tasks: int
    longest: int  # steps
    tool_calls: bool  # whether every action is tool calls
    reasoning: bool  # whether some step carries an explanation
    vocab_size: int
    episode_tokens: int  # of nine in ten episodes, at most: instruction, first state, actions, and what is new in each state
    answer_tokens: int  # of the longest next state

    def warnings(self) -> list[str]:
        """What such logs cannot teach, in sentences."""
        found = []
        if self.episodes < FEW_EPISODES:
            found.append(f"{self.episodes} episodes are few: a dream knows no more. Record {FEW_EPISODES}.")
        if self.unknown:
            found.append(f"{self.unknown} of {self.episodes} episodes have no known outcome. They teach states and no reward.")
        if not self.failures:
            found.append("No episode is a known failure: the dream cannot learn what fails, and its success says nothing. Add failures.")
        if self.episode_tokens > CONTEXT:
            found.append(f"An episode takes {self.episode_tokens:,} tokens, more than {CONTEXT:,} fit: the oldest steps are left out.")
        return found

    def __str__(self) -> str:
        return (
            f"{self.episodes:,} episodes, {self.steps:,} steps (longest {self.longest}), {self.tasks:,} tasks; {self.successes:,} "
            f"successes, "
            f"{self.failures:,} failures, {self.unknown:,} without a known outcome; nine in ten episodes take at most "
            f"{self.episode_tokens:,} tokens, a next state at most {self.answer_tokens:,}"
        )


class _Plain(TextRules):
    """Neutral rules, for counting tokens."""

    name = "logs"

    def abstract(self, raw: dict[str, Any]) -> Observation:
        raise NotImplementedError("Rules for counting tokens map no state.")


def examine(files: Sequence[Path]) -> LogAccount:
    """Read the episodes. UsageError for files that hold none, and where no episode succeeds: no policy could start from them."""
    episodes = [episode for file in files for episode in read_trajectories(file)]
    wins = sum(episode.success for episode in episodes)
    unknown = sum(not episode.scored for episode in episodes)
    if not wins:
        raise UsageError(
            f"None of the {len(episodes):,} episodes is a known success ({unknown:,} have no known outcome), so there is nothing to "
            "start a policy from. Say where the outcome is (`dreamgym import --success ...`), or add episodes that succeed."
        )
    sample = [episode for episode in episodes if episode.turns][:SAMPLE]
    vocab_size, episode_tokens, answer_tokens = _tokens(sample)
    return LogAccount(
        episodes=len(episodes),
        steps=sum(len(episode.turns) for episode in episodes),
        successes=wins,
        failures=len(episodes) - wins - unknown,
        unknown=unknown,
        tasks=len({" ".join(episode.task.instruction.lower().split()) for episode in episodes}),
        longest=max(len(episode.turns) for episode in episodes),
        tool_calls=all(_is_call(step.action) for episode in episodes for step in episode.transitions),
        reasoning=any(step.info.reasoning for episode in episodes for step in episode.transitions),
        vocab_size=vocab_size,
        episode_tokens=episode_tokens,
        answer_tokens=answer_tokens,
    )


def settings(files: Sequence[Path], account: LogAccount, *, env: str | None = None, size: str = "1m") -> str:
    """The TOML of `dreamgym train`. `env` None: the suite `tools` where every action is tool calls, else `logs`."""
    chosen = env or ("tools" if account.tool_calls and _has_tools() else "logs")
    beside = files[0].with_name(f"{files[0].name.removesuffix('.jsonl')}.tools.json")
    options = [f"files = {json.dumps([str(file) for file in files], ensure_ascii=False)}"]
    if chosen == "tools" and beside.is_file():
        options.append(f"tools = {json.dumps(str(beside), ensure_ascii=False)}")
    history = min(16, account.longest, max(1, CONTEXT * account.longest // max(1, account.episode_tokens)))
    answer = min(1024, 32 * math.ceil(account.answer_tokens * 1.1 / 32))
    lines = [
        f"# Made by `dreamgym init` from: {account}.",
        *(f"# Warning: {text}" for text in account.warnings()),
        "# There is no environment: the run measures fidelity on episodes that it holds out, and dream success is uncertified.",
        'mode = "dream"',
        'rules = "suite"  # of recorded episodes: at most the schemas of the tools; no rule is written by hand',
        "",
        "[env]",
        f"name = {json.dumps(chosen)}",
        f"options = {{{', '.join(options)}}}",
        "",
        "[logs]",
        "task_pairs = 0  # no task is made up: nobody could say whether it can be done",
        "",
        "[model]",
        f"size = {json.dumps(size)}",
        f"vocab_size = {account.vocab_size}",
        "",
        "[experience]",
        f"history = {history}  # earlier steps that are shown; the longest episode has {account.longest}",
        f"max_answer_tokens = {answer}",
        f"reasoning = {str(account.reasoning).lower()}  # whether the logs explain their steps",
        "replayed_starts = true  # a dream of a recorded task begins as its recording does",
        "",
        "[eval]",
        "tasks = 0  # nothing can be evaluated without an environment",
        "paired_replays = 128  # dreams of every policy, uncertified",
        "",
        "[rl]",
        "iterations = 30",
        "tasks_per_iter = 16",
        "probe_every = 0  # a probe needs an environment",
        "curriculum = {synthetic_share = 0.0}",
    ]
    return "\n".join(lines) + "\n"


def _tokens(sample: Sequence[Trajectory]) -> tuple[int, int, int]:
    """(vocabulary, tokens of an episode, tokens of a next state), with the smaller vocabulary unless the larger one is worth it."""
    found = []
    for size in VOCABULARIES:
        tokenizer = factory.learn_tokenizer(sample, _Plain(), size)
        lengths, answers = list[int](), [1]
        for episode in sample:
            first = episode.transitions[0].state.text
            total = len(tiny.encode(tokenizer, f"{episode.task.instruction}\n{first}"))
            for step in episode.transitions:
                new = len(tiny.encode(tokenizer, _new_text(step.state.text, step.next_state.text)))
                answers.append(new)
                total += new + len(tiny.encode(tokenizer, f"{step.action}\n{step.info.reasoning}"))
            lengths.append(total)
        found.append((size, sorted(lengths)[int(0.9 * (len(lengths) - 1))], max(answers)))
    small, large = found
    return large if large[1] <= WORTH * small[1] else small


def _new_text(before: str, after: str) -> str:
    """The lines of a state that the one before does not have."""
    known = set(before.split("\n"))
    return "\n".join(line for line in after.split("\n") if line not in known) or after


def _is_call(action: str) -> bool:
    try:
        return bool(calls_of(action))
    except UsageError:
        return False


def _has_tools() -> bool:
    try:
        return hasattr(plugins.load("envs", "tools"), "make")
    except PluginError:
        return False
