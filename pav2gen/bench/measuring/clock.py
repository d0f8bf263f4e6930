"""Times several functions side by side: each round runs all of them in a random order, on inputs that are not in the
processor's cache.
"""

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

#: A function to time. Its argument is a ``Call`` of decode, or a pair of a decode call and an extend call (``Pair``).
Run = Callable[[Any], object]

#: About the shortest duration of one time sample, in seconds, by the type of the device. A shorter call is repeated (up
#: to MOST_CALLS times) to fill a sample, so that the clock's resolution and the delay of the GPU's launch queue do not
#: matter.
SAMPLE_SECONDS = {"cpu": 2e-4, "cuda": 2e-3}

MOST_CALLS = 1000

#: A baseline whose call takes more seconds than this is sampled only once. Such a baseline is tens of times slower than
#: a kernel, so that more samples of it would take most of the time of the measurement.
SLOW_SECONDS = 0.5


@dataclass(frozen=True)
class Times:
    """The time samples of one function, in milliseconds per call, in the order of measurement."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the samples, in milliseconds."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The interquartile range of the samples, divided by their median.

        The spread is 0 if there is only one sample.
        """
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.median


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Call ``run``, and return how many seconds the call took.

    On a GPU, the time is measured between two CUDA events. On a CPU, it is measured with the wall clock.
    """
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
    """Time several functions in turn, and return a dict from the name of each function to its samples.

    Each round samples every function once. The samples of the first ``warmups`` rounds are dropped, and those of the
    next ``rounds`` rounds are kept. The order within a round is random, but the same in every run of the
    program. Each call of a function takes the next element of ``inputs`` as its argument.

    contestants: the functions by name.
    step: a function to call after each sample, including those of the warm-up rounds.
    once: the names of functions that may be slow. Such a function is sampled only once if a warm-up call takes longer
    than SLOW_SECONDS.
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
    """Return how many calls make a sample long enough (see SAMPLE_SECONDS), if one call takes ``took`` seconds."""
    return max(1, min(MOST_CALLS, round(SAMPLE_SECONDS[device.type] / max(took, 1e-9))))


def _each(run: Run, calls: Iterable[Any]) -> None:
    for call in calls:
        run(call)
