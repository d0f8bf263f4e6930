"""Instructions of the inner loops of CUDA kernels, as nvcc makes them for compute capability 7.5.

    python benches/sass_counts.py benches/plain_v2.cu generated/qwen36/cuda_kernels/hd256_g6_b16_f16_p512.cu

Needs nvcc, and cuobjdump and nvdisasm (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm). A loop is listed if it
has multiply-adds and no loop inside. "each" is the instructions for one multiply-add: 1 is the floor, and each element
that is converted from float16 costs one more, shared by the query heads that a thread serves.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

WHEELS = [str(path / "bin") for path in Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*")]
PATH = os.pathsep.join([*WHEELS, os.environ["PATH"], "/usr/local/cuda/bin"])


class Loop(NamedTuple):
    """A loop: its first and last address, and its instructions."""

    first: int
    last: int
    body: list[str]

    @property
    def operations(self) -> Counter[str]:
        """How often each operation stands in it."""
        return Counter(re.sub(r"^@!?U?P\d+\s+", "", text).split()[0].split(".")[0] for text in self.body)


def disassemble(source: Path, warp_size: int, arch: str) -> str:
    """The SASS of a source."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = str(Path(folder, "kernel.cubin"))
        flags = ["-std=c++17", "-O3", f"-arch={arch}", "-cubin", f"-DPAV2_WARP_SIZE={warp_size}"]
        environment = {**os.environ, "PATH": PATH}
        nvcc = shutil.which("nvcc", path=PATH) or "nvcc"
        subprocess.run([nvcc, *flags, str(source), "-o", cubin], check=True, env=environment)
        tool = shutil.which("cuobjdump", path=PATH) or "cuobjdump"
        return subprocess.run(
            [tool, "-sass", cubin], capture_output=True, encoding="utf-8", check=True, env=environment
        ).stdout


def inner_loops(sass: str) -> list[Loop]:
    """The loops of one function that have multiply-adds and no loop inside; not the slow paths behind its end."""
    found = re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass)
    code = [(int(address, 16), text.strip()) for address, text in found]
    loops = []
    for address, text in code:
        target = re.search(r"BRA.*?(0x[0-9a-f]+)", text)
        if target and int(target[1], 16) < address:
            first = int(target[1], 16)
            loops.append(Loop(first, address, [line for at, line in code if first <= at <= address]))
    inner = [a for a in loops if not any(a.first < b.first and b.last < a.last for b in loops)]
    return [loop for loop in inner if loop.operations["FFMA"] >= 16 and len(loop.body) < 900]


def main() -> None:
    """Print the inner loops of the sources."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--arch", default="sm_75")
    options = parser.parse_args()
    print(f"{'source':44} {'warp':>4} {'multiply-adds':>13} {'instructions':>12} {'each':>5}  most frequent")
    for source in options.sources:
        for warp_size in (64, 32):
            functions = disassemble(source, warp_size, options.arch).split("Function : ")[1:]
            for loop in (
                loop for function in functions if "reduce" not in function.split()[0] for loop in inner_loops(function)
            ):
                adds, total = loop.operations["FFMA"], len(loop.body)
                frequent = ", ".join(f"{name} {count}" for name, count in loop.operations.most_common(5))
                print(f"{source.stem:44} {warp_size:4} {adds:13} {total:12} {total / adds:5.2f}  {frequent}")


if __name__ == "__main__":
    main()
