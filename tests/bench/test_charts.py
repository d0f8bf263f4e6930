"""Charts as numbers: scales that hold their points, ticks that can be read, labels that do not cover one another."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.bench.reporting import line_chart as charts
from pav2gen.bench.reporting.bar_chart import BarGroup, bars
from pav2gen.bench.reporting.line_chart import (
    BOTTOM,
    HEIGHT,
    LABEL_HEIGHT,
    LEFT,
    RIGHT,
    TIME,
    TOP,
    WIDTH,
    WORKSPACE,
    Axis,
    Heading,
    Series,
)

values = st.floats(1e-4, 1e6)
lengths = st.integers(1, 1 << 20)
lines = st.lists(st.lists(st.tuples(lengths, values), min_size=1, max_size=6), min_size=1, max_size=6)
HEADING = Heading("a title", "a note")


def series_of(points):
    ordered = (tuple((float(x), y) for x, y in sorted(dict(each).items())) for each in points)
    return [Series(f"line {number}", f"s{number}", each) for number, each in enumerate(ordered)]


@given(lines)
def test_every_point_lies_within_and_larger_is_higher(points):
    chart = charts.chart("id", HEADING, series_of(points), TIME)
    for line in chart.lines:
        for mark in line.marks:
            assert LEFT <= mark.x <= WIDTH - RIGHT and TOP <= mark.y <= HEIGHT - BOTTOM
        assert [mark.x for mark in line.marks] == sorted(mark.x for mark in line.marks)
    series = series_of(points)
    highest = max((y, number) for number, each in enumerate(series) for _, y in each.points)
    assert min(mark.y for mark in chart.lines[highest[1]].marks) == min(m.y for line in chart.lines for m in line.marks)


@given(lines)
def test_labels_keep_apart_and_within_the_chart(points):
    chart = charts.chart("id", HEADING, series_of(points), TIME)
    places = sorted(label.y for label in chart.labels)
    assert len(places) == len(points) and all(TOP <= place <= HEIGHT - BOTTOM for place in places)
    assert all(later - earlier >= LABEL_HEIGHT - 0.02 for earlier, later in itertools.pairwise(places))


@given(values, st.floats(1.01, 1e6))
def test_an_axis_has_marks_in_rising_order_within(low, factor):
    axis = Axis(low, low * factor, 0, 100)
    for ticks in (charts.decades(axis), charts.doublings(axis)):
        assert ticks == sorted(set(ticks)) and all(low * 0.999 <= tick <= low * factor * 1.001 for tick in ticks)
        assert len(ticks) <= 16


@given(st.lists(lengths, min_size=1, max_size=30, unique=True))
def test_marks_of_lengths_have_room(found):
    axis = Axis(min(found) / 1.15, max(found) * 1.15, 0, 300)
    kept = charts.thinned(sorted(found), axis)
    assert kept[-1] == max(found) and set(kept) <= set(found)
    places = [axis.place(value) for value in kept]
    assert all(later - earlier >= 38 for earlier, later in itertools.pairwise(places))


def test_a_shaded_line_has_no_marks_and_closes_below():
    floor = Series("floor", "floor", ((1000.0, 1.0), (2000.0, 2.0)), area=True)
    chart = charts.chart("id", HEADING, [floor, Series("bare", "b", ((1000.0, 3.0),), bare=True)], TIME)
    (shaded, bare), (label,) = chart.lines, chart.labels
    assert shaded.marks == () and re.fullmatch(r"M\S+ \S+ L\S+ \S+ L\S+ 276 L\S+ 276 Z", shaded.area)
    assert bare.marks == () and bare.area == "" and label.text == "floor"
    assert chart.summary == "floor: 1 ms at 1000 tokens, 2 ms at 2k"


def test_a_line_is_drawn_where_its_points_are():
    chart = charts.chart("id", HEADING, [Series("a", "s", ((1024.0, 1.0), (4096.0, 100.0)))], TIME)
    axis = Axis(1024 / 1.15, 4096 * 1.15, LEFT, WIDTH - RIGHT)
    marks = chart.lines[0].marks
    assert [mark.x for mark in marks] == [axis.place(1024), axis.place(4096)]
    assert marks[0].title == "a: 1 ms at 1K tokens"
    assert [tick.label for tick in chart.x_ticks] == ["1K", "4K"]
    assert [tick.label for tick in chart.y_ticks] == ["1 ms", "10 ms", "100 ms"]


@pytest.mark.parametrize(
    "show, value, text",
    [
        (charts.tokens, 512, "512"), (charts.tokens, 8192, "8K"), (charts.tokens, 100_000, "100k"),
        (charts.tokens, 1 << 20, "1M"), (charts.milliseconds, 0.0123, "12.3 µs"), (charts.milliseconds, 1234, "1.23 s"),
        (charts.milliseconds, 3.456, "3.46 ms"), (charts.memory, 512, "512 B"), (charts.memory, 3 << 19, "1.5 MiB"),
        (charts.memory, 3 << 30, "3 GiB"), (charts.percent, 0.5, "50 %"), (charts.percent, 0.012, "1.2 %"),
    ],
)  # fmt: skip
def test_values_in_words(show, value, text):
    assert show(value) == text


def test_memory_is_marked_by_powers_of_two():
    chart = charts.chart("id", HEADING, [Series("a", "s", ((1.0, float(5 << 20)), (2.0, float(900 << 20))))], WORKSPACE)
    assert all(math.log2(float(tick.label.split()[0])).is_integer() for tick in chart.y_ticks)
    assert 3 <= len(chart.y_ticks) <= 8


def test_bars_are_as_long_as_their_values():
    groups = [BarGroup("one", (("a", "x", 0.5), ("b", "y", 1.0))), BarGroup("two", (("a", "x", 0.0),))]
    drawn = bars("id", "title", "note", groups, charts.percent, 1.0)
    half, whole, none = drawn.bars
    assert whole.width == 2 * half.width and none.width == 1.5, "even nothing can be seen"
    assert [bar.text for bar in drawn.bars] == ["50 % · a", "100 % · b", "0.0 % · a"]
    assert len({bar.y for bar in drawn.bars}) == 3 and drawn.height > none.y
    assert drawn.summary.startswith("one: a, 50 %; one: b, 100 %; two")
