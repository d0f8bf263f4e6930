"""Chooses the kernel for a call from the package's dispatch table, or explains why the table has no suitable kernel.

The choice depends on host values alone, so that a captured CUDA graph stays valid. This module is pure Python, because
the generator uses it too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .waves import cheapest

logger = logging.getLogger("pav2")

#: Bytes of a mebibyte.
MIB = 1 << 20


class Key(NamedTuple):
    """The properties of a call that a kernel must match. Kernels with several partition sizes may have the same key.

    softcap, sliding_window, modification: None means attention without this feature.
    """

    head_size: int
    gqa_ratio: int
    block_size: int
    dtype: str
    kv_cache_dtype: str
    alibi: bool
    blocksparse: bool
    softcap: float | None = None
    sliding_window: int | None = None
    sinks: bool = False
    modification: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the attention has none of the features: no ALiBi, no softcap and so on."""
        return not any(getattr(self, axis) for axis in FEATURES)

    def __str__(self) -> str:
        return " ".join(f"{axis}={_yaml(value)}" for axis, value in self._asdict().items())


#: The fields of a key that change the attention itself. A feature that a call does not use is None or False.
FEATURES = ("alibi", "blocksparse", "softcap", "sliding_window", "sinks", "modification")


def in_order(value: object) -> tuple[bool, object]:
    """A sort key for the values of one field of a ``Key``. None comes first."""
    return value is not None, value


def order_of(key: AnyKey) -> tuple[tuple[bool, object], ...]:
    """A sort key for a ``Key`` or ``CacheKey``."""
    return tuple(map(in_order, key))


class CacheKey(NamedTuple):
    """The properties of a call of ``reshape_and_cache`` that a cache writer must match."""

    head_size: int
    block_size: int
    dtype: str
    kv_cache_dtype: str

    def __str__(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self._asdict().items())


#: Operator -> the type of its keys.
KEYS: Mapping[str, type[Key] | type[CacheKey]] = {"decode": Key, "extend": Key, "cache": CacheKey}

KV_ALIASES = {"fp8": "fp8_e4m3"}

#: For each axis, the values that a kernel can be generated for, and their description.
HEAD_SIZES = (*range(32, 257, 8), 512)
GQA_RATIOS = range(1, 129)
BLOCK_SIZES = (8, 16, 32, 64, 128)
BUILDABLE: Mapping[str, tuple[Collection[object], str]] = {
    "head_size": (HEAD_SIZES, "a multiple of 8 from 32 to 256, or 512"),
    "gqa_ratio": (GQA_RATIOS, "from 1 to 128"),
    "block_size": (BLOCK_SIZES, "8, 16, 32, 64 or 128"),
    "dtype": (("float16", "bfloat16", "float32"), "float16, bfloat16 or float32"),
    "kv_cache_dtype": (("auto", "fp8_e4m3", "fp8_e5m2", "int8"), "auto, fp8_e4m3, fp8_e5m2 or int8"),
}


class Modification(NamedTuple):
    """A modification of attention that a spec defines: its expressions, and the axis of each parameter tensor.

    score, mask: empty if it has none.
    """

    score: str
    mask: str
    tensors: tuple[tuple[str, str], ...]


#: A key of any operator.
AnyKey = Key | CacheKey


#: Whether the host may read the lengths of a call on a GPU (runtime/lengths.py).
HOST_LENGTHS = ("auto", "never")


class Row(NamedTuple):
    """One row of the dispatch table: a kernel's key, its partition size, its sources, and figures of its plan.

    torch, cuda: the PyTorch kernel's module and the CUDA source's path, relative to the package; empty if not built.
    min_seq_len: longer calls prefer V2. fixed_partition: the partition size that the spec prescribes for every call, or
    0. multiprocessors: the number that the spec's target has, 0 if unknown. workspace_mib: the spec's bound of the
    workspace. modification: the definition of the key's modification. host_lengths: whether the host may read the
    lengths of a call on a GPU, one of ``HOST_LENGTHS``. operator: one of ``KEYS``; it determines the type of the key.
    For a cache writer, partition sizes and lengths are 0.

    For an extend kernel, partition_size is the number of keys that a thread block of the CUDA kernel processes, and
    tile_tokens is the number of its query tokens; both are 0 if there is no CUDA kernel. cuda_query_len: calls with
    this max_query_len or less prefer the CUDA kernel.

    These describe the CUDA kernel. resident_blocks: thread blocks that are resident on a multiprocessor.
    saturating_blocks: thread blocks that saturate its bandwidth. blocks_per_group: thread blocks that share the query
    heads of a KV head. empty_tokens: the time of a thread block without tokens, as the number of tokens that a
    multiprocessor processes in that time.
    """

    symbol: str
    spec: str
    key: Any  # the key of its operator: Key, CacheKey
    partition_size: int
    torch: str
    cuda: str
    min_seq_len: int
    fixed_partition: int
    multiprocessors: int
    workspace_mib: int
    modification: Modification | None = None
    operator: str = "decode"
    host_lengths: str = "auto"
    resident_blocks: int = 1
    saturating_blocks: int = 1
    blocks_per_group: int = 1
    empty_tokens: int = 0
    tile_tokens: int = 0
    cuda_query_len: int = 0


class Tuned(NamedTuple):
    """A result of tuning: the row ``symbol`` was the fastest of all rows with its key.

    backend, device, kv_heads, num_seqs, max_seq_len: those of the measured call. The result is used only on a device of
    the same name (``op.device_name``). It is used for calls with at most num_seqs and max_seq_len, and at least half of
    each.
    """

    symbol: str
    backend: str
    device: str
    kv_heads: int
    num_seqs: int
    max_seq_len: int

    def covers(self, num_seqs: int, max_seq_len: int) -> bool:
        """Whether this result is used for a call of this size."""
        return num_seqs <= self.num_seqs < 2 * num_seqs and max_seq_len <= self.max_seq_len < 2 * max_seq_len


class NoKernelError(LookupError):
    """The table has no kernel for a key. The message names the values that differ, and says how to add a kernel."""


#: The largest size of a CUDA grid in y and in z. A kernel's grid has a sequence or a partition for each.
MOST_BLOCKS = 65535

#: A table remembers its choices for up to this many different calls. Then it forgets all of them.
MOST_CHOICES = 4096


class Table:
    """The dispatch rows of one operator of a package, by key, and the results of tuning.

    If two specs have the same key, only the rows of the first one by name are used. files: each spec's file, by the
    spec's name, for messages. rows: of any operators; the table keeps those of ``operator``.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        tuned: Iterable[Tuned] = (),
        files: Mapping[str, str] | None = None,
        operator: str = "decode",
    ) -> None:
        every = tuple(rows)
        self.operator = operator
        self.rows = tuple(row for row in every if row.operator == operator)
        #: The keys that specs build for another attention operator, as keys of this one, and its name and spec.
        self._elsewhere = {
            own_key(row.key, operator): (row.spec, other)
            for other in ("extend", "decode")
            for row in every
            if row.operator == other and isinstance(row.key, Key)
        }
        self._files = files or {}
        #: The definition of each modification by its name.
        self.modifications = {row.key.modification: row.modification for row in self.rows if row.modification}
        self._chosen: dict[tuple[object, ...], Row] = {}
        self._by_key: dict[AnyKey, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (row.spec, order_of(row.key), row.partition_size)):
            served = self._by_key.setdefault(row.key, [])
            if not served or served[0].spec == row.spec:
                served.append(row)
        serving = {row.symbol: row for rows in self._by_key.values() for row in rows}
        self._tuned: dict[tuple[Key, str, str, int], list[Tuned]] = {}
        for entry in sorted(tuned, key=lambda entry: (entry.max_seq_len, entry.num_seqs)):
            if entry.symbol in serving:
                measured = (serving[entry.symbol].key, entry.backend, entry.device, entry.kv_heads)
                self._tuned.setdefault(measured, []).append(entry)

    def serving(self, key: AnyKey) -> Sequence[Row]:
        """The rows of ``key``, sorted by partition size. Raises NoKernelError if there are none."""
        rows = self._by_key.get(key)
        if rows is None:
            if found := self._elsewhere.get(key):
                spec, other = found
                file = self._files.get(spec, f"specs/{spec}.yaml")
                raise NoKernelError(lacks_operator(key, file, self.operator, other))
            served = {key: rows[0].spec for key, rows in self._by_key.items()}
            raise NoKernelError(miss(key, served, self._files, self.operator))
        return rows

    def of_backend(self, key: AnyKey, backend: str) -> list[Row]:
        """The rows of ``key`` with a kernel of this backend. Raises NoKernelError if there are none."""
        rows = [row for row in self.serving(key) if getattr(row, backend)]
        if not rows:
            raise NoKernelError(f"no {backend} kernel for {key}; built: {_built(self.serving(key))}")
        return rows

    def choose(
        self,
        key: Key,
        backend: str,
        num_seqs: int,
        max_seq_len: int,
        kv_heads: int,
        partition_size: int | None = None,
        device: str = "",
        captured: bool = False,
    ) -> Row:
        """The row for a call, from a cache of earlier choices. See ``_choose``."""
        asked = (key, backend, num_seqs, max_seq_len, kv_heads, partition_size, device, captured)
        row = self._chosen.get(asked)
        if row is None:
            row = self._choose(*asked)
            if len(self._chosen) >= MOST_CHOICES:
                self._chosen.clear()
            self._chosen[asked] = row
        return row

    def _choose(
        self,
        key: Key,
        backend: str,
        num_seqs: int,
        max_seq_len: int,
        kv_heads: int,
        partition_size: int | None,
        device: str,
        captured: bool,
    ) -> Row:
        """Choose the row for a call.

        It is the row of ``partition_size`` if that is given, else of the spec's fixed partition size, else the result
        of tuning. If there is no result for ``device`` and calls of this size, it is the row that the wave model takes
        (``waves.cheapest``). captured: whether a CUDA graph is captured.
        Raises NoKernelError if no row serves the key, if none of its rows has that partition size or backend, or if a
        grid cannot hold the call's partitions.
        """
        rows = self.of_backend(key, backend)
        wanted = partition_size or (rows[0].fixed_partition if rows else 0)
        if wanted:
            rows = [row for row in rows if row.partition_size == wanted]
        if not rows:
            built = _built(self.serving(key))
            raise NoKernelError(f"no {backend} kernel for {key} with partition_size={wanted}; built: {built}")
        if backend == "cuda":
            largest = max(row.partition_size for row in rows)
            rows = [row for row in rows if max_seq_len <= MOST_BLOCKS * row.partition_size]
            if not rows:
                raise NoKernelError(
                    f"no CUDA kernel of {key} takes max_seq_len {max_seq_len}: a grid holds {MOST_BLOCKS} "
                    f"partitions, and the largest built is of {largest} tokens"
                )
        for entry in self._tuned.get((key, backend, device, kv_heads), ()):
            if entry.covers(num_seqs, max_seq_len):
                rows = [row for row in rows if row.symbol == entry.symbol] or rows
                break  # the first is the nearest in size
        return cheapest(rows, num_seqs, max_seq_len, kv_heads, backend, captured)


def _built(rows: Iterable[Row]) -> str:
    """The partition sizes and backends of ``rows``, as text. A kernel without a partition size is named instead."""
    backends = {row: " and ".join(name for name in ("torch", "cuda") if getattr(row, name)) for row in rows}
    titles = {row: row.partition_size if row.operator == "decode" else row.symbol for row in backends}
    return ", ".join(f"{titles[row]} ({names})" for row, names in backends.items())


def own_key(key: Key, operator: str) -> AnyKey:
    """The key that a kernel of ``operator`` needs to serve the same layers as a decode kernel of ``key``."""
    kind = KEYS[operator]
    return kind(*(getattr(key, axis) for axis in kind._fields))


def lacks_operator(key: AnyKey, file: str, operator: str, other: str) -> str:
    """Why no kernel of ``operator`` serves ``key``, which the spec in ``file`` builds for the operator ``other``."""
    remedy = f"add {operator} to its operators, then: pav2gen build {file}"
    return f"no {operator} kernel for {key}: {file} builds this key for {other}; {remedy}"


def miss(key: AnyKey, specs: Mapping[Any, str], files: Mapping[str, str], operator: str = "decode") -> str:
    """A message that no kernel has ``key``: which values differ, the nearest key that is built, and how to add ``key``.

    specs: the built keys, and the spec of each. files: each spec's file, by the spec's name.
    """
    kernel = "kernel" if operator == "decode" else f"{operator} kernel"
    if not specs:
        what = "pav2gen build specs/NAME.yaml makes some"
        if operator != "decode":
            what = f"write operators: [decode, {operator}] in a spec, then: pav2gen build specs/NAME.yaml"
        return f"no {kernel} for {key}: the package holds none; {what}"
    near = nearest(key, specs)
    spec = specs[near]
    axes = [axis for axis in key._fields if getattr(near, axis) != getattr(key, axis)]
    alike = [other for other in specs if other._replace(**{axis: getattr(key, axis) for axis in axes}) == key]
    reasons = "; ".join(f"{axis} {_yaml(getattr(key, axis))} (built: {_values(axis, alike)})" for axis in axes)
    against = f"no {kernel} for {key}: against it stands {reasons}. Nearest: {near} of {spec}."
    bounded = [axis for axis in key._fields if axis in BUILDABLE]
    limits = [f"{axis} is {BUILDABLE[axis][1]}" for axis in bounded if getattr(key, axis) not in BUILDABLE[axis][0]]
    if limits:
        return f"{against} None can be generated: {' and '.join(limits)}"
    file, has = files.get(spec, f"specs/{spec}.yaml"), [other for other in specs if specs[other] == spec]
    lacking = [axis for axis in axes if all(getattr(other, axis) != getattr(key, axis) for other in has)]
    if not lacking:
        return f"{against} {file} has these values and leaves out their combination: pav2gen explain {key} says where"
    return f"{against} To add it: in {file} write {_lines(lacking, [*has, key])}, then: pav2gen build {file}"


def _lines(axes: Sequence[str], keys: Sequence[AnyKey]) -> str:
    """The entries of a spec that give ``axes`` their values in ``keys``. The last key is the one to add."""
    lines = ", ".join(f"{axis}: [{_values(axis, keys)}]" for axis in axes if axis not in FEATURES)
    features = ", ".join(f"{axis}: [{_values(axis, keys)}]" for axis in axes if axis in FEATURES)
    own = keys[-1].modification if "modification" in axes else None  # type: ignore[union-attr]
    defined = f" (define {own} under modifications)" if own else ""
    return " and ".join(filter(None, (lines, f"features: {{{features}}}{defined}" * bool(features))))


def _values(axis: str, keys: Iterable[AnyKey]) -> str:
    """The values of an axis in ``keys``, sorted, as YAML."""
    return ", ".join(map(_yaml, sorted({getattr(key, axis) for key in keys}, key=in_order)))


def _yaml(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def nearest(key: AnyKey, keys: Iterable[Any]) -> Any:
    """The key with the fewest axes that differ from ``key``, then the smallest relative differences, then the first."""
    return min(keys, key=lambda other: (*distance(key._asdict(), other), order_of(other)))


def distance(asked: Mapping[str, object], candidate: object) -> tuple[int, float]:
    """The distance of ``candidate`` from ``asked``. ``candidate`` has the axes of ``asked`` as attributes.

    Returns the number of axes that differ, and the sum of the relative differences of numbers.
    """
    pairs = [(value, getattr(candidate, axis)) for axis, value in asked.items()]
    return sum(a != b for a, b in pairs), sum(relative_difference(a, b) for a, b in pairs)


def relative_difference(a: object, b: object) -> float:
    """The difference of two numbers divided by the larger one. It is 0 for values that are not numbers."""
    numbers = [x for x in (a, b) if isinstance(x, (int, float)) and not isinstance(x, bool)]
    return abs(numbers[0] - numbers[1]) / max(map(abs, numbers)) if len(numbers) == 2 and any(numbers) else 0.0
