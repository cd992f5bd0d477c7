"""The charts of a run: success in dream and real environment, then small multiples of training metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from dreamgym.recipes.arms import arm_of, base_arm
from dreamgym.report.charts import Chart, Series, lines, stack
from dreamgym.report.data import Run, block, number

WIDE = (540.0, 290.0)
TONES = {"dream": "dream", "s2r": "real", "real_only": "gold", "real_equal": "gold", "mixed": "teal"}
WHERE = {
    "dream": ("in the dream", "dream"),
    "real": ("in the real environment", "real"),
    "mixed": ("in the dream and the real environment", "teal"),
}
SEGMENTS = {"loss_start": "mute", "loss_reasoning": "dream", "loss_state": "real", "loss_reward": "teal", "loss_task": "gold"}
GROUPS = {"mixed": "teal", "unsolved": "mute", "solved": "gold", "even": "pink", "single": "bad"}
PROPOSALS = {"accepted": "teal", "duplicate": "mute", "impossible": "gold", "malformed": "pink", "held_out": "bad", "unsupported": "real"}

COLOURS = ("dream", "real", "gold", "teal", "pink", "mute", "bad")

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Loop:
    """An RL phase and how its lines are drawn."""

    name: str
    label: str
    tone: str
    records: Lines

    @property
    def dreams(self) -> bool:
        return arm_of(self.name).source != "real"


def success(run: Run) -> list[Chart]:
    """Success per iteration of every RL phase on one scale, and the gap of dreams."""
    series = [(loop, (_training(loop), _probes(loop.records))) for loop in _loops(run)]
    highest = max((bound for _, pair in series for one in pair for bound in one.bounds), default=0.0)
    found: list[Chart | None] = []
    for loop, pair in series:
        found.append(
            lines(
                f"{loop.label}: success in training",
                pair,
                x_label="iteration",
                y_label="success, % of episodes",
                unit=100,
                include=[(pair[0].points[0][0], highest)],
                note="Whiskers are 95 % intervals of the real probes." if pair[1].spans else "",
                size=WIDE,
            )
        )
        found.append(_gap(loop.records))
    return [chart for chart in found if chart]


def details(run: Run) -> list[Chart]:
    """The small multiples of training metrics."""
    loops = _loops(run)
    found = [_experience(run), _imitation(run), _development(run)]
    for key, title, y_label in (
        ("entropy", "Entropy of the policy", "nats per token"),
        ("grad_norm", "Gradient norm", "norm before clipping"),
        ("episode_length", "Episode length", "steps per episode"),
    ):
        found.append(lines(title, [_series(loop, key) for loop in loops], x_label="iteration", y_label=y_label))
    for loop in loops:
        layers = [Series(kind, _points(loop.records, f"groups_{kind}"), tone) for kind, tone in GROUPS.items()]
        note = "Only mixed groups have a gradient."
        found.append(stack(f"Groups: {loop.label}", layers, x_label="iteration", y_label="groups per iteration", note=note))
    found += [_mixed_groups(loops), _curriculum_share(loops), _proposals(loops), _growth(loops)]
    return [chart for chart in found if chart]


def _loops(run: Run) -> list[Loop]:
    """The RL phases with lines, each in a colour of its own while there are enough."""
    found = list[Loop]()
    for name, row in run.loops.items():
        if run.lines.get(name):
            used = {loop.tone for loop in found}
            tone = next((tone for tone in (TONES[base_arm(name)], *COLOURS) if tone not in used), TONES[base_arm(name)])
            found.append(Loop(name, row.label, tone, run.lines[name]))
    return found


def _series(loop: Loop, key: str) -> Series:
    return Series(loop.label, _points(loop.records, key), loop.tone)


def _points(records: Lines, key: str) -> list[tuple[float, float | None]]:
    return [(float(line["iteration"]), number(line.get(key))) for line in records]


def _measured(records: Lines, key: str) -> list[tuple[float, float | None]]:
    """The points of a metric without the iterations that did not measure it, so that rare measurements are joined."""
    return [(x, y) for x, y in _points(records, key) if y is not None]


def _training(loop: Loop) -> Series:
    where, tone = WHERE[arm_of(loop.name).source]
    return Series(f"training episodes {where}", _points(loop.records, "success"), tone)


def _probes(records: Lines) -> Series:
    """Real success of the policy during training in the dream."""
    spans = {}
    for line in records:
        low, high = number(line.get("probe_real_low")), number(line.get("probe_real_high"))
        if low is not None and high is not None:
            spans[float(line["iteration"])] = (low, high)
    points = _measured(records, "probe_real_success")
    return Series("real probes on the same tasks", points, "real", {x: spans[x] for x, _ in points if x in spans})


def _gap(records: Lines) -> Chart | None:
    """What the probes measured."""
    names = {
        "gap": ("gap, dream minus real", "dream"),
        "false_success": ("false success", "bad"),
        "false_failure": ("false failure", "teal"),
    }
    series = [Series(label, _measured(records, key), tone) for key, (label, tone) in names.items()]
    note = "From the probes. False success: of real failures, the share that the dream calls a success."
    ends = [(float(line["iteration"]), 0.0) for line in records]
    return lines(
        "Gap and false success", series, x_label="iteration", y_label="% (gap: points)", unit=100, include=ends, note=note, size=WIDE
    )


def _experience(run: Run) -> Chart | None:
    records = run.lines.get("experience", ())
    series = [Series(key.removeprefix("loss_"), _measured(records, key), tone) for key, tone in SEGMENTS.items()]
    if not any(s.points for s in series):
        series = [Series("loss", _measured(records, "loss"), "dream")]
    return lines("Experience model: loss by segment", series, x_label="optimiser step", y_label="nats per token, log scale", log=True)


def _imitation(run: Run) -> Chart | None:
    names = {"warm_start": ("warm start", "mute"), "sft": ("SFT", "dream")}
    series = [Series(label, _measured(run.lines.get(key, ()), "loss"), tone) for key, (label, tone) in names.items()]
    return lines("Imitation: loss", series, x_label="optimiser step", y_label="nats per token, log scale", log=True)


def _development(run: Run) -> Chart | None:
    curve = [line | {"iteration": line["epoch"]} for line in block(run.phases, "sft").get("curve") or () if "epoch" in line]
    series = [Series("greedy", _points(curve, "greedy"), "real"), Series("sampled", _points(curve, "sampled"), "gold")]
    return lines("SFT: real success on development tasks", series, x_label="epoch", y_label="success, % of episodes", unit=100)


def _mixed_groups(loops: Sequence[Loop]) -> Chart | None:
    """The share of groups with a gradient by kind of task, averaged over ten iterations because each has few groups."""
    records = _dream_records(loops)
    kinds = {"replayed": ("replayed", "dream"), "fresh": ("new", "mute"), "synthetic": ("synthetic", "gold")}
    series = [Series(label, _moving_mean(_measured(records, f"mixed_{kind}"), 10), tone) for kind, (label, tone) in kinds.items()]
    note = "Tasks whose rollouts differ, by how they were chosen."
    return lines("Mixed groups", series, x_label="iteration", y_label="% of groups, mean of ten", unit=100, note=note)


def _dream_records(loops: Sequence[Loop]) -> Lines:
    """The first RL phase that generates tasks."""
    return next((loop.records for loop in loops if loop.dreams), ())


def _moving_mean(points: Sequence[tuple[float, float | None]], width: int) -> list[tuple[float, float | None]]:
    """The moving mean of `width` points, at the last of them."""
    found = [points[max(0, i + 1 - width) : i + 1] for i in range(len(points))]
    return [(window[-1][0], sum(y for _, y in window if y is not None) / len(window)) for window in found]


def _curriculum_share(loops: Sequence[Loop]) -> Chart | None:
    series = [_series(loop, "synthetic_share") for loop in loops if loop.dreams]
    return lines("Rollouts on synthetic tasks", series, x_label="iteration", y_label="% of rollouts", unit=100)


def _proposals(loops: Sequence[Loop]) -> Chart | None:
    layers = [Series(_words(why), _points(_dream_records(loops), f"tasks_{why}"), tone) for why, tone in PROPOSALS.items()]
    return stack("Synthetic tasks", layers, x_label="iteration", y_label="proposals per iteration", note="Accepted, or rejected by reason.")


def _growth(loops: Sequence[Loop]) -> Chart | None:
    series = [
        Series(loop.label, _cumulative(_measured(loop.records, "replay_added")), loop.tone)
        for loop in loops
        if any("replay_added" in line for line in loop.records)
    ]
    return lines("Replay buffer: rows added to the logs", series, x_label="iteration", y_label="transitions, cumulative")


def _cumulative(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    found = list(points)
    return list(zip((x for x, _ in found), accumulate(y or 0.0 for _, y in found), strict=True))


def _words(name: str) -> str:
    return name.replace("_", " ")
