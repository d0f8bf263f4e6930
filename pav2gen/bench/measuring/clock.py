"""Times contestants fairly: each round runs all of them in a new order, over inputs that are not in a cache."""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

#: Takes one of the inputs: a decode call, or the pair of calls of an extend problem.
Run = Callable[[Any], object]

#: The shortest sample in seconds. A sample repeats a call for this long, so that the clock's resolution and the launch
#: queue do not matter.
SAMPLE_SECONDS = {"cpu": 2e-4, "cuda": 2e-3}

MOST_CALLS = 1000

#: A baseline that takes longer is sampled once. It is tens of times slower than a kernel, and its rounds would take
#: most of the time.
SLOW_SECONDS = 0.5


@dataclass(frozen=True)
class Times:
    """The samples of a contestant, in milliseconds for a call, in the order of measurement."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The interquartile range of the samples, relative to the median. It is 0 for a single sample."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.median


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Measure how long ``run`` takes: between two events of a GPU's stream, or by the wall clock on a CPU."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleave(
    contestants: Mapping[str, Run],
    inputs: Iterator[Any],
    device: torch.device,
    rounds: int,
    warmups: int,
    step: Callable[[], object] = lambda: None,
    once: Collection[str] = (),
) -> dict[str, Times]:
    """Time ``contestants`` in ``rounds`` rounds, after ``warmups`` calls of each. ``step`` is called after each sample.

    Each call takes the next of ``inputs``. The order of a round is random, but the same in each run. A contestant in
    ``once`` is sampled only once, in the first round, if its first call takes longer than SLOW_SECONDS.
    """
    slow: set[str] = set()
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    calls = dict.fromkeys(contestants, 1)
    order, generator = list(contestants), random.Random(0)
    for number in range(warmups + rounds):
        generator.shuffle(order)
        for name in order:
            if name in slow and number != warmups:
                step()
                continue
            given = list(islice(inputs, calls[name]))
            took = seconds(functools.partial(_each, contestants[name], given), device) / calls[name]
            if number < warmups:
                calls[name] = calls_of_a_sample(took, device)
                if name in once and took > SLOW_SECONDS:
                    slow.add(name)
            else:
                samples[name].append(took * 1e3)
            step()
    return {name: Times(tuple(times)) for name, times in samples.items()}


def calls_of_a_sample(took: float, device: torch.device) -> int:
    """The number of calls in a sample, if one call takes ``took`` seconds."""
    return max(1, min(MOST_CALLS, round(SAMPLE_SECONDS[device.type] / max(took, 1e-9))))


def _each(run: Run, calls: Iterable[Any]) -> None:
    for call in calls:
        run(call)
