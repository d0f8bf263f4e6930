"""Registers the operator ``reshape_and_cache`` with torch.library, with the same meaning as in vLLM.

For each call, the operator chooses a cache writer from the dispatch table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from ..choice.dispatch_row import Row
from ..choice.select import Table
from ..operators.loaded import Kernels
from ..operators.registration import register
from . import check
from .call import Write
from .launch import launch

SCHEMA = f"""{check.NAME}(
    Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, str kv_cache_dtype,
    float k_scale, float v_scale, Tensor? k_scale_tensor, Tensor? v_scale_tensor, str backend) -> ()"""


class Arguments(NamedTuple):
    """The arguments of the registered operator, in the order of its schema."""

    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    slot_mapping: torch.Tensor
    kv_cache_dtype: str
    k_scale: float
    v_scale: float
    k_scale_tensor: torch.Tensor | None
    v_scale_tensor: torch.Tensor | None
    backend: str

    def write(self) -> Write:
        """Convert the arguments to a ``Write``, the form that kernels receive, without checking them."""
        return Write(
            key=self.key,
            value=self.value,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            slot_mapping=self.slot_mapping,
            k_scale=self.k_scale if self.k_scale_tensor is None else self.k_scale_tensor,
            v_scale=self.v_scale if self.v_scale_tensor is None else self.v_scale_tensor,
        )


class Writer:
    """Registers the operator ``reshape_and_cache`` of one generated package, and runs its calls.

    kernels: the object that loads the package's kernels.
    files: the path of each spec (a YAML file from which pav2gen generated kernels of the package), by the spec's name,
    for error messages.
    """

    def __init__(self, kernels: Kernels, files: Mapping[str, str] | None = None) -> None:
        self.kernels = kernels
        self.table = Table(kernels.rows, files=files, operator="cache")
        self._library, self.op = register(kernels.package, check.NAME, SCHEMA, self.run)

    @torch.no_grad()
    def run(self, *args: object) -> None:
        """Check the arguments of a call, choose a kernel, and launch the kernel. PyTorch's dispatcher calls this
        method.
        """
        arguments = Arguments(*args)  # type: ignore[arg-type]
        write = arguments.write()
        key = check.check(write, arguments.kv_cache_dtype)
        on_gpu = write.key.is_cuda
        backend = self.kernels.backend(arguments.backend, self.table.serving(key), on_gpu, check.NAME)
        kernel = self.kernel(self.table.of_backend(key, backend)[0], backend, on_gpu)
        if write.key.shape[0]:
            kernel(write)

    def kernel(self, row: Row, backend: str, on_gpu: bool) -> Callable[[Write], None]:
        """Return a function that runs the kernel of the dispatch-table row ``row`` on a ``Write``.

        Raises LibraryError if ``backend`` is "cuda" and no library of CUDA kernels is loaded.
        """
        if backend == "torch":
            return self.kernels.module(row).reshape_and_cache  # type: ignore[no-any-return]
        library = self.kernels.library(on_gpu)
        return functools.partial(launch, library.function(row), explain=library.explain)
