"""A spec: it describes a family of kernels as all combinations of its axes' values, without the excluded ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pav2gen.family.axes import AXES
from pav2gen.family.modifications.modification import Modification
from pav2gen.family.target import Target
from pav2gen.family.variant import OPERATORS, Point, Variant, expand


@dataclass(frozen=True)
class RankShape:
    """The numbers of attention heads of one tensor-parallel rank, as vLLM shards them."""

    tensor_parallel: int
    num_heads: int
    num_kv_heads: int

    @property
    def gqa_ratio(self) -> int:
        """Query heads for each KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Model:
    """The sizes of the model that the kernels serve; used by plans, tests and benches."""

    num_heads: int
    num_kv_heads: int
    max_seq_len: int
    tensor_parallel: tuple[int, ...]

    def ranks(self) -> tuple[RankShape, ...]:
        """The heads of a rank for each tensor-parallel size. If there are more ranks than KV heads, they share them."""
        return tuple(
            RankShape(size, self.num_heads // size, max(1, self.num_kv_heads // size)) for size in self.tensor_parallel
        )

    def shards_over(self, size: int) -> bool:
        """Whether vLLM can run the model on ``size`` ranks: heads split evenly, KV heads split or replicate evenly."""
        kv_heads = self.num_kv_heads
        return self.num_heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


@dataclass(frozen=True)
class Exclusion:
    """Combinations of values that the spec leaves out, and why."""

    when: Mapping[str, tuple[object, ...]]
    because: str
    line: int

    def covers(self, variant: Variant) -> bool:
        """Whether ``variant`` has one of the named values on every axis of ``when``."""
        return all(getattr(variant, axis) in values for axis, values in self.when.items())


@dataclass(frozen=True)
class Dispatch:
    """How calls are routed. Decodes longer than ``min_seq_len`` tokens take the generated operator (V2).

    partition: the partition size for all calls, or None if the operator chooses.

    host_lengths: whether a PyTorch kernel may read the lengths of a call on a GPU, ``auto`` or ``never``.
    """

    min_seq_len: int
    partition: int | None
    host_lengths: str


@dataclass(frozen=True)
class Limits:
    """Bounds of the family: the number of its variants, and the workspace of a call in MiB."""

    max_variants: int
    workspace_mib: int


@dataclass(frozen=True)
class Spec:
    """The content of a spec file. ``axes`` has the values of every axis of ``family.axes``.

    ``operators`` are those of ``variant.OPERATORS`` that are built. ``cuda`` holds the layout settings of CUDA kernels
    that the spec fixes (``cuda_plan.CHOICES``); the plan chooses the others. ``modifications`` maps the name of each
    modification to its definition. ``places`` maps a path (``axes.head_size``, ``axes.head_size[0]``,
    ``model.tensor_parallel[1]``) to its ``file:line``.
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
        """The path in the comments of generated files. It does not depend on the folder in which the build runs."""
        return f"specs/{self.file_name}"

    def where(self, *path: str) -> str:
        """``file:line`` of the first path that the file contains, else the file's name."""
        return next((self.places[name] for name in path if name in self.places), self.file_name)


def extended(values: tuple[object, ...], value: object) -> tuple[object, ...]:
    """The values of an axis with one value added: null first, then numbers in ascending order."""
    if isinstance(value, str):
        return (*values, value)
    return tuple(sorted((*values, value), key=lambda one: (one is not None, one)))


def variants(spec: Spec) -> tuple[Variant, ...]:
    """All decode kernels of ``spec``: the combinations of its axes' values without the excluded ones, in order."""
    return tuple(
        replace(variant, own=spec.modifications.get(variant.modification or ""))
        for variant in expand(spec.name, {axis: spec.axes[axis] for axis in AXES})
        if not any(exclusion.covers(variant) for exclusion in spec.exclude)
    )


def points(spec: Spec) -> tuple[Point, ...]:
    """All kernels of ``spec``, operator by operator."""
    family = variants(spec)
    return tuple(point for operator in spec.operators for point in OPERATORS[operator](family))
