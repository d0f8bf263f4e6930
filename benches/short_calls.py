"""Times short calls on a CPU in two ways: warm and cold.

* Warm: each contestant is called again and again in a loop of its own. The code of the call stays in the processor's
  caches. K and V do not: the calls read other pages each time, twice the last-level cache altogether.
* Cold: before each call, a copy of four times the last-level cache replaces everything in the caches. So the code and
  the objects of the call come from memory, too.

A call of 16 tokens takes 0.15 ms warm and 0.7 ms cold, so a figure without this word says nothing about a short call.
For a call of 8,192 tokens, the two hardly differ. The caches of a real decode step are between the two: several short
calls with little work between them come close to warm. A layer whose weights are larger than the cache comes close to
cold.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pav2gen.bench.measuring import machine
from pav2gen.bench.measuring.clock import Run
from pav2gen.bench.measuring.problem import Inputs, Problem

#: A problem is short if its sequences have at most this many tokens, and K and V together at most this many bytes.
SHORT_TOKENS, SHORT_BYTES = 1024, 64 << 20

#: Each contestant has LOOPS loops. The loops of all contestants take turns. Each one lasts LOOP_SECONDS, and has at
#: least FEWEST_CALLS calls. The calls in its first fifth are not counted.
LOOPS, LOOP_SECONDS, FEWEST_CALLS = 3, 0.2, 5

#: Cold calls of each contestant.
COLD_CALLS = 25


class Figures(NamedTuple):
    """The times of the calls of one contestant, in milliseconds."""

    warm: tuple[float, ...]
    cold: tuple[float, ...]

    def document(self) -> dict[str, float]:
        """The fields for a JSON document: the minimum and the median of the warm and of the cold calls, in ms."""
        return {
            f"{name}_{what}_ms": round(of(times), 6)
            for name, times in self._asdict().items()
            for what, of in (("min", min), ("median", statistics.median))
        }


def is_short(problem: Problem) -> bool:
    """Whether the calls of a problem are so short that warm and cold times differ."""
    return problem.seq_len <= SHORT_TOKENS and problem.kv_bytes <= SHORT_BYTES


def measure(contestants: Mapping[str, Run], inputs: Inputs, cache_bytes: int) -> dict[str, Figures]:
    """Time short calls of each contestant, warm and cold.

    contestants: functions of a call, by name. inputs: the calls. cache_bytes: the size of the last-level cache.
    """
    calls = [inputs.call(number) for number in range(inputs.count)]
    copy, _ = machine.copy(torch.device("cpu"), cache_bytes)
    warm = _warm(contestants, calls)
    cold = _cold(contestants, calls, lambda: copy(inputs.first))
    return {name: Figures(tuple(warm[name]), tuple(cold[name])) for name in contestants}


def _warm(contestants: Mapping[str, Run], calls: Sequence[Any]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(LOOPS):
        for name, run in contestants.items():
            times[name] += _loop(run, itertools.cycle(calls))
    return times


def _loop(run: Run, calls: Iterable[Any]) -> list[float]:
    """The milliseconds of each call in a loop of ``run``, without its first fifth."""
    taken: list[float] = []
    for call in calls:
        taken.append(_milliseconds(run, call))
        if sum(taken) >= LOOP_SECONDS * 1e3 and len(taken) >= FEWEST_CALLS:
            break
    return taken[len(taken) // 5 :]


def _cold(contestants: Mapping[str, Run], calls: Sequence[Any], flush: Callable[[], object]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order, generator, endless = list(contestants), random.Random(0), itertools.cycle(calls)
    for _ in range(COLD_CALLS):
        generator.shuffle(order)
        for name in order:
            call = next(endless)
            flush()
            times[name].append(_milliseconds(contestants[name], call))
    return times


def _milliseconds(run: Run, call: Any) -> float:
    start = time.perf_counter()
    run(call)
    return (time.perf_counter() - start) * 1e3
