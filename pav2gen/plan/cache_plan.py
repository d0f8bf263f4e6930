"""The plan of a cache writer: the workspace and the number of ATen calls of its PyTorch version, and the layout of the
thread blocks of its CUDA version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.axes import title
from pav2gen.family.spec import Spec
from pav2gen.family.variant import CacheVariant
from pav2gen.plan.cuda_plan import SCALARS
from pav2gen.runtime.choice.dispatch_row import MIB, Row

#: The size of the workspace of a PyTorch cache writer in bytes, unless the limit in the spec is smaller. The writer
#: processes the new tokens in chunks, each with as many tokens as fit in the workspace. On a CPU, the workspace is
#: small, so that a chunk stays in the CPU's caches. On a GPU, it is large, so that there are few chunks and thus few
#: kernel launches.
CPU_BYTES, GPU_BYTES = 8 * MIB, 14 * MIB

#: The bytes of workspace per new token, in addition to the elements of its key and value. They hold the fields of
#: ``runtime.writer.call.Targets`` (int64) for the token, and temporaries.
TOKEN_BYTES = 96

#: THREADS is the number of threads in a CUDA thread block. SECTOR is the number of bytes in a sector of GPU memory.
THREADS, SECTOR = 256, 32

#: The number of unused elements between two rows in CUDA shared memory. A row holds the elements of one token. With the
#: padding, lanes that read the same element of different rows access different memory banks.
PADDING = 4

#: BITS is a dict from the size of an element of the KV cache, in bytes, to the unsigned CUDA type that copies an
#: element. ENCODERS is a dict from the dtype of the KV cache to the struct of runtime/cuda/pav2_encode.cuh that encodes
#: an element.
BITS = {2: "uint16_t", 4: "uint32_t"}
ENCODERS = {"fp8_e4m3": "ToE4M3", "fp8_e5m2": "ToE5M2", "int8": "ToInt8"}


@dataclass(frozen=True)
class TorchCachePlan:
    """The sizes of the workspace of a PyTorch cache writer, and its number of ATen calls."""

    variant: CacheVariant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the elements of the KV cache are fp8."""
        return self.variant.kv_cache_dtype.startswith("fp8")

    @property
    def storage(self) -> str:
        """The dtype of the tensors of the KV cache, as the name of a torch dtype."""
        return self.variant.storage

    @property
    def key_grains(self) -> int:
        """The number of 16-byte groups in the cached key of one token, for one KV head."""
        return self.variant.head_size // self.variant.grain

    @property
    def cpu_bytes(self) -> int:
        """The size of the workspace on a CPU, in bytes."""
        return min(CPU_BYTES, self.workspace_bytes)

    @property
    def gpu_bytes(self) -> int:
        """The size of the workspace on a GPU, in bytes."""
        return min(GPU_BYTES, self.workspace_bytes)

    @property
    def token_bytes(self) -> int:
        """The bytes of workspace per new token. Each KV head needs ``head_bytes`` per new token in addition."""
        return TOKEN_BYTES

    @property
    def head_bytes(self) -> int:
        """The bytes of workspace per new token and KV head. If the KV cache is compressed, they hold the key and the
        value in float32, temporaries of the encoding, and the codes. Otherwise, they hold copies of the key and the
        value.
        """
        of_k_and_v = {"auto": 0, "int8": 8, "fp8_e5m2": 8 + 8 + 4 + 4, "fp8_e4m3": 8 + 8 + 4 + 4}
        return self.variant.head_size * (of_k_and_v[self.variant.kv_cache_dtype] + 3 * self.variant.cache_item_bytes)

    def calls(self, chunks: int) -> int:
        """Return the number of ATen calls that one call of the cache operator makes, not counting views.

        chunks: the number of chunks into which the new tokens of the call are split.

        The numbers here must match the code in templates/torch/cache.py.j2 and runtime/writer. Generated tests compare
        them with the real number of calls.
        """
        encoding = {"auto": 0, "int8": 5, "fp8_e5m2": 12, "fp8_e4m3": 17}[self.variant.kv_cache_dtype]
        each_chunk = 22 + encoding
        return 1 + (4 if self.variant.kv_cache_dtype != "auto" else 0) + chunks * each_chunk


@dataclass(frozen=True)
class CudaCachePlan:
    """The CUDA types, the thread blocks and the shared memory of a CUDA cache writer."""

    variant: CacheVariant

    @property
    def scalar(self) -> str:
        """The CUDA type of an element of the new keys and values."""
        return SCALARS[self.variant.dtype]

    @property
    def bits(self) -> str:
        """The unsigned CUDA type that has the size of an element of the KV cache."""
        return BITS[self.variant.cache_item_bytes]

    @property
    def encoder(self) -> str:
        """The struct of runtime/cuda/pav2_encode.cuh that converts float32 numbers to codes of the KV cache."""
        return ENCODERS[self.variant.kv_cache_dtype]

    @property
    def tokens(self) -> int:
        """The number of new tokens that a thread block writes: the number of KV cache elements in a 32-byte sector of
        memory, but at most the number of tokens in a page.

        A row of V holds the same element of the value of each token in a page. So if the new tokens lie in neighbouring
        slots of a page, the thread block fills whole sectors of each row of V.
        """
        return min(self.variant.block_size, SECTOR // self.variant.cache_item_bytes)

    @property
    def threads(self) -> int:
        """The number of threads in a thread block."""
        return THREADS

    @property
    def padding(self) -> int:
        """The number of unused elements between the rows of two tokens in shared memory."""
        return PADDING

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory per thread block, a multiple of 16. They hold a padded row of elements for each
        token that the block writes, and the slot numbers of these tokens.
        """
        rows = self.tokens * (self.variant.head_size + PADDING) * self.variant.cache_item_bytes
        return -(-(-(-rows // 8) * 8 + 8 * self.tokens) // 16) * 16


@dataclass(frozen=True)
class CachePlan:
    """The plans of the PyTorch version and the CUDA version of one cache writer, and its row in the dispatch table."""

    variant: CacheVariant
    spec: Spec
    torch: TorchCachePlan

    @cached_property
    def cuda(self) -> CudaCachePlan:
        """The plan of the CUDA version of this cache writer."""
        return CudaCachePlan(self.variant)

    @property
    def title(self) -> str:
        """The axis values that a call must have to use this cache writer, in words. This text goes into the comment at
        the top of each of its sources.
        """
        return title(self.variant.key._asdict())

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """The figures of this cache writer for the table of ``pav2gen list``, as a dict by the names of the columns."""
        shared = {"shared_kib": round(self.cuda.shared_bytes / 1024, 1)} if "cuda" in self.spec.backends else {}
        return {"workspace_mib": self.torch.gpu_bytes // MIB, "torch_calls": self.torch.calls(1), **shared}

    def row(self) -> Row:
        """Return the row of this cache writer in the dispatch table."""
        v, backends = self.variant, self.spec.backends
        return Row(
            symbol=v.symbol,
            spec=v.spec,
            key=v.key,
            partition_size=0,
            torch=v.torch_path.removesuffix(".py").replace("/", ".") if "torch" in backends else "",
            cuda=v.cuda_path if "cuda" in backends else "",
            min_seq_len=0,
            fixed_partition=0,
            multiprocessors=0,
            workspace_mib=self.spec.limits.workspace_mib,
            operator=v.operator,
        )


def plan_cache(variant: CacheVariant, spec: Spec) -> CachePlan:
    """Make the plan of the cache writer ``variant``. Its workspace is at most the limit in ``spec``."""
    return CachePlan(variant, spec, TorchCachePlan(variant, spec.limits.workspace_mib * MIB))
