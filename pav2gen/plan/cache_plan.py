"""The plan of a cache writer: the workspace and the ATen calls of its PyTorch code, and the thread blocks of its CUDA
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pav2gen.family.axes import title
from pav2gen.family.spec import Spec
from pav2gen.family.variant import CacheVariant
from pav2gen.plan.cuda_plan import SCALARS
from pav2gen.runtime.dispatch_row import MIB, Row

#: The size of the workspace in bytes. On a CPU it is small, so that a chunk of tokens stays in the CPU's caches. On a
#: GPU it is large, to save launches.
CPU_BYTES, GPU_BYTES = 8 * MIB, 14 * MIB

#: Bytes of workspace per token, in addition to the elements of its K and V: slot, row and block number as int64, and
#: temporaries.
TOKEN_BYTES = 96

#: THREADS: the number of threads in a CUDA thread block. SECTOR: the number of bytes in a sector of memory.
THREADS, SECTOR = 256, 32

#: The number of unused elements between two rows in shared memory. With them, lanes that read a column access different
#: banks.
PADDING = 4

#: BITS: bytes of a cache element -> the unsigned CUDA type that copies the element. ENCODERS: dtype of the cache -> the
#: struct of runtime/cuda/pav2_encode.cuh that encodes an element.
BITS = {2: "uint16_t", 4: "uint32_t"}
ENCODERS = {"fp8_e4m3": "ToE4M3", "fp8_e5m2": "ToE5M2", "int8": "ToInt8"}


@dataclass(frozen=True)
class TorchCachePlan:
    """The plan of a PyTorch cache writer."""

    variant: CacheVariant
    workspace_bytes: int

    @property
    def fp8(self) -> bool:
        """Whether the elements of the cache are fp8."""
        return self.variant.kv_cache_dtype.startswith("fp8")

    @property
    def storage(self) -> str:
        """The dtype of the cache's tensors."""
        return self.variant.storage

    @property
    def key_grains(self) -> int:
        """The number of 16-byte groups in the key of one token and KV head."""
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
        """Bytes of workspace per token, in addition to ``head_bytes`` for each KV head."""
        return TOKEN_BYTES

    @property
    def head_bytes(self) -> int:
        """Bytes of workspace per token and KV head: K and V in float32, temporaries of the encoder, and the encoded
        elements.
        """
        of_k_and_v = {"auto": 0, "int8": 8, "fp8_e5m2": 8 + 8 + 4 + 4, "fp8_e4m3": 8 + 8 + 4 + 4}
        return self.variant.head_size * (of_k_and_v[self.variant.kv_cache_dtype] + 3 * self.variant.cache_item_bytes)

    def calls(self, chunks: int) -> int:
        """The number of ATen calls of one call of the writer, not counting views. ``chunks`` is the number of chunks of
        tokens.

        The numbers must match the code in templates/torch/cache.py.j2 and runtime/writer. Generated tests count the
        calls.
        """
        encoding = {"auto": 0, "int8": 5, "fp8_e5m2": 12, "fp8_e4m3": 17}[self.variant.kv_cache_dtype]
        each_chunk = 22 + encoding
        return 1 + (4 if self.variant.kv_cache_dtype != "auto" else 0) + chunks * each_chunk


@dataclass(frozen=True)
class CudaCachePlan:
    """The plan of a CUDA cache writer."""

    variant: CacheVariant

    @property
    def scalar(self) -> str:
        """The CUDA type of the elements of key and value."""
        return SCALARS[self.variant.dtype]

    @property
    def bits(self) -> str:
        """The unsigned CUDA type with the size of a cache element."""
        return BITS[self.variant.cache_item_bytes]

    @property
    def encoder(self) -> str:
        """The struct of runtime/cuda/pav2_encode.cuh that encodes float32 numbers for the cache."""
        return ENCODERS[self.variant.kv_cache_dtype]

    @property
    def tokens(self) -> int:
        """The number of tokens that a thread block writes. This is the number of elements in a 32-byte sector of a row
        of V, but at most the number of tokens in a page.

        So tokens in neighbouring slots of a page fill whole sectors.
        """
        return min(self.variant.block_size, SECTOR // self.variant.cache_item_bytes)

    @property
    def threads(self) -> int:
        """The number of threads in a thread block."""
        return THREADS

    @property
    def padding(self) -> int:
        """The number of unused elements between two rows in shared memory."""
        return PADDING

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per thread block, a multiple of 16: rows with padding, and slot numbers."""
        rows = self.tokens * (self.variant.head_size + PADDING) * self.variant.cache_item_bytes
        return -(-(-(-rows // 8) * 8 + 8 * self.tokens) // 16) * 16


@dataclass(frozen=True)
class CachePlan:
    """The plan of one cache writer."""

    variant: CacheVariant
    spec: Spec
    torch: TorchCachePlan

    @cached_property
    def cuda(self) -> CudaCachePlan:
        """The plan of the CUDA kernel."""
        return CudaCachePlan(self.variant)

    @property
    def title(self) -> str:
        """The axis values that a call must match, in words, for the comment at the top of a source."""
        return title(self.variant.key._asdict())

    @cached_property
    def figures(self) -> dict[str, int | float | str | None]:
        """The numbers that ``pav2gen list`` shows, by column."""
        shared = {"shared_kib": round(self.cuda.shared_bytes / 1024, 1)} if "cuda" in self.spec.backends else {}
        return {"workspace_mib": self.torch.gpu_bytes // MIB, "torch_calls": self.torch.calls(1), **shared}

    def row(self) -> Row:
        """The writer's row in the dispatch table."""
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
    """Make the plan of a cache writer. ``spec`` sets the limits of the workspace."""
    return CachePlan(variant, spec, TorchCachePlan(variant, spec.limits.workspace_mib * MIB))
