"""Teacher-forced fidelity: from a true history, what does the experience model say comes next, and what really came?

Each step of held-out real episodes is one question, and so are near misses, actions that the real environment refuses
(`evals.near_misses`). Errors do not add up along an episode, as they do in paired replay (`evals.paired_replay`): the two measures
complete each other.

    questions = draw_questions(episodes, real, rules, misses=0.3, seed=0)
    raw = forecast(model, questions)              # with its guard off
    measure(questions, raw, known=parts) and measure(questions, apply_guard(guard, questions, raw), known=parts)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from dreamgym.bracket_actions import ELEMENT
from dreamgym.envs.base import TextRules
from dreamgym.evals import near_misses
from dreamgym.evals.attribution import JudgedStep, decided_json
from dreamgym.experience.guard import Guard
from dreamgym.experience.state_delta import encode
from dreamgym.protocols import RealEnv
from dreamgym.statistics import Interval, Rate, bounded_mean, clustered_rate, paired_rate_difference
from dreamgym.types import Action, Prediction, Query, Trajectory, Transition

End = Literal["success", "failure", "goes on", "left out"]
ENDS: tuple[End, ...] = ("success", "failure", "goes on", "left out")
SAFE = 0.9
"""The share of episodes without a wrong next state, down to which a dream of that length is called safe."""


class Predictor(Protocol):
    """Anything that says what follows: an experience model, or a memory of the logs."""

    def predict(self, queries: Sequence[Query]) -> list[Prediction]: ...


@dataclass(frozen=True)
class Question:
    """One thing to predict, and the truth. `kind` is the kind of action, or the way in which a near miss misses."""

    query: Query
    truth: Transition
    kind: str
    near_miss: bool = False

    @property
    def valid(self) -> bool:
        """Whether the action did something in reality."""
        return not self.near_miss and not self.truth.is_noop


@dataclass(frozen=True)
class HeldOut:
    """Predictions of held-out transitions, in rates. Intervals count the steps of an episode as a cluster."""

    state_exact: Rate
    state_exact_valid: Rate  # actions that did something in reality
    state_exact_generated: Rate  # those of them that only the model can answer: no rule decides them, and no memory
    state_exact_knowable: Rate  # those of them whose outcome the history shows, or a log of the same action: the rest can only be guessed
    state_exact_invalid: Rate  # near misses
    state_exact_invalid_logged: Rate  # no-ops of the scripted policies
    element_f1: Interval  # mean over valid actions of the F1 of a page's parts
    false_success: Rate  # of real failures, the share called a success
    false_failure: Rate  # of real successes, the share called a failure, or no end; of those that are not left out
    false_failure_at_most: Rate  # of all real successes, the share not called a success
    masked_share: Rate  # of the ends of real episodes, the share left out: masked, or not readable
    accepted_false: Rate  # of predicted successes, the share that are none
    false_end: Rate  # of steps after which reality went on, the share called an end
    reward_error: Interval  # mean |predicted reward - real reward|, of the answers that could be read
    unknown_elements: Rate  # of the parts of predicted states, those in no log, in no inventory of the suite and in neither true state
    confusion: dict[str, dict[str, int]]  # real end -> predicted end -> questions
    by_action: dict[str, Rate]  # next states exactly right, by kind of action
    by_miss: dict[str, Rate]  # and by way of missing
    decided_by: dict[str, Any]  # shares of states and rewards by what decided them, and the exactness of each (`evals.attribution`)
    agreement: list[float]  # by step: of episodes, the share whose next states were all exact up to it (Kaplan and Meier 1958)
    safe_horizon: int  # the last step up to which that share is at least SAFE
    unreadable: int
    masked: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the terminals of each kind counted."""
        terminals = {"real_failures": self.false_success.n, "real_successes": self.false_failure.n}
        return asdict(self) | {"terminals": terminals}


def draw_questions(
    episodes: Sequence[Trajectory], real: RealEnv | None, rules: TextRules, *, misses: float, seed: int
) -> tuple[list[Question], dict[str, int]]:
    """Every step of real episodes as a question, and a near miss beside about `misses` of them; and counts of what was asked.

    Near misses are tried in the environment `real`. Without one there are none, and the counts do not speak of them.
    Episodes that broke are left out: nobody knows what followed. So is the end of an episode without a known outcome.
    """
    sound = [episode for episode in episodes if episode.error is None and episode.turns]
    drawn = near_misses.draw(sound, real, rules, share=misses, seed=seed) if real else None
    missed = {(one.episode, one.step): one for one in drawn.misses} if drawn else {}
    questions = []
    for i, episode in enumerate(sound):
        for t, truth in enumerate(episode.transitions):
            if truth.terminated and not episode.scored:
                continue  # nobody knows the reward
            key, history = (seed, i, t), episode.transitions[:t]
            if one := missed.get((i, t)):
                asked = Query(episode.task, history, truth.state, one.truth.action, key)
                questions.append(Question(asked, one.truth, one.way, near_miss=True))
            kind = rules.action_kind(truth.state, truth.action)
            questions.append(Question(Query(episode.task, history, truth.state, truth.action, key), truth, kind))
    counts = {"episodes": len(sound), "transitions": sum(len(episode.turns) for episode in sound)}
    if drawn:
        counts |= {"near_misses": len(drawn.misses), "near_misses_that_took_effect": drawn.took_effect, "near_misses_lost": drawn.lost}
    return questions, counts


def forecast(
    model: Predictor, questions: Sequence[Question], *, batch: int = 256, forget: Callable[[list[tuple[int, ...]]], None] | None = None
) -> list[Prediction]:
    """A prediction per question, in order. Episodes are walked side by side, a step at a time, so that their caches and the memories
    shown with earlier steps are there, as in a dream; a near miss is asked before the step that was really taken.

    `forget` is the model's, and frees what it keeps of episodes that are done.
    """
    rounds: dict[int, dict[tuple[int, bool], list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, question in enumerate(questions):
        _, episode, step = question.query.stream
        rounds[episode // batch][step, not question.near_miss].append(place)
    answers: dict[int, Prediction] = {}
    for chunk in rounds.values():
        for when in sorted(chunk):
            places = chunk[when]
            answers |= dict(zip(places, model.predict([questions[place].query for place in places]), strict=True))
        if forget:
            forget(sorted({questions[place].query.stream[:2] for places in chunk.values() for place in places}))
    return [answers[place] for place in range(len(questions))]


def apply_guard(
    guard: Guard, questions: Sequence[Question], raw: Sequence[Prediction], from_memory: Sequence[bool] | None = None
) -> list[Prediction]:
    """The same predictions with a guard before and after them. The history being the real one, nothing else would have been asked. As in a
    dream, answers `from_memory` are not reviewed; default: none are from there."""
    queries = [question.query for question in questions]
    before = [guard.before(query) for query in queries]
    asked = [i for i, answer in enumerate(before) if answer is None and not (from_memory and from_memory[i])]
    after = dict(zip(asked, guard.review([queries[i] for i in asked], [raw[i] for i in asked]), strict=True))
    return [answer or after.get(i, raw[i]) for i, answer in enumerate(before)]


def measure(
    questions: Sequence[Question],
    predictions: Sequence[Prediction],
    *,
    known: Collection[str],
    logged: Collection[tuple[Action, str]] = (),
    generated: Sequence[bool] | None = None,
) -> HeldOut:
    """Predictions against the truth. `known` are the parts of pages that exist (`parts_of`); those of the true states always do. `logged`
    are (action, next state) as the logs have them. `generated` says which questions only a model can answer; default: those that the
    predictions themselves say were generated."""
    pairs = list(zip(questions, predictions, strict=True))
    right = [_state_exact(q, one) for q, one in pairs]
    ends = [(q, _end(q.truth.reward, q.truth.terminated), _predicted_end(one)) for q, one in pairs]
    confusion: dict[str, Counter[str]] = {real: Counter() for real in ENDS[:3]}
    for _, end, predicted in ends:
        confusion[end][predicted] += 1
    unknown = [
        (q, part not in known and part not in parts_of(q.truth.state.text) and part not in parts_of(q.truth.next_state.text))
        for q, one in pairs
        for part in parts_of(one.next_state.text)
    ]

    def exact(chosen: Callable[[Question], bool]) -> Rate:
        return _rate([(q, hit) for hit, (q, _) in zip(right, pairs, strict=True) if chosen(q)])

    def called(real: End, *wrong: End) -> Rate:
        return _rate([(q, predicted in wrong) for q, end, predicted in ends if end == real and predicted in ENDS[:3]])

    open_to = [one.info.decided_by == "generated" for one in predictions] if generated is None else generated
    alone = [(q, hit) for hit, (q, _), chosen in zip(right, pairs, open_to, strict=True) if chosen and q.valid]
    kinds = sorted({q.kind for q in questions if q.valid})
    ways = sorted({q.kind for q in questions if q.near_miss})
    scores = [
        (q, 0.0 if one.info.has_verdict("unreadable") else f1(one.next_state.text, q.truth.next_state.text)) for q, one in pairs if q.valid
    ]
    errors = [(q, abs(one.reward - q.truth.reward)) for q, one in pairs if not one.info.has_verdict("unreadable")]
    return HeldOut(
        state_exact=exact(lambda q: True),
        state_exact_valid=exact(lambda q: q.valid),
        state_exact_generated=_rate(alone),
        state_exact_knowable=exact(lambda q: q.valid and _knowable(q, logged)),
        state_exact_invalid=exact(lambda q: q.near_miss),
        state_exact_invalid_logged=exact(lambda q: not q.valid and not q.near_miss),
        element_f1=_mean(scores),
        false_success=called("failure", "success"),
        false_failure=called("success", "failure", "goes on"),
        false_failure_at_most=_rate([(q, predicted != "success") for q, end, predicted in ends if end == "success"]),
        masked_share=_rate([(q, predicted == "left out") for q, end, predicted in ends if end in ("success", "failure")]),
        accepted_false=_rate([(q, end != "success") for q, end, predicted in ends if predicted == "success"]),
        false_end=called("goes on", "success", "failure"),
        reward_error=_mean(errors, max((1.0, *(error for _, error in errors)))),
        unknown_elements=_rate(unknown),
        confusion={real: {end: row[end] for end in ENDS} for real, row in confusion.items()},
        by_action={kind: exact(lambda q, kind=kind: q.valid and q.kind == kind) for kind in kinds},  # type: ignore[misc]
        by_miss={way: exact(lambda q, way=way: q.near_miss and q.kind == way) for way in ways},  # type: ignore[misc]
        decided_by=decided_json(
            (one.info for one in predictions),
            [JudgedStep(one.info, hit, _reward_exact(q, one)) for hit, (q, one) in zip(right, pairs, strict=True)],
        ),
        agreement=(agreement := agreement_by_step(questions, right)),
        safe_horizon=next((t for t, share in enumerate(agreement) if share < SAFE), len(agreement)),
        unreadable=sum(one.info.has_verdict("unreadable") for one in predictions),
        masked=sum(one.info.has_verdict("masked") for one in predictions),
    )


def ahead(questions: Sequence[Question], one: Sequence[Prediction], other: Sequence[Prediction]) -> Interval:
    """By how much `one` has more next states exactly right than `other`, of the same valid actions; an episode is a cluster."""
    valid = [place for place, question in enumerate(questions) if question.valid]
    hits = [[_state_exact(questions[place], side[place]) for place in valid] for side in (one, other)]
    return paired_rate_difference(hits[0], hits[1], [questions[place].query.episode for place in valid])


def _rate(judged: Sequence[tuple[Question, bool]]) -> Rate:
    return clustered_rate([hit for _, hit in judged], [question.query.episode for question, _ in judged])


def _mean(judged: Sequence[tuple[Question, float]], most: float = 1.0) -> Interval:
    return bounded_mean([value for _, value in judged], most, [question.query.episode for question, _ in judged])


def _state_exact(question: Question, predicted: Prediction) -> bool:
    """Whether the next state is right. An unreadable answer stands as the same state again, and is wrong."""
    return predicted.next_state == question.truth.next_state and not predicted.info.has_verdict("unreadable")


def _reward_exact(question: Question, predicted: Prediction) -> bool:
    """Whether reward and end are right."""
    truth = question.truth
    return not predicted.info.has_verdict("unreadable") and (predicted.reward, predicted.terminated) == (truth.reward, truth.terminated)


def agreement_by_step(questions: Sequence[Question], right: Sequence[bool]) -> list[float]:
    """By step, the share of episodes whose predictions up to it are all right, near misses left out. An episode that ended earlier counts
    up to its end. As long as nothing is wrong, a prediction from the true history is one from the dreamed history."""
    episodes: dict[Any, dict[int, bool]] = defaultdict(dict)
    for question, hit in zip(questions, right, strict=True):
        if not question.near_miss:
            *episode, step = question.query.stream
            episodes[tuple(episode)][step] = hit
    found, share = list[float](), 1.0
    for t in range(max((max(steps) + 1 for steps in episodes.values()), default=0)):
        alive = [steps[t] for steps in episodes.values() if t in steps and all(steps.get(before, True) for before in range(t))]
        if not alive:
            break
        share *= sum(alive) / len(alive)
        found.append(share)
    return found


def parts_of(state: str) -> tuple[str, ...]:
    """What a page consists of: each line's facts, and each `[element]` of a line of elements alone.

    >>> parts_of("[b017] $12 red mug\\n[next >][back]")
    ('[b017] $12 red mug', '[next >]', '[back]')
    """
    found: list[str] = []
    for line in state.split("\n"):
        elements = [match[0] for match in ELEMENT.finditer(line)]
        facts = ELEMENT.sub("", line).strip(" :")
        if len(elements) == 1 and facts:
            found.append(line.strip())  # an item and what is said of it
        else:
            found += [facts, *elements] if facts else elements
    return tuple(found)


def known_parts(states: Iterable[str]) -> set[str]:
    """Everything that some pages consist of."""
    return {part for state in set(states) for part in parts_of(state)}


def f1(predicted: str, real: str) -> float:
    """The harmonic mean of precision and recall of a page's parts, each counted as often as it stands there; 1 for two empty pages."""
    ours, theirs = Counter(parts_of(predicted)), Counter(parts_of(real))
    total = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / total if total else 1.0


def _knowable(question: Question, logged: Collection[tuple[Action, str]]) -> bool:
    """Whether the history shows this outcome, or all but a few lines of it, or some log shows it after the same action."""
    query, after = question.query, question.truth.next_state.text
    seen = (*(transition.state.text for transition in query.history), query.state.text)
    return (query.action, after) in logged or encode(seen, after).is_delta


def _end(reward: float, terminated: bool) -> End:
    return "goes on" if not terminated else "success" if reward >= 1.0 else "failure"


def _predicted_end(prediction: Prediction) -> End:
    if prediction.info.has_verdict("unreadable") or prediction.info.has_verdict("masked"):
        return "left out"  # of training as well: it ends the episode as a failed rollout
    return _end(prediction.reward, prediction.terminated)
