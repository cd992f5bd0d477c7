"""The base classes of environments. `TextRules` holds what is known about an environment's texts, `EnvSuite` everything a run needs of it.

Only the state mapping (`abstract`) and the tasks (`all_tasks`) are required. Every other member has a neutral default, and its docstring
says what the default means. Rules read the instruction, the states and the history. They never see the simulator, because they judge dreams
as well.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from dreamgym.envs import near_misses
from dreamgym.envs.near_misses import Miss
from dreamgym.errors import EnvironmentFailure, UsageError, nearest
from dreamgym.protocols import Env, ReplayBuffer
from dreamgym.types import Action, Memory, Observation, Query, Task, Trajectory, Transition, Turn, Verdict, View

SPLITS = {"train": (0.0, 0.7), "dev": (0.7, 0.85), "test": (0.85, 1.0)}
"""The default shares of the tasks."""


class Composer(Protocol):
    """Composes the answer to a query from several memories, such as a page of search results from remembered items."""

    def compose(self, query: Query) -> Memory | None:
        """The composed memory; None where nothing can be composed. `row` is 0 unless it is a real row."""
        ...


class TextRules(ABC):
    """What is known about the texts of an environment."""

    name: str
    token_patterns: Sequence[str] = ()
    """Regular expressions of what a tokenizer trained for this environment keeps in one piece, such as `[buy now]`. Repetitions have a
    bound (`{1,200}`, not `+`). Default: none."""
    about: str = ""
    """What the environment is and how it answers, for instruct models. Default: they are given the task alone."""
    action_format: str = ""
    """How an action is written at the end of a reply, for instruct models. Default: `policy.instructions` must say it."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Schemas of the tools that actions call, each {"name", "description", "parameters"}. Default: actions are no tool calls."""
    from_schemas: bool = False
    """Whether everything here follows from the form of tool calls and from `tools` alone, so that a run without hand-written rules keeps
    it. Default: it does not."""
    partially_observed: bool = False
    """Whether states hide most of the world. If so, `reveals_new` and `revisit_consistency` are implemented. Default: fully observed."""
    encodes_deltas: bool = False
    """Whether the experience model writes `encode_delta` in place of the next state. Default: it writes the state."""

    @abstractmethod
    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The state mapping: a raw observation as clean text that lists the actionable elements."""

    def tool_results(self, observation: Observation) -> tuple[Sequence[str], str]:
        """What the calls of the latest turn returned, in order, and what the user said then, for policies that call tools. Default: the
        whole state is one result."""
        return (observation.text,), ""

    def without_actions(self, observation: Observation) -> str:
        """The text of a state less the agent's own actions in it, which show nothing of the world. Default: states have none, so all."""
        return observation.text

    def canonical(self, action: Action) -> Action:
        """One spelling of actions that the environment cannot distinguish. Default: the action as it is."""
        return action

    def view(self, observation: Observation) -> View:
        """The state as the policy reads it, with short references for names that could only be memorised. Default: the state itself."""
        return View(observation.text)

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether the state offers the action. False: a rule answers it (`refusal`). Default None: unknown, the model answers."""
        return None

    def noop_reason(self, observation: Observation, history: Sequence[Transition], action: Action) -> str:
        """Why an admissible action changes nothing, as reasoning text. Default "": it may change something."""
        return ""

    def unfounded(self, instruction: str, observation: Observation, history: Sequence[Transition], action: Action) -> str:
        """Why the agent cannot know an identifier in its action, as reasoning text: a rule answers it then (`refusal`). Default "": any may
        be known."""
        return ""

    def refusal(self, observation: Observation, action: Action) -> Observation:
        """The next state where a rule answers that the action cannot be taken. Default: the same state (section 4.1 of the paper)."""
        return observation

    def reads_only(self, action: Action) -> bool:
        """Whether the action is known to change nothing, so that no later answer depends on it. Default: it is not known of any."""
        return False

    def near_misses(self, episodes: Sequence[Trajectory]) -> Mapping[str, Miss]:
        """Ways to miss a valid action of real episodes by little, by name. Default: those of words and brackets (`envs.near_misses`)."""
        return near_misses.near_misses(episodes)

    def invalid_action(self, action: Action, rng: random.Random) -> Action:
        """A valid action spoilt for the training rows, in other ways than `near_misses`. Default: words and brackets."""
        return near_misses.invalid_action(action, rng)

    def refused(self, transition: Transition) -> bool:
        """Whether the real environment refused the action. Default: nothing changed."""
        return transition.is_noop

    def action_kind(self, observation: Observation, action: Action) -> str:
        """The kind of the action, for measures by kind. Default: its first word."""
        return action.replace("[", " ").replace("(", " ").split(" ", 1)[0]

    def explain(self, task: Task, history: Sequence[Transition], transition: Transition) -> str:
        """The scripted teacher's reasoning for a real transition, in one line. Default "": there is no reasoning."""
        return ""

    def check_success(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict | None:
        """Whether the texts confirm a claimed success: passed, refused, or undecided where they show neither, which is refused as well.
        Default None: these rules do not judge success, and the model's reward stands."""
        return None

    def contradictions(self, history: Sequence[Transition], claim: Transition) -> list[str]:
        """Why the states that lead to a claimed success cannot all be real. Default []: none is known."""
        return []

    def reveals_new(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether the next state shows something for the first time, so that it must be sampled. Default None: unknown."""
        return None

    def revisit_consistency(self, history: Sequence[Transition]) -> list[bool]:
        """For each return to a known place: whether it showed what had been observed there. Default []: no place is known."""
        return []

    def encode_delta(self, transition: Transition) -> str:
        """What changed in a step, as the experience model writes it. Used where `encodes_deltas`. Default: the next state itself."""
        return transition.next_state.text

    def apply_delta(self, observation: Observation, action: Action, text: str) -> Observation | None:
        """The inverse of `encode_delta`; None for a text that cannot be applied. Default: the text is the next state."""
        return Observation(text) if text.strip() else None

    def memory_text(self, memory: Memory) -> str:
        """A retrieved memory as the experience model reads it. Default: the action and the next state."""
        return f"{memory.action}\n{memory.next_state}"

    def well_formed(self, instruction: str) -> bool:
        """Whether a synthetic instruction is worded as a task. Default: every text of one line is."""
        return bool(instruction.strip()) and "\n" not in instruction

    def task_key(self, instruction: str) -> str:
        """What an instruction asks for, whatever its wording: no synthetic task has the key of a held-out one. Default: its words, without
        case and punctuation."""
        return " ".join(re.findall(r"\w+", instruction.lower()))

    def feasible(self, instruction: str, memories: Iterable[Memory]) -> bool | None:
        """Whether real memory shows that a synthetic instruction can be fulfilled; None where it shows neither, and the curriculum refuses
        it. Default True: every well-formed instruction that is worded like a real one is accepted."""
        return True

    def composer(self, replay: ReplayBuffer) -> Composer | None:
        """Composes answers from several memories of `replay`. Default None: none is composed."""
        return None


class EnvSuite(ABC):
    """What `make(**config)` of an environment plug-in returns."""

    name: str
    rules: TextRules
    max_steps: int
    """The horizon of an episode."""
    scripted_policies: Mapping[str, float] = {}
    """The scripted policies that logs are generated with, and their shares, which sum to 1. Default: none, logs come from files."""
    fractional_reward_option: str = ""
    """The option under which the environment rewards parts of a success, which no text check knows, such as `outcome = false`. Default "":
    rewards are 0 or 1."""
    can_ground_tasks: bool = False
    """Whether `ground_task` is implemented for the settings at hand. Default: it is not, and synthetic tasks are not tried for real."""

    max_parallel: int = 256
    """Real episodes side by side in one process."""
    repeats: bool = True
    """Whether a task begins the same each time, so that an episode which is lost with its worker is redone. Default: it does."""
    log_files: Sequence[Path] = ()
    """Recorded episodes that belong to the suite, read where `logs.files` names none. Default: none."""
    input_files: Mapping[str, Sequence[Path]] = {}
    """The options that name files of recorded data, with these files: a run keeps copies, and is opened with them. Default: none."""
    data_paths: Mapping[str, Path] = {}
    """The options that name files or folders of the environment itself, however large: a run notes where they are. Default: none."""

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """`n` tasks of a split in an order that `seed` names; fewer when the split holds fewer. Splits share no task. Default: one task of
        each key of `all_tasks`, split by a hash of `task_key`, so that further tasks move none to another split."""
        check_split(split)
        known = {self.task_key(task): task for task in self.all_tasks()}
        keys = sorted(key for key in known if in_split(key, split))
        random.Random(f"tasks/{split}/{seed}").shuffle(keys)
        return [known[key] for key in keys[:n]]

    def all_tasks(self) -> Iterable[Task]:
        """Every task there is, for suites that do not override `tasks`."""
        raise NotImplementedError(f"{type(self).__name__} needs all_tasks(), or tasks() where the splits are its own.")

    def task_key(self, task: Task) -> str:
        """What two recorded episodes of the same task have in common, so that held-out tasks are kept out of the logs. Default: the id."""
        return task.id

    def knows_task(self, task: Task) -> bool:
        """Whether `task_key` tells if a recorded task is a held-out one: a run warns where it does not. Default: whether one of `all_tasks`
        has the same key; without that list, every task is known."""
        return type(self).all_tasks is EnvSuite.all_tasks or self.task_key(task) in self._keys

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(map(self.task_key, self.all_tasks()))

    def env(self) -> Env | None:
        """A new instance of the real environment. Default None: there is none, and everything that needs one is skipped."""
        return None

    @property
    def has_env(self) -> bool:
        """Whether there is a real environment, without making one: it may be slow, and workers may be the ones to make it. Default: whether
        `env` is overridden."""
        return type(self).env is not EnvSuite.env

    def check_env(self) -> None:
        """UsageError where the environment cannot be acted in as things are, such as a site whose address is not given. It is asked before
        a run that acts in it begins. Default: nothing is missing."""
        return None

    def require_env(self) -> Env:
        """`env()`; UsageError for a suite without an environment."""
        env = self.env()
        if env is None:
            raise UsageError(f"The environment suite '{self.name}' holds logs only: there is no real environment to act in.")
        return env

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        """One real episode by a scripted policy; the same seed gives the same episode. Default: `scripted_action` at every step."""
        if policy not in self.scripted_policies:
            known = f"{nearest(policy, self.scripted_policies)} Known: {', '.join(self.scripted_policies) or 'none'}."
            raise UsageError(f"The environment suite '{self.name}' has no scripted policy '{policy}'.{known}")
        name = f"{policy}/{task.id}/{seed}"
        rng = random.Random(f"behave/{name}")

        def act(state: Observation) -> Action:
            return self.scripted_action(task, policy, state, rng)

        env = self.require_env()
        try:
            return play(env, self.rules, task, act, max_steps=self.max_steps, behaviour=policy, name=name)
        finally:
            getattr(env, "close", lambda: None)()  # it was made for this episode, and may hold a page or files

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        """What a scripted policy does in a state, for suites that have some and do not override `demonstrate`."""
        raise NotImplementedError(f"{type(self).__name__} has scripted policies, so it needs scripted_action(), or demonstrate().")

    def recorded(self, episode: Trajectory) -> Trajectory:
        """A recorded episode of the environment as this suite shows it. Default: as it is."""
        return episode

    def doubts(self, episodes: Sequence[Trajectory]) -> str:
        """What a person should know of recorded episodes as this suite shows them, before they are learned from. Default "": nothing."""
        return ""

    def inventory(self) -> Iterable[Observation]:
        """States that show everything the world holds, for measures only. Default: unknown."""
        return ()

    def ground_task(self, task: Task) -> Task | None:
        """A synthetic task as the real environment scores it, for measures only; None where nothing real fulfils it."""
        return None


def check_split(split: str) -> None:
    """UsageError for anything but train, dev and test."""
    if split not in SPLITS:
        raise UsageError(f"No split '{split}'.{nearest(split, SPLITS)} Known: {', '.join(SPLITS)}.")


def in_split(key: str, split: str) -> bool:
    """Whether a text belongs to a split of the default shares, by its hash."""
    low, high = SPLITS[split]
    return low <= _fraction(key) < high


def play(
    env: Env, rules: TextRules, task: Task, act: Callable[[Observation], Action], *, max_steps: int, behaviour: str, name: str
) -> Trajectory:
    """Run `act` until the task ends or `max_steps` are taken; each transition carries the scripted teacher's reasoning."""
    state = rules.abstract(env.reset(task))
    transitions: list[Transition] = []
    terminated = False
    while len(transitions) < max_steps and not terminated:
        action = rules.canonical(act(state))
        raw, reward, terminated = env.step(action)
        transitions.append(Transition(state, action, rules.abstract(raw), reward, terminated))
        state = transitions[-1].next_state
    episode = Trajectory(
        id=name,
        task=task,
        source="demo",
        turns=tuple(Turn(transition) for transition in transitions),
        success=bool(transitions) and transitions[-1].succeeded,
        truncated=not terminated,
        behaviour=behaviour,
    )
    return with_reasoning(episode, rules)


def with_reasoning(episode: Trajectory, rules: TextRules, *, keep: bool = False) -> Trajectory:
    """The episode with the scripted teacher's reasoning on each step; with `keep`, only on steps that have none."""
    turns: list[Turn] = []
    for turn in episode.turns:
        step, past = turn.transition, [before.transition for before in turns]
        reasoning = (keep and step.info.reasoning) or rules.explain(episode.task, past, step)
        turns.append(replace(turn, transition=step.with_reasoning(reasoning)))
    return replace(episode, turns=tuple(turns))


def attempt(suite: EnvSuite, task: Task, policy: str, *, seed: int) -> Trajectory:
    """`suite.demonstrate`; where the environment fails in the episode, one without turns that carries the `error`: a failed rollout."""
    try:
        return suite.demonstrate(task, policy, seed=seed)
    except EnvironmentFailure as error:
        name = f"{policy}/{task.id}/{seed}"
        return Trajectory(id=name, task=task, source="demo", turns=(), success=False, error=str(error), behaviour=policy)


def _fraction(key: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64
