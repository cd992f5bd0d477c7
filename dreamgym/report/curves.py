"""Which charts a run gets: success in dream and reality first, then small multiples of what training looked like inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from dreamgym.report.charts import Chart, Series, lines, stack
from dreamgym.report.data import LOOPS, POLICIES, Run, block, number

WIDE = (540.0, 290.0)
TONES = {"dream": "dream", "s2r": "real", "real_only": "gold", "mixed": "teal"}
WORLDS = {"dream": ("in the dream", "dream"), "mixed": ("in the dream and the real environment", "teal")}
SEGMENTS = {"loss_start": "mute", "loss_reasoning": "dream", "loss_state": "real", "loss_reward": "teal", "loss_task": "gold"}
GROUPS = {"mixed": "teal", "failed": "mute", "succeeded": "gold", "even": "pink", "single": "bad"}
PROPOSALS = {"accepted": "teal", "duplicate": "mute", "impossible": "gold", "malformed": "pink", "held_out": "bad"}

Lines = Sequence[Mapping[str, Any]]


def practice(run: Run) -> list[Chart]:
    """Success per iteration of every loop, on one scale, and for a dream how true it was."""
    told = {name: (_training(name, run.lines[name]), _probes(run.lines[name])) for name in LOOPS if run.lines.get(name)}
    highest = max((bound for pair in told.values() for series in pair for bound in series.bounds), default=0.0)
    found: list[Chart | None] = []
    for name, pair in told.items():
        found.append(
            lines(
                f"{POLICIES[name][1]}: success in training",
                pair,
                x_label="iteration",
                y_label="success, % of episodes",
                unit=100,
                include=[(pair[0].points[0][0], highest)],
                note="Whiskers are 95 % intervals of the real probes." if pair[1].spans else "",
                size=WIDE,
            )
        )
        found.append(_truth(run.lines[name]))
    return [chart for chart in found if chart]


def details(run: Run) -> list[Chart]:
    """Small multiples."""
    loops = {name: run.lines[name] for name in LOOPS if run.lines.get(name)}
    found = [_experience(run), _imitation(run), _development(run)]
    for key, title, y_label in (
        ("entropy", "Entropy of the policy", "nats per token"),
        ("grad_norm", "Gradient norm", "norm before clipping"),
        ("length", "Episode length", "steps per episode"),
    ):
        series = [Series(POLICIES[name][1], _points(told, key), TONES[name]) for name, told in loops.items()]
        found.append(lines(title, series, x_label="iteration", y_label=y_label))
    for name, told in loops.items():
        layers = [Series(kind, _points(told, f"groups_{kind}"), tone) for kind, tone in GROUPS.items()]
        note = "Only mixed groups teach."
        found.append(stack(f"Groups: {POLICIES[name][1]}", layers, x_label="iteration", y_label="groups per iteration", note=note))
    found += [_choices(loops), _curriculum_share(loops), _proposals(loops), _growth(loops)]
    return [chart for chart in found if chart]


def _points(told: Lines, key: str) -> list[tuple[float, float | None]]:
    return [(float(line["iteration"]), number(line.get(key))) for line in told]


def _present(told: Lines, key: str) -> list[tuple[float, float | None]]:
    """Without the iterations that did not measure it, so that rare measurements are joined."""
    return [(x, y) for x, y in _points(told, key) if y is not None]


def _training(name: str, told: Lines) -> Series:
    where, tone = WORLDS.get(name, ("in the real environment", "real"))
    return Series(f"training episodes {where}", _points(told, "success"), tone)


def _probes(told: Lines) -> Series:
    """Real success of the policy while it dreams."""
    spans = {}
    for line in told:
        low, high = number(line.get("probe_real_low")), number(line.get("probe_real_high"))
        if low is not None and high is not None:
            spans[float(line["iteration"])] = (low, high)
    points = _present(told, "probe_real_success")
    return Series("real probes on the same tasks", points, "real", {x: spans[x] for x, _ in points if x in spans})


def _truth(told: Lines) -> Chart | None:
    """What the gap meter found."""
    names = {
        "gap": ("gap, dream minus real", "dream"),
        "false_success": ("false success", "bad"),
        "false_failure": ("false failure", "teal"),
    }
    series = [Series(label, _present(told, key), tone) for key, (label, tone) in names.items()]
    note = "From the probes. False success: of episodes that really fail, those dreamed as a success."
    ends = [(float(line["iteration"]), 0.0) for line in told]
    return lines("Is the dream true?", series, x_label="iteration", y_label="% (gap: points)", unit=100, include=ends, note=note, size=WIDE)


def _experience(run: Run) -> Chart | None:
    told = run.lines.get("experience", ())
    series = [Series(key.removeprefix("loss_"), _present(told, key), tone) for key, tone in SEGMENTS.items()]
    if not any(s.points for s in series):
        series = [Series("loss", _present(told, "loss"), "dream")]
    return lines("Experience model: loss by segment", series, x_label="optimiser step", y_label="nats per token, log scale", log=True)


def _imitation(run: Run) -> Chart | None:
    names = {"warm": ("warm start", "mute"), "sft": ("SFT", "dream")}
    series = [Series(label, _present(run.lines.get(key, ()), "loss"), tone) for key, (label, tone) in names.items()]
    return lines("Imitation: loss", series, x_label="optimiser step", y_label="nats per token, log scale", log=True)


def _development(run: Run) -> Chart | None:
    curve = [line | {"iteration": line["epoch"]} for line in block(run.phases, "sft").get("curve") or () if "epoch" in line]
    series = [Series("greedy", _points(curve, "greedy"), "real"), Series("sampled", _points(curve, "sampled"), "gold")]
    return lines("SFT: real success on development tasks", series, x_label="epoch", y_label="success, % of episodes", unit=100)


def _choices(loops: Mapping[str, Lines]) -> Chart | None:
    """Whether the curriculum finds what teaches: averaged over ten iterations, because each has few groups of a kind."""
    told = _dreaming(loops)
    kinds = {"again": ("came again", "dream"), "fresh": ("fresh", "mute"), "invented": ("invented", "gold")}
    series = [Series(label, _averaged(_present(told, f"mixed_{kind}"), 10), tone) for kind, (label, tone) in kinds.items()]
    note = "Tasks whose rollouts differed, by why they were chosen."
    return lines("Mixed groups", series, x_label="iteration", y_label="% of groups, mean of ten", unit=100, note=note)


def _dreaming(loops: Mapping[str, Lines]) -> Lines:
    """The loop that invents tasks: a run has one."""
    return next((told for name, told in loops.items() if name in WORLDS), ())


def _averaged(points: Sequence[tuple[float, float | None]], width: int) -> list[tuple[float, float | None]]:
    """The mean of every `width` points in a row, at the place of the last."""
    found = [points[max(0, i + 1 - width) : i + 1] for i in range(len(points))]
    return [(window[-1][0], sum(y for _, y in window if y is not None) / len(window)) for window in found]


def _curriculum_share(loops: Mapping[str, Lines]) -> Chart | None:
    series = [Series(POLICIES[n][1], _points(told, "synthetic_share"), TONES[n]) for n, told in loops.items() if n in WORLDS]
    return lines("Rollouts on invented tasks", series, x_label="iteration", y_label="% of rollouts", unit=100)


def _proposals(loops: Mapping[str, Lines]) -> Chart | None:
    layers = [Series(_spoken(why), _points(_dreaming(loops), f"tasks_{why}"), tone) for why, tone in PROPOSALS.items()]
    return stack("Invented tasks", layers, x_label="iteration", y_label="proposals per iteration", note="Accepted, or refused by reason.")


def _growth(loops: Mapping[str, Lines]) -> Chart | None:
    series = [
        Series(POLICIES[name][1], _summed(_present(told, "remembered")), TONES[name])
        for name, told in loops.items()
        if any("remembered" in line for line in told)
    ]
    return lines("Replay buffer: rows added to the logs", series, x_label="iteration", y_label="transitions, cumulative")


def _summed(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    found = list(points)
    return list(zip((x for x, _ in found), accumulate(y or 0.0 for _, y in found), strict=True))


def _spoken(name: str) -> str:
    return name.replace("_", " ")
