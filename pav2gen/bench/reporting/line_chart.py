"""Computes the scales, ticks, paths and labels of a line chart. templates/report/chart.svg.j2 draws the chart as SVG.

Both axes are logarithmic, because times, sizes and lengths span orders of magnitude. Equal ratios then have equal
distances on the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 520, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 132, 14, 44

#: The least vertical distance between two labels at the right edge of a line chart, in SVG units.
LABEL_HEIGHT = 16

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """The data of one line in a chart: its label, its CSS class, and its points (x, y), as values on the two axes.

    area: whether to shade the area below the line.
    bare: whether to draw the line without marks and without its label.
    """

    label: str
    style: str
    points: tuple[Point, ...]
    area: bool = False
    bare: bool = False


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its position in SVG units, and its text."""

    at: float
    label: str


@dataclass(frozen=True)
class Label:
    """The label of a line in a chart, at the position (x, y). The line ends at (from_x, from_y).

    A label can be higher or lower than the end of its line, so that labels do not overlap.
    """

    text: str
    style: str
    x: float
    y: float
    from_x: float
    from_y: float


@dataclass(frozen=True)
class Mark:
    """A marked point of a line, in SVG units, and the text that is shown when the pointer is over the point."""

    x: float
    y: float
    title: str


@dataclass(frozen=True)
class Line:
    """A line as it is drawn: its CSS class, its SVG path, the SVG path of the shaded area below it, and its marks.

    The path ``area`` is empty if no area is shaded.
    """

    style: str
    path: str
    area: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Heading:
    """The texts above a chart: a title, and a note about what was measured, such as the batch and the device."""

    title: str
    note: str


@dataclass(frozen=True)
class Chart:
    """A line chart, with the positions of everything in it, in SVG units.

    summary: a description for screen readers.
    prediction: whether the chart shows predicted times, not measured ones.
    """

    id: str
    title: str
    note: str
    summary: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]
    prediction: bool = False
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    top: int = TOP
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of a chart.

    The axis shows the values from ``low`` to ``high`` at the SVG positions from ``begin`` to ``end``.
    """

    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        """Return the SVG position of ``value`` on this axis."""
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return round(self.begin + share * (self.end - self.begin), 2)


@dataclass(frozen=True)
class Quantity:
    """What the vertical axis of a chart shows, such as the time of a call.

    name: the axis's title.
    show: a function that formats a value as text.
    ticks: a function that takes an axis and returns the values to mark on it.
    """

    name: str
    show: Callable[[float], str]
    ticks: Callable[[Axis], list[float]]


def chart(
    identity: str, heading: Heading, series: Sequence[Series], quantity: Quantity, prediction: bool = False
) -> Chart:
    """Compute the line chart of ``quantity`` over the number of tokens in a sequence.

    Series without points are left out. At least one series must have points.

    identity: the id of the chart in the HTML page.
    prediction: whether the series are predicted times, not measured ones.
    """
    drawn = [each for each in series if each.points]
    xs = [x for each in drawn for x, _ in each.points]
    ys = [y for each in drawn for _, y in each.points]
    x_axis = Axis(min(xs) / 1.15, max(xs) * 1.15, LEFT, WIDTH - RIGHT)
    y_axis = Axis(min(ys) / 1.5, max(ys) * 1.5, HEIGHT - BOTTOM, TOP)
    return Chart(
        id=identity,
        title=heading.title,
        note=heading.note,
        summary=summary(drawn, quantity.show),
        x_label="tokens in a sequence",
        y_label=quantity.name,
        x_ticks=tuple(Tick(x_axis.place(x), tokens(x)) for x in thinned(sorted(set(xs)), x_axis)),
        y_ticks=tuple(Tick(y_axis.place(y), quantity.show(y)) for y in quantity.ticks(y_axis)),
        lines=tuple(_line(each, x_axis, y_axis, quantity.show) for each in drawn),
        labels=tuple(labels(drawn, x_axis, y_axis)),
        prediction=prediction,
    )


def _line(series: Series, x_axis: Axis, y_axis: Axis, y_format: Callable[[float], str]) -> Line:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in series.points]
    path = "M" + " L".join(f"{x} {y}" for x, y in places)
    first, last = places[0][0], places[-1][0]
    area = f"{path} L{last} {y_axis.begin} L{first} {y_axis.begin} Z" if series.area else ""
    shown = () if series.area or series.bare else zip(places, series.points)
    marks = tuple(Mark(*place, f"{series.label}: {y_format(y)} at {tokens(x)} tokens") for place, (x, y) in shown)
    return Line(series.style, path, area, marks)


def labels(series: Sequence[Series], x_axis: Axis, y_axis: Axis) -> Iterable[Label]:
    """Yield the labels at the right ends of the lines, from top to bottom. Series with ``bare`` have no label.

    The labels do not overlap, and stay within the chart.
    """
    named = [each for each in series if not each.bare]
    ends = sorted(((y_axis.place(each.points[-1][1]), each) for each in named), key=lambda end: end[0])
    places: list[float] = []
    for at, _ in ends:
        places.append(max(at, places[-1] + LABEL_HEIGHT if places else TOP + LABEL_HEIGHT / 2))
    lowest = float(HEIGHT - BOTTOM)
    for number in reversed(range(len(places))):
        places[number] = min(places[number], lowest)
        lowest = places[number] - LABEL_HEIGHT
    for place, (at, each) in zip(places, ends):
        end = x_axis.place(each.points[-1][0])
        yield Label(each.label, each.style, WIDTH - RIGHT + 16, round(place, 2), end, at)


def thinned(values: Sequence[float], axis: Axis, room: float = 38) -> list[float]:
    """Return which of ``values`` get a label on ``axis``, so that any two labels are at least ``room`` SVG units apart.

    The last of ``values`` always gets a label.
    """
    kept: list[float] = []
    for value in reversed(values):
        if not kept or abs(axis.place(kept[-1]) - axis.place(value)) >= room:
            kept.append(value)
    return kept[::-1]


def decades(axis: Axis) -> list[float]:
    """Return round values to mark on ``axis``: the powers of ten.

    If fewer than three of them are on the axis, return 1 and 3 times the powers of ten. If fewer than three of those
    are on the axis, return 1, 2 and 5 times the powers of ten.
    """
    exponents = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5)):
        found = [step * 10.0**exponent for exponent in exponents for step in steps]
        inside = [value for value in found if axis.low <= value <= axis.high]
        if len(inside) >= 3:
            break
    return inside


def doublings(axis: Axis) -> list[float]:
    """Return at most six powers of two to mark on ``axis``, with equal distances."""
    low, high = math.ceil(math.log2(axis.low)), math.floor(math.log2(axis.high))
    step = max(1, -(-(high - low + 1) // 6))
    return [2.0**exponent for exponent in range(low, high + 1) if exponent % step == 0]


def summary(series: Sequence[Series], y_format: Callable[[float], str]) -> str:
    """Return a description of a chart in words: the first and the last point of each line that has a label.

    y_format: a function that formats a value of the vertical axis as text.
    """
    parts = [
        f"{each.label}: {y_format(each.points[0][1])} at {tokens(each.points[0][0])} tokens, "
        f"{y_format(each.points[-1][1])} at {tokens(each.points[-1][0])}"
        for each in series
        if not each.bare
    ]
    return "; ".join(parts)


def tokens(value: float) -> str:
    """Return a number of tokens in short form, such as 512, 8K or 100k.

    A number below 1024 is written in full. A multiple of 1024 is written with K, which means 1024. From 1024 * 1024 on,
    it is written with M, which means 1024 * 1024. Any other number is written with k, which means 1000.
    """
    number = round(value)
    if number < 1024:
        return str(number)
    if number % 1024 == 0:
        return f"{number // 1024}K" if number < 1 << 20 else f"{number / (1 << 20):g}M"
    return f"{number / 1000:.4g}k"


def milliseconds(value: float) -> str:
    """Return a time, given in milliseconds, as text in microseconds, milliseconds or seconds."""
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms" if value >= 0.1 else f"{value * 1000:.3g} \N{MICRO SIGN}s"


def percent(share: float) -> str:
    """Return a fraction as text in percent: 0.25 gives ``25 %``."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def memory(value: float) -> str:
    """Return a number of bytes as text in B, KiB, MiB or GiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


TIME = Quantity("time of a call", milliseconds, decades)
PREDICTED_TIME = Quantity("predicted time of a call", milliseconds, decades)
WORKSPACE = Quantity("workspace of a call", memory, doublings)
