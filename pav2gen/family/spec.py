"""The dataclasses that hold the content of a spec file.

A spec asks for one kernel for each combination of its axis values, except the combinations that it excludes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pav2gen.family.axes import AXES
from pav2gen.family.modifications.modification import Modification
from pav2gen.family.target import Target
from pav2gen.family.variant import OPERATORS, Point, Variant, expand

#: The largest number of tokens or sequences that a tensor of lengths can hold: lengths and block tables are int32.
LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class RankShape:
    """The numbers of query heads and KV heads on one rank, if a model is distributed over ``tensor_parallel`` ranks."""

    tensor_parallel: int
    num_heads: int
    num_kv_heads: int

    @property
    def gqa_ratio(self) -> int:
        """The number of query heads that share one KV head on this rank."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Model:
    """The sizes of the model that the kernels serve.

    num_heads, num_kv_heads: the numbers of query heads and KV heads in a layer, before the model is distributed over
    ranks.
    max_seq_len: the longest context, in tokens.
    tensor_parallel: the numbers of ranks that the model may be distributed over.
    """

    num_heads: int
    num_kv_heads: int
    max_seq_len: int
    tensor_parallel: tuple[int, ...]

    def ranks(self) -> tuple[RankShape, ...]:
        """Return the numbers of query heads and KV heads of one rank, for each number of ranks in ``tensor_parallel``.

        If there are more ranks than KV heads, each rank has a copy of one KV head.
        """
        return tuple(
            RankShape(size, self.num_heads // size, max(1, self.num_kv_heads // size)) for size in self.tensor_parallel
        )

    def shards_over(self, size: int) -> bool:
        """Whether vLLM can distribute the model over ``size`` ranks.

        The number of query heads must be divisible by ``size``. The number of KV heads must be a multiple or a divisor
        of ``size``.
        """
        kv_heads = self.num_kv_heads
        return self.num_heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


@dataclass(frozen=True)
class Exclusion:
    """One entry of a spec's list ``exclude``: kernels that are not built, and the reason.

    when: maps names of axes to tuples of values. A kernel is not built if, for each of these axes, its value is in the
    tuple.
    because: the reason, in the words of the spec's author.
    line: the number of the entry's first line in the spec file.
    """

    when: Mapping[str, tuple[object, ...]]
    because: str
    line: int

    def covers(self, variant: Variant) -> bool:
        """Whether the kernel ``variant`` is not built because of this exclusion."""
        return all(getattr(variant, axis) in values for axis, values in self.when.items())


@dataclass(frozen=True)
class Dispatch:
    """The settings that decide which kernel serves a call.

    min_seq_len: the sequence length, in tokens, above which vLLM should prefer the generated decode operator to its own
    ``paged_attention_v1``.
    partition: the partition size, in tokens, for all calls, or None if the operator chooses a partition size for each
    call.
    host_lengths: whether a PyTorch kernel may copy the sequence lengths from the GPU to the host. "auto" allows the
    copy where it saves work; "never" forbids it.
    """

    min_seq_len: int
    partition: int | None
    host_lengths: str


@dataclass(frozen=True)
class Limits:
    """Two upper bounds that a spec sets for itself.

    max_variants: the largest allowed number of combinations of the spec's axis values, including excluded combinations.
    workspace_mib: the most GPU memory, in MiB, that one call may use for intermediate results (its workspace).
    """

    max_variants: int
    workspace_mib: int


@dataclass(frozen=True)
class Spec:
    """The content of a spec file.

    about: a description in one line.
    axes: maps the name of every axis to the values for which the spec asks.
    operators: the names of the operators to build, such as ``decode`` (keys of ``variant.OPERATORS``).
    file_name: the name of the spec file, without its folder.
    sha256: the SHA-256 of the spec file.
    cuda: maps each layout setting of CUDA decode kernels that the spec fixes to its value. The names of all such
    settings are the keys of ``cuda_plan.CHOICES``.
    modifications: maps the name of each modification to its definition.
    places: maps the dotted path of each value in the spec file (``axes.head_size``, ``model.tensor_parallel[1]``) to
    the value's ``file:line``.
    """

    name: str
    about: str
    target: Target
    model: Model
    axes: Mapping[str, tuple[object, ...]]
    exclude: tuple[Exclusion, ...]
    backends: tuple[str, ...]
    dispatch: Dispatch
    limits: Limits
    file_name: str
    sha256: str
    operators: tuple[str, ...] = ("decode",)
    cuda: Mapping[str, int] = field(default_factory=dict)
    modifications: Mapping[str, Modification] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def canonical_path(self) -> str:
        """The path that generated files give for the spec file: the folder ``specs`` and the file's name."""
        return f"specs/{self.file_name}"

    def where(self, *path: str) -> str:
        """Return the ``file:line`` of the first value of ``path`` that the spec file contains.

        path: dotted paths of values, such as ``axes.head_size``.

        If the spec file contains none of the values, return the file's name.
        """
        return next((self.places[name] for name in path if name in self.places), self.file_name)


def extended(values: tuple[object, ...], value: object) -> tuple[object, ...]:
    """Return ``values``, the values of one axis, with ``value`` added.

    A string is added at the end. With any other ``value``, the result is sorted: None first, then numbers in ascending
    order.
    """
    if isinstance(value, str):
        return (*values, value)
    return tuple(sorted((*values, value), key=lambda one: (one is not None, one)))


def variants(spec: Spec) -> tuple[Variant, ...]:
    """Return the decode kernels of ``spec``: one for each combination of axis values that it does not exclude.

    The kernels are in the order of their axis values. The last axis in ``AXES`` varies fastest.
    """
    return tuple(
        replace(variant, own=spec.modifications.get(variant.modification or ""))
        for variant in expand(spec.name, {axis: spec.axes[axis] for axis in AXES})
        if not any(exclusion.covers(variant) for exclusion in spec.exclude)
    )


def points(spec: Spec) -> tuple[Point, ...]:
    """Return the kernels of ``spec`` for all its operators, in the order of ``spec.operators``."""
    family = variants(spec)
    return tuple(point for operator in spec.operators for point in OPERATORS[operator](family))
