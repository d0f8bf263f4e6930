"""The operator: vLLM's ``paged_attention_v2`` over a table of kernels, registered with torch.library."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from . import check
from .call import BlockSparse, Call, Scratch, clear_scratch
from .lengths import may_read
from .library import Library, LibraryError, build, kernels_of
from .select import Key, Row, Table, Tuned, logger
from .toolchain import cuda_major

NAME = "paged_attention_v2"
SCHEMA = f"""{NAME}(
    Tensor(a!) out, Tensor(b!) exp_sums, Tensor(c!) max_logits, Tensor(d!) tmp_out, Tensor query, Tensor key_cache,
    Tensor value_cache, float scale, Tensor block_tables, Tensor seq_lens, int max_seq_len, Tensor? alibi_slopes,
    str kv_cache_dtype, float k_scale, float v_scale, Tensor? k_scale_tensor, Tensor? v_scale_tensor, int tp_rank,
    int blocksparse_local_blocks, int blocksparse_vert_stride, int blocksparse_block_size,
    int blocksparse_head_sliding_step, float? softcap, int? sliding_window, Tensor? sinks, str modification,
    Tensor[] modification_tensors, Tensor(e!)? lse, str backend, int partition_size) -> ()"""


class Arguments(NamedTuple):
    """The arguments of the registered operator, in the order of its schema."""

    out: torch.Tensor
    exp_sums: torch.Tensor
    max_logits: torch.Tensor
    tmp_out: torch.Tensor
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    scale: float
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    max_seq_len: int
    alibi_slopes: torch.Tensor | None
    kv_cache_dtype: str
    k_scale: float
    v_scale: float
    k_scale_tensor: torch.Tensor | None
    v_scale_tensor: torch.Tensor | None
    tp_rank: int
    blocksparse_local_blocks: int
    blocksparse_vert_stride: int
    blocksparse_block_size: int
    blocksparse_head_sliding_step: int
    softcap: float | None
    sliding_window: int | None
    sinks: torch.Tensor | None
    modification: str
    modification_tensors: list[torch.Tensor]
    lse: torch.Tensor | None
    backend: str
    partition_size: int

    def call(self) -> Call:
        """What a kernel receives, not yet checked."""
        sparse = BlockSparse(
            local_blocks=self.blocksparse_local_blocks,
            vert_stride=self.blocksparse_vert_stride,
            block_size=self.blocksparse_block_size,
            head_sliding_step=self.blocksparse_head_sliding_step,
            tp_rank=self.tp_rank,
        )
        return Call(
            out=self.out,
            scratch=Scratch(self.exp_sums, self.max_logits, self.tmp_out),
            query=self.query,
            key_cache=self.key_cache,
            value_cache=self.value_cache,
            scale=self.scale,
            block_tables=self.block_tables,
            seq_lens=self.seq_lens,
            max_seq_len=self.max_seq_len,
            alibi_slopes=self.alibi_slopes,
            k_scale=self.k_scale if self.k_scale_tensor is None else self.k_scale_tensor,
            v_scale=self.v_scale if self.v_scale_tensor is None else self.v_scale_tensor,
            sparse=sparse if sparse.vert_stride > 1 else None,
            softcap=self.softcap,
            sliding_window=self.sliding_window,
            sinks=self.sinks,
            modification=self.modification or None,
            tensors=tuple(self.modification_tensors),
            lse=self.lse,
        )


class Operator:
    """The kernels of one generated package as one operator.

    ``package`` is the package's import name; ``files`` are the specs' files, by name.
    """

    def __init__(
        self,
        package: str,
        rows: Iterable[Row],
        tuned: Iterable[Tuned] = (),
        files: Mapping[str, str] | None = None,
    ) -> None:
        self.package = package
        self.table = Table(rows, tuned, files)
        self.root = Path(__file__).resolve().parents[1]
        self.libraries: dict[bool, Library] = {}  # by whether they are for a GPU
        self._modules: dict[str, ModuleType] = {}
        self._told: set[str] = set()  # why no library could be loaded
        self._library, self.op = register(package, self.run)

    @torch.no_grad()
    def run(self, *args: Any) -> None:
        """The operator behind the dispatcher: check, choose, launch."""
        arguments = Arguments(*args)
        call = arguments.call()
        key = check.check(call, arguments.kv_cache_dtype)
        call = call._replace(
            max_seq_len=min(call.max_seq_len, call.block_tables.shape[1] * key.block_size),
            read_lengths=may_read(call.query.device, "auto"),
        )
        backend = self.backend(arguments.backend, key, call.query.is_cuda)
        num_seqs, kv_heads = call.query.shape[0], call.key_cache.shape[1]
        device = device_name(call.query.device)
        row = self.table.choose(key, backend, num_seqs, call.max_seq_len, kv_heads, arguments.partition_size, device)
        check.check_tensors(call, row.modification)
        launch(self.kernel(row, backend, call.query.is_cuda), call, row.partition_size)

    def ordered_tensors(
        self, modification: str | None, given: Mapping[str, torch.Tensor] | None
    ) -> tuple[torch.Tensor, ...]:
        """The parameter tensors of a modification, in the order of its definition.

        Raises ValueError for one that is missing, or that the modification does not have.
        """
        defined = self.table.modifications.get(modification or "")
        names = tuple(name for name, _ in defined.tensors) if defined else ()
        given = given or {}
        if missing := [name for name in names if name not in given]:
            check.fail(f"the modification {modification} needs {', '.join(missing)} among modification_tensors")
        if unknown := [name for name in given if name not in names]:
            what = f"the modification {modification}" if modification else "a call without a modification"
            check.fail(f"{what} has no tensor {', '.join(unknown)}")
        return tuple(given[name] for name in names)

    def backend(self, asked: str, key: Key, on_gpu: bool) -> str:
        """The backend of a call: the one asked for, else PAV2_BACKEND, else cuda on a GPU with its library loaded.

        Raises ValueError for a name that is no backend.
        """
        name = asked or os.environ.get("PAV2_BACKEND", "")
        if not name:
            compiled = on_gpu and True in self.libraries and any(row.cuda for row in self.table.serving(key))
            return "cuda" if compiled else "torch"
        if name not in ("torch", "cuda"):
            check.fail(f"backend {name!r} is neither 'torch' nor 'cuda'")
        return name

    def kernel(self, row: Row, backend: str, on_gpu: bool) -> Callable[[Call], None]:
        """The kernel of a row. The module of a PyTorch kernel is imported when it is first needed.

        Raises LibraryError if no library is loaded for a CUDA kernel: no compiler runs inside a call.
        """
        if backend == "cuda":
            if on_gpu not in self.libraries:
                what = "load()" if on_gpu else 'load("host")'
                raise LibraryError(f"no library of CUDA kernels is loaded for this device; call {what} first")
            return functools.partial(self.libraries[on_gpu].launch, row)
        if row.torch not in self._modules:
            self._modules[row.torch] = importlib.import_module(f"{self.package}.{row.torch}")
        return self._modules[row.torch].paged_attention  # type: ignore[no-any-return]

    def load(
        self,
        toolchain: str | None = None,
        *,
        library: str | os.PathLike[str] | None = None,
        arch: str | None = None,
        warp_size: int = 64,
        checked: bool = False,
    ) -> str | None:
        """Compile (or find in the cache) and load the CUDA kernels; returns the path of the library.

        toolchain: "corex", "nvcc" or "host" (the CPU, at ``warp_size``); by default the one of this machine's device,
        and None is returned where there is no device, or no CUDA kernel in the package. checked: the host library
        that takes only memory registered with a session of ``runtime.simt``.
        library: one that is already compiled; PAV2_LIBRARY names one too, and prebuilt/*.so in the package is one. A
        default that is loaded already is not loaded again. What a library is, it says itself: one for the other kind of
        device, or compiled from other sources, is refused. Raises LibraryError if a library can't be had; by default
        the reason is logged once, the PyTorch kernels serve, and a build that failed is not tried again.
        """
        by_default = toolchain is None and library is None
        if by_default and True in self.libraries:
            return str(self.libraries[True].path)
        given = library or (compiled_library(self.root) if by_default else None)
        kernels = kernels_of(self.table.rows, self.root)
        if by_default and not given and not (kernels and torch.cuda.is_available()):
            return None
        try:
            path = given or build(kernels, toolchain, arch, warp_size=warp_size, checked=checked, again=not by_default)
            loaded = Library(Path(path), kernels)
            check_device(loaded, "the GPU" if by_default else toolchain)
        except LibraryError as error:
            if not by_default:
                raise
            if str(error) not in self._told:
                self._told.add(str(error))
                logger.warning("the PyTorch kernels serve, because the CUDA kernels could not be loaded: %s", error)
            return None
        self.libraries[loaded.on_gpu] = loaded
        return str(loaded.path)


def check_device(library: Library, asked: str | None) -> None:
    """See that a library is for what was ``asked``: a toolchain, "the GPU", or None for any; and for this GPU.

    Raises LibraryError if not. Warns of a library of another CUDA release than torch's.
    """
    record = library.record
    if asked not in (None, record.toolchain) and not (asked == "the GPU" and record.on_gpu):
        raise LibraryError(f"{library.path} is not for {asked}: it is a library of {record}")
    if not record.on_gpu or not torch.cuda.is_available():
        return
    capability = torch.cuda.get_device_capability()
    needed = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", record.arch)
    if needed and capability < (int(needed[1]), int(needed[2])):
        raise LibraryError(
            "{} was compiled for {}; this device is sm_{}{}".format(library.path, record.arch, *capability)
        )
    ours, theirs = cuda_major(record.compiler), (torch.version.cuda or "").partition(".")[0]
    if ours and theirs and ours != theirs:
        logger.warning("%s was compiled by nvcc of CUDA %s, and torch is of CUDA %s", library.path, ours, theirs)


@functools.cache
def device_name(device: torch.device) -> str:
    """What the tuned table calls a device: the card's name as torch gives it, or ``cpu``. A host value, asked once."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def compiled_library(root: Path) -> str | None:
    """The library that came with a package or its environment: PAV2_LIBRARY, or the first of prebuilt/*.so."""
    prebuilt = sorted(str(path) for path in (root / "prebuilt").glob("*.so"))
    return os.environ.get("PAV2_LIBRARY") or next(iter(prebuilt), None)


def launch(kernel: Callable[[Call], None], call: Call, partition_size: int) -> None:
    """Run a kernel on a checked call: with the caller's scratch if that has room."""
    partitions = -(-call.max_seq_len // partition_size)
    call = call._replace(scratch=check.usable_scratch(call.scratch, partitions))
    clear_scratch(call.scratch, partitions)
    if call.query.shape[0] == 0 or partitions == 0:
        call.out.zero_()
    else:
        kernel(call)


def register(package: str, run: Callable[..., None]) -> tuple[torch.library.Library, Callable[..., None]]:
    """Register ``run`` under a namespace of the package's own, so that two packages can live in one process.

    Returns the library, to be kept alive, and the operator.
    """
    stem = "pav2_" + re.sub(r"\W", "_", package)
    for suffix in itertools.count():
        namespace = f"{stem}_{suffix}" if suffix else stem
        if not hasattr(getattr(torch.ops, namespace), NAME):
            break
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(SCHEMA)
    library.impl(NAME, run, "CompositeExplicitAutograd")
    library.impl(NAME, _without_data, "Meta")  # for fake tensors: nothing is returned, and shapes stay as they are
    return library, getattr(getattr(torch.ops, namespace), NAME).default


def split_scale(name: str, scale: float | torch.Tensor) -> tuple[float, torch.Tensor | None]:
    """A scale as the schema takes it: a float and no tensor, or 1.0 and a tensor of one element."""
    if not isinstance(scale, torch.Tensor):
        return float(scale), None
    check.check_scale(name, scale)
    return 1.0, scale


def _without_data(*args: object) -> None:
    """The operator of tensors without data. Raises ValueError where others are among them: torch comes here too."""
    devices = {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}
    if devices != {"meta"}:
        raise ValueError(f"all tensors must be on one device, got {', '.join(sorted(devices))}")
