"""Computes the positions and sizes in a horizontal bar chart. templates/report/bars.svg.j2 draws the chart as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pav2gen.bench.reporting.line_chart import Tick

WIDTH, ROOM, THICKNESS, GAP, TITLE = 1040, 270, 15, 5, 22


@dataclass(frozen=True)
class Bar:
    """One bar: its CSS class, its vertical position and its width in SVG units, and the text at its right end.

    title: a text that is shown when the pointer is over the bar.
    """

    style: str
    y: float
    width: float
    text: str
    title: str


@dataclass(frozen=True)
class Title:
    """The text above a group of bars, and its vertical position in SVG units."""

    y: float
    text: str


@dataclass(frozen=True)
class Bars:
    """A bar chart, with the positions and sizes of everything in it, in SVG units.

    title, note: texts above the chart.
    summary: a description for screen readers.
    ticks: the marks on the horizontal axis.
    titles: the texts above the groups of bars.
    """

    id: str
    title: str
    note: str
    summary: str
    ticks: tuple[Tick, ...]
    titles: tuple[Title, ...]
    bars: tuple[Bar, ...]
    height: float
    width: int = WIDTH
    left: int = 0
    thickness: int = THICKNESS


@dataclass(frozen=True)
class BarGroup:
    """Bars that the chart shows together below one title. Each bar is a tuple (label, CSS class, value)."""

    title: str
    bars: tuple[tuple[str, str, float], ...]


def bars(
    identity: str, title: str, note: str, groups: Sequence[BarGroup], show: Callable[[float], str], most: float
) -> Bars:
    """Compute the bar chart of ``groups``. There must be at least one bar.

    identity: the id of the chart in the HTML page.
    title, note: texts above the chart.
    show: a function that formats a bar's value as text.
    most: the value of a bar that has the full width.
    """
    scale = (WIDTH - ROOM) / most
    titles, drawn, y = [], [], 0.0
    for group in groups:
        y += TITLE
        titles.append(Title(y - 7, group.title))
        for label, style, value in group.bars:
            width = max(1.5, round(value * scale, 2))
            drawn.append(
                Bar(style, y, width, f"{show(value)} \N{MIDDLE DOT} {label}", f"{group.title}: {label}, {show(value)}")
            )
            y += THICKNESS + GAP
        y += GAP
    return Bars(
        id=identity,
        title=title,
        note=note,
        summary="; ".join(bar.title for bar in drawn),
        ticks=tuple(Tick(round(most * share * scale, 2), show(most * share)) for share in (0.25, 0.5, 0.75, 1.0)),
        titles=tuple(titles),
        bars=tuple(drawn),
        height=y + 24,
    )
