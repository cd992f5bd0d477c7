"""What recorded episodes hold: counts, outcomes, and lengths in tokens, from which `recipes.init_logs` makes settings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.tools import ToolSuite
from dreamgym.envs.tools.schemas import read_tools
from dreamgym.errors import UsageError, counted
from dreamgym.experience.learned_verifier.cases import scored_episodes
from dreamgym.experience.prompts import PromptParts, Step, answer, encode_delta, opening
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.llm.vocabulary import Vocabulary
from dreamgym.logs.tools_file import tools_beside
from dreamgym.recipes import factory
from dreamgym.recipes.recorded import listed, require_logs, tools_lacking
from dreamgym.runs.episodes import read_trajectories
from dreamgym.tool_calls import calls_of
from dreamgym.types import Memory, Trajectory, Transition

FEW_EPISODES = 50  # below which the account warns
CONTEXT = 3600  # tokens of a small model's 4,096 that a whole episode may take
PART = 0.9  # of a backbone's context that a whole episode may take
SAMPLE = 300  # episodes from which a vocabulary is tried
VOCABULARIES = (2048, 4096)
ENOUGH = 20  # logged successes, and failures, that ended, from which on a verifier is fitted to them
PARTS = PromptParts()  # all that an answer can have
FRAME = 32  # tokens of an answer that no text of a step stands for, at most: markers, and reward and end
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
    ended: tuple[int, int]  # of the successes and of the failures, those that were not truncated: what a verifier is fitted to
    tasks: int
    repeated: int  # tasks of several episodes
    longest: int  # steps
    reasoning: bool  # whether some step carries an explanation
    hidden: bool  # whether tools show what no earlier state did
    reads: tuple[str, ...]  # tools that change nothing, as they declare, or their names say
    declared: bool  # whether the tools themselves say which of them these are
    others: tuple[str, ...]  # all other tools
    lacking: Counter[str]  # calls of tools that the file of tools lacks, by tool
    vocab_size: int  # of a small model; 0 for a backbone, which has its own
    context: int  # tokens that a whole episode may take
    episode_tokens: int  # of nine in ten episodes, at most, as the experience model reads them, with a memory a step
    action_tokens: int  # of 99 in 100 actions, at most
    answer_tokens: int  # of the longest next state of all episodes, as the experience model writes it

    @property
    def answer_limit(self) -> int:
        """Tokens of a next state that a dream may write: what the logs ask for and a tenth more, up to half of the context."""
        return min(self.context // 2, 32 * math.ceil(self.answer_tokens * 1.1 / 32))

    @property
    def verifiable(self) -> bool:
        """Whether a verifier of claims of success can be fitted to them."""
        return min(self.ended) >= ENOUGH

    def warnings(self) -> list[str]:
        """What such logs cannot teach, in sentences."""
        found = []
        if self.episodes < FEW_EPISODES:
            found.append(f"{counted(self.episodes, 'episode is', 'episodes are')} few to fit a model to. Record {FEW_EPISODES} or more.")
        if self.unknown:
            have = f"{self.unknown} of {counted(self.episodes, 'episode')} {'has' if self.unknown == 1 else 'have'}"
            found.append(f"{have} no known outcome. Such episodes teach states, no reward and no action.")
        if self.hidden and not self.repeated:
            found.append("No task was recorded twice, so nothing is recalled of what a task hides: the dream draws it. Record tasks again.")
        if not self.failures:
            found.append("No episode is a known failure: the dream cannot learn what fails, and its success says nothing. Add failures.")
        elif not self.verifiable:
            found.append(
                f"{self.ended[0]} known successes and {self.ended[1]} known failures that were not truncated are too few for a verifier, "
                f"which takes {ENOUGH} of each: every success that the dream claims is rewarded, and RL is not held near the policy of the "
                "logs."
            )
        if self.lacking:
            found.append(f"The file of tools lacks {listed(self.lacking)}, which the episodes call: a dream refuses these calls.")
        if self.env == "tools" and not self.reads:
            found.append(
                "No tool is known to change nothing, so that a dream cannot tell which earlier answers still hold. Declare the tools that "
                'only read in the file of tools beside the episodes: "annotations": {"readOnlyHint": true}.'
            )
        elif self.reads and not self.declared and self.others:
            found.append(
                f"No tool declares that it only reads. Those that are called so do, it is assumed: {', '.join(self.reads)}. The others "
                f"({', '.join(self.others)}) may change what earlier answers said, as far as a dream knows. Declare those that only read "
                'in the file of tools beside the episodes: "annotations": {"readOnlyHint": true}. Then nothing is assumed.'
            )
        if self.answer_tokens > self.answer_limit:
            found.append(
                f"A next state takes up to {self.answer_tokens:,} tokens, and a dream writes at most {self.answer_limit:,}: it cannot be "
                "dreamed. Leave out lines of long states (`dreamgym mapping`)."
            )
        if self.episode_tokens > self.context:
            found.append(f"An episode takes {self.episode_tokens:,} tokens, more than {self.context:,} fit: the oldest steps are left out.")
        return found

    def __str__(self) -> str:
        return (
            f"{counted(self.episodes, 'episode')}, {counted(self.steps, 'step')} (longest {self.longest}), {counted(self.tasks, 'task')} "
            f"({self.repeated:,} of them recorded more than once); {counted(self.successes, 'success', 'successes')}, "
            f"{counted(self.failures, 'failure')}, {self.unknown:,} without a known outcome; nine in ten episodes take at most "
            f"{self.episode_tokens:,} tokens, the longest next state takes {self.answer_tokens:,}"
            + (f"; tools that only read{'' if self.declared else ', by their names'}: {', '.join(self.reads)}" if self.reads else "")
        )


def examine(files: Sequence[Path], *, env: str | None = None, backbone: BackboneConfig | None = None) -> LogAccount:
    """Read the episodes. `env` None: the suite `tools` where every action is tool calls, else `logs`. Tokens are those of `backbone`, or of
    a small vocabulary learned from the episodes. UsageError for files that hold none, for episodes that cannot be logs, where none
    succeeds (no policy could start from them), and for a backbone that is not here."""
    found = [(file, episode) for file in files for episode in read_trajectories(file)]
    episodes = [episode for _, episode in found]
    wins, claims = sum(episode.success for episode in episodes), Counter(episode.success for episode in scored_episodes(episodes))
    unknown = sum(not episode.scored for episode in episodes)
    if not wins:
        raise UsageError(
            f"None of the {len(episodes):,} episodes is a known success ({unknown:,} have no known outcome), so there is nothing to "
            "start a policy from. Say where the outcome is (`dreamgym import --success ...`), or add episodes that succeed."
        )
    sample = [episode for episode in episodes if episode.turns][:SAMPLE]
    tool_calls = all(_is_call(step.action) for episode in episodes for step in episode.transitions)
    env = env or ("tools" if tool_calls else "logs")
    suite: EnvSuite = plugins.make("envs", env, **suite_options(env, files))
    require_logs(found, suite.name)
    lacking = tools_lacking(episodes, suite)
    tools = sorted(suite.rules.schemas.values(), key=lambda tool: tool.name) if isinstance(suite, ToolSuite) else []
    rules, tasks = suite.rules, Counter(suite.task_key(episode.task) for episode in episodes)
    if backbone:
        vocab_size, context, words = 0, int(PART * _positions(backbone)), _words(backbone)
        tokens = _lengths(sample, rules, words)
    else:
        (vocab_size, words, tokens), context = _smallest(sample, rules), CONTEXT
    return LogAccount(
        env=env,
        episodes=len(episodes),
        steps=sum(len(episode.turns) for episode in episodes),
        successes=wins,
        failures=len(episodes) - wins - unknown,
        unknown=unknown,
        ended=(claims[True], claims[False]),
        tasks=len(tasks),
        repeated=sum(n > 1 for n in tasks.values()),
        longest=max(len(episode.turns) for episode in episodes),
        reasoning=any(step.info.reasoning for episode in episodes for step in episode.transitions),
        hidden=rules.partially_observed,
        reads=tuple(tool.name for tool in tools if tool.reads_only),
        others=tuple(tool.name for tool in tools if not tool.reads_only),
        declared=isinstance(suite, ToolSuite) and suite.declared,
        lacking=lacking,
        vocab_size=vocab_size,
        context=context,
        episode_tokens=tokens.episode,
        action_tokens=tokens.action,
        answer_tokens=_longest_answer(episodes, rules, words),
    )


def suite_options(env: str, files: Sequence[Path]) -> dict[str, Any]:
    """The options of a suite of recorded episodes: its files, and the tools beside the first one where there are some. UsageError where
    another file has tools that the first one lacks: calls of them would be refused."""
    beside = tools_beside(files[0])
    tools = {"tools": str(beside)} if env == "tools" and beside.is_file() else {}
    for other in map(tools_beside, files[1:] if tools else ()):
        if lacking := sorted(_names_of_tools(other) - _names_of_tools(beside)):
            raise UsageError(
                f"'{other}' has tools that '{beside}' lacks: {', '.join(lacking)}. Import the logs with one command, so that one file has "
                "all tools: dreamgym import LOG LOG --out episodes.jsonl"
            )
    return {"files": [str(file) for file in files], **tools}


def _names_of_tools(file: Path) -> set[str]:
    return {tool.name for tool in read_tools(file)} if file.is_file() else set()


class _Lengths(NamedTuple):
    """Tokens of nine in ten episodes at most, and of 99 in 100 actions."""

    episode: int
    action: int


def _smallest(sample: Sequence[Trajectory], rules: TextRules) -> tuple[int, Vocabulary, _Lengths]:
    """The smaller vocabulary, unless the larger one is worth it, with its size and with what it makes of the episodes."""
    made = [(size, factory.make_vocabulary(factory.learn_tokenizer(sample, rules, size))) for size in VOCABULARIES]
    small, large = ((size, words, _lengths(sample, rules, words)) for size, words in made)
    return large if large[2].episode <= WORTH * small[2].episode else small


def _lengths(sample: Sequence[Trajectory], rules: TextRules, words: Vocabulary) -> _Lengths:
    lengths, actions = list[int](), list[int]()
    for episode in sample:
        shown = [episode.transitions[0].state.text]
        total = len(opening(words, episode.task.instruction, shown[0]))
        for transition in episode.transitions:
            step = Step(transition, delta=encode_delta(rules, transition))
            written = sum(map(len, answer(words, step, tuple(shown), PARTS).values()))
            actions.append(len(words.encode(transition.action)))
            total += written + actions[-1] + 3 + len(words.encode(rules.memory_text(_memory(episode, transition))))
            shown.append(transition.next_state.text)
        lengths.append(total)
    return _Lengths(_quantile(lengths, 0.9), _quantile(actions, 0.99))


def _longest_answer(episodes: Sequence[Trajectory], rules: TextRules, words: Vocabulary) -> int:
    """Tokens of the longest next state. A token has at least a byte, so that no text is longer that has fewer bytes than the longest one
    has tokens: those, most of a log, are not encoded."""
    found = list[tuple[int, str, Trajectory, int]]()
    for episode in episodes:
        for i, transition in enumerate(episode.transitions):
            delta = encode_delta(rules, transition)
            text = f"{transition.info.reasoning}{delta or transition.next_state.text}"
            found.append((len(text.encode("utf-8", "replace")), delta, episode, i))
    longest = 0
    for size, delta, episode, i in sorted(found, key=lambda one: -one[0]):
        if size + FRAME <= longest:
            break
        visible = tuple(transition.state.text for transition in episode.transitions[: i + 1])
        written = answer(words, Step(episode.transitions[i], delta=delta), visible, PARTS)
        longest = max(longest, sum(map(len, written.values())))
    return longest


def _words(backbone: BackboneConfig) -> Vocabulary:
    from dreamgym.llm import backbones

    return factory.make_vocabulary(backbones.load_tokenizer(backbone.model_copy(update={"markers": True})))


def _positions(backbone: BackboneConfig) -> int:
    from dreamgym.llm import backbones

    return backbones.positions(backbone)


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
