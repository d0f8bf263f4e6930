"""Reads tuning files, ``specs/tuning/<spec>.<device>.yaml``, which ``pav2gen tune`` writes.

A row of a tuning file is about calls with a given number of sequences of a given length. A row states the measured time
of each partition size, and which partition size was the fastest. docs/tuning.md describes the format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pav2gen.family.axes import AXES
from pav2gen.family.spec import LARGEST_INT32, Spec, variants
from pav2gen.files import sha256
from pav2gen.reading.axis_value import reader_of
from pav2gen.reading.yaml_file import parse_yaml, read_file
from pav2gen.reading.yaml_node import Node
from pav2gen.runtime.choice.key import Key
from pav2gen.wording import one_of, quoted

SCHEMA = 1

#: The name of the folder of tuning files, inside the folder of the spec files.
FOLDER = "tuning"

MOST_BYTES = 4 << 20

#: LEAST_RUNS: the least number of runs in which the times of a tuning file must have been measured. MOST_SPREAD: the
#: largest allowed spread of a row. The spread is the difference between the slowest and the fastest run, divided by the
#: median of the runs.
LEAST_RUNS, MOST_SPREAD = 2, 0.10

#: FILE_KEYS, KERNEL_KEYS, ROW_KEYS: the keys of a tuning file, of an entry of ``kernels`` in it, and of a row. Each is
#: two tuples: required keys and optional keys.
FILE_KEYS = (
    ("schema", "spec", "device", "date", "command", "runs", "kernels"),
    ("about", "versions", "rounds"),
)
KERNEL_KEYS = (("key", "backend", "kv_heads", "rows"), ("noisy", "discarded"))
ROW_KEYS = (("num_seqs", "max_seq_len", "partition_size", "ms", "spread"), ())


@dataclass(frozen=True)
class TunedRow:
    """A result of tuning: the fastest partition size for calls with ``num_seqs`` sequences of ``max_seq_len`` tokens
    each.

    key: the kernel key of the calls, that is, the axis values that a call decides, such as the head size.
    partition_size: the fastest partition size, in tokens.
    backend: the backend of the kernels that were measured, torch or cuda.
    kv_heads: the number of KV heads in the calls.
    """

    key: Key
    partition_size: int
    backend: str
    kv_heads: int
    num_seqs: int
    max_seq_len: int


@dataclass(frozen=True)
class Tuning:
    """The content of a tuning file.

    path: the path of the tuning file as generated files show it, ``specs/tuning/<name>``.
    device: the name of the device that was measured.
    """

    path: str
    sha256: str
    device: str
    rows: tuple[TunedRow, ...]

    def of(self, key: Key, partition_size: int) -> list[dict[str, object]]:
        """Return the rows in which the kernel with ``key`` and ``partition_size`` was the fastest.

        Each row is a dict with the fields of ``runtime.choice.dispatch_row.Tuned`` other than ``symbol``.
        """
        return [
            {
                "backend": row.backend,
                "device": self.device,
                "kv_heads": row.kv_heads,
                "num_seqs": row.num_seqs,
                "max_seq_len": row.max_seq_len,
            }
            for row in self.rows
            if (row.key, row.partition_size) == (key, partition_size)
        ]


def slug(device: str) -> str:
    """Return the part of a tuning file's name that identifies a device, such as ``iluvatar_bi_v100``.

    device: the name of the device.
    """
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_") or "device"


def path_of(spec_path: Path, spec_name: str, device: str) -> Path:
    """Return the path of the tuning file for a spec and a device.

    device: the name of the device.
    """
    return spec_path.parent / FOLDER / f"{spec_name}.{slug(device)}.yaml"


def load_all(spec_path: Path, spec: Spec) -> tuple[Tuning, ...]:
    """Read every tuning file of ``spec``, in the order of the file names.

    spec_path: the path of the spec file.

    Raises UserError, with ``file:line``, if a tuning file is invalid.
    """
    return tuple(load(path, spec) for path in sorted((spec_path.parent / FOLDER).glob(f"{spec.name}.*.yaml")))


def load(path: Path, spec: Spec) -> Tuning:
    """Read the tuning file at ``path``.

    Raises UserError, with ``file:line``, if the file is invalid or belongs to another spec than ``spec``.
    """
    return parse(read_file(path, MOST_BYTES), path, spec)


def parse(data: bytes, path: Path, spec: Spec) -> Tuning:
    """Parse ``data``, the bytes of the tuning file at ``path``.

    Raises UserError, with ``file:line``, if the file is invalid or belongs to another spec than ``spec``.
    """
    fields = parse_yaml(data, str(path)).fields(*FILE_KEYS)
    _check_head(fields, path, spec)
    built, rows = _built(spec), []
    places: dict[TunedRow, str] = {}
    for kernel in _list(fields["kernels"]):
        for node, row in _rows(kernel, built, spec):
            first = places.setdefault(replace(row, partition_size=0), node.where)
            if first != node.where:
                raise node.fail(f"this call was measured already, at {first}; keep one of the rows")
            rows.append(row)
    return Tuning(f"specs/{FOLDER}/{path.name}", sha256(data), fields["device"].text(), tuple(rows))


def _check_head(fields: Mapping[str, Node], path: Path, spec: Spec) -> None:
    """Check the required keys of a tuning file other than ``kernels``.

    Raises UserError for a wrong schema version, spec or device, and for too few runs.
    """
    schema, name, device = fields["schema"], fields["spec"], fields["device"]
    if schema.integer() != SCHEMA:
        raise schema.fail(f"schema {schema.value} is not known; this version reads schema: {SCHEMA}")
    if name.text() != spec.name:
        raise name.fail(
            f"the figures are of the spec {quoted(name.text())}, not of {spec.name}; tune {spec.name} itself"
        )
    if path.name != f"{spec.name}.{slug(device.text())}.yaml":
        raise device.fail(
            f"the figures of {quoted(device.text())} belong in {spec.name}.{slug(device.text())}.yaml; "
            f"figures of another device are not used: run pav2gen tune on the device itself"
        )
    for text in ("date", "command"):
        fields[text].text()
    runs = fields["runs"]
    if runs.integer() < LEAST_RUNS:
        raise runs.fail(
            f"rows of {runs.integer()} run do not show how noisy the times are; measure at least {LEAST_RUNS} runs"
        )


def _built(spec: Spec) -> dict[Key, list[int]]:
    """Return the partition sizes of the decode kernels that ``spec`` builds, as a dict by kernel key."""
    built: dict[Key, list[int]] = {}
    for variant in variants(spec):
        built.setdefault(variant.key, []).append(variant.partition_size)
    return built


def _list(node: Node) -> Iterable[Node]:
    """Return the items of the YAML list ``node``, which may be empty."""
    return () if node.value == () else node.items()


def _rows(kernel: Node, built: Mapping[Key, list[int]], spec: Spec) -> Iterable[tuple[Node, TunedRow]]:
    """Yield each row in one entry of ``kernels`` in a tuning file, together with the row's YAML node.

    kernel: the YAML node of the entry.
    built: the partition sizes that the spec builds, by kernel key.
    """
    fields = kernel.fields(*KERNEL_KEYS)
    optional = tuple(Key._field_defaults)  # features that a file from before them does not name
    axes = fields["key"].fields([axis for axis in Key._fields if axis not in optional], optional)
    key = Key(**{name: reader_of(AXES[name])(node) for name, node in axes.items()})  # type: ignore[arg-type]
    if key not in built:
        raise fields["key"].fail(f"{spec.name} has no kernel for {key}; {_again(spec)}")
    backend, kv_heads = fields["backend"].choice(spec.backends), fields["kv_heads"].integer(1, LARGEST_INT32)
    for row in _list(fields["rows"]):
        yield row, _row(row, key, backend, kv_heads, built[key], spec)


def _row(node: Node, key: Key, backend: str, kv_heads: int, sizes: list[int], spec: Spec) -> TunedRow:
    """Read one row of a tuning file, which has the times of one call for several partition sizes.

    sizes: the partition sizes that the spec builds for ``key``.

    Raises UserError if the row names a partition size that is not the fastest in the row. Raises UserError too if the
    spread of the measured times is too large.
    """
    fields = node.fields(*ROW_KEYS)
    chosen = fields["partition_size"]
    milliseconds = _milliseconds(fields["ms"], sizes, spec)
    if chosen.integer() not in milliseconds:
        raise chosen.fail(f"partition_size {chosen.value} has no time in ms; it may be {one_of(milliseconds)}")
    fastest = min(milliseconds, key=lambda size: milliseconds[size])
    if milliseconds[chosen.integer()] > milliseconds[fastest]:
        raise chosen.fail(f"partition_size {chosen.value} is not the fastest of its row; {fastest} is faster")
    spread = fields["spread"]
    if not 0 <= spread.number() <= MOST_SPREAD:
        raise spread.fail(f"a spread of {spread.value} is too noisy; it may be at most {MOST_SPREAD} of the median")
    sizes_of_call = (fields[name].integer(1, LARGEST_INT32) for name in ("num_seqs", "max_seq_len"))
    return TunedRow(key, chosen.integer(), backend, kv_heads, *sizes_of_call)


def _milliseconds(node: Node, sizes: list[int], spec: Spec) -> dict[int, float]:
    """Return the measured time in ms of each partition size in a row of a tuning file.

    sizes: the partition sizes that may have a time.

    Raises UserError for fewer than two times, and for a time of 0 or less.
    """
    times = {}
    for name, time in node.fields((), [str(size) for size in sizes]).items():
        if time.number() <= 0:
            raise time.fail(f"a time of {time.value} ms cannot be a measurement; {_again(spec)}")
        times[int(name)] = time.number()
    if len(times) < 2:
        raise node.fail(
            f"a single partition size has nothing to be compared with; give the times of two or more of {one_of(sizes)}"
        )
    return times


def _again(spec: Spec) -> str:
    return f"remove the row, or run pav2gen tune specs/{spec.file_name} again"
