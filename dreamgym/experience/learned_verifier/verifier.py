"""A verifier learned from logs: a head on the text of a claim, calibrated on claims that it was not fitted to.

It is fitted to logs alone, and again to logs and probes: dreamed claims that were tried in the real environment, or judged by a person.
Logs do not hold what a policy in training will claim, so that only a calibration on its own refuted claims is called certified.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from safetensors.numpy import load_file, save_file

from dreamgym.envs.base import TextRules
from dreamgym.errors import RunDirError, UsageError, counted
from dreamgym.experience.learned_verifier.calibration import (
    KEPT,
    Calibration,
    CalibrationConfig,
    Negatives,
    calibrate,
    least_negatives,
    raised,
)
from dreamgym.experience.learned_verifier.cases import constructed_claims, logged_claims, scored_episodes
from dreamgym.experience.learned_verifier.features import Reader, SparseRows, rows_of
from dreamgym.experience.learned_verifier.head import LabelledClaim, OutcomeHead, fit
from dreamgym.experience.learned_verifier.support import KnownLines
from dreamgym.runs import atomic_directory
from dreamgym.statistics import Rate, conformal_limit, inclusion_probabilities, wilson
from dreamgym.types import Trajectory, Transition, Verdict

MEMBERS = 5
PROBE_WEIGHT = 3.0
RECENT = 200  # refuted probes that a calibration looks back at
ENOUGH = 20  # confirmed probes that stand for true claims instead of the logs' successes; logged successes to fit to
FILE, SUPPORT = "calibration.json", "support.safetensors"


@dataclass(frozen=True)
class Probe:
    """A dreamed episode that claims a success, and what the real environment or a person says of its actions."""

    episode: Trajectory
    real_success: bool
    probability: float
    """The probability of its selection."""
    verdict: str = ""
    """The kind of the verdict on its claim when it was chosen, by a verifier that had not seen it; "" where it was not asked."""
    iteration: int = 0


@dataclass(frozen=True)
class LearnedVerifier:
    """Implements `protocols.Verifier`. A claim without a positive reward is passed: only successes are doubted."""

    head: OutcomeHead
    calibration: Calibration
    known: KnownLines
    most_novel: int | None
    """A claim with more lines that no log of another task has is masked; None: none is, because the logs hold too few successes to say."""
    true_positive_rate: Rate
    """Of the logged successes, each scored by the member that left its fold out (whole policies, tasks or episodes), those that pass."""
    messages: tuple[str, ...] = ()
    """What the logs could not give, and what that means."""
    read: Reader = rows_of
    """The features of claims, the same that the head was fitted to."""

    def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
        """passed, refused (far below what successes score) or masked (in between) per (instruction, history, claim)."""
        claims = [i for i, (_, _, claim) in enumerate(cases) if claim.reward > 0]
        verdicts: list[Verdict | None] = [Verdict("passed") for _ in cases]
        judged = self.judge([(cases[i][0], (*cases[i][1], cases[i][2])) for i in claims])
        for i, verdict in zip(claims, judged, strict=True):
            verdicts[i] = verdict
        return verdicts

    def judge(self, claims: Sequence[tuple[str, Sequence[Transition]]]) -> list[Verdict]:
        """The verdicts on (instruction, steps to the claimed success)."""
        return self.verdicts(claims, self.scores(claims))

    def verdicts(self, claims: Sequence[tuple[str, Sequence[Transition]]], scores: np.ndarray) -> list[Verdict]:
        """The verdicts on claims whose scores are known."""
        novel = [self.known.novel(steps, instruction) for instruction, steps in claims]
        limits = self.calibration, self.most_novel
        return [_verdict(float(score), lines, *limits) for score, lines in zip(scores.mean(0), novel, strict=True)]

    def scores(self, claims: Sequence[tuple[str, Sequence[Transition]]]) -> np.ndarray:
        """float64 [members, claims] of (instruction, steps to the claimed end): log-odds of a success."""
        cases = [LabelledClaim(instruction, tuple(steps), 0.5, novel=self.known.novel(steps, instruction)) for instruction, steps in claims]
        return self.head.logits(self.read(cases))

    def save(self, path: Path) -> None:
        """Write the folder, whole or not at all."""

        def write(fresh: Path) -> None:
            self.head.save(fresh)
            save_file(self.known.arrays(), fresh / SUPPORT)
            fields = {
                **self.calibration.to_json(),
                "most_novel": self.most_novel,
                "true_positive_rate": asdict(self.true_positive_rate),
                "messages": list(self.messages),
            }
            (fresh / FILE).write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")

        atomic_directory.replace(path, write)

    @classmethod
    def load(cls, path: Path, read: Reader = rows_of) -> LearnedVerifier:
        """Load what `save` wrote, with the features that it was fitted to; RunDirError where it cannot be read."""
        path = atomic_directory.restore_interrupted(path)
        try:
            fields: dict[str, Any] = json.loads((path / FILE).read_text(encoding="utf-8"))
            messages, most = tuple(fields.pop("messages")), fields.pop("most_novel")
            true_positive_rate = Rate(**fields.pop("true_positive_rate"))
            calibration = Calibration.from_json(fields)
            known_lines = KnownLines.of_arrays(load_file(path / SUPPORT))
        except Exception as error:  # a boundary: json and safetensors raise their own kinds
            raise RunDirError(
                f"Cannot read the verifier in '{path}': {error}. Restore {FILE} and {SUPPORT}, or make the run anew."
            ) from error
        return cls(OutcomeHead.load(path), calibration, known_lines, most, true_positive_rate, messages, read)


@dataclass(frozen=True)
class PreparedLogs:
    """What every fit takes from the same logs: their claims with features, and the support of their steps."""

    episodes: Sequence[Trajectory]
    cases: Sequence[LabelledClaim]
    """The ends of `episodes`, in order, and then the claims made up from them."""
    features: SparseRows
    known: KnownLines
    novel: Sequence[int]
    """The number of lines of every logged success that no episode of another task has; with few tasks, no other episode."""
    negatives: Negatives
    messages: tuple[str, ...]
    read: Reader
    """What gave the features."""


def prepare(logs: Sequence[Trajectory], rules: TextRules, *, seed: int, read: Reader = rows_of) -> PreparedLogs:
    """Prepare the logs. UsageError for logs without a scored success, and for successes without anything to tell them from."""
    episodes, messages = scored_episodes(logs), list[str]()
    if not any(t.success for t in episodes):
        why = "none of them ends in a success" if any(t.scored for t in logs) else "none of them has an outcome"
        raise UsageError(
            f"A learned verifier needs logged successes, and of {len(logs)} logged episodes {why}. Give outcomes when importing "
            "(dreamgym import --success), label episodes, or set no verifier."
        )
    if unscored := sum(not t.scored for t in logs):
        have = counted(unscored, "logged episode has", "logged episodes have")
        messages.append(f"{have} no outcome, and the verifier learns nothing from such episodes.")
    folds, negatives = _folds(episodes, messages)
    named = [*zip([t.id for t in episodes], logged_claims(episodes), strict=True), *constructed_claims(episodes, rules, seed=seed)]
    if all(case.label > 0.5 for _, case in named):
        raise UsageError(
            f"A learned verifier needs claims that are false, and the {len(episodes)} logged episodes with an outcome are successes of one "
            "instruction and one step, from which none can be made up. Log failures or other tasks too, or set no verifier."
        )
    tasks = _tasks(logs)
    known_lines = KnownLines.of_logs((tasks[t.id], t.transitions) for t in logs)
    cases = [replace(case, fold=folds[name], novel=known_lines.novel(case.steps, tasks[name])) for name, case in named]
    novel = [case.novel for case, t in zip(cases, episodes, strict=False) if t.success]
    return PreparedLogs(episodes, cases, read(cases), known_lines, novel, negatives, tuple(messages), read)


def prepare_once(kept: dict[Any, Any], logs: Sequence[Trajectory], rules: TextRules, *, seed: int, read: Reader = rows_of) -> PreparedLogs:
    """Prepare the logs once for all who share `kept`: the features of 800 episodes take half a minute, and those of a
    pretrained model many."""
    cached = kept.get("prepared logs")
    if cached is None or cached[0] is not logs or cached[1:3] != (seed, read):
        cached = kept["prepared logs"] = (logs, seed, read, prepare(logs, rules, seed=seed, read=read))
    prepared_logs: PreparedLogs = cached[3]
    return prepared_logs


def fit_verifier(
    logs: PreparedLogs, config: CalibrationConfig, *, probes: Sequence[Probe] = (), labels: Sequence[Probe] = ()
) -> LearnedVerifier:
    """Fit and calibrate. The same arguments give the same verifier. `labels` are claims of another run that a person judged."""
    judged = [*probes, *labels]
    claimed = [
        LabelledClaim(
            p.episode.task.instruction,
            p.episode.transitions,
            float(p.real_success),
            PROBE_WEIGHT,
            logs.known.novel(p.episode.transitions, p.episode.task.instruction),
            _fold(p.episode.task.id),  # probes of a task tend to be alike
        )
        for p in judged
    ]
    head, scores = fit([*logs.cases, *claimed], logs.features.then(logs.read(claimed)), members=MEMBERS)
    log_scores, made_scores, judged_scores = np.split(scores, [len(logs.episodes), len(logs.cases)])
    log_false, log_true = (_known(log_scores, [t.success is outcome for t in logs.episodes]) for outcome in (False, True))
    refuted = [not p.real_success and is_asked_about(p.episode) for p in judged]
    judged_false = _known(judged_scores, refuted)
    least, messages = least_negatives(config.alpha, config.delta), logs.messages
    from_probes = _of_claims(probes, judged_scores[: len(probes)], log_true, config)
    from_all = _of_claims(judged, judged_scores, log_true, config) if labels else None
    if from_probes and from_probes.bounded:
        calibration = from_probes
    elif from_all and from_all.bounded:
        calibration = replace(from_all, negatives="labels")
    elif len(log_false) >= least:
        tasks = [t.task.id for t, score in zip(logs.episodes, log_scores, strict=True) if not t.success and not np.isnan(score)]
        tasks += [
            p.episode.task.id for p, is_false, score in zip(judged, refuted, judged_scores, strict=True) if is_false and not np.isnan(score)
        ]
        calibration = calibrate(np.concatenate([log_false, judged_false]), log_true, config, of=logs.negatives, tasks=tasks)
    else:
        messages = (
            *messages,
            f"Only {len(log_false)} logged failures could be scored by a model that had not seen them, and a false-success rate of "
            f"{config.alpha:.0%} needs {least}: the threshold rests on claims made up from successes, and is not certified. Probes "
            "or logs with more failures would certify it.",
        )
        constructed = made_scores[~np.isnan(made_scores)]
        calibration = calibrate(np.concatenate([log_false, judged_false, constructed]), log_true, config, of="constructed")
    if config.refuse_true:
        confirmed = _known(judged_scores, [p.real_success and is_asked_about(p.episode) for p in judged])
        calibration = raised(calibration, confirmed if len(confirmed) >= ENOUGH else log_true, config.refuse_true)
    most_novel = conformal_limit(logs.novel, config.support_level)
    tpr = _true_positive_rate(log_scores[[t.success for t in logs.episodes]], logs.novel, calibration, most_novel)
    if tpr.n and tpr.value < KEPT:
        messages = (
            *messages,
            f"The verifier accepts {tpr.value:.0%} of {counted(tpr.n, 'logged success', 'logged successes')} that the scoring member "
            "had not seen: of real successes on new tasks it may pay for as few.",
        )
    return LearnedVerifier(head, calibration, logs.known, most_novel, tpr, messages, logs.read)


def _verdict(score: float, novel: int, calibration: Calibration, most_novel: int | None) -> Verdict:
    if most_novel is not None and novel > most_novel and score >= calibration.zero_below:
        return Verdict("masked", (f"{novel} lines of its states are in no log of another task",))
    if score > calibration.accept_above:
        return Verdict("passed", (f"score {score:.2f} above {calibration.accept_above:.2f}",))
    if score < calibration.zero_below:
        return Verdict("refused", (f"score {score:.2f} below {calibration.zero_below:.2f}",))
    return Verdict("masked", (f"score {score:.2f} between {calibration.zero_below:.2f} and {calibration.accept_above:.2f}",))


def _true_positive_rate(scores: np.ndarray, novel: Sequence[int], calibration: Calibration, most_novel: int | None) -> Rate:
    """The share that passes of the logged successes with these scores and lines; of those without a score nothing is known."""
    known = [(float(score), lines) for score, lines in zip(scores, novel, strict=True) if not np.isnan(score)]
    return wilson(sum(_verdict(score, lines, calibration, most_novel).kind == "passed" for score, lines in known), len(known))


def _of_claims(probes: Sequence[Probe], scores: np.ndarray, log_true: np.ndarray, config: CalibrationConfig) -> Calibration | None:
    """The calibration on refuted claims alone, of those that a verifier is asked about; None for fewer than a bound at the rate asked for
    needs."""
    asked = [is_asked_about(p.episode) for p in probes]
    probes, scores = [p for p, is_asked in zip(probes, asked, strict=True) if is_asked], scores[np.array(asked, dtype=bool)]
    refuted = [(p, float(score)) for p, score in zip(probes, scores, strict=True) if not p.real_success and not np.isnan(score)]
    if len(refuted) < least_negatives(config.alpha, config.delta):
        return None
    recent, true = refuted[-RECENT:], _known(scores, [p.real_success for p in probes])
    since = min(p.iteration for p, _ in recent)
    pairs = zip(probes, scores, strict=True)
    confirmed = [(float(score), 1 / p.probability) for p, score in pairs if p.real_success and p.iteration >= since and not np.isnan(score)]
    return calibrate(
        [score for _, score in recent],
        true if len(true) >= ENOUGH else log_true,
        config,
        of="rollouts" if all(p.episode.source == "real" for p in probes) else "probes",
        weights=[1 / p.probability for p, _ in recent],
        tasks=[p.episode.task.id for p, _ in recent],
        confirmed=([score for score, _ in confirmed], [weight for _, weight in confirmed]),
    )


def _folds(episodes: Sequence[Trajectory], messages: list[str]) -> tuple[dict[str, int], Negatives]:
    """The fold of every episode: by its behaviour policy where there are several, the largest ones apart, and those of the others are
    enough to fit to; else by its task, or by its id where there are too few tasks."""
    sizes = Counter(t.behaviour for t in episodes)
    of = {name: i % MEMBERS for i, (name, _) in enumerate(sizes.most_common())}
    if len(sizes) > 1 and all(_is_enough([t for t in episodes if of[t.behaviour] != fold], episodes) for fold in of.values()):
        return {t.id: of[t.behaviour] for t in episodes}, "policies"
    largest, n = sizes.most_common(1)[0]
    several = f"Of {len(episodes):,} logged episodes {n:,} are of the behaviour policy '{largest}', and the others are too few to fit to"
    messages.append(
        f"{several if len(sizes) > 1 else 'The logs are of one behaviour policy'}: the verifier is calibrated on other episodes of it, and "
        "not on another policy's."
    )
    few = len({t.task.id for t in episodes}) < 2 * MEMBERS
    return {t.id: _fold(t.id if few else t.task.id) for t in episodes}, "episodes"


def _tasks(logs: Sequence[Trajectory]) -> dict[str, str]:
    """The task of every episode, by which `KnownLines` counts: its instruction, which is what a claim has; its id where there are too few
    tasks to say how much of a new one is new."""
    few = len({t.task.instruction for t in logs}) < 2 * MEMBERS
    return {t.id: t.id if few else t.task.instruction for t in logs}


def _is_enough(some: Sequence[Trajectory], episodes: Sequence[Trajectory]) -> bool:
    """Whether a member can be fitted to some of the episodes: where it saw hardly any successes, its scores say nothing of those of members
    that saw all. False claims can be made up."""
    successes = sum(t.success for t in episodes)
    return sum(t.success for t in some) >= min(ENOUGH, successes // 2)


def _fold(name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass")) % MEMBERS


def _known(scores: np.ndarray, wanted: Sequence[bool]) -> np.ndarray:
    """The wanted scores that are numbers, in order."""
    chosen = scores[np.array(wanted, dtype=bool)] if len(wanted) else scores[:0]
    return chosen[~np.isnan(chosen)]


def uncertainty(logits: np.ndarray, calibration: Calibration) -> np.ndarray:
    """float64 [claims], from [members, claims]: the members' standard deviation, and closeness to the threshold, in (0, 2)."""
    if not logits.shape[1]:
        return np.zeros(0)
    spread = logits.std(0)
    close = np.exp(-np.abs(logits.mean(0) - calibration.accept_above)) if np.isfinite(calibration.accept_above) else np.zeros(len(spread))
    return np.asarray(spread / (1 + spread) + close)


def is_asked_about(claim: Trajectory) -> bool:
    """Whether a verifier is asked about a claim: not where a precedent in real memory pays for a dreamed success."""
    return claim.source != "dream" or claim.transitions[-1].info.reward_by != "recalled"


def draw_probes(
    claims: Sequence[Trajectory], verifier: LearnedVerifier, n: int, *, seed: int, iteration: int
) -> list[tuple[Trajectory, float]]:
    """About `n` of the claims of success, each with the probability of its selection.

    Three Poisson draws in one: half among those that were paid for, uncertain ones more often; a quarter among the claims of the highest
    score of each task, because that is where a verifier breaks first; the rest among all claims alike.
    """
    if not claims:
        return []
    logits = verifier.scores([(t.task.instruction, t.transitions) for t in claims])
    mean = logits.mean(0)
    best: dict[str, int] = {}
    for i, t in enumerate(claims):
        if t.task.id not in best or mean[i] > mean[best[t.task.id]]:
            best[t.task.id] = i
    paid = np.array([t.success for t in claims], dtype=float)
    unsure = uncertainty(logits, verifier.calibration)
    of_paid, of_best = min(n / 2, float(paid.sum())), min(n / 4, float(len(best)))
    draws = (
        (of_paid, paid * (0.5 + 0.5 * unsure / max(1e-9, float(unsure.max())))),
        (of_best, np.array([float(best[t.task.id] == i) for i, t in enumerate(claims)])),
        (n - of_paid - of_best, np.ones(len(claims))),
    )
    missed = np.ones(len(claims))
    for size, weights in draws:
        missed *= 1 - inclusion_probabilities(weights.tolist(), size)
    drawn = []
    for t, p in zip(claims, 1 - missed, strict=True):
        if random.Random(f"probe/{seed}/{iteration}/{t.id}").random() < p:
            drawn.append((t, float(p)))
    return drawn
