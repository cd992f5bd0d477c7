"""What the numbers say, in words. Nothing is claimed that the numbers of this run do not carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dreamgym.evals.success import Rate
from dreamgym.report.data import LOOPS, POLICIES, Audit, Fidelity, Run, block, number

WITHIN = 0.10  # a gap up to this is small enough to read dream success as real success
FEW = 30  # episodes below which no sentence about the gap is worth writing
NOTHING = "–"
GUARD_RULES = {"admissibility": "admissibility", "grounding": "grounding", "mask_disputed": "disputes", "mask_doubtful": "doubts"}
"""Switches of the guard, and what the header calls them. A run from before a switch did without it."""


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


def together(text: str) -> str:
    """A sentence whose numbers are not parted from their units at the end of a line."""
    return text.replace(" %", "\u00a0%").replace(" points", "\u00a0points")


def facts(run: Run) -> list[tuple[str, str]]:
    """The header: what was run, on what, at what cost."""
    summary, config = run.summary, run.config
    seeds = summary.get("seeds") or config.get("seeds") or [config.get("seed", NOTHING)]
    seconds = [found for data in run.phases.values() if (found := number(data.get("seconds"))) is not None]
    memory = number(summary.get("peak_rss_mb"))
    told = [
        ("budget", str(summary.get("budget") or NOTHING)),
        ("commit", str(summary.get("commit") or NOTHING)),
        ("seeds", ", ".join(map(str, seeds))),
        ("time in phases", duration(sum(seconds)) if seconds else NOTHING),
        ("peak memory", f"{memory / 1024:.1f} GiB" if memory else NOTHING),
    ]
    return told + [(name, text) for name, text in _settings(run) if text]


def _settings(run: Run) -> list[tuple[str, str]]:
    config, logs = run.config, block(run.phases, "logs")
    env = block(config, "env")
    options = ", ".join(f"{name} {value}" for name, value in block(env, "options").items())
    asked = block(config, "logs").get("trajectories")
    guard = block(config, "guard")
    rules = [rule for name, rule in GUARD_RULES.items() if guard.get(name)]
    k = block(config, "experience").get("k")
    return [
        ("environment", " ".join(filter(None, (str(env.get("name", "")), f"({options})" if options else "")))),
        ("logs", _offline(logs) if logs else f"{asked} trajectories" if asked else ""),
        ("model", str(block(config, "model").get("size", ""))),
        ("memories shown", "" if k is None else f"{k} a step"),
        ("guard", ", ".join(rules) or "off" if guard else ""),
        *((POLICIES[name][1], _loop(block(config, name))) for name in LOOPS),
        ("practice", _loop(block(config, "rl"))),
    ]


def _offline(logs: Mapping[str, Any]) -> str:
    return f"{count(number(logs.get('trajectories')))} trajectories, {count(number(logs.get('transitions')))} transitions"


def _loop(loop: Mapping[str, Any]) -> str:
    if not loop.get("iterations"):
        return ""
    size = f"{loop['iterations']} iterations of {loop.get('tasks_per_iter', '?')} tasks × {loop.get('group_size', '?')} rollouts"
    lr = number(block(loop, "learner").get("lr"))
    return size + (f", learning rate {lr:g}" if lr else "")


def status(run: Run) -> str:
    """Empty for a finished run; otherwise how far it is."""
    if run.finished:
        return ""
    done = ", ".join(run.phases) or "nothing yet"
    open_phases = [(phase, lines[-1]) for phase, lines in run.lines.items() if phase not in run.phases]
    now = "; ".join(f"{phase} is at iteration {line['iteration']}" for phase, line in open_phases)
    return f"Finished phases: {done}." + (f" In progress: {now}." if now else "")


def headline(run: Run) -> str:
    """What practice in the dream did for success in reality."""
    rows = {row.key: row for row in run.rows}
    before, after = rows.get("warm_start"), rows.get("dream")
    if before is None or after is None or before.greedy is None or after.greedy is None:
        return ""
    change = after.greedy.value - before.greedy.value
    apart = after.greedy.low > before.greedy.high or after.greedy.high < before.greedy.low
    text = (
        f"After practising in the dream, the policy succeeds on {_told(after.greedy)} of held-out real tasks; "
        f"the warm start does on {_told(before.greedy)}. The change is {points(change)}, and the intervals "
        + ("do not overlap." if apart else "overlap, so this run alone does not establish it.")
    )
    if before.sampled and after.sampled:
        text += f" With sampled actions: {percent(before.sampled.value)} % before, {percent(after.sampled.value)} % after."
    online = after.costs["real_transitions_online"]
    if online == 0:
        text += f" The dream took no real training step, and {count(after.costs['real_transitions_probe'])} for probes."
    return text


def _told(rate: Rate) -> str:
    return f"{percent(rate.value)} % [{percent(rate.low)}, {percent(rate.high)}]"


def trust(audit: Audit) -> list[str]:
    """How far the dream may be believed, from the replayed episodes."""
    hides = "revisits" in audit.facts
    return [text for text in (*(_glimpsed(audit) if hides else _replayed(audit)), _invented(audit.facts)) if text]


def _replayed(audit: Audit) -> list[str]:
    """Where dream and reality can be compared step by step."""
    guarded, bare = audit.with_guard, audit.without_guard
    told = [_gap(guarded)] if guarded else []
    if guarded and "consistency" in guarded.rates:
        held = guarded.rates["consistency"]
        told.append(f"Of {held.n} dreamed successes {percent(held.value)} % are real.")
    if guarded and bare:
        told.append(_difference(guarded, bare))
    return [*told, _grounds(audit.facts)]


def _grounds(facts: Mapping[str, Rate]) -> str:
    """Which dreams may be trusted more than others; "" where all of them rest on the same."""
    if not {"precedented", "precedented_exact", "guessing_exact"} <= facts.keys():
        return ""

    def of(kind: str) -> str:
        wrong, exact = facts.get(f"{kind}_false"), facts[f"{kind}_exact"]
        falsely = f", and {_told(wrong)} of {wrong.n} real failures are called successes" if wrong else ""
        return f"{_told(exact)} of next states are right{falsely}"

    share = facts["precedented"]
    return (
        f"{_told(share)} of the dreams rest on real memories throughout: every action in them was really taken by somebody. Of these "
        f"{of('precedented')}; of dreams with a guess in them, {of('guessing')}."
    )


def _glimpsed(audit: Audit) -> list[str]:
    """Of a world that is seen bit by bit: whether it stays one world, and what the model knows. Its dreams cannot be replayed."""
    found, again = audit.with_guard, audit.facts["revisits"]
    told = []
    if found and "dream_success" in found.rates:
        dream = found.rates["dream_success"]
        told.append(
            f"With the guard {_told(dream)} of dreams succeed: compare that with the policy's sampled success in the table of results. "
            "What is seen for the first time is drawn here, so a dream's actions mean something else in the real world, and the replays "
            "below say little."
        )
    told.append(f"A dreamed place that is visited again shows what was seen there in {_told(again)} of {again.n} visits.")
    if settled := audit.facts.get("settled"):
        told.append(f"Of {settled.n} real steps that show nothing for the first time the model predicts {_told(settled)} to the letter.")
    return told


def _invented(facts: Mapping[str, Rate]) -> str:
    """Whether the curriculum invents what is new and can be done."""
    if "new" not in facts or "solved" not in facts:
        return ""
    new, solved, usual = facts["new"], facts["solved"], facts.get("real_solved")
    beside = f", and {percent(usual.value)} % of real training tasks" if usual else ""
    return (
        f"Of {new.n} tasks that the curriculum proposed {percent(new.value)} % were new tasks in the right words; of those accepted "
        f"the scripted expert solves {_told(solved)} in the real environment{beside}."
    )


def _gap(found: Fidelity) -> str:
    dream, real = found.rates.get("dream_success"), found.rates.get("real_success")
    if dream is None or real is None:
        return ""
    gap = dream.value - real.value if found.gap is None else found.gap
    start = f"With the guard the dream reports {percent(dream.value)} % success and reality {percent(real.value)} %, a gap of {points(gap)}"
    if dream.n < FEW:
        return f"{start}; {dream.n} episodes are too few to judge it."
    if abs(gap) <= WITHIN:
        return f"{start}, within {100 * WITHIN:.0f} points: success in this dream may be read as success in reality, on tasks like these."
    wrong = "overstates" if gap > 0 else "understates"
    return f"{start}, more than {100 * WITHIN:.0f} points: this dream {wrong} success, so do not choose a policy by it."


def _difference(guarded: Fidelity, bare: Fidelity) -> str:
    """What the guard is worth."""
    told = []
    if guarded.gap is not None and bare.gap is not None:
        told.append(f"the gap is {points(bare.gap)} instead of {points(guarded.gap)}")
    before, after = bare.rates.get("false_success"), guarded.rates.get("false_success")
    if before and after:
        told.append(f"the dream calls {percent(before.value)} % of really failing episodes a success instead of {percent(after.value)} %")
    return f"Without the guard {', and '.join(told)}." if told else ""


def stops(run: Run) -> list[str]:
    """Loops that ended before their time, and why."""
    return [f"{POLICIES[name][1]}: stopped early, {why}." for name in LOOPS if (why := block(run.phases, name).get("stopped"))]
