"""The content of a spec file. A spec describes its kernels as all combinations of its axis values, except the
combinations that it excludes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pav2gen.family.axes import AXES
from pav2gen.family.modifications.modification import Modification
from pav2gen.family.target import Target
from pav2gen.family.variant import OPERATORS, Point, Variant, expand


@dataclass(frozen=True)
class RankShape:
    """The numbers of query heads and KV heads on one tensor-parallel rank, as vLLM distributes them over
    ``tensor_parallel`` ranks.
    """

    tensor_parallel: int
    num_heads: int
    num_kv_heads: int

    @property
    def gqa_ratio(self) -> int:
        """The number of query heads that share one KV head on this rank."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Model:
    """The numbers of heads, the longest context and the tensor-parallel sizes of the model that the kernels serve.
    Plans, generated tests and benchmarks use these numbers.

    ``num_heads`` and ``num_kv_heads`` count the query heads and KV heads of the whole model. ``max_seq_len`` is the
    longest context in tokens. ``tensor_parallel`` lists the numbers of ranks that the model may be distributed over.
    """

    num_heads: int
    num_kv_heads: int
    max_seq_len: int
    tensor_parallel: tuple[int, ...]

    def ranks(self) -> tuple[RankShape, ...]:
        """The numbers of query heads and KV heads of one rank, for each number of ranks in ``tensor_parallel``.

        If there are more ranks than KV heads, each rank has one KV head, and several ranks have copies of the same KV
        head.
        """
        return tuple(
            RankShape(size, self.num_heads // size, max(1, self.num_kv_heads // size)) for size in self.tensor_parallel
        )

    def shards_over(self, size: int) -> bool:
        """Whether vLLM can run the model on ``size`` ranks.

        The number of query heads must be divisible by ``size``. The number of KV heads must be a multiple or a divisor
        of ``size``.
        """
        kv_heads = self.num_kv_heads
        return self.num_heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


@dataclass(frozen=True)
class Exclusion:
    """An entry of a spec's ``exclude``: it describes variants that the spec leaves out, and gives the reason.

    ``when`` maps names of axes to values. A variant is left out if, for every axis in ``when``, it has one of the
    values that ``when`` gives for this axis. ``because`` is the reason, in the spec author's words. ``line`` is the
    number of the entry's line in the spec file.
    """

    when: Mapping[str, tuple[object, ...]]
    because: str
    line: int

    def covers(self, variant: Variant) -> bool:
        """Whether the exclusion leaves out ``variant``: for every axis in ``when``, the variant has one of the values
        that ``when`` gives for this axis.
        """
        return all(getattr(variant, axis) in values for axis, values in self.when.items())


@dataclass(frozen=True)
class Dispatch:
    """The settings that decide which kernel serves a call.

    min_seq_len: the sequence length, in tokens, above which vLLM should use the generated decode operator instead of
    its kernel for short sequences (V1).

    partition: the partition size, in tokens, for all calls, or None if the operator chooses a partition size for each
    call.

    host_lengths: whether a PyTorch kernel may copy the sequence lengths from the GPU to the host: ``auto`` (where the
    copy saves work) or ``never``.
    """

    min_seq_len: int
    partition: int | None
    host_lengths: str


@dataclass(frozen=True)
class Limits:
    """Two upper bounds that a spec sets for itself.

    max_variants: the most combinations that the axis values of the spec may have.
    workspace_mib: the most GPU memory, in MiB, that one call may use for intermediate results (its workspace).
    """

    max_variants: int
    workspace_mib: int


@dataclass(frozen=True)
class Spec:
    """The content of a spec file.

    ``about`` is a description in one line. ``axes`` maps the name of each axis of ``family.axes.AXES`` to the values
    that the spec gives. ``operators`` lists the operators to build (keys of ``variant.OPERATORS``). ``file_name`` is
    the name of the spec file without its folder, and ``sha256`` is the file's SHA-256. ``cuda`` maps layout settings of
    CUDA decode kernels (names of ``cuda_plan.CHOICES``) to the values that the spec fixes. The plan chooses all
    settings that the spec does not fix. ``modifications`` maps the name of each modification to its definition.
    ``places`` maps the dotted path of each value in the spec file (``axes.head_size``, ``model.tensor_parallel[1]``) to
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
        """The path by which generated files refer to the spec file. It does not depend on the folder in which the build
        runs.
        """
        return f"specs/{self.file_name}"

    def where(self, *path: str) -> str:
        """The ``file:line`` of a value in the spec file, or the file's name.

        path: paths of values, such as ``axes.head_size``. The first path that the spec file contains counts. If the
        file contains none of them, the result is the file's name.
        """
        return next((self.places[name] for name in path if name in self.places), self.file_name)


def extended(values: tuple[object, ...], value: object) -> tuple[object, ...]:
    """Return ``values``, the values of one axis, with ``value`` added. A string is added at the end. For any other
    ``value``, the result is sorted: None first, then numbers in ascending order.
    """
    if isinstance(value, str):
        return (*values, value)
    return tuple(sorted((*values, value), key=lambda one: (one is not None, one)))


def variants(spec: Spec) -> tuple[Variant, ...]:
    """All decode kernels of ``spec``: every combination of axis values that no exclusion covers. The last axis in
    ``AXES`` varies fastest.
    """
    return tuple(
        replace(variant, own=spec.modifications.get(variant.modification or ""))
        for variant in expand(spec.name, {axis: spec.axes[axis] for axis in AXES})
        if not any(exclusion.covers(variant) for exclusion in spec.exclude)
    )


def points(spec: Spec) -> tuple[Point, ...]:
    """All kernels of ``spec``: first those of the first operator in ``spec.operators``, then those of the next."""
    family = variants(spec)
    return tuple(point for operator in spec.operators for point in OPERATORS[operator](family))
