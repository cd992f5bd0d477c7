"""The guard: which predictions of the experience model count.

Two checks by TextRules. *Admissibility*, before the model: an inadmissible action, one that names an unknown identifier, or a known
no-op gets the same state (or an error) and reward 0 without asking the model (the failure-state rule of the paper's section 4.1).
*Grounded success*, after it: a positive reward is kept only if instruction, history and state support it, where the rules judge success;
where they contradict each other the episode is masked. So is one that the model calls a failure while its state shows a success.

A second opinion (`experience.verifier`, off by default) may follow the rules: a plug-in of `experience.verifiers` looks at what they
let pass.

The guard only ever lowers a reward, unless the second opinion may grant successes (`grants`). Its verdicts travel with the transition, and
the replay buffer admits only what passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from dreamgym.config import Config
from dreamgym.envs.base import TextRules
from dreamgym.experience.verifiers import verdicts_of
from dreamgym.protocols import Verifier
from dreamgym.types import Prediction, Query, StepInfo, Transition, Verdict
from dreamgym.usage import Usage

FAILURE_STATE = "no such element, so nothing changes."
REFUSAL = "it cannot be done, so an error comes back."
RULES = {
    "inadmissible": "failure state by rule",
    "unfounded": "an unknown identifier is refused by rule",
    "noop": "nothing changes by rule",
}
DISPUTED = "the model says failure, and the state shows every requirement met"
DISAGREED = "a second opinion disagrees"
IMPOSSIBLE = "the trajectory to the success is contradictory"
REFUSED, NOTED = "refused by a second opinion", "doubted by a second opinion"
GRANTED = "the model says failure, and a second opinion accepts the success"
NOT_GRANTED = "the model says failure, and a second opinion does not accept a success"


class GuardConfig(Config):
    """Which rules are on. Switch them off for an ablation only."""

    admissibility: bool = True
    """Answer by rule what can do nothing: actions that name nothing in the state, and those that are known to change nothing."""
    grounding: bool = True
    """A success counts only where the rules' `check_success` confirms it."""
    mask_disputed: bool = True
    """Leave out an episode that the model calls a failure while the state shows every requirement met: neither verdict is trusted."""
    mask_doubtful: bool = True
    """Leave out an episode whose success is grounded on pages that no real environment could have shown (`TextRules.contradictions`)."""
    only_success_ends: bool = False
    """For environments that end only with success: other predicted ends are ignored. An episode that goes on although the state shows every
    requirement met is left out, as a disputed end is. Goes with `grounding`."""


@dataclass(frozen=True)
class SecondOpinion:
    """Who else looks at a prediction, at which, and what a refusal does: `mask` leaves the episode out, `zero` takes the reward
    and keeps the step out of memory, `keep` only writes the reasons down. A verdict `masked` leaves the episode out in any case, unless
    the model calls the end a failure: that it stays where the verifier, which may grant successes, does not accept one.
    """

    verifier: Verifier
    on_disagreement: Literal["mask", "zero", "keep"] = "mask"
    applies_to: Literal["ends", "all"] = "ends"  # predictions that pay or end the episode, or every one
    grants: bool = False  # whether an end that the model calls a failure is a success where the verifier accepts it as one


class Guard:
    """Applies the rules of a TextRules, asks for a second opinion where there is one, and counts what it did."""

    def __init__(self, rules: TextRules, config: GuardConfig | None = None, second: SecondOpinion | None = None) -> None:
        self.rules, self.config, self.second = rules, config or GuardConfig(), second
        self.counts: Counter[str] = Counter()

    @property
    def verifier_usage(self) -> Usage | None:
        """Tokens and cost of the second opinion; None where it has none."""
        return getattr(self.second.verifier, "usage", None) if self.second else None

    def before(self, query: Query) -> Prediction | None:
        """The answer to an action that can do nothing: the same state again, or the rules' refusal. None when the model should be asked."""
        rule = noop_rule(self.rules, query) if self.config.admissibility else None
        if rule is None:
            return None
        self.counts[rule.name] += 1
        verdict = Verdict("passed", (RULES[rule.name],))
        state = query.state if rule.name == "noop" else self.rules.refusal(query.state, query.action)
        why = rule.why if state == query.state else REFUSAL
        return Prediction(state, 0.0, False, StepInfo(why, verdict=verdict, decided_by="rule", reward_by="rule"))

    def after(self, query: Query, prediction: Prediction) -> Prediction:
        """The prediction with its verdict; an ungrounded success is worth nothing."""
        self.counts["asked"] += 1
        return self._grounded(query, prediction)

    def _grounded(self, query: Query, prediction: Prediction) -> Prediction:
        if not self.config.grounding:
            return prediction
        if self.config.only_success_ends:
            prediction = replace(prediction, terminated=prediction.reward > 0)
        claim = query.transition(prediction)
        if prediction.reward <= 0:
            doubtful = (prediction.terminated and self.config.mask_disputed) or self.config.only_success_ends
            return self._dispute(query, claim, prediction) if doubtful else prediction
        verdict = self.rules.check_success(query.task.instruction, query.history, claim)
        doubts = self._doubts(query, claim) if verdict is None or verdict.passed else []
        if doubts:
            self.counts["success_doubted"] += 1
            return replace(_with_verdict(_reward_by_rule(prediction), Verdict("masked", (IMPOSSIBLE, *doubts))), reward=0.0)
        if verdict is None:
            return prediction
        prediction = _reward_by_rule(prediction)
        self.counts["success_granted" if verdict.passed else "success_refused"] += 1
        if verdict.passed:
            return _with_verdict(prediction, verdict)
        ended = prediction.terminated and not self.config.only_success_ends
        return replace(_with_verdict(prediction, verdict), reward=0.0, terminated=ended)

    def review(self, queries: Sequence[Query], predictions: Sequence[Prediction]) -> list[Prediction]:
        """Judge each prediction by `after`, in order, and then ask the second opinion about all that the rules let pass, at once."""
        judged = [self.after(query, prediction) for query, prediction in zip(queries, predictions, strict=True)]
        if self.second is None:
            return judged
        eligible = [p.terminated or p.reward > 0 or self.second.applies_to == "all" for p in judged]
        chosen = [i for i, p in enumerate(judged) if eligible[i] and p.info.has_verdict("passed")]
        claims = [self._claim(queries[i], judged[i]) for i in chosen]
        cases = [
            (queries[i].task.instruction, queries[i].history, queries[i].transition(claim)) for i, claim in zip(chosen, claims, strict=True)
        ]
        for i, claim, opinion in zip(chosen, claims, verdicts_of(self.second.verifier, cases), strict=True):
            if claim is not judged[i]:
                judged[i] = self._granted(judged[i], claim, opinion)
                continue
            self.counts["no_opinion" if opinion is None else "agreed" if opinion.passed else "disagreed"] += 1
            if opinion is not None and not opinion.passed:
                judged[i] = self._doubted(judged[i], opinion, "mask" if opinion.kind == "masked" else self.second.on_disagreement)
        return judged

    def _claim(self, query: Query, prediction: Prediction) -> Prediction:
        """What the second opinion is asked about: the prediction, or, where it may grant successes, a success in place of an end that the
        experience model calls a failure, if the rules let that pass."""
        may_be_granted = self.second and self.second.grants and prediction.terminated and prediction.reward <= 0
        if not may_be_granted or prediction.info.reward_by == "rule":
            return prediction
        claim = self._grounded(query, replace(prediction, reward=1.0))
        return claim if claim.reward > 0 and claim.info.has_verdict("passed") else prediction

    def _granted(self, failure: Prediction, claim: Prediction, opinion: Verdict | None) -> Prediction:
        """The claim where the second opinion accepts it, and else the failure that the experience model sees; `reward_by` the opinion."""
        granted = opinion is not None and opinion.passed
        self.counts["no_opinion" if opinion is None else "granted" if granted else "not_granted"] += 1
        if opinion is None:
            return failure
        verdict = Verdict("passed", (GRANTED if granted else NOT_GRANTED, *opinion.reasons))
        return replace(claim, reward=1.0 if granted else 0.0, info=replace(failure.info, verdict=verdict, reward_by="verifier"))

    def _doubted(self, prediction: Prediction, opinion: Verdict, how: Literal["mask", "zero", "keep"]) -> Prediction:
        """A prediction that a second opinion does not believe, with both sides' reasons."""
        if how == "keep":
            reasons = prediction.info.verdict.reasons if prediction.info.verdict else ()
            return _with_verdict(prediction, Verdict("passed", (*reasons, NOTED, *opinion.reasons)))
        verdict = Verdict("masked", (DISAGREED, *opinion.reasons)) if how == "mask" else Verdict("refused", (REFUSED, *opinion.reasons))
        ended = prediction.terminated and not self.config.only_success_ends
        return replace(_with_verdict(prediction, verdict), reward=min(prediction.reward, 0.0), terminated=ended)

    def _doubts(self, query: Query, claim: Transition) -> list[str]:
        """Why a success cannot have come about as the dream shows it, as far as the TextRules has rules for that."""
        return self.rules.contradictions(query.history, claim) if self.config.mask_doubtful else []

    def _dispute(self, query: Query, claim: Transition, prediction: Prediction) -> Prediction:
        """A step whose state shows a success that the model does not see is disputed: no reward, and a verdict that keeps its episode out
        of training and memory."""
        verdict = self.rules.check_success(query.task.instruction, query.history, replace(claim, reward=1.0, terminated=True))
        if verdict is None:
            return prediction
        prediction = _reward_by_rule(prediction)  # the text check agrees that this is no success, or its disagreement masks the episode
        if not verdict.passed:
            return prediction
        self.counts["failure_disputed"] += 1
        return _with_verdict(prediction, Verdict("masked", (DISPUTED,)))


def is_second_opinion(verdict: Verdict | None) -> bool:
    """Whether a verdict that is not passed is a second opinion's, and not the rules'."""
    return verdict is not None and verdict.reasons[:1] in ((DISAGREED,), (REFUSED,))


class Rule(NamedTuple):
    """The rule by which an action can do nothing, and the reason in the teacher's words."""

    name: Literal["inadmissible", "unfounded", "noop"]
    why: str


def noop_rule(rules: TextRules, query: Query) -> Rule | None:
    """The rule by which an action can do nothing; None where it may do something."""
    if rules.admissible(query.state, query.history, query.action) is False:
        return Rule("inadmissible", FAILURE_STATE)
    if why := rules.unfounded(query.task.instruction, query.state, query.history, query.action):
        return Rule("unfounded", why)
    why = rules.noop_reason(query.state, query.history, query.action)
    return Rule("noop", why) if why else None


def _reward_by_rule(prediction: Prediction) -> Prediction:
    return replace(prediction, info=replace(prediction.info, reward_by="rule"))


def _with_verdict(prediction: Prediction, verdict: Verdict) -> Prediction:
    return replace(prediction, info=replace(prediction.info, verdict=verdict))
