"""Computes the plan of a cache writer, that is, of a kernel that writes new keys and values into the KV cache.

The plan states the temporary buffers and ATen calls of the PyTorch version, and the thread layout of the CUDA version.
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
    """The memory limits and the number of ATen calls of a PyTorch kernel that fills the KV cache."""

    variant: CacheVariant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the elements of the KV cache are fp8 numbers."""
        return self.variant.kv_cache_dtype.startswith("fp8")

    @property
    def storage(self) -> str:
        """The name of the torch dtype of the KV cache tensors."""
        return self.variant.storage

    @property
    def key_grains(self) -> int:
        """The number of 16-byte groups in the cached key of one token, for one KV head."""
        return self.variant.head_size // self.variant.grain

    @property
    def cpu_bytes(self) -> int:
        """The size in bytes of the temporary buffers on a CPU."""
        return min(CPU_BYTES, self.workspace_bytes)

    @property
    def gpu_bytes(self) -> int:
        """The size in bytes of the temporary buffers on a GPU."""
        return min(GPU_BYTES, self.workspace_bytes)

    @property
    def token_bytes(self) -> int:
        """The bytes of temporary buffers per new token, without the bytes that each KV head needs."""
        return TOKEN_BYTES

    @property
    def head_bytes(self) -> int:
        """The bytes of temporary buffers per new token and KV head.

        For an fp8 or int8 KV cache, the buffers hold the key and value in float32 and in encoded form, and temporaries
        of the encoding. For other KV caches, the buffers hold copies of the key and value.
        """
        of_k_and_v = {"auto": 0, "int8": 8, "fp8_e5m2": 8 + 8 + 4 + 4, "fp8_e4m3": 8 + 8 + 4 + 4}
        return self.variant.head_size * (of_k_and_v[self.variant.kv_cache_dtype] + 3 * self.variant.cache_item_bytes)

    def calls(self, chunks: int) -> int:
        """Return the number of ATen calls that one call of the operator ``reshape_and_cache`` makes.

        ATen calls that only create views do not count.

        The counts in this method must match the code in templates/torch/cache.py.j2 and runtime/writer. Generated tests
        compare the counts with the real numbers of calls.

        chunks: the number of chunks into which the kernel splits the new tokens.
        """
        encoding = {"auto": 0, "int8": 5, "fp8_e5m2": 12, "fp8_e4m3": 17}[self.variant.kv_cache_dtype]
        each_chunk = 22 + encoding
        return 1 + (4 if self.variant.kv_cache_dtype != "auto" else 0) + chunks * each_chunk


@dataclass(frozen=True)
class CudaCachePlan:
    """The CUDA types, the thread blocks and the shared memory of a CUDA kernel that fills the KV cache."""

    variant: CacheVariant

    @property
    def scalar(self) -> str:
        """The CUDA type of the elements of the new keys and values."""
        return SCALARS[self.variant.dtype]

    @property
    def bits(self) -> str:
        """The unsigned CUDA type that has the size of one element of the KV cache."""
        return BITS[self.variant.cache_item_bytes]

    @property
    def encoder(self) -> str:
        """The name of the struct in runtime/cuda/pav2_encode.cuh that converts float32 numbers to elements of the KV
        cache.
        """
        return ENCODERS[self.variant.kv_cache_dtype]

    @property
    def tokens(self) -> int:
        """The number of new tokens that a thread block writes into the KV cache.

        The number equals the number of KV cache elements in a 32-byte memory sector, but is at most the page size in
        tokens. If the new tokens occupy neighbouring slots of a page, each thread block fills whole sectors of the
        value cache.
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
        """The bytes of shared memory per thread block, a multiple of 16.

        Shared memory holds a padded row of elements and the slot number of each token that the thread block writes.
        """
        rows = self.tokens * (self.variant.head_size + PADDING) * self.variant.cache_item_bytes
        return -(-(-(-rows // 8) * 8 + 8 * self.tokens) // 16) * 16


@dataclass(frozen=True)
class CachePlan:
    """The plan of one cache writer, that is, of a kernel that writes new keys and values into the KV cache."""

    variant: CacheVariant
    spec: Spec
    torch: TorchCachePlan

    @cached_property
    def cuda(self) -> CudaCachePlan:
        """The computed sizes and costs of the kernel's CUDA version."""
        return CudaCachePlan(self.variant)

    @property
    def title(self) -> str:
        """The properties of the calls that this kernel can handle, in words, such as the head size and the dtype.

        The comment at the top of each kernel source contains the title.
        """
        return title(self.variant.key._asdict())

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """The values that ``pav2gen list`` prints for this kernel, as a dict from column name to value."""
        shared = {"shared_kib": round(self.cuda.shared_bytes / 1024, 1)} if "cuda" in self.spec.backends else {}
        return {"workspace_mib": self.torch.gpu_bytes // MIB, "torch_calls": self.torch.calls(1), **shared}

    def row(self) -> Row:
        """Return the kernel's row in the dispatch table, from which the runtime chooses a kernel for each call."""
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
    """Compute the plan of a kernel that writes new keys and values into the KV cache.

    variant: the properties of the kernel, such as its head size and dtype.
    spec: the parsed YAML file that requests the kernel. ``spec.limits`` limits the memory for temporary buffers.
    """
    return CachePlan(variant, spec, TorchCachePlan(variant, spec.limits.workspace_mib * MIB))
