"""A configuration of `dreamgym train` made from recorded episodes, with an account of what they hold."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import read_tools
from dreamgym.errors import UsageError, counted
from dreamgym.experience.learned_verifier.cases import ended
from dreamgym.experience.prompts import PromptParts, Step, answer, encode_delta, opening
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.llm.vocabulary import Vocabulary
from dreamgym.logs.tools_file import tools_beside
from dreamgym.recipes import factory
from dreamgym.recipes.blocks import RLConfig
from dreamgym.recipes.recorded import listed, require_logs, tools_lacking
from dreamgym.runs.episodes import read_trajectories
from dreamgym.tool_calls import calls_of
from dreamgym.types import Memory, Trajectory, Transition

FEW_EPISODES = 50  # below which the account warns
CONTEXT = 3600  # tokens of a small model's 4,096 that a whole episode may take
PART = 0.9  # of a backbone's context that a whole episode may take
SAMPLE = 300  # episodes from which a vocabulary is tried
VOCABULARIES = (2048, 4096)
ITERATIONS = 12
ITERATION = 100_000  # tokens of an iteration's rollouts, of which a CPU dreams some thousands a second
IMITATION = 2_500_000  # tokens that the warm start is shown, in more epochs where there are few successes: in fewer it is half trained
EPOCHS = (3, 12)  # of the warm start, at least and at most
CALL = 24  # tokens that the tool format of a chat template puts around a call, at most
LARGE = 1_000_000_000  # parameters of a backbone from which it is loaded in bfloat16 and steps of RL are a tenth as large
ENOUGH = 20  # logged successes, and failures, that ended, from which on a verifier is fitted to them
VERIFIED = (
    'verifier = {name = "learned"}  # which claims of success to believe, as the logs show it; for another policy it is not certified'
)
NEAR = 'algorithm = {name = "grpo", kl_coef = 0.1}  # near the policy of the logs, for which the verifier is calibrated'
FIT = 6_400_000  # tokens that the experience model is shown, in more epochs where there are few episodes
EXPERIENCE_EPOCHS = (4, 16)  # at least and at most
LEAST_FIT = (
    1_200_000  # tokens that the experience model is shown, whatever the epochs: with half as many it had 49 % of states right, not 59
)
HIDDEN = (
    "k = 0  # a memory of another task shows what is not so in this one",
    "temperature = 1.0  # what a call shows for the first time is drawn",
    'draw = "hidden"',
    "top_p = 0.95",
    "redraws = 3  # of drawn answers that cannot be read",
)
LEAST = 600_000  # tokens that the warm start is shown, whatever the epochs: some forty optimiser steps, below which it learns nothing
VALIDATED = "validation_share = 0.15  # of the tasks; they say which kinds of actions the nearest memory answers instead of the model"
VALIDATING = 20  # tasks from which on some are held out for that
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
    reads: tuple[str, ...]  # tools that change nothing, as they declare or the logs show
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
            + (f"; tools that only read: {', '.join(self.reads)}" if self.reads else "")
        )


def examine(files: Sequence[Path], *, env: str | None = None, backbone: BackboneConfig | None = None) -> LogAccount:
    """Read the episodes. `env` None: the suite `tools` where every action is tool calls, else `logs`. Tokens are those of `backbone`, or of
    a small vocabulary learned from the episodes. UsageError for files that hold none, for episodes that cannot be logs, where none
    succeeds (no policy could start from them), and for a backbone that is not here."""
    found = [(file, episode) for file in files for episode in read_trajectories(file)]
    episodes = [episode for _, episode in found]
    wins, claims = sum(episode.success for episode in episodes), Counter(episode.success for episode in ended(episodes))
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
    lacking = tools_lacking(episodes, suite)
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
        reads=tuple(sorted(tool.name for tool in rules.schemas.values() if tool.reads_only)) if isinstance(rules, ToolRules) else (),
        lacking=lacking,
        vocab_size=vocab_size,
        context=context,
        episode_tokens=tokens.episode,
        action_tokens=tokens.action,
        answer_tokens=_longest_answer(episodes, rules, words),
    )


RULES_OF_TOOLS = 'rules = "induced"  # the schemas of the tools, and what logs show; the run lists it in rules.toml for you to correct'


def settings(files: Sequence[Path], account: LogAccount, *, size: str = "1m", backbone: BackboneConfig | None = None) -> str:
    """The TOML of `dreamgym train`: for a model of `size` from scratch, or for `backbone`, which acts and dreams with adapters."""
    options = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in _options(account.env, files).items()]
    fits = account.episode_tokens <= account.context
    history = account.longest if fits else max(1, account.context * account.longest // account.episode_tokens)
    models = _pretrained(account, backbone) if backbone else _from_scratch(account, size)
    lines = [
        f"# Made by `dreamgym init` from: {account}.",
        *(f"# Warning: {text}" for text in account.warnings()),
        "# There is no environment: the run measures fidelity on episodes that it holds out, and dream success is uncertified.",
        'mode = "dream"',
        RULES_OF_TOOLS if account.env == "tools" else 'rules = "suite"  # of recorded texts: none; no rule is written by hand',
        "",
        "[env]",
        f"name = {json.dumps(account.env)}",
        f"options = {{{', '.join(options)}}}",
        "",
        "[logs]",
        "task_pairs = 0  # no task is made up: nobody could say whether it can be done",
        "",
        *models.policy,
        "",
        "[experience]",
        f"history = {history}  # earlier steps that are shown; the longest episode has {account.longest}",
        f"max_answer_tokens = {account.answer_limit}",
        f"reasoning = {str(account.reasoning).lower()}  # whether the logs explain their steps",
        *(HIDDEN if account.hidden else []),
        "replayed_starts = true  # a dream of a recorded task begins as its recording does",
        *([VALIDATED] if account.tasks >= VALIDATING else []),
        *([VERIFIED] if account.verifiable else []),
        *models.experience,
        "",
        *models.warm_start,
        "",
        "[eval]",
        "tasks = 0  # nothing can be evaluated without an environment",
        "uncertified_dreams = 64  # of every policy; nothing real confirms their success",
        "",
        "[rl]",
        f"iterations = {ITERATIONS}",
        *models.rl,
        "probe_every = 0  # a probe needs an environment",
        "curriculum = {synthetic_share = 0.0}",
        *([NEAR] if account.verifiable else []),
        *models.learner,
    ]
    return "\n".join(lines) + "\n"


class _Models(NamedTuple):
    """The lines of a configuration that depend on the models: whole blocks, or lines of a block."""

    policy: list[str]
    experience: list[str]
    warm_start: list[str]
    rl: list[str]
    learner: list[str]


def _epochs(tokens: int, epoch: int, limits: tuple[int, int], at_least: int) -> int:
    """As many epochs of that many tokens as show the model `tokens`, within the limits, and in any case `at_least`."""
    least, most = limits
    return max(math.ceil(at_least / epoch), min(most, max(least, math.ceil(tokens / epoch))))


def _from_scratch(account: LogAccount, size: str) -> _Models:
    tasks = min(16, max(4, ITERATION // (RLConfig().group_size * max(1, account.episode_tokens))))
    tokens = max(1, account.episode_tokens)
    epochs = _epochs(IMITATION, account.successes * tokens, EPOCHS, LEAST)
    fitted = _epochs(FIT, account.episodes * tokens, EXPERIENCE_EPOCHS, LEAST_FIT)
    reply = 8 * math.ceil((account.action_tokens + 2) / 8)
    return _Models(
        [
            "[model]",
            f"size = {json.dumps(size)}",
            f"vocab_size = {account.vocab_size}",
            "",
            "[policy]",
            f"max_reply_tokens = {reply}  # 99 in 100 logged actions are that long at most",
        ],
        ["", "[experience.training]", f"epochs = {fitted}.0  # over {account.episodes:,} episodes"],
        ["[warm_start]", f"epochs = {epochs}  # over {account.successes:,} successes"],
        [f"tasks_per_iter = {tasks}  # an iteration of about {ITERATION:,} tokens"],
        [],
    )


def _pretrained(account: LogAccount, backbone: BackboneConfig) -> _Models:
    """Policy and experience model are adapters of one backbone, whose weights they share in memory."""
    large = _parameters(backbone) >= LARGE
    longest = max(2048, 1024 * math.ceil(min(account.episode_tokens, account.context) / 1024))
    reply = 32 * math.ceil((account.action_tokens + CALL) / 32)
    cache = ["engine = {cache_bytes = 16_000_000_000}  # of keys and values: less where memory is short"] if large else []
    model = [
        f"model = {json.dumps(backbone.model)}",
        "lora = {rank = 16}",
        *(["download = true"] if backbone.download else []),
        *(['dtype = "bfloat16"'] if large else []),
        *(["gradient_checkpointing = true  # a third more time, a tenth of the memory"] if large or longest > 2048 else []),
    ]
    return _Models(
        [
            "[policy]",
            f"max_reply_tokens = {reply}  # 99 in 100 logged actions are that long at most; more for a model that thinks",
            *cache,
            "",
            "[policy.backbone]",
            *model,
        ],
        [
            *cache,
            "",
            "[experience.backbone]  # the same weights in memory, with adapters of its own",
            *model,
            "",
            "[experience.training]",
            'optimiser = "adamw"',
            "epochs = 2.0",
            "lr = 2e-4",
            f"batch_tokens = {longest}  # at least an episode; less takes less memory",
        ],
        [
            "[warm_start]",
            'optimiser = "adamw"',
            f"epochs = 2.0  # over {account.successes:,} successes",
            "lr = 1e-4",
            f"batch_tokens = {longest}",
        ],
        ["tasks_per_iter = 16"],
        [
            "",
            "[rl.learner]",
            f"lr = {'1e-5' if large else '1e-4'}  # of adapters; measured with SmolLM2, not tuned for others",
            "grad_clip = 1.0",
            f"micro_tokens = {longest}  # of a backward pass: less takes less memory",
        ],
    )


def _options(env: str, files: Sequence[Path]) -> dict[str, Any]:
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


def _parameters(backbone: BackboneConfig) -> int:
    from dreamgym.llm import backbones

    return sum(p.numel() for p in backbones.outline(backbone).parameters())


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
