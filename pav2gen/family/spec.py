"""Dataclasses for the content of a spec file, a YAML file that describes a model's attention and the kernels to
generate.

A spec file lists values for each axis, that is, for each property in which kernels differ. From each combination of
these values, pav2gen generates one kernel, unless the spec file excludes the combination.
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
    """The numbers of query heads and KV heads on one rank of a model that is distributed over ``tensor_parallel``
    ranks.
    """

    tensor_parallel: int
    num_heads: int
    num_kv_heads: int

    @property
    def gqa_ratio(self) -> int:
        """The number of query heads per KV head on this rank."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Model:
    """The sizes of the model for which pav2gen generates kernels.

    num_heads, num_kv_heads: the numbers of query heads and KV heads in a layer of the whole model, over all ranks.
    max_seq_len: the longest sequence, in tokens.
    tensor_parallel: the possible numbers of ranks over which vLLM distributes the model.
    """

    num_heads: int
    num_kv_heads: int
    max_seq_len: int
    tensor_parallel: tuple[int, ...]

    def ranks(self) -> tuple[RankShape, ...]:
        """Return the numbers of heads on one rank, for each number of ranks in ``tensor_parallel``.

        If there are more ranks than KV heads, each rank has a copy of one KV head.
        """
        return tuple(
            RankShape(size, self.num_heads // size, max(1, self.num_kv_heads // size)) for size in self.tensor_parallel
        )

    def shards_over(self, size: int) -> bool:
        """Return whether vLLM can distribute the model over ``size`` ranks.

        The number of query heads must be divisible by ``size``. The number of KV heads must be a multiple or a divisor
        of ``size``.
        """
        kv_heads = self.num_kv_heads
        return self.num_heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


@dataclass(frozen=True)
class Exclusion:
    """One entry of the list ``exclude`` in a spec file: kernels that pav2gen does not generate.

    when: maps names of axes to tuples of values. A kernel is excluded if, for each axis in ``when``, the kernel's value
    is in the tuple.
    because: the reason that the spec file gives.
    line: the number of the entry's first line in the spec file.
    """

    when: Mapping[str, tuple[object, ...]]
    because: str
    line: int

    def covers(self, variant: Variant) -> bool:
        """Return whether this entry of the list ``exclude`` excludes the kernel ``variant``."""
        return all(getattr(variant, axis) in values for axis, values in self.when.items())


@dataclass(frozen=True)
class Dispatch:
    """The settings of a spec file for the choice of a kernel at run time.

    min_seq_len: the number of tokens in a sequence above which vLLM should use the generated decode operator instead of
    its own ``paged_attention_v1``.
    partition: the partition size of every decode call, in tokens, or None if the operator chooses the partition size
    for each call.
    host_lengths: whether a PyTorch kernel may copy sequence lengths from the GPU to the host: "auto" (if the copy saves
    work) or "never".
    """

    min_seq_len: int
    partition: int | None
    host_lengths: str


@dataclass(frozen=True)
class Limits:
    """Limits that the author of a spec file sets.

    max_variants: the largest allowed number of combinations of axis values, including the excluded combinations.
    workspace_mib: the most GPU memory, in MiB, that one call of a kernel may use for intermediate results.
    """

    max_variants: int
    workspace_mib: int


@dataclass(frozen=True)
class Spec:
    """The content of a spec file.

    about: a description in one line.
    axes: maps the name of each axis, such as ``head_size``, to the values for which pav2gen generates kernels.
    operators: the names of the operators to generate kernels for, such as ``decode`` (keys of ``variant.OPERATORS``).
    file_name: the name of the spec file, without its folder.
    sha256: the SHA-256 checksum of the spec file.
    cuda: maps names of layout settings of CUDA decode kernels (keys of ``cuda_plan.CHOICES``) to the values that the
    spec file prescribes.
    modifications: maps the name of each score or mask modification to its definition.
    places: maps the dotted path of each value in the spec file, such as ``axes.head_size`` or
    ``model.tensor_parallel[1]``, to the ``file:line`` of the value.
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
        """The path of the spec file as generated files write it: ``specs/`` and the file's name."""
        return f"specs/{self.file_name}"

    def where(self, *path: str) -> str:
        """Return the ``file:line`` of the first value in ``path`` that the spec file contains.

        If the spec file contains none of these values, return the file's name.

        path: dotted paths of values in the spec file, such as ``axes.head_size``.
        """
        return next((self.places[name] for name in path if name in self.places), self.file_name)


def extended(values: tuple[object, ...], value: object) -> tuple[object, ...]:
    """Return ``values``, the values of one axis, with ``value`` added.

    A string is added at the end. For any other ``value``, the result is sorted in ascending order, with None first.
    """
    if isinstance(value, str):
        return (*values, value)
    return tuple(sorted((*values, value), key=lambda one: (one is not None, one)))


def variants(spec: Spec) -> tuple[Variant, ...]:
    """Return the decode kernels of ``spec``: one for each combination of axis values that ``spec`` does not exclude.

    In the order of the kernels, the last axis in ``AXES`` varies fastest.
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
