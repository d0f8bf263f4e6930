"""Describes the machine on which a measurement runs, so that figures from different machines can be compared."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

import pav2gen
from pav2gen.bench.measuring.clock import Run
from pav2gen.errors import UserError
from pav2gen.runtime.call import Call
from pav2gen.runtime.op import device_name

#: The assumed size of the last-level cache, in bytes, if the machine does not tell it. The keys are types of devices.
#: Most caches are smaller.
CACHE_BYTES = {"cpu": 64 << 20, "cuda": 64 << 20}

#: To measure the memory's bandwidth, ``copy`` copies a buffer of COPY_CACHES times the size of the last-level cache.
#: The buffer has at least LEAST_COPY and at most MOST_COPY bytes.
COPY_CACHES, LEAST_COPY, MOST_COPY = 4, 128 << 20, 1 << 30


def device_of(name: str) -> torch.device:
    """Return the torch device called ``name``: cpu, cuda or cuda:N.

    Raises UserError if this machine has no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name!r} is not a device; write cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name!r} is not supported; write cpu, cuda or cuda:1")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise UserError(f"--device {name!r}: torch sees {count} CUDA devices here; write --device cpu")
        return torch.device("cuda", device.index or 0)
    return device


def current(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that makes ``device`` the current GPU, so that CUDA events are recorded on its stream.

    For a CPU, it does nothing.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def describe(device: torch.device) -> dict[str, object]:
    """Return a dict that describes ``device`` in the JSON document of a measurement. The dict has four keys.

    name: the device's name, as tuning files write it.
    kind: cuda or cpu.
    about: a GPU's model and its number of multiprocessors, or a CPU's model and the number of torch's threads.
    memory_bytes: the size of a GPU's memory in bytes, or 0 for a CPU.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {
            "name": device_name(device),
            "kind": "cuda",
            "about": f"{properties.name}, {properties.multi_processor_count} multiprocessors",
            "memory_bytes": properties.total_memory,
        }
    return {
        "name": device_name(device),
        "kind": "cpu",
        "about": f"{_processor()}, {torch.get_num_threads()} threads",
        "memory_bytes": 0,
    }


def versions() -> dict[str, str]:
    """Return the versions of pav2gen, Python and torch by name. With a torch for CUDA, also return its CUDA release."""
    found = {"pav2gen": pav2gen.__version__, "python": platform.python_version(), "torch": torch.__version__}
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def cache_bytes(device: torch.device) -> int:
    """Return the size of the last-level cache of ``device`` in bytes.

    If the size is unknown, return a guess that is larger than most caches.
    """
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or CACHE_BYTES["cuda"])
    sizes = [
        _bytes(path.read_text(encoding="ascii"))
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=CACHE_BYTES["cpu"])


def copy(device: torch.device, cache: int) -> tuple[Run, int]:
    """Return a function that copies a buffer far larger than the cache, so that the memory's bandwidth can be measured.

    Also return how many bytes one call of the function reads and writes together.

    cache: the size of the last-level cache in bytes.
    """
    size = min(MOST_COPY, max(LEAST_COPY, COPY_CACHES * cache))
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)

    def run(call: Call) -> object:
        return target.copy_(source)

    return run, 2 * size


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Call ``run``, and return the largest number of bytes that ``run`` has allocated on ``device`` at one time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    from pav2gen.runtime.testing import probe

    return probe.peak_bytes(run)


def _processor() -> str:
    """Return the name of the CPU's model from Linux's /proc/cpuinfo, or from Python if that file does not have it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _bytes(text: str) -> int:
    """Convert a size such as ``32768K`` to a number of bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip()
    return int(text.rstrip("KMG")) * units.get(text[-1:], 1)
