"""A configuration of `dreamgym train` made from recorded episodes, with an account of what they hold."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.errors import UsageError
from dreamgym.experience.prompts import PromptParts, Step, answer, encode_delta, opening
from dreamgym.recipes import factory
from dreamgym.recipes.blocks import RLBlock
from dreamgym.recipes.recorded import require_logs
from dreamgym.runs.episodes import read_trajectories
from dreamgym.tool_calls import calls_of
from dreamgym.types import Memory, Trajectory, Transition

FEW_EPISODES = 50  # below which the account warns
CONTEXT = 3600  # tokens of a small model's 4,096 that a whole episode may take
SAMPLE = 300  # episodes from which a vocabulary is tried
VOCABULARIES = (2048, 4096)
ITERATIONS = 6
ITERATION = 100_000  # tokens of an iteration's rollouts, of which a CPU dreams some thousands a second
IMITATION = 2_500_000  # tokens that the warm start is shown, in more epochs where there are few successes: in fewer it is half trained
EPOCHS = (3, 12)  # of the warm start, at least and at most
ENOUGH = 20  # logged successes, and failures, from which on a verifier is fitted to them
VERIFIED = (
    'verifier = {name = "learned"}  # which claims of success to believe, as the logs show it; for another policy it is not certified'
)
NEAR = 'algorithm = {name = "grpo", kl_coef = 0.1}  # near the policy of the logs, for which the verifier is calibrated'
HIDDEN = (
    "temperature = 1.0  # what a call shows for the first time is drawn",
    'draw = "hidden"',
    "redraws = 3  # of drawn answers that cannot be read",
)
PARTS = PromptParts()  # all that an answer can have
WORTH = 0.9  # a larger vocabulary is taken where it shortens episodes to this share or less


@dataclass(frozen=True)
class LogAccount:
    """What recorded episodes hold. Token counts are of the chosen vocabulary."""

    env: str  # the suite that they are for
    episodes: int
    steps: int
    successes: int
    failures: int
    unknown: int  # episodes without an outcome
    tasks: int
    repeated: int  # tasks of several episodes
    longest: int  # steps
    reasoning: bool  # whether some step carries an explanation
    hidden: bool  # whether tools show what no earlier state did
    vocab_size: int
    episode_tokens: int  # of nine in ten episodes, at most, as the experience model reads them, with a memory a step
    action_tokens: int  # of 99 in 100 actions, at most
    answer_tokens: int  # of the longest next state, as the experience model writes it

    @property
    def verifiable(self) -> bool:
        """Whether a verifier of claims of success can be fitted to them."""
        return min(self.successes, self.failures) >= ENOUGH

    def warnings(self) -> list[str]:
        """What such logs cannot teach, in sentences."""
        found = []
        if self.episodes < FEW_EPISODES:
            found.append(f"{self.episodes} episodes are few: a dream knows no more. Record {FEW_EPISODES}.")
        if self.unknown:
            found.append(f"{self.unknown} of {self.episodes} episodes have no known outcome. They teach states and no reward.")
        if self.hidden and not self.repeated:
            found.append("No task was recorded twice, so nothing is recalled of what a task hides: the dream draws it. Record tasks again.")
        if not self.failures:
            found.append("No episode is a known failure: the dream cannot learn what fails, and its success says nothing. Add failures.")
        if self.episode_tokens > CONTEXT:
            found.append(f"An episode takes {self.episode_tokens:,} tokens, more than {CONTEXT:,} fit: the oldest steps are left out.")
        return found

    def __str__(self) -> str:
        return (
            f"{self.episodes:,} episodes, {self.steps:,} steps (longest {self.longest}), {self.tasks:,} tasks "
            f"({self.repeated:,} of them recorded more than once); {self.successes:,} successes, "
            f"{self.failures:,} failures, {self.unknown:,} without a known outcome; nine in ten episodes take at most "
            f"{self.episode_tokens:,} tokens, a next state at most {self.answer_tokens:,}"
        )


def examine(files: Sequence[Path], *, env: str | None = None) -> LogAccount:
    """Read the episodes. `env` None: the suite `tools` where every action is tool calls, else `logs`. UsageError for files that hold none,
    for episodes that cannot be logs, and where none succeeds: no policy could start from them."""
    found = [(file, episode) for file in files for episode in read_trajectories(file)]
    episodes = [episode for _, episode in found]
    wins = sum(episode.success for episode in episodes)
    unknown = sum(not episode.scored for episode in episodes)
    if not wins:
        raise UsageError(
            f"None of the {len(episodes):,} episodes is a known success ({unknown:,} have no known outcome), so there is nothing to "
            "start a policy from. Say where the outcome is (`dreamgym import --success ...`), or add episodes that succeed."
        )
    sample = [episode for episode in episodes if episode.turns][:SAMPLE]
    tool_calls = all(_is_call(step.action) for episode in episodes for step in episode.transitions)
    env = env or ("tools" if tool_calls else "logs")
    suite: EnvSuite = plugins.make("envs", env, **_options(env, files))
    require_logs(found, suite.name)
    rules, tasks = suite.rules, Counter(suite.task_key(episode.task) for episode in episodes)
    vocab_size, episode_tokens, action_tokens, answer_tokens = _tokens(sample, rules)
    return LogAccount(
        env=env,
        episodes=len(episodes),
        steps=sum(len(episode.turns) for episode in episodes),
        successes=wins,
        failures=len(episodes) - wins - unknown,
        unknown=unknown,
        tasks=len(tasks),
        repeated=sum(n > 1 for n in tasks.values()),
        longest=max(len(episode.turns) for episode in episodes),
        reasoning=any(step.info.reasoning for episode in episodes for step in episode.transitions),
        hidden=rules.partially_observed,
        vocab_size=vocab_size,
        episode_tokens=episode_tokens,
        action_tokens=action_tokens,
        answer_tokens=answer_tokens,
    )


def settings(files: Sequence[Path], account: LogAccount, *, size: str = "1m") -> str:
    """The TOML of `dreamgym train`."""
    options = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in _options(account.env, files).items()]
    fits = account.episode_tokens <= CONTEXT
    history = account.longest if fits else max(1, CONTEXT * account.longest // account.episode_tokens)
    tasks = min(16, max(4, ITERATION // (RLBlock().group_size * max(1, account.episode_tokens))))
    answer = min(1024, 32 * math.ceil(account.answer_tokens * 1.1 / 32))
    least, most = EPOCHS
    epochs = min(most, max(least, math.ceil(IMITATION / (account.successes * max(1, account.episode_tokens)))))
    lines = [
        f"# Made by `dreamgym init` from: {account}.",
        *(f"# Warning: {text}" for text in account.warnings()),
        "# There is no environment: the run measures fidelity on episodes that it holds out, and dream success is uncertified.",
        'mode = "dream"',
        'rules = "suite"  # of recorded episodes: at most the schemas of the tools; no rule is written by hand',
        "",
        "[env]",
        f"name = {json.dumps(account.env)}",
        f"options = {{{', '.join(options)}}}",
        "",
        "[logs]",
        "task_pairs = 0  # no task is made up: nobody could say whether it can be done",
        "",
        "[model]",
        f"size = {json.dumps(size)}",
        f"vocab_size = {account.vocab_size}",
        "",
        "[policy]",
        f"max_reply_tokens = {8 * math.ceil((account.action_tokens + 2) / 8)}  # 99 in 100 logged actions are that long at most",
        "",
        "[experience]",
        f"history = {history}  # earlier steps that are shown; the longest episode has {account.longest}",
        f"max_answer_tokens = {answer}",
        f"reasoning = {str(account.reasoning).lower()}  # whether the logs explain their steps",
        *(HIDDEN if account.hidden else []),
        "replayed_starts = true  # a dream of a recorded task begins as its recording does",
        *([VERIFIED] if account.verifiable else []),
        "",
        "[warm_start]",
        f"epochs = {epochs}  # over {account.successes:,} successes",
        "",
        "[eval]",
        "tasks = 0  # nothing can be evaluated without an environment",
        "paired_replays = 64  # dreams of every policy, uncertified",
        "",
        "[rl]",
        f"iterations = {ITERATIONS}",
        f"tasks_per_iter = {tasks}  # an iteration of about {ITERATION:,} tokens",
        "probe_every = 0  # a probe needs an environment",
        "curriculum = {synthetic_share = 0.0}",
        *([NEAR] if account.verifiable else []),
    ]
    return "\n".join(lines) + "\n"


def _options(env: str, files: Sequence[Path]) -> dict[str, Any]:
    """The options of a suite of recorded episodes: its files, and the tools beside the first one where there are some."""
    beside = files[0].with_name(f"{files[0].name.removesuffix('.jsonl')}.tools.json")
    tools = {"tools": str(beside)} if env == "tools" and beside.is_file() else {}
    return {"files": [str(file) for file in files], **tools}


def _tokens(sample: Sequence[Trajectory], rules: TextRules) -> tuple[int, int, int, int]:
    """(vocabulary, tokens of an episode, of an action, of a next state), with the smaller vocabulary unless the larger one is worth it."""
    found = []
    for size in VOCABULARIES:
        words = factory.vocabulary(factory.learn_tokenizer(sample, rules, size))
        lengths, actions, answers = list[int](), list[int](), list[int]()
        for episode in sample:
            shown = [episode.transitions[0].state.text]
            total = len(opening(words, episode.task.instruction, shown[0]))
            for transition in episode.transitions:
                step = Step(transition, delta=encode_delta(rules, transition))
                written = sum(map(len, answer(words, step, tuple(shown), PARTS).values()))
                actions.append(len(words.encode(transition.action)))
                answers.append(written)
                total += written + actions[-1] + 3 + len(words.encode(rules.memory_text(_memory(episode, transition))))
                shown.append(transition.next_state.text)
            lengths.append(total)
        found.append((size, _quantile(lengths, 0.9), _quantile(actions, 0.99), max(answers)))
    small, large = found
    return large if large[1] <= WORTH * small[1] else small


def _memory(episode: Trajectory, step: Transition) -> Memory:
    """A step as a memory, which is as long as one that is retrieved for it."""
    instruction, env = episode.task.instruction, episode.task.env
    texts = (step.state.text, step.action, step.next_state.text)
    return Memory(0, episode.id, 0, env, instruction, "demo", *texts, step.reward, step.terminated, episode.success)


def _quantile(numbers: Sequence[int], share: float) -> int:
    return sorted(numbers)[int(share * (len(numbers) - 1))]


def _is_call(action: str) -> bool:
    try:
        return bool(calls_of(action))
    except UsageError:
        return False
