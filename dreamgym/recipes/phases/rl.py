"""The RL phase: one call of the loop, in the dream, in the real environment, or in both, from one checkpoint to another."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dreamgym.config import build
from dreamgym.curriculum.clusters import ClusteredCurriculum, Clusters
from dreamgym.engines.server.prefix_cache import PrefixCaches
from dreamgym.errors import EnvironmentFailure
from dreamgym.evals.synthetic_tasks import evenly
from dreamgym.experience.learned_verifier.verifier import LearnedVerifier
from dreamgym.experience.verifiers.learned import LearnedVerifierConfig
from dreamgym.llm.memory import return_free_memory
from dreamgym.loop import train
from dreamgym.plugins import make, make_named
from dreamgym.protocols import Curriculum, ReplayBuffer, Stateful
from dreamgym.recipes import factory
from dreamgym.recipes.annotate import used
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.checkpoint import PhaseCheckpoint, Progress
from dreamgym.recipes.phases.collect import Collector, Environments, RolloutFunction
from dreamgym.recipes.phases.evaluate import evaluate_policies
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.gap import measure_gap
from dreamgym.recipes.phases.probes import GapProbes, Probes, rollback_checkpoint
from dreamgym.recipes.phases.uncertified import contradicts_its_logs
from dreamgym.recipes.phases.verifier import VerifierProbes
from dreamgym.recipes.plan import Loop
from dreamgym.rollout import TOO_LONG
from dreamgym.runs.progress import progress
from dreamgym.runs.rundir import RunDir
from dreamgym.train.learner import Learner
from dreamgym.types import Task, Trajectory

if TYPE_CHECKING:
    from dreamgym.recipes.phases.remote import RemoteRollouts


def run_rl_phase(run: RunDir, context: RunContext, loop: Loop) -> None:
    """One call of the loop, from the checkpoint of one policy to that of another."""
    if run.done(loop.name):
        return
    phase = RLPhase(run, context, loop)
    try:
        phase.run_loop()
        context.save_policy(phase.model, loop.name)
        run.mark(loop.name, phase.result())
    finally:
        phase.close()


def run_ablation(run: RunDir, context: RunContext, loop: Loop) -> None:
    """RL in a dream without one part of the method, from the same warm start at the same budget, to its evaluation."""
    reduced = context.without(loop.ablation)
    train_experience(run, reduced)
    run_rl_phase(run, reduced, loop)
    measure_gap(run, reduced, loop.name)
    evaluate_policies(run, context, [loop.name])


class RLPhase:
    """Owns the collaborators of one loop and the checkpoint that bridges interruptions."""

    def __init__(self, run: RunDir, context: RunContext, loop: Loop) -> None:
        self.run, self.context, self.loop, self.name, self.block = run, context, loop, loop.name, loop.block
        with ExitStack() as opened:  # what is open when one of them fails is closed: nobody else could, as there is no phase yet
            self._build(opened)
            self._opened = opened.pop_all()
        iteration = self.progress.iteration
        self.run.keep_lines("metrics.jsonl", lambda line: line["phase"] != loop.name or line["iteration"] < iteration)

    def _build(self, opened: ExitStack) -> None:
        """The collaborators, as they begin or as the checkpoint has them."""
        run, context, loop, name, block = self.run, self.context, self.loop, self.name, self.block
        self.remote: RemoteRollouts | None = None
        if context.config.exec:
            from dreamgym.recipes.phases.remote import RemoteRollouts

            self.remote = RemoteRollouts(context, loop)
            opened.callback(self.remote.close)
        self.replay: ReplayBuffer = self.remote.replay if self.remote else factory.replay_buffer(context, name)
        opened.callback(self.replay.close)
        self.envs = Environments(context, self.replay, name, loop.source)
        self.model = context.load_policy(loop.init_policy)
        self.agent = context.agent(self.model, full_precision=not block.learner.bf16)
        algorithm = make_named("train.algos", block.algorithm.model_dump())
        self.learner = Learner(
            self.model,
            algorithm,
            block.learner,
            seed=context.config.seed,
            total_updates=block.iterations,
            on_publish=self._publish,
            next_prompt=self.agent.next_prompt,
        )
        self.curriculum = factory.make_curriculum(context, block, self.replay, self._vary if self.envs.experience else None)
        self.collector = Collector(self.envs, self.agent, self.curriculum, loop, self._remote_rollout if self.remote else None)
        opened.callback(self.collector.close)
        self.gap_probes = GapProbes(run, self.envs, self.agent, self.model, loop)
        self.verifier_probes = self._verifier_probes()
        self.probes: dict[str, Probes] = {"gap_probes": self.gap_probes}
        if self.verifier_probes:
            self.probes["verifier_probes"] = self.verifier_probes
        kept: dict[str, Stateful] = {"learner": self.learner, "curriculum": self.curriculum, "collector": self.collector, **self.probes}
        kept |= {f"{of}_usage": usage for of, usage in self.envs.usage.items()}
        self.checkpoint = PhaseCheckpoint(run, name, self.replay, self.collector, kept)
        self._real_seconds_start = self.envs.real.seconds
        self.replaced = self._workers_replaced()  # workers, by the end of the iteration before
        self.prefix_caches = PrefixCaches()
        self.progress = self._resume()

    def _resume(self) -> Progress:
        """The progress of the checkpoint; without one, that of a phase which begins, in a replay buffer with the logs alone."""
        progress = self.checkpoint.restore()
        self._real_seconds_offset = progress.real_seconds if progress else 0.0  # of waiting before an interruption
        if progress is None:
            progress = Progress(stop_reason=contradicts_its_logs(self.run) if self.envs.dream else "")
            self.replay.rollback(max((m.row for m in self.replay.memories(source="demo")), default=0))  # to the logs
            shutil.rmtree(self.context.checkpoint(rollback_checkpoint(self.name)), ignore_errors=True)  # of an attempt that was given up
            self.checkpoint.save(progress)  # so that what an interrupted first iteration leaves in the replay log is not trusted either
        return progress

    def run_loop(self) -> None:
        """Iterate to the end of the block, or until a budget is spent or the gap opens."""
        self.clock = time.monotonic()
        self._prefix_hit_rates()
        with progress(self.block.iterations, self.name, start=self.progress.iteration) as advance:
            self._advance = advance
            train(
                curriculum=self._observer(),
                collect=self.collector.collect,
                learner=self.learner,
                remember=self._remember,
                start=self.progress.iteration,
                iterations=0 if self.progress.stop_reason else self.block.iterations,
                tasks_per_iter=self.block.tasks_per_iter,
                on_iteration=self._on_iteration,
                prefetch=self._prefetch if self.block.async_rollouts else None,
            )

    def close(self) -> None:
        """Close the replay buffer, and end the workers that this phase has in other processes."""
        self._opened.close()

    def _vary(self, seeds: Sequence[Task], seed: int, level: int) -> list[str]:
        """Variations by the experience model as it is now: the weights that dream also vary tasks (Eq. 6)."""
        assert self.envs.experience is not None
        return self.envs.experience.vary(seeds, seed=seed, level=level)

    def _remote_rollout(self) -> RolloutFunction:
        assert self.remote is not None
        return self.remote.rollout_fn(self.agent, self.model, self.envs)

    def _prefetch(self, tasks: Sequence[Task], i: int) -> None:
        self.collector.prefetch(tasks, i, self.progress.seconds + time.monotonic() - self.clock)

    def _remember(self, trajectories: Sequence[Trajectory]) -> int:
        """Add to the replay buffer, which all rollouts that are in play see as it was when they began."""
        self.collector.wait_for_prefetched()
        return self.replay.add(trajectories)

    def _keep_good(self) -> None:
        """Keep the policy for a rollback where a probe of this iteration found nothing wrong, and none did of late."""
        passed = any(probes.passed for probes in self.probes.values())
        if passed and not any(probes.failed_in_a_row for probes in self.probes.values()):
            self.context.save_policy(self.model, rollback_checkpoint(self.name))

    @property
    def used(self) -> dict[str, int]:
        """Steps; the "real" ones are among "train"."""
        probed = sum(probes.steps for probes in self.probes.values())
        return {"train": self.collector.steps, "real": self.collector.real_steps, "probe": probed}

    @property
    def real_seconds(self) -> float | None:
        """Wall-clock seconds of waiting for the real environment. None where they are not known: remote workers count none."""
        if self._real_seconds_offset is None or (self.remote and self.envs.source != "dream"):
            return None
        return self._real_seconds_offset + self.envs.real.seconds - self._real_seconds_start

    @property
    def _probes_stop_reason(self) -> str:
        return next((probes.stop_reason for probes in self.probes.values() if probes.stop_reason), "")

    def result(self) -> dict[str, Any]:
        """What later phases and the summary read."""
        experience, usage = self.envs.experience, self.envs.usage
        return {
            "iterations": self.progress.iteration,
            "steps": self.used["train"],
            "real_steps": self.used["real"],
            "probe_steps": self.used["probe"],
            "seconds": self.progress.seconds,
            "real_seconds": self.real_seconds,
            "stop_reason": self.progress.stop_reason,
            "refreshes": self.envs.refreshes,
            "dreams_with": self.envs.dreams_with,
            **(
                {"judged_with": self.verifier_probes.judged_with, "verifier": self.verifier_probes.result()} if self.verifier_probes else {}
            ),
            "curriculum": dict(self.curriculum.counts),
            "logged_tasks": self.block.logged_tasks,
            "synthetic_tasks": evenly(self.curriculum.generated),
            "decided_by": self.collector.decided.to_json(),
            "optimiser_steps": self.learner.optimiser_steps,
            "replay": self.replay.stats(),
            "recall": [asdict(agreement) for agreement in experience.retriever.agreements()] if experience else [],
            "conditions": [answer.to_json() for answer in experience.retriever.mined_answers()] if experience else [],
            **{f"{of}_usage": used(usage[of]) if of in usage else {} for of in ("experience", "verifier")},
        }

    def _observer(self) -> Curriculum:
        """The curriculum as the loop observes it: tasks are valued by their own returns, or by those of their cluster."""
        if not self.block.clusters:
            return self.curriculum
        tasks = factory.training_tasks(self.context, self.block.train_tasks, logged=self.block.logged_tasks)
        clusters = Clusters(tasks, self.block.clusters, make("replay.encoders", "lexical"), seed=self.context.config.seed)
        return ClusteredCurriculum(self.curriculum, clusters)

    def _on_iteration(self, i: int, trajectories: list[Trajectory], metrics: dict[str, float]) -> bool:
        progress = self.progress
        progress.iteration = i + 1
        record = metrics | _rollout_metrics(trajectories) | self._probe(trajectories) | self._system_metrics(trajectories)
        now = time.monotonic()
        progress.seconds, self.clock = progress.seconds + now - self.clock, now
        self.run.append_jsonl("metrics.jsonl", {"phase": self.name, "iteration": i, "seconds": progress.seconds, **record})
        if i % 10 == 0 or progress.iteration == self.block.iterations:
            self.run.episodes(f"{self.name}-{i:04d}", trajectories[: 4 * self.block.group_size], completions=False)
        failure = _common_failure(trajectories)
        progress.failed_in_a_row = progress.failed_in_a_row + 1 if failure else 0
        progress.stop_reason = self._stop_reason(trajectories, failure)
        # after a failure of all prefetched rollouts too, the next iteration is tried again, not replayed
        if progress.stop_reason or (failure and _common_failure(self.collector.wait_for_prefetched())):
            self.collector.discard_prefetched()
        self._save()
        return_free_memory()  # that the learner has left, before engines fill caches beside it
        self._advance(note=_note(record, failure))
        return bool(progress.stop_reason)

    def _probe(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        """Probe where it is due, keep the policy where that found nothing wrong; metrics."""
        record: dict[str, Any] = {}
        for probes in self.probes.values():
            if not self._probes_stop_reason:
                record |= probes.observe(trajectories, self.progress.iteration)
        self._keep_good()
        return record

    def _system_metrics(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
        """Metrics of how the rollouts were played: refills, both sources of a mixed loop, workers, prefix caches."""
        record: dict[str, Any] = self._prefix_hit_rates()
        if self.block.max_refills:
            record["refills"] = self.collector.refills
        if self.envs.source == "mixed":
            record |= {f"{source}_part_success": _success(trajectories, source) for source in ("dream", "real")}
        if self.remote:
            by = [t.policy_version for t in trajectories if t.turns]
            record |= {"staleness": float(self.learner.version - 1 - min(by)) if by else 0.0, "jobs_redone": float(self.remote.pool.redone)}
        if self.context.workers or self.remote:
            record["workers_replaced"] = self._workers_replaced() - self.replaced
            self.replaced = self._workers_replaced()
        return record

    def _stop_reason(self, trajectories: Sequence[Trajectory], failure: str) -> str:
        """Why no iteration follows, or "". EnvironmentFailure where the real environment failed in every rollout of two iterations in a
        row: then nothing of this one is saved, so that the same command tries it again."""
        further = self.progress.iteration < self.block.iterations  # the last one ends the phase, whatever is left of a budget
        if reason := self._probes_stop_reason or (self.collector.budget_exhausted(self.progress.seconds) if further else ""):
            return reason
        if self.progress.failed_in_a_row < 2:  # one may have been an outage
            return ""
        if failure != TOO_LONG and all(t.source == "real" for t in trajectories):
            raise EnvironmentFailure(
                f"Every rollout of two iterations in a row of '{self.name}' failed in the real environment: {failure}. See to it, then "
                "give the same command again."
            )
        return f"every rollout of two iterations in a row failed: {failure}"

    def _verifier_probes(self) -> VerifierProbes | None:
        """Where a learned verifier judges the dream: what it does with claims, and probes of them."""
        experience, block = self.envs.experience, self.context.config.experience.verifier
        second = experience.guard.second if experience else None
        if second is None or block is None or not isinstance(second.verifier, LearnedVerifier):
            return None
        settings = build(LearnedVerifierConfig, block.settings, prefix="experience.verifier.")
        return VerifierProbes(self.envs, self.agent, self.model, second.verifier, settings, self.loop)

    def _prefix_hit_rates(self) -> dict[str, float]:
        return self.prefix_caches.hit_rates({"prefix_hit_rate": self.agent.llm, "dream_prefix_hit_rate": self.envs.engine})

    def _workers_replaced(self) -> int:
        return (self.context.workers.restarts if self.context.workers else 0) + (self.remote.pool.replaced if self.remote else 0)

    def _publish(self, version: int) -> None:
        if self.context.config.policy_served:
            self.collector.wait_for_prefetched()  # rollouts in play sample from the weights before, which the server is about to replace
        self.context.policies.publish(self.agent.llm, self.model, version)

    def _save(self) -> None:
        self.progress.real_seconds = self.real_seconds
        self.checkpoint.save(self.progress)


def had_gradient(run: RunDir, name: str) -> bool:
    """Whether any iteration of a loop moved the policy: not when every group was all success or all failure."""
    return any((line.get("grad_norm") or 0) > 0 for line in run.read_jsonl("metrics.jsonl") if line["phase"] == name)


def failures(run: RunDir, name: str) -> Counter[str]:
    """The errors of the rollouts that were kept of a loop's first iteration, where no rollout of the loop was without one; else none."""
    if any(line.get("success") is not None for line in run.read_jsonl("metrics.jsonl") if line["phase"] == name):
        return Counter()
    return Counter(episode.error for episode in run.read_episodes(f"{name}-0000") if episode.error)


def _rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counted = [t for t in trajectories if t.error is None]
    n = len(counted) or math.nan  # a rate of nothing is not a number, and is written as null
    dreamed = [step.info.out_of_support for t in counted if t.source == "dream" for step in t.transitions]
    return {
        "success": sum(t.success for t in counted) / n,
        "episode_length": sum(len(t.turns) for t in counted) / n,
        "truncated": sum(t.truncated for t in counted) / n,
        "failed_rollouts": float(len(trajectories) - len(counted)),
        "masked_share": sum(t.masked for t in trajectories) / max(1, len(trajectories)),
        "synthetic_share": sum(t.task.source == "synthetic" for t in trajectories) / max(1, len(trajectories)),
        **({"out_of_support": sum(dreamed) / len(dreamed)} if dreamed else {}),
    }


def _success(trajectories: Sequence[Trajectory], source: str) -> float:
    wins = [t.success for t in trajectories if t.error is None and t.source == source]
    return sum(wins) / (len(wins) or math.nan)


def _common_failure(trajectories: Sequence[Trajectory]) -> str:
    """The most frequent error, where every rollout failed for a technical reason; else ""."""
    errors = [t.error for t in trajectories if t.error is not None and not t.masked]
    return Counter(errors).most_common(1)[0][0] if errors and len(errors) == len(trajectories) else ""


def _note(record: Mapping[str, Any], failure: str) -> str:
    """What the progress says of an iteration, all of whose rollouts may have failed."""
    real, failed = record.get("probe_real_success"), record["iterations_without_reward"]
    if failure:
        return f"every rollout failed: {failure}"
    if math.isnan(record["success"]):
        return "every rollout was masked or failed"
    note = f"success {record['success']:.2f}" + ("" if real is None else f", real {real:.2f}")
    return note + (f", nothing earned for {failed:.0f} iterations" if failed >= 3 else "")
