"""Writes tuning files. Each measurement is on one line, so that a diff shows exactly the measurements that changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pav2gen.runtime.choice.key import Key
from pav2gen.wording import flow_map

FIRST_LINE = "# What pav2gen tune measured, for pav2gen build to read. Measure again rather than edit."


@dataclass(frozen=True)
class Measured:
    """The measurement of one problem on one backend: the times, and the partition size that was chosen.

    partition_size: the chosen partition size, or 0 if none was chosen.
    ms: for each partition size, the median time of the runs in ms.
    spread: the range of the times of the fastest size in all runs, divided by their median.
    because: the reason why no partition size was chosen. Empty if one was chosen.
    wrong: for each partition size with wrong results, what is wrong.
    """

    num_seqs: int
    max_seq_len: int
    partition_size: int
    ms: Mapping[int, float]
    spread: float
    because: str
    wrong: Mapping[str, str]


@dataclass(frozen=True)
class Group:
    """The measurements of one configuration (``Key``), one backend and one number of KV heads.

    measured: a measurement for each batch size and sequence length.
    """

    key: Key
    backend: str
    kv_heads: int
    measured: list[Measured] = field(default_factory=list)

    def add(self, each: Measured) -> None:
        """Add a measurement to this group."""
        self.measured.append(each)


def write(path: Path, head: Mapping[str, object], groups: Sequence[Group]) -> None:
    """Write a tuning file to ``path`` atomically. A missing folder is created. Raises OSError if writing fails.

    head: the fields at the top of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.write_text(text(head, groups), encoding="utf-8")
    os.replace(aside, path)


def text(head: Mapping[str, object], groups: Sequence[Group]) -> str:
    """Return the YAML text of a tuning file with the fields ``head`` at its top."""
    fields = [f"{name}: {_value(value)}" for name, value in head.items()]
    kernels = [line for group in groups for line in _group(group)]
    return "\n".join([FIRST_LINE, *fields, "kernels:" if kernels else "kernels: []", *kernels]) + "\n"


def _group(group: Group) -> Iterator[str]:
    yield f"  - key: {flow_map(group.key._asdict().items())}"
    yield f"    backend: {group.backend}"
    yield f"    kv_heads: {group.kv_heads}"
    yield from _list("rows", [_row(each) for each in group.measured if not each.because])
    noisy = [_noisy(each) for each in group.measured if each.because]
    if noisy:
        yield from _list("noisy", noisy)
    discarded = [line for each in group.measured for line in _discarded(each)]
    if discarded:
        yield from _list("discarded", discarded)


def _list(name: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"    {name}:" if lines else f"    {name}: []"
    yield from (f"      - {line}" for line in lines)


def _row(each: Measured) -> str:
    choice = [("partition_size", each.partition_size), ("ms", _times(each)), ("spread", f"{each.spread:.4f}")]
    return flow_map([*_call(each), *choice])


def _noisy(each: Measured) -> str:
    return flow_map([*_call(each), ("ms", _times(each)), ("because", _value(each.because))])


def _discarded(each: Measured) -> Iterator[str]:
    for size, why in each.wrong.items():
        yield flow_map([*_call(each), ("partition_size", size), ("because", _value(why))])


def _call(each: Measured) -> list[tuple[str, object]]:
    return [("num_seqs", each.num_seqs), ("max_seq_len", each.max_seq_len)]


def _times(each: Measured) -> str:
    return flow_map((str(size), f"{time:.6f}") for size, time in each.ms.items())


def _value(value: object) -> str:
    """Return a value as YAML text: a number as it is, a string in quotes, and a mapping on one line."""
    if isinstance(value, Mapping):
        return flow_map((name, _value(each)) for name, each in value.items())
    return str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False)
