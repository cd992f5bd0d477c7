"""A run directory as plain records. Whatever is missing, or is not a finite number, is None: a partial run is a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dreamgym.errors import DreamGymError
from dreamgym.recipes import early_stops
from dreamgym.recipes.ablations import ABLATIONS, ablated
from dreamgym.recipes.arms import ARMS, Arm, ablation_arm, arm_of, base_arm
from dreamgym.recipes.tables import AUDITED_DREAMS, entry
from dreamgym.runs.files import is_number, read_json
from dreamgym.runs.rundir import CONFIG, PROCESS, RunDir
from dreamgym.statistics import Rate

NOTES = (PROCESS, "sft-curve")  # what a run keeps beside its phases
COSTS = {
    "real_transitions_offline": "real steps: logs",
    "real_transitions_online": "real steps: training",
    "real_transitions_probe": "real steps: probes",
    "dream_transitions": "dreamed steps",
}

AUDIT_ROWS = {
    "dream_success": "success in the dream",
    "real_success": "success of the same actions in reality",
    "false_success": "false success",
    "raw_false_success": "false success, as the model claimed it",
    "false_failure": "false failure",
    "masked_share": "left out by the guard, of all",
    "false_failure_at_most": "false failure, if those count too",
    "consistency": "dreamed successes that are real",
    "accepted_false": "dreamed successes that are false",
    "state_exact": "next states exactly right",
    "state_exact_generated": "the same, of steps that only the model answers",
}


@dataclass(frozen=True)
class Row:
    """One policy of the results table."""

    key: str
    label: str
    meaning: str
    greedy: Rate | None  # of several seeds: their mean, with the t interval over seeds
    sampled: Rate | None
    per_seed: tuple[float, ...]  # greedy success
    costs: Mapping[str, float | None]  # transitions, by the keys of COSTS
    seconds: float | None
    real_seconds: float | None = None  # of waiting for the real environment


@dataclass(frozen=True)
class Fidelity:
    """One column of the audit: dreams replayed in the real environment, under one setting of the guard."""

    rates: Mapping[str, Rate]  # by the keys of AUDIT_ROWS; without the missing ones
    gap: float | None  # dream success minus real success
    first_divergence: float | None  # mean step, from 1
    unreadable: float | None  # answers that could not be parsed
    decided: Sequence[Decided] = ()
    bound: Mapping[str, Any] = field(default_factory=dict)  # `evals.bound`; empty where it was not measured


@dataclass(frozen=True)
class Decided:
    """What one kind of decision answered: shares of next states and of rewards (with ends), and how often each was exactly right."""

    by: str
    states: float | None
    exact: Rate | None
    rewards: float | None
    rewards_exact: Rate | None


FACTS: Mapping[str, tuple[str, ...]] = {
    "revisits": ("with_guard", "revisits", "faithful"),
    "determined": ("with_guard", "determined", "exact"),
    "in_support": ("with_guard", "in_support", "share"),
    "in_support_false": ("with_guard", "in_support", "false_success"),
    "in_support_exact": ("with_guard", "in_support", "state_exact"),
    "out_of_support_false": ("with_guard", "out_of_support", "false_success"),
    "out_of_support_exact": ("with_guard", "out_of_support", "state_exact"),
    "new": ("synthetic_tasks", "new"),
    "solved": ("synthetic_tasks", "solved"),
    "real_solved": ("synthetic_tasks", "real_solved"),
}
"""Where an audit keeps rates that are no row of its table: partial observability, action support and synthetic tasks."""


@dataclass(frozen=True)
class Audit:
    """An audit: dreams with the guard, without it, and with the guard in the control without a model."""

    label: str  # names the seed when there are several
    with_guard: Fidelity | None
    without_guard: Fidelity | None
    no_model: Fidelity | None
    facts: Mapping[str, Rate]  # what else was measured, by the keys of FACTS; without the missing ones


@dataclass(frozen=True)
class Run:
    """Everything the page shows, but for the episodes."""

    name: str
    config: Mapping[str, Any]
    config_toml: str
    summary: Mapping[str, Any]  # empty while there is none
    phases: Mapping[str, Mapping[str, Any]]  # what each finished phase left
    lines: Mapping[str, Sequence[Mapping[str, Any]]]  # metrics.jsonl by phase, one line per iteration, in order
    rows: Sequence[Row]
    audits: Sequence[Audit]
    comparison: Mapping[str, Any] = field(default_factory=dict)  # the compare.json of the folder above; empty where there is none

    @property
    def finished(self) -> bool:
        return bool(self.summary) or self.compared

    @property
    def compared(self) -> bool:
        """Whether this is one seed of a comparison, whose tables hold all of it: no RL phase began after they were written. The policy
        that another phase starts from need not have been evaluated."""
        seeds = self.comparison.get("seeds")
        if not isinstance(seeds, list) or self.config.get("seed") not in seeds:
            return False
        started_from = {arm.init_policy for arm in self.loops.values()}
        is_evaluated = block(self.config, "eval").get("tasks", 1) and block(self.phases, "logs").get("has_env", True)
        last = "eval-" if is_evaluated else ""
        return all(f"{last}{name}" in self.phases for name in self.loops if name not in started_from)

    @property
    def loops(self) -> dict[str, Arm]:
        """The RL phases that have begun, those of a quickstart in its order, and the policies that they make."""
        begun = [*self.lines, *(name for name, phase in self.phases.items() if "iterations" in phase)]
        known = [name for name in dict.fromkeys([*ARMS, *begun]) if name in begun and base_arm(name)]
        return {name: arm for name in known if (arm := arm_of(name)).init_policy}


def read(run: RunDir) -> Run:
    """Read a run, finished or not."""
    summary = run.summary() or {}
    phases = {name: run.data(name) for name in run.finished() if name not in NOTES}
    toml, config, comparison = "", {}, {}
    with suppress(FileNotFoundError, DreamGymError):  # the page shows what there is
        toml = (run.path / CONFIG).read_text(encoding="utf-8", errors="replace")
        config = run.config
    with suppress(DreamGymError):
        comparison = read_json(run.path.resolve().parent / "compare.json") or {}
    return Run(
        name=run.path.resolve().name,
        config=config,
        config_toml=toml,
        summary=summary,
        phases=phases,
        lines=_by_phase(run.read_jsonl("metrics.jsonl")),
        rows=[
            *(row for key, arm in ARMS.items() if (row := _row(key, key, arm, summary.get(key), phases))),
            *_ablations(summary.get("ablations") or {}, phases),
            *_arms(run, phases),
        ],
        audits=_audits(summary.get("audit") or phases.get("audit"), summary.get("seeds")),
        comparison=comparison,
    )


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return float(value) if is_number(value) else None


def block(values: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The nested table at `path`, empty when it or anything above it is missing."""
    for name in path:
        found = values.get(name)
        values = found if isinstance(found, Mapping) else {}
    return values


def rate(value: Any) -> Rate | None:
    """A rate written as {value, low, high, n}; None without a value or without any case."""
    if not isinstance(value, Mapping):
        return None
    centre, n = number(value.get("value")), number(value.get("n"))
    if centre is None or n == 0:
        return None
    low, high = number(value.get("low")), number(value.get("high"))
    return Rate(centre, centre if low is None else low, centre if high is None else high, int(n or 0))


def decided(shares: Mapping[str, Any], judged: Mapping[str, Any]) -> list[Decided]:
    """Records of {states, rewards}, shares by what decided, and of {exact, rewards_exact} by the same; empty without any."""
    rewards, exact, rewards_exact = block(shares, "rewards"), block(judged, "exact"), block(judged, "rewards_exact")
    return [
        Decided(by, number(share), rate(exact.get(by)), number(rewards.get(by)), rate(rewards_exact.get(by)))
        for by, share in block(shares, "states").items()
    ]


def scale(rows: Iterable[Row]) -> float:
    """The right end of the interval bars: the tenth above the largest bound, so that all bars of the table share it."""
    highs = [r.high for row in rows for r in (row.greedy, row.sampled) if r]
    return min(1.0, math.ceil(10 * max(highs, default=1.0) + 1e-9) / 10)


def _by_phase(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Lines by phase and iteration. A resumed run goes on from its checkpoint: what the interrupted one wrote from there on is void."""
    found: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for record in records:
        iteration = number(record.get("iteration"))
        if iteration is not None:
            lines = found.setdefault(str(record.get("phase")), [])
            while lines and lines[-1][0] >= iteration:
                lines.pop()
            lines.append((iteration, record))
    return {phase: [record for _, record in lines] for phase, lines in found.items()}


def _ablations(entries: Mapping[str, Any], phases: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The dream without one part of the method each, as far as they were evaluated."""
    judged = [name.removeprefix("eval-dream-no-") for name in phases if name.startswith("eval-dream-no-")]
    rows = [
        _row(f"no_{part}", ablated("dream", part), ablation_arm(part), entries.get(part), phases)
        for part in dict.fromkeys([*entries, *judged])
        if part in ABLATIONS
    ]
    return [row for row in rows if row]


def _arms(run: RunDir, phases: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The arms of a comparison and their ablations, as far as they were evaluated."""
    judged = [name.removeprefix("eval-") for name in phases if name.startswith("eval-")]
    arms = [name for name in judged if base_arm(name) and name.partition("-no-")[0] not in ARMS]
    rows = [_row(name, name, arm_of(name), _entry(run, name), phases) for name in arms]
    return [row for row in rows if row]


def _entry(run: RunDir, policy: str) -> dict[str, Any] | None:
    """What the summary of a comparison says of a policy; None where a phase has left less than that."""
    with suppress(KeyError, TypeError):
        return entry(run, policy, arm_of(policy))
    return None


def _row(key: str, phase: str, arm: Arm, entry: Any, phases: Mapping[str, Mapping[str, Any]]) -> Row | None:
    """A row from the summary, or, while there is none, from what its evaluation left."""
    if not isinstance(entry, Mapping):
        judged = phases.get(f"eval-{phase}")
        if judged is None:
            return None
        offline = block(phases, "logs").get("transitions")
        entry = {"sampled": judged.get("sampled"), "real_transitions_offline": offline}
        greedy = rate(judged.get("greedy"))
    else:
        bounds = _bounds(entry.get("seed_ci95") or entry.get("ci95"))
        greedy = rate({"value": entry.get("real_success"), "n": entry.get("episodes")} | bounds)
    init = f"the {ARMS[arm.init_policy].label.lower()}" if arm.init_policy in ARMS else arm.init_policy
    kept = early_stops.kept_policy(str(block(phases, phase).get("stop_reason") or ""), init)
    return Row(
        key=key,
        label=arm.label,
        meaning=f"{arm.meaning}; rolled back: {kept}" if kept else arm.meaning,
        greedy=greedy,
        sampled=rate({**block(entry, "sampled"), **_bounds(entry.get("seed_ci95_sampled"))}),
        per_seed=tuple(value for value in map(number, entry.get("per_seed") or ()) if value is not None),
        costs={name: number(entry.get(name)) for name in COSTS},
        seconds=number(entry.get("seconds")),
        real_seconds=number(entry.get("real_seconds")),
    )


def _bounds(interval: Any) -> dict[str, Any]:
    """An interval [low, high] of a share as bounds within [0, 1], which a t interval may leave; empty without one."""
    if not isinstance(interval, list) or len(interval) != 2 or not all(map(is_number, interval)):
        return {}
    low, high = (min(1.0, max(0.0, float(bound))) for bound in interval)
    return {"low": low, "high": high}


def _audits(value: Any, seeds: Any) -> list[Audit]:
    """One audit, or one per seed."""
    several = isinstance(value, list)
    found = value if several else [value]
    names = seeds if isinstance(seeds, list) and len(seeds) == len(found) else range(len(found))
    return [
        Audit(f"seed {name}" if several else "", **{arm: _fidelity(audit.get(arm)) for arm in AUDITED_DREAMS}, facts=_facts(audit))
        for name, audit in zip(names, found, strict=True)
        if isinstance(audit, Mapping) and audit
    ]


def _facts(audit: Mapping[str, Any]) -> dict[str, Rate]:
    found: dict[str, Rate] = {}
    for name, way in FACTS.items():
        value: Any = audit
        for key in way:
            value = value.get(key) if isinstance(value, Mapping) else None
        if (measured := rate(value)) and measured.n:
            found[name] = measured
    return found


def _fidelity(value: Any) -> Fidelity | None:
    if not isinstance(value, Mapping):
        return None
    return Fidelity(
        rates={name: found for name in AUDIT_ROWS if (found := rate(value.get(name)))},
        gap=number(value.get("gap")),
        first_divergence=number(value.get("first_divergence")),
        unreadable=number(value.get("unreadable")),
        decided=decided(block(value, "decided_by"), block(value, "decided_by")),
        bound=block(value, "bound"),
    )
