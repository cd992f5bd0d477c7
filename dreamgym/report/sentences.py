"""Sentences about the results of a run. A sentence states only what the numbers of this run support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dreamgym.evals import held_out, next_actions
from dreamgym.evals.gap import gap_phase, gap_sentence
from dreamgym.experience.recall import CLASSES, SITUATIONS, why_unused
from dreamgym.recipes.arms import ARMS, RL_ARMS, base_arm
from dreamgym.recipes.early_stops import kept_policy
from dreamgym.recipes.gains import lines
from dreamgym.report.data import Audit, Fidelity, Row, Run, block, number
from dreamgym.statistics import CLAIM_SEEDS, Rate, paired_difference, wilson

WITHIN = 0.10  # a gap up to this is small enough to read dream success as real success
FEW = 30  # episodes below which the gap is not interpreted
NOTHING = "–"
GUARD_RULES = {"admissibility": "admissibility", "grounding": "grounding", "mask_disputed": "disputes", "mask_doubtful": "doubts"}
"""Rules of the guard, and their names in the header."""


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a number of per cent, without the sign."""
    return NOTHING if value is None else f"{100 * value:.{digits}f}"


def count(value: float | None) -> str:
    """A whole number with thin spaces between thousands."""
    return NOTHING if value is None else f"{value:,.0f}".replace(",", "\u202f")


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return NOTHING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def points(value: float) -> str:
    """A difference of shares."""
    return f"{100 * value:+.1f} points".replace("-", "−")


def unbroken(text: str) -> str:
    """The sentence with no-break spaces between numbers and units."""
    return text.replace(" %", "\u00a0%").replace(" points", "\u00a0points")


def facts(run: Run) -> list[tuple[str, str]]:
    """The header: configuration, commit and cost."""
    summary, config = run.summary, run.config
    seeds = summary.get("seeds") or config.get("seeds") or [config.get("seed", NOTHING)]
    seconds = [found for data in run.phases.values() if (found := number(data.get("seconds"))) is not None]
    memory = number(summary.get("peak_rss_mb"))
    texts = [
        ("budget" if "mode" not in config else "mode", str(summary.get("budget") or NOTHING)),
        ("commit", str(summary.get("commit") or NOTHING)),
        ("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds))),
        ("time in phases", duration(sum(seconds)) if seconds else NOTHING),
        ("peak memory", f"{memory / 1024:.1f} GiB" if memory else NOTHING),
    ]
    return texts + [(name, text) for name, text in _configured(run) if text]


def _configured(run: Run) -> list[tuple[str, str]]:
    config, logs = run.config, block(run.phases, "logs")
    env = block(config, "env")
    options = ", ".join(f"{name} {value}" for name, value in block(env, "options").items())
    asked = block(config, "logs").get("trajectories")
    guard = block(config, "guard")
    rules = [rule for name, rule in GUARD_RULES.items() if guard.get(name)]
    k = block(config, "experience").get("k")

    def asked_for(loop: str) -> bool:
        """A comparison shows the loops that have begun, and a training in one mode no loop of another."""
        return loop in map(base_arm, run.loops) if run.compared else loop != "s2r" or config.get("mode", "s2r") == "s2r"

    return [
        ("environment", " ".join(filter(None, (str(env.get("name", "")), f"({options})" if options else "")))),
        ("logs", _offline(logs) if logs else f"{asked} trajectories" if asked else ""),
        ("model", str(block(config, "model").get("size", ""))),
        ("memories shown", "" if k is None else f"{k} a step"),
        ("guard", ", ".join(rules) or "off" if guard else ""),
        *((ARMS[name].label, _loop(block(config, name))) for name in RL_ARMS if asked_for(name)),
        ("RL", _loop(block(config, "rl"))),
    ]


def _offline(logs: Mapping[str, Any]) -> str:
    return f"{count(number(logs.get('trajectories')))} trajectories, {count(number(logs.get('transitions')))} transitions"


def _loop(loop: Mapping[str, Any]) -> str:
    if not loop.get("iterations"):
        return ""
    size = f"{loop['iterations']} iteration{'s' * (loop['iterations'] != 1)} of {loop.get('tasks_per_iter', '?')} tasks"
    if "group_size" in loop:
        size += f" × {loop['group_size']} rollouts"
    lr = number(block(loop, "learner").get("lr"))
    return size + (f", learning rate {lr:g}" if lr else "")


def status(run: Run) -> str:
    """The progress of an unfinished run; empty for a finished one."""
    if run.finished:
        return ""
    done = ", ".join(run.phases) or "nothing yet"
    open_phases = [(phase, lines[-1]) for phase, lines in run.lines.items() if phase not in run.phases]
    now = "; ".join(f"{phase} is at iteration {line['iteration']}" for phase, line in open_phases)
    return f"Finished phases: {done}." + (f" In progress: {now}." if now else "")


def warnings(run: Run) -> list[str]:
    """What the run warns of at its end, and of a dream and a policy that held-out recorded steps speak against."""
    texts = [str(text) for text in run.summary.get("warnings") or ()]
    with suppress(KeyError, TypeError, AttributeError):  # the page shows what there is
        texts += [warn(block(run.phases, "fidelity")) for warn in (held_out.warning, held_out.unpaid)]
        texts.append(next_actions.warning(block(run.phases, "next_actions")))
    return [text for text in dict.fromkeys(texts) if text]


def headline(run: Run) -> str:
    """Success in the real environment before and after training in the dream."""
    rows = {row.key: row for row in run.rows}
    before, after = rows.get("warm_start"), rows.get("dream")
    if before is None or after is None or before.greedy is None or after.greedy is None:
        return ""
    stopped = kept_policy(reason := str(block(run.phases, "dream").get("stop_reason") or ""), "the warm start")
    text = f"RL in the dream stopped early, {reason}: the row of the dream is that of {stopped}. " if stopped else ""
    text += (
        f"After training in the dream, the policy succeeds on {_interval(after.greedy)} of held-out tasks in the real environment; "
        f"the warm start succeeds on {_interval(before.greedy)}. {_change(before, after)}"
    )
    if before.sampled and after.sampled:
        text += f" With sampled actions: {percent(before.sampled.value)} % before, {percent(after.sampled.value)} % after."
    online = after.costs["real_transitions_online"]
    if online == 0:
        text += f" Training used no real step; probes used {count(after.costs['real_transitions_probe'])}."
    return text


def _change(before: Row, after: Row) -> str:
    """What training changed in greedy success: paired by seed, or in one seed, which says nothing of others."""
    assert before.greedy and after.greedy
    if len(after.per_seed) == len(before.per_seed) > 1:
        mean = paired_difference(after.per_seed, before.per_seed)
        interval = "" if mean.low is None or mean.high is None else f" [{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]".replace("-", "−")
        few = "" if mean.seeds >= CLAIM_SEEDS else f"; {CLAIM_SEEDS} seeds are asked for before anything is claimed"
        return f"The change, paired by seed, is {points(mean.mean)}{interval} over {mean.seeds} seeds{few}."
    change = after.greedy.value - before.greedy.value
    apart = after.greedy.low > before.greedy.high or after.greedy.high < before.greedy.low
    overlap = "do not overlap" if apart else "overlap: this run alone does not establish a difference"
    return f"The change is {points(change)} in one seed. The intervals over its episodes {overlap}; they say nothing of other seeds."


def gains(run: Run) -> list[str]:
    """The gain of each RL policy over converged imitation, or over the warm start where there is none, and beside the control."""
    with suppress(KeyError, TypeError, AttributeError):  # the page shows what there is
        return lines(block(run.summary, "gains"))
    return []


def _interval(rate: Rate) -> str:
    return f"{percent(rate.value)} % [{percent(rate.low)}, {percent(rate.high)}]"


def policy_gap(run: Run) -> str:
    """Success of the trained policy in the dream and, acting anew, in the real environment; "" where it was not measured."""
    with suppress(KeyError, TypeError, ValueError):  # the page shows what there is
        return gap_sentence(found) if (found := block(run.phases, gap_phase(run.phases))) else ""
    return ""


def fidelity(audit: Audit) -> list[str]:
    """Agreement of dream and real environment, from the paired replay."""
    hides = "revisits" in audit.facts
    return [text for text in (*(_partially_observed(audit) if hides else _fully_observed(audit)), _synthetic_tasks(audit.facts)) if text]


def _fully_observed(audit: Audit) -> list[str]:
    """Sentences on an environment whose states can be compared step by step."""
    guarded, bare = audit.with_guard, audit.without_guard
    texts = [_gap(guarded)] if guarded else []
    if guarded and "consistency" in guarded.rates:
        held = guarded.rates["consistency"]
        texts.append(f"Of {held.n} dreamed successes {percent(held.value)} % are real.")
    if guarded and bare:
        texts.append(_difference(guarded, bare))
    return [*texts, _control(audit), _support(audit.facts), _bound(guarded.bound) if guarded else ""]


def _control(audit: Audit) -> str:
    """The model beside the control without one, on the steps that neither a rule nor a precedent answers."""
    model, control = ((side.rates.get("state_exact_generated") if side else None) for side in (audit.with_guard, audit.no_model))
    if not model or not control:
        return ""
    apart = model.low > control.high or model.high < control.low
    return (
        f"On steps that neither a rule nor a precedent answers, {_interval(model)} of the model's next states are exactly right; of the "
        f"control without a model, in its own dreams, {_interval(control)}. "
        + ("The intervals do not overlap." if apart else "The intervals overlap: what the model adds is not established.")
    )


def _bound(found: Mapping[str, Any]) -> str:
    """How far the dream can mislead about this policy: the finite-horizon bound, and Theorem 1 of the paper with measured errors."""
    gap, theorem, gamma = (number(found.get(name)) for name in ("success_gap", "theorem", "gamma"))
    if gap is None or theorem is None or gamma is None:
        return ""
    vacuous = found.get("vacuous") or ()
    nothing = ", which says nothing about success between 0 and 1"
    return (
        f"Dream and real success of this policy differ by at most {percent(gap)} points (the 95 % upper bound of the share of dreams that "
        f"part from the real environment or are left out){nothing if 'success_gap' in vacuous else ''}. Theorem 1 of the paper, with the "
        f"measured errors and gamma {gamma:g}, subtracts {theorem:,.{0 if theorem >= 10 else 2}f} from an improvement in the "
        f"dream{nothing if 'theorem' in vacuous else ''}."
    )


def _support(facts: Mapping[str, Rate]) -> str:
    """Accuracy of dreams in and out of support; "" where one of the two groups is empty."""
    if not {"in_support", "in_support_exact", "out_of_support_exact"} <= facts.keys():
        return ""

    def of(kind: str) -> str:
        wrong, exact = facts.get(f"{kind}_false"), facts[f"{kind}_exact"]
        falsely = f", and {_interval(wrong)} of {wrong.n} real failures are called successes" if wrong else ""
        return f"{_interval(exact)} of next states are exact{falsely}"

    share = facts["in_support"]
    return (
        f"{_interval(share)} of the dreams are in support: a real transition in the replay buffer shows every action. Of these, "
        f"{of('in_support')}. Of the dreams out of support, {of('out_of_support')}."
    )


def _partially_observed(audit: Audit) -> list[str]:
    """Sentences on a partially observable environment: consistency of revisits, and determined steps. Its dreams cannot be replayed."""
    found, again = audit.with_guard, audit.facts["revisits"]
    texts = []
    if found and "dream_success" in found.rates:
        dream = found.rates["dream_success"]
        texts.append(
            f"With the guard, {_interval(dream)} of dreams succeed; compare the policy's sampled success in the table of results. The "
            "environment is partially observable: unobserved content is sampled, so the paired replay below is not informative."
        )
    texts.append(f"Observed content stays consistent in {_interval(again)} of {again.n} revisits.")
    if determined := audit.facts.get("determined"):
        texts.append(f"Of {determined.n} real steps that history determines, the model predicts {_interval(determined)} exactly.")
    return texts


def _synthetic_tasks(facts: Mapping[str, Rate]) -> str:
    """Novelty and feasibility of the tasks that the curriculum generated."""
    if "new" not in facts or "solved" not in facts:
        return ""
    new, solved, usual = facts["new"], facts["solved"], facts.get("real_solved")
    beside = f", and {percent(usual.value)} % of real training tasks" if usual else ""
    return (
        f"Of {new.n} tasks that the curriculum generated, {percent(new.value)} % are new and well formed. The scripted expert solves "
        f"{_interval(solved)} of the accepted ones in the real environment{beside}."
    )


def _gap(found: Fidelity) -> str:
    dream, real = found.rates.get("dream_success"), found.rates.get("real_success")
    if dream is None or real is None:
        return ""
    gap = dream.value - real.value if found.gap is None else found.gap
    rates = f"{percent(dream.value)} % in the dream and {percent(real.value)} % in the real environment"
    start = f"With the guard, success is {rates}, a gap of {points(gap)}"
    if dream.n < FEW:
        return f"{start}; {dream.n} episodes are too few to interpret it."
    if abs(gap) <= WITHIN:
        return f"{start}, within {100 * WITHIN:.0f} points: on such tasks, success in this dream estimates real success."
    wrong = "overstates" if gap > 0 else "understates"
    return f"{start}, more than {100 * WITHIN:.0f} points: this dream {wrong} success and is no basis for choosing a policy."


def _difference(guarded: Fidelity, bare: Fidelity) -> str:
    """The effect of the guard."""
    texts = []
    if guarded.gap is not None and bare.gap is not None and "dream_success" in guarded.rates:
        texts.append(f"the gap is {points(bare.gap)} instead of {points(guarded.gap)}")
    before, after = bare.rates.get("false_success"), guarded.rates.get("false_success")
    if before and after:
        texts.append(f"{percent(before.value)} % of real failures are called successes instead of {percent(after.value)} %")
    return f"Without the guard, {', and '.join(texts)}." if texts else ""


def early_stops(run: Run) -> list[str]:
    """The RL phases that stopped early, with the reason."""
    return [f"{row.label}: stopped early, {why}." for name, row in run.loops.items() if (why := block(run.phases, name).get("stop_reason"))]


def determinism(run: Run) -> list[str]:
    """How deterministic the environment is by its logs: what recall rests on, of the first phase with RL in a dream."""
    found = next((found for name in run.loops if (found := block(run.phases, name).get("recall"))), ())
    alone = found and block(run.phases, "logs").get("behaviours") == 1
    return ["All logged episodes are by one policy: nothing is known of states that it does not reach."] * bool(alone) + [
        f"Of logged steps that {CLASSES[one['outcome_class']]}, precedents with {SITUATIONS[one['situation']]} predict "
        f"{_interval(wilson(one['right'], one['predicted']))} of {one['predicted']:,} exactly; they "
        + ("answer in place of the model." if one["used"] else f"are not used: {why_unused(one['right'], one['predicted'])}.")
        for one in found
        if one["predicted"]
    ]


MOST_CONDITIONS = 12  # of an answer that are listed
MOST_WAITS = 6  # answers that are listed, those with most predicted steps


class Waits(NamedTuple):
    """An answer that stays as long as one of some conditions holds."""

    sentence: str
    conditions: Sequence[Mapping[str, Any]]
    """`line`, `shown_by`, `until` and `rows` of each, as `experience.conditions` writes them."""


def waits(run: Run) -> list[Waits]:
    """The answers that follow from conditions mined from the logs, of the first phase with RL in a dream."""
    found = next((found for name in run.loops if (found := block(run.phases, name).get("conditions"))), ())
    first = sorted(found, key=lambda one: -one["predicted"])[:MOST_WAITS]
    more = len(found) - len(first)
    return [
        Waits(
            f"{one['action']} {_answer(one)} while one of {len(one['conditions'])} conditions holds. Those mined from other tasks predict "
            f"{_interval(wilson(one['right'], one['predicted']))} of {one['predicted']:,} logged steps.{_other(one)}",
            one["conditions"][:MOST_CONDITIONS],
        )
        for one in first
    ] + [Waits(f"Conditions are established for {more} more answer{'s' * (more > 1)}.", ())] * bool(more)


def _other(one: Mapping[str, Any]) -> str:
    """What is answered once none of the conditions holds any more; "" where that is left to the model."""
    other = one.get("other")
    if not other:
        return ""
    right = _interval(wilson(other["right"], other["predicted"]))
    return f" Once none of them holds any more, it {_answer({**one, 'ends': False, **other})}: {right} of {other['predicted']:,}."


def _answer(one: Mapping[str, Any]) -> str:
    if one["ends"]:
        return f"ends the episode with reward {one['reward']:g}"
    text = " ".join(one["answer"].split())
    return f"answers {'first ' * one['first_line']}“{text[:120]}{'…' * (len(text) > 120)}”"


def verifiers(run: Run) -> list[str]:
    """The learned verifiers that judged dreams: what their thresholds rest on, and what probes found before a fit had seen them."""
    phases = {row.label: block(run.phases, name) for name, row in run.loops.items()}
    if "verifier" in run.phases and not any("verifier" in phase for phase in phases.values()):
        found = run.phases["verifier"]
        logged = Rate(**found["true_positive_rate"]) if "true_positive_rate" in found else None
        of_logged = f" It accepts {_interval(logged)} of the logged successes that a fit left out." if logged and logged.n else ""
        return [f"Claims of success are judged by a verifier learned from the logs: {found.get('status', NOTHING)}.{of_logged}"]
    real = {row.label: block(block(run.phases, f"eval-{name}"), "verifiers") for name, row in run.loops.items()}
    return [f"{label}: {_verifier(phase['verifier'])}{_of_real(real[label])}" for label, phase in phases.items() if "verifier" in phase]


def _verifier(found: Mapping[str, Any]) -> str:
    start = f"claims of success were judged by a verifier learned from the logs, {block(found, 'calibration').get('status', NOTHING)}"
    rates = {name: Rate(**rate) for name, rate in block(found, "rates").items()}
    if not rates or not rates["claims_true"].n:
        return f"{start}. No claim was tried in the real environment."
    parts = [f"{_interval(rates['claims_true'])} of {found['probes']} probed claims are true"]
    if rates["false_success"].n:
        parts.append(f"it accepted {_interval(rates['false_success'])} of the false ones")
    if rates["true_positive_rate"].n:
        parts.append(f"it kept {_interval(rates['true_positive_rate'])} of the true ones")
    tried = rates.get("tried_accepted_false")  # runs of earlier versions have none
    found_false = (
        f" Of dreamed claims that it accepted and that were tried, {_interval(tried)} had no real success." if tried and tried.n else ""
    )
    return f"{start}. Before it was fitted to them: {', '.join(parts)}.{found_false}"


def _of_real(found: Mapping[str, Any]) -> str:
    """The last verifier, and the one that the logs made, on real episodes of held-out tasks that neither has seen."""
    named = {"logs": "fitted to logs alone", "probes": "fitted to all its probes"}
    parts, n = [], 0
    for name in (one for one in named if one in found):
        rates = {key: Rate(**found[name][key]) for key in ("false_success", "true_positive_rate")}
        n = sum(rate.n for rate in rates.values())
        verbs = {"false_success": "accepts {} of the failures", "true_positive_rate": "keeps {} of the successes"}
        done = [verbs[key].format(_interval(rate)) for key, rate in rates.items() if rate.n]
        parts.append(f"{named[name]}, it {' and '.join(done)}")
    return f" Of {n} real episodes of held-out tasks that the policy ended: {'; '.join(parts)}." if n else ""
