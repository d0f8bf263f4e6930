"""Fair time: everyone in each round, in changing order, over rotating inputs. The clock is a fake."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pav2gen.bench.measuring import clock
from pav2gen.bench.measuring.clock import Times, interleave

CPU = torch.device("cpu")
CONTESTANTS = ("a", "b", "c")


@pytest.fixture
def ticks(monkeypatch):
    """A clock on which each call takes a millisecond, and what was run."""
    log = []

    def seconds(run, device):
        start = len(log)
        run()
        return 1e-3 * (len(log) - start)

    monkeypatch.setattr(clock, "seconds", seconds)
    return log


def race(log, rounds, warmups=2, step=lambda: None):
    runs = {name: lambda call, name=name: log.append((name, call)) for name in CONTESTANTS}
    return interleave(runs, itertools.cycle(range(5)), CPU, rounds, warmups, step)


def test_all_take_part_in_each_round_and_warm_up_first(ticks):
    steps = []
    times = race(ticks, rounds=6, step=lambda: steps.append(1))
    rounds = [tuple(name for name, _ in ticks[i : i + 3]) for i in range(0, len(ticks), 3)]
    assert len(rounds) == 8 and len(steps) == 24
    assert all(sorted(each) == list(CONTESTANTS) for each in rounds)
    assert len(set(rounds)) > 2, "the order changes"
    assert {name: len(each.samples) for name, each in times.items()} == dict.fromkeys(CONTESTANTS, 6)
    assert all(each.median == pytest.approx(1.0) for each in times.values())


def test_a_slow_baseline_is_sampled_once(ticks, monkeypatch):
    steps = []
    monkeypatch.setattr(clock, "SLOW_SECONDS", 5e-4)  # a call of the clock takes 1e-3
    runs = {name: lambda call, name=name: ticks.append(name) for name in CONTESTANTS}
    times = interleave(runs, itertools.cycle(range(5)), CPU, 6, 2, lambda: steps.append(1), once=["b"])
    assert {name: len(each.samples) for name, each in times.items()} == {"a": 6, "b": 1, "c": 6}
    assert ticks.count("b") == 2 and len(steps) == 24, "it warms up once, and the progress counts on"
    monkeypatch.setattr(clock, "SLOW_SECONDS", 2e-3)
    times = interleave(runs, itertools.cycle(range(5)), CPU, 6, 2, once=["b"])
    assert len(times["b"].samples) == 6


def test_each_call_has_the_next_inputs(ticks):
    race(ticks, rounds=4)
    assert [call for _, call in ticks] == [i % 5 for i in range(len(ticks))]


def test_a_short_call_is_repeated_until_a_sample_is_long_enough(ticks, monkeypatch):
    monkeypatch.setitem(clock.SAMPLE_SECONDS, "cpu", 4e-3)
    times = race(ticks, rounds=3, warmups=1)
    assert len(ticks) == 3 + 3 * 3 * 4
    assert times["a"].median == pytest.approx(1.0), "per call"


@given(st.floats(0, 10))
def test_the_calls_of_a_sample(took):
    calls = clock.calls_of_a_sample(took, CPU)
    assert 1 <= calls <= clock.MOST_CALLS
    assert calls == 1 or calls * took <= 1.5 * clock.SAMPLE_SECONDS["cpu"] or calls == clock.MOST_CALLS


def test_median_and_spread():
    times = Times((10.0, 1.0, 2.0, 3.0, 4.0))
    assert (times.median, times.spread) == (3.0, pytest.approx((4 - 2) / 3))
    assert (Times((2.0,)).median, Times((2.0,)).spread) == (2.0, 0.0)


def test_a_gpu_is_timed_by_events_on_its_stream(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("synchronize")

        def elapsed_time(self, end):
            return 2.5  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert clock.seconds(lambda: log.append("run"), torch.device("cuda")) == 0.0025
    assert log == ["record", "run", "record", "synchronize"]


def test_the_wall_clock_runs_what_it_times():
    log = []
    assert clock.seconds(lambda: log.append(1), CPU) > 0 and log == [1]
