"""The content of a spec file. A spec describes its kernels as all combinations of axis values, without the combinations
that it excludes.
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
    """The numbers of query heads and KV heads on one tensor-parallel rank, as vLLM distributes them."""

    tensor_parallel: int
    num_heads: int
    num_kv_heads: int

    @property
    def gqa_ratio(self) -> int:
        """The number of query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Model:
    """The sizes of the model that the kernels serve. Plans, generated tests and benchmarks use these sizes.

    ``num_heads`` and ``num_kv_heads`` count the query heads and KV heads of the whole model. ``max_seq_len`` is in
    tokens. ``tensor_parallel`` lists the numbers of ranks that the model may be distributed over.
    """

    num_heads: int
    num_kv_heads: int
    max_seq_len: int
    tensor_parallel: tuple[int, ...]

    def ranks(self) -> tuple[RankShape, ...]:
        """The head counts of one rank, for each tensor-parallel size.

        If there are more ranks than KV heads, each rank has one KV head, which several ranks share.
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
    """An entry of a spec's ``exclude``: variants that the spec leaves out, and the reason.

    ``when`` maps axes to values. A variant that has one of the values on every axis of ``when`` is left out.
    ``because`` is the reason, in the spec author's words. ``line`` is the entry's line in the spec file.
    """

    when: Mapping[str, tuple[object, ...]]
    because: str
    line: int

    def covers(self, variant: Variant) -> bool:
        """Whether the exclusion applies to ``variant``: on every axis of ``when``, the variant has one of the given
        values.
        """
        return all(getattr(variant, axis) in values for axis, values in self.when.items())


@dataclass(frozen=True)
class Dispatch:
    """How calls are routed to kernels.

    min_seq_len: vLLM calls the generated operator (V2) for decodes of sequences longer than this number of tokens.

    partition: the partition size for all calls, or None if the operator chooses one per call.

    host_lengths: whether a PyTorch kernel may copy the sequence lengths from the GPU to the host: ``auto`` or
    ``never``.
    """

    min_seq_len: int
    partition: int | None
    host_lengths: str


@dataclass(frozen=True)
class Limits:
    """Upper bounds: the number of variants of a spec, and the workspace of one call in MiB."""

    max_variants: int
    workspace_mib: int


@dataclass(frozen=True)
class Spec:
    """The content of a spec file. ``axes`` maps each axis of ``family.axes.AXES`` to its values.

    ``operators`` lists the operators to build (names of ``variant.OPERATORS``). ``cuda`` has the layout settings of
    CUDA kernels that the spec fixes (names of ``cuda_plan.CHOICES``). The plan chooses all settings that the spec does
    not fix. ``modifications`` maps the name of each modification to its definition. ``places`` maps the path of a value
    in the file (``axes.head_size``, ``model.tensor_parallel[1]``) to its ``file:line``.
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
        """The spec's path as generated files state it. The path does not depend on the folder in which the build
        runs.
        """
        return f"specs/{self.file_name}"

    def where(self, *path: str) -> str:
        """``file:line`` of the first of the given paths that the spec file contains, or the file's name if it contains
        none.
        """
        return next((self.places[name] for name in path if name in self.places), self.file_name)


def extended(values: tuple[object, ...], value: object) -> tuple[object, ...]:
    """The values of an axis with ``value`` added: None first, then numbers in ascending order. A string is added at the
    end.
    """
    if isinstance(value, str):
        return (*values, value)
    return tuple(sorted((*values, value), key=lambda one: (one is not None, one)))


def variants(spec: Spec) -> tuple[Variant, ...]:
    """All decode kernels of ``spec``: every combination of axis values that no exclusion covers, in the order of
    ``AXES``.
    """
    return tuple(
        replace(variant, own=spec.modifications.get(variant.modification or ""))
        for variant in expand(spec.name, {axis: spec.axes[axis] for axis in AXES})
        if not any(exclusion.covers(variant) for exclusion in spec.exclude)
    )


def points(spec: Spec) -> tuple[Point, ...]:
    """All kernels of ``spec``, sorted by operator."""
    family = variants(spec)
    return tuple(point for operator in spec.operators for point in OPERATORS[operator](family))
