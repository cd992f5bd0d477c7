"""Small charts as inline SVG. Colours come from the page's style sheet by class, so that they follow light and dark.

A value may be missing (None): a line is interrupted there, and nothing is drawn. Legends are HTML, beside the picture, because
text in a picture shrinks with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from dreamgym.statistics import Rate

Point = tuple[float, float | None]
LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 24.0, 36.0  # margins around the plot, in units of the view box
SIZE = (360.0, 210.0)  # of the view box
MOST = 400  # points drawn per line; more are thinned evenly
DOTS = 60  # lines of up to so many points get dots with their value as a tooltip


@dataclass(frozen=True)
class Series:
    """One line, or one layer of a stack. `tone` is the class that colours it."""

    name: str
    points: Sequence[Point]
    tone: str
    spans: Mapping[float, tuple[float, float]] = field(default_factory=dict)  # x -> interval, drawn as a whisker
    dashed: bool = False

    @property
    def seen(self) -> list[tuple[float, float]]:
        return [(x, y) for x, y in self.points if y is not None]

    @property
    def bounds(self) -> list[float]:
        """Every height it reaches, intervals included."""
        return [y for _, y in self.seen] + [bound for span in self.spans.values() for bound in span]


@dataclass(frozen=True)
class Chart:
    """A picture with the words around it."""

    title: str
    note: str
    legend: Sequence[tuple[str, str]]  # (name, tone)
    svg: Markup


@dataclass(frozen=True)
class Axes:
    """What the two directions mean, and where values lie in the picture."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float
    height: float
    log: bool = False
    unit: float = 1.0  # 100 shows shares as per cent

    def at(self, x: float, y: float) -> tuple[float, float]:
        low, high = (math.log10(value) for value in self.y) if self.log else self.y
        up = ((math.log10(max(y, self.y[0])) if self.log else y) - low) / (high - low)
        right = (x - self.x[0]) / (self.x[1] - self.x[0])
        return LEFT + right * (self.width - LEFT - RIGHT), self.height - BOTTOM - up * (self.height - TOP - BOTTOM)


def lines(
    title: str,
    series: Iterable[Series],
    *,
    x_label: str,
    y_label: str,
    note: str = "",
    unit: float = 1.0,
    log: bool = False,
    include: Sequence[tuple[float, float]] = (),
    size: tuple[float, float] = SIZE,
) -> Chart | None:
    """Lines over one another; None when there is nothing to draw. The axes reach to every point of `include`, drawn or not."""
    drawn = [s for s in series if s.seen]
    values = [bound for s in drawn for bound in s.bounds]
    if log:
        values = [value for value in values if value > 0]
    if not values:
        return None
    xs = [x for s in drawn for x, _ in s.points] + [x for x, _ in include]
    axes = Axes(_range(xs), _domain([*values, *(y for _, y in include)], log), *size, log, unit)
    body = _frame(axes, x_label, y_label) + Markup("").join(_line(s, axes) for s in drawn)
    return Chart(title, note, [(s.name, s.tone) for s in drawn], _svg(body, size, f"{title}, {y_label} by {x_label}"))


def stack(title: str, layers: Iterable[Series], *, x_label: str, y_label: str, note: str = "") -> Chart | None:
    """Counts piled up per x, the first layer at the bottom; None when there is nothing to draw."""
    drawn = [s for s in layers if any(y for _, y in s.seen)]
    if not drawn:
        return None
    xs = sorted({x for s in drawn for x, _ in s.seen})
    xs = xs[:: math.ceil(len(xs) / MOST)]
    by_x = [dict(s.seen) for s in drawn]
    top = max(sum(found.get(x, 0.0) for found in by_x) for x in xs)
    step = min((b - a for a, b in pairwise(xs)), default=1.0)
    axes = Axes((xs[0] - step / 2, xs[-1] + step / 2), _domain([0.0, top], False), *SIZE)
    bars = Markup("").join(_bar(x, step, drawn, by_x, axes) for x in xs)
    return Chart(
        title,
        note,
        [(s.name, s.tone) for s in drawn],
        _svg(_frame(axes, x_label, y_label) + bars, SIZE, f"{title}, {y_label} by {x_label}"),
    )


def interval(rate: Rate, scale: float, tone: str) -> Markup:
    """A rate as a dot in its interval, on a bar from 0 to `scale`."""
    width, middle = 120.0, 7.0
    value, low, high = (4 + min(1.0, v / scale) * (width - 8) for v in (rate.value, rate.low, rate.high))
    body = (
        _tag("line", x1=0, x2=width, y1=middle, y2=middle, class_="track")
        + _tag("line", x1=low, x2=high, y1=middle, y2=middle, class_=f"span {tone}")
        + _tag("circle", cx=value, cy=middle, r=3.5, class_=f"dot {tone}")
    )
    text = f"{100 * rate.value:.1f} %, between {100 * rate.low:.1f} and {100 * rate.high:.1f}"
    return _tag("svg", body, class_="interval", viewBox=f"0 0 {width:g} {2 * middle:g}", role="img", aria_label=text)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis: powers of ten, with 2 and 5 between them when there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    return [m * 10.0**p for p in powers for m in marks if low * 0.999 <= m * 10.0**p <= high * 1.001]


def _range(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    low, high = min(found), max(found)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _domain(values: Sequence[float], log: bool) -> tuple[float, float]:
    """The range from 0, or below it, to a round number above the largest value; with `log`, a little around the values."""
    low, high = min(values), max(values)
    if log:
        return low / 1.15, high * 1.15
    low = min(0.0, low)
    high = high if high > low else low + 1.0
    step = _step(low, high)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _step(low: float, high: float) -> float:
    marks = ticks(low, high)
    return marks[1] - marks[0] if len(marks) > 1 else high - low


def _frame(axes: Axes, x_label: str, y_label: str) -> Markup:
    """Grid, numbers and names of both directions."""
    right, bottom = axes.width - RIGHT, axes.height - BOTTOM
    marks = _decades(*axes.y) if axes.log else ticks(*axes.y)
    say = _saying([mark * axes.unit for mark in marks])
    parts = [_tag("text", y_label, x=2, y=11, class_="name")]
    for mark in marks:
        _, y = axes.at(axes.x[0], mark)
        parts.append(_tag("line", x1=LEFT, x2=right, y1=y, y2=y, class_="zero" if mark == 0 else "grid"))
        parts.append(_tag("text", say(mark * axes.unit), x=LEFT - 6, y=y + 3.5, text_anchor="end"))
    whole = [mark for mark in ticks(*axes.x, about=5) if abs(mark - round(mark)) < 1e-9]
    for mark in whole:
        x, _ = axes.at(mark, axes.y[0])
        parts.append(_tag("text", _spaced(f"{mark:,.0f}"), x=x, y=bottom + 15, text_anchor="middle"))
    parts.append(_tag("text", x_label, x=right, y=axes.height - 4, text_anchor="end", class_="name"))
    return Markup("").join(parts)


def _saying(values: Sequence[float]) -> Callable[[float], str]:
    """How to write the numbers of an axis: with as many digits as distinguish them."""
    digits = next((d for d in range(5) if all(abs(v - round(v, d)) < 1e-9 for v in values)), 4)
    return lambda value: _spaced(f"{value:,.{digits}f}") if max(map(abs, values), default=0) < 1e5 else f"{value:.0e}"


def _spaced(number: str) -> str:
    return number.replace(",", "\u202f")


def _line(series: Series, axes: Axes) -> Markup:
    points = list(series.points)[:: math.ceil(len(series.points) / MOST)]
    if points[-1] != series.points[-1]:
        points.append(series.points[-1])
    seen = [(x, y) for x, y in points if y is not None and (y > 0 or not axes.log)]
    style = f"line {series.tone}" + (" dashed" if series.dashed else "")
    parts = [_tag("path", d=_path(points, axes), class_=style)]
    for x, (low, high) in sorted(series.spans.items()):
        (at, top), (_, bottom) = axes.at(x, high), axes.at(x, low)
        parts.append(_tag("line", x1=at, x2=at, y1=top, y2=bottom, class_=f"whisker {series.tone}"))
    if len(seen) <= DOTS:
        for x, y in seen:
            cx, cy = axes.at(x, y)
            span = series.spans.get(x)
            label = f"{series.name}, {x:g}: {_value(y, axes)}" + (f" [{_value(span[0], axes)}, {_value(span[1], axes)}]" if span else "")
            parts.append(_tag("circle", _tag("title", label), cx=cx, cy=cy, r=3.5 if series.spans else 1.8, class_=f"dot {series.tone}"))
    return Markup("").join(parts)


def _value(value: float, axes: Axes) -> str:
    return f"{100 * value:.1f} %" if axes.unit == 100 else f"{value:.4g}"


def _path(points: Iterable[Point], axes: Axes) -> str:
    """Runs of neighbouring values joined, gaps left open."""
    parts, pen = [], "M"
    for x, y in points:
        if y is None or (axes.log and y <= 0):
            pen = "M"
            continue
        parts.append("{}{:.1f} {:.1f}".format(pen, *axes.at(x, y)))
        pen = "L"
    return "".join(parts)


def _bar(x: float, step: float, layers: Sequence[Series], by_x: Sequence[Mapping[float, float]], axes: Axes) -> Markup:
    parts, base = [], 0.0
    left, right = axes.at(x - 0.42 * step, 0)[0], axes.at(x + 0.42 * step, 0)[0]
    for layer, found in zip(layers, by_x, strict=True):
        value = found.get(x, 0.0)
        if value > 0:
            top, bottom = axes.at(x, base + value)[1], axes.at(x, base)[1]
            label = _tag("title", f"{layer.name}, {x:g}: {value:g}")
            parts.append(_tag("rect", label, x=left, y=top, width=right - left, height=bottom - top, class_=f"fill {layer.tone}"))
            base += value
    return Markup("").join(parts)


def _svg(body: Markup, size: tuple[float, float], label: str) -> Markup:
    return _tag("svg", body, class_="chart", viewBox=f"0 0 {size[0]:g} {size[1]:g}", role="img", aria_label=label)


def _tag(name: str, *children: str, **attributes: Any) -> Markup:
    """An element. `class_` is class, other underscores are hyphens; everything that is not Markup is escaped."""
    written = Markup("").join(Markup(' {}="{}"').format(_attribute(key), _plain(value)) for key, value in attributes.items())
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, Markup("").join(children))


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _plain(value: Any) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
