"""The rollouts of an RL phase: in the dream, in the real environment, or in both, with the steps they took and their budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from dreamgym.curriculum.task_curriculum import TaskCurriculum
from dreamgym.evals.attribution import Attribution
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.policy.agent import Agent
from dreamgym.protocols import LLM, BatchEnv, ReplayBuffer
from dreamgym.recipes import factory
from dreamgym.recipes.arms import RolloutSource
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases import refresh
from dreamgym.recipes.plan import Loop
from dreamgym.returns import group_statistics
from dreamgym.rollout import group_by_task, repeat_tasks, rollout
from dreamgym.types import Task, Trajectory
from dreamgym.usage import Usage

RolloutFunction = Callable[[Sequence[Task], str, int, str], list[Trajectory]]
"""(tasks, "dream" or "real", seed, name) -> one trajectory a task, as `rollout` gives them, by the policy as it was when this was made."""


@dataclass
class Prefetched:
    """The rollouts of an iteration that were begun before it: in play, or played."""

    iteration: int
    playing: Future[list[Trajectory]]


def rollout_seed(seed: int, number: int) -> int:
    """The seed of a batch of rollouts: another for every run and every `number` below a million. In iteration i, part p of the rollouts has
    the number 20,000 p + i, a gap probe 10,000 + i, and claims that are tried by new rollouts 30,000 + i."""
    return 1_000_000 * seed + number


class Environments:
    """The environments of an RL phase: its dream, where it has one, and the real environment."""

    def __init__(self, context: RunContext, replay: ReplayBuffer, name: str, source: RolloutSource) -> None:
        self.context, self.replay, self.name, self.source = context, replay, name, source
        self.refreshes = 0
        self.verifier_checkpoint = context.verifier_checkpoint
        self._remembered = set[str]()  # ids of real episodes of probes
        self.dream: DreamBatch | None = None
        self.experience: ExperienceModel | None = None
        if source != "real":
            self.load_dream(0)
        self.real = context.real_env()

    @property
    def dreams_with(self) -> str:
        """The checkpoint of the experience model as it is now."""
        return refresh.version_name(self.context.experience_checkpoint, self.name, self.refreshes)

    @property
    def engine(self) -> LLM | None:
        """What samples the dream from fitted weights; None without any."""
        return self.experience.engine if self.experience else None

    @property
    def usage(self) -> dict[str, Usage]:
        """What the servers behind the dream were asked for, by whose they are: those of the experience model and of its verifier."""
        usages = {"experience": self.experience.usage, "verifier": self.experience.guard.verifier_usage} if self.experience else {}
        return {name: usage for name, usage in usages.items() if usage}

    def load_dream(self, refreshes: int) -> None:
        """Load the experience model after that many refreshes, and dream with it from now on. Who judges its dreams stays, with what that
        has cost."""
        before, self.refreshes = self.experience, refreshes
        context = replace(self.context, experience_checkpoint=self.dreams_with, verifier_checkpoint=self.verifier_checkpoint)
        self.dream, self.experience = factory.make_dream(context, self.replay, version=1 + refreshes)
        if before is not None:
            self.experience.guard.second = before.guard.second

    def load_verifier(self, verifier: str) -> None:
        """Load the verifier of that checkpoint, which judges the dream from now on."""
        self.verifier_checkpoint = verifier
        if self.experience is not None:
            self.experience.guard.second = factory.make_guard(replace(self.context, verifier_checkpoint=verifier)).second

    def remember(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """Add real episodes of probes to the replay buffer, with the scripted teacher's reasoning; returns those without an error. Each is
        added once, though two kinds of probe may have repeated the same dream."""
        explained = refresh.explained(episodes, self.context.suite.rules)
        self.replay.add([episode for episode in explained if episode.id not in self._remembered])
        self._remembered |= {episode.id for episode in explained}
        return explained


class Collector:
    """Rolls out an iteration's tasks, each group in the dream or in the real environment, and counts steps."""

    def __init__(
        self,
        envs: Environments,
        agent: Agent,
        curriculum: TaskCurriculum,
        loop: Loop,
        make_rollout_fn: Callable[[], RolloutFunction] | None = None,
    ) -> None:
        """`make_rollout_fn` gives a function that plays rollouts in other processes; without it, they are played in this one."""
        self.make_rollout_fn = make_rollout_fn
        self.prefetched: Prefetched | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts") if loop.block.async_rollouts else None
        self.envs, self.agent, self.curriculum, self.block, self.name = envs, agent, curriculum, loop.block, loop.name
        self.seed = envs.context.config.seed
        self.max_steps = envs.context.suite.max_steps
        self.refills = 0  # of the present iteration
        self.steps = self.real_steps = 0  # the real ones are among the steps
        self.longest = 0  # real steps of the iteration that took most
        self.decided = Attribution()  # of the dreamed steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "real_steps": self.real_steps, "longest": self.longest, "decided": self.decided.to_json()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.real_steps, self.longest = state["steps"], state["real_steps"], state["longest"]
        self.decided = Attribution(Counter(state["decided"]["states"]), Counter(state["decided"]["rewards"]))

    def collect(self, tasks: Sequence[Task], i: int) -> list[list[Trajectory]]:
        """A group of rollouts for each task of an iteration, and for the further tasks that it may draw while too few groups have a mixed
        outcome. Those that were begun are waited for: their tasks are those that were drawn before, and not `tasks`."""
        begun, self.prefetched = self.prefetched, None
        trajectories = (
            begun.playing.result() if begun and begun.iteration == i else self.roll(repeat_tasks(tasks, self.block.group_size), i)
        )
        self.refills = 0
        while self.refills < self.block.max_refills and (more := self.refill_tasks(trajectories)):
            self.refills += 1
            trajectories += self.roll(repeat_tasks(more, self.block.group_size), i, self.refills)
        self._count(trajectories)
        self.longest = max(self.longest, real_steps(trajectories))
        return group_by_task(trajectories, self.block.group_size)

    def prefetch(self, tasks: Sequence[Task], i: int, seconds: float) -> None:
        """Start the rollouts of iteration `i` in another thread, by the policy and the dream as they are now; not where the budget has no
        room for them."""
        assert self._thread is not None and self.make_rollout_fn is not None
        if not self.budget_exhausted(seconds):
            self.prefetched = Prefetched(
                i, self._thread.submit(self.roll, repeat_tasks(tasks, self.block.group_size), i, rollout_fn=self.make_rollout_fn())
            )

    def wait_for_prefetched(self) -> list[Trajectory]:
        """The prefetched rollouts, once they are played; [] without any."""
        return self.prefetched.playing.result() if self.prefetched else []

    def restore_prefetched(self, i: int, trajectories: list[Trajectory]) -> None:
        """Take over the rollouts of iteration `i`, which were played before an interruption."""
        played = Future[list[Trajectory]]()
        played.set_result(trajectories)
        self.prefetched = Prefetched(i, played)

    def discard_prefetched(self) -> None:
        """Leave the prefetched rollouts unused. Their steps were taken all the same, and are counted."""
        self._count(self.wait_for_prefetched())
        self.prefetched = None

    def _count(self, trajectories: Sequence[Trajectory]) -> None:
        """Add the steps that were taken, and what decided those in the dream."""
        self.steps += sum(len(t.turns) for t in trajectories)
        self.real_steps += real_steps(trajectories)
        self.decided.add(step.info for t in trajectories for step in t.transitions)

    def close(self) -> None:
        """Cancel rollouts that nobody will wait for; the workers that play them have been ended."""
        if self._thread:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def budget_exhausted(self, seconds: float) -> str:
        """Why no iteration can follow, or ""."""
        if self._real_step_budget and self.real_steps + self.longest > self._real_step_budget:
            return "the budget of real steps has no room for another iteration"
        if self.block.max_seconds and seconds >= self.block.max_seconds:
            return "the budget of seconds is spent"
        return ""

    def refill_tasks(self, trajectories: Sequence[Trajectory]) -> list[Task]:
        """Other tasks in the place of groups without variance; none when enough have it, or when real steps could exceed the budget."""
        groups = group_by_task(trajectories, self.block.group_size)
        missing = self.block.tasks_per_iter - sum(group_statistics(group).kind == "mixed" for group in groups)
        seen = {group[0].task.id for group in groups}
        most = missing * self.block.group_size * self.max_steps
        if missing <= 0 or (self._real_step_budget and self.real_steps + real_steps(trajectories) + most > self._real_step_budget):
            return []
        drawn = self.curriculum.sample(missing + len(seen), refill=self.refills + 1)
        return [task for task in drawn if task.id not in seen][:missing]

    def roll(self, tasks: Sequence[Task], i: int, refill: int = 0, *, rollout_fn: RolloutFunction | None = None) -> list[Trajectory]:
        """One rollout per task, in order, each in the dream or in the real environment."""
        if rollout_fn is None and self.make_rollout_fn is not None:
            rollout_fn = self.make_rollout_fn()
        real = self._real_slots(tasks)
        dreamed = [k for k in range(len(tasks)) if k not in real]
        of_dream, of_real = 2 * refill, 2 * refill + (self.envs.source == "mixed")
        by_slot: dict[int, Trajectory] = {}
        for env, slots, part in ((self.envs.dream, dreamed, of_dream), (self.envs.real, sorted(real), of_real)):
            if env is not None and slots:
                by_slot |= zip(slots, self._rollout([tasks[k] for k in slots], env, i, part, rollout_fn), strict=True)
        return [by_slot[k] for k in range(len(tasks))]

    def _real_slots(self, tasks: Sequence[Task]) -> set[int]:
        """The places of the rollouts in the real environment, whole groups each."""
        if self.envs.source != "mixed":
            return set(range(len(tasks))) if self.envs.source == "real" else set()
        size = self.block.group_size
        real_task_groups = [k for k in range(0, len(tasks), size) if tasks[k].source == "real"]
        n = max(1, round(self.block.real_share * len(tasks) / size))
        every = max(1, len(real_task_groups) // n)
        return {first + j for first in real_task_groups[::every][:n] for j in range(size)}

    def _rollout(self, tasks: Sequence[Task], env: BatchEnv, i: int, part: int, rollout_fn: RolloutFunction | None) -> list[Trajectory]:
        """`part` keeps the random streams of an iteration's rollouts apart."""
        seed, name = rollout_seed(self.seed, 20_000 * part + i), f"{self.name}/{i}" + (f"/{part}" if part else "")
        if rollout_fn:
            return rollout_fn(tasks, env.source, seed, name)
        return rollout(
            self.agent,
            env,
            tasks,
            max_parallel=self.envs.context.suite.max_parallel if env is self.envs.real else None,
            seed=seed,
            max_steps=self.max_steps,
            temperature=self.block.learner.temperature,
            name=name,
        )

    @property
    def _real_step_budget(self) -> int:
        """The most real steps that the phase may take; 0: no limit."""
        return self.block.max_real_steps or 0 if self.envs.source != "dream" else 0


def real_steps(trajectories: Sequence[Trajectory]) -> int:
    """Steps in the real environment."""
    return sum(len(t.turns) for t in trajectories if t.source == "real")
