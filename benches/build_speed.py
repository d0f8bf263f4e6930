"""How fast a build is: 2,000 variants, from nothing and a second time, against a plain loop that writes the same bytes.

    python benches/build_speed.py [--runs 5]
    python benches/build_speed.py --spec large.yaml

Times are of whole processes, start-up of Python included: wall clock, as a multiple of the loop, and CPU (user and
system). Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LABELS = {
    "first": "pav2gen build, from nothing",
    "second": "pav2gen build, a second time",
    "start": "python -c pass",
    "help": "pav2gen --help",
}
REPOSITORY = Path(__file__).resolve().parent.parent

#: 8 head sizes, 5 ratios, 5 block sizes, 2 dtypes, 5 partition sizes: 2,000 variants.
LARGE_SPEC = """\
schema: 1
name: large
about: 2000 variants, for the bench of the build
target: bi-v100
model: {num_heads: 32, num_kv_heads: 4, max_seq_len: 131072, tensor_parallel: [1]}
axes:
  head_size: [64, 80, 96, 112, 128, 160, 192, 256]
  gqa_ratio: [1, 4, 6, 7, 8]
  block_size: [8, 16, 32, 64, 128]
  dtype: [float16, bfloat16]
  partition_size: [128, 256, 512, 1024, 2048]
limits: {max_variants: 2000, workspace_mib: 256}
"""

#: Two plain loops that write what the build wrote: as fast as Python goes, and as one writes it down.
PLAIN_LOOPS = """\
import sys, time
from pathlib import Path
source, target = map(Path, sys.argv[1:])
contents = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*") if path.is_file()}
folders = {str(Path(path).parent) for path in contents}
start = time.perf_counter()
for folder in folders:
    (target / "open" / folder).mkdir(parents=True, exist_ok=True)
for path, content in contents.items():
    with open(f"{target}/open/{path}", "wb") as file:
        file.write(content)
middle = time.perf_counter()
for path, content in contents.items():
    file = target / "pathlib" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
print(middle - start, time.perf_counter() - middle, len(contents), sum(map(len, contents.values())))
"""


class Run(NamedTuple):
    """What one process took; ``output`` is what it printed."""

    seconds: float
    cpu: float
    peak_mib: float
    output: str


def run(*command: str | Path) -> Run:
    """Run Python with ``command`` to its end, and measure the process."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command], cwd=REPOSITORY, stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} exited with {process.returncode}")
    return Run(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)


def measure(work: Path, runs: int) -> dict[str, list[Run]]:
    """Each kind of process, ``runs`` times, taking turns so that a slow moment meets them all.

    Every run writes to a folder of its own, and all stay until the end: ext4 looks at each file that was deleted in the
    last minutes when it makes a new one, and a loop that runs after a deletion would be 20 times slower than one that
    does not.
    """
    spec, loop = work / "large.yaml", work / "plain_loop.py"
    spec.write_text(LARGE_SPEC, "utf-8")
    loop.write_text(PLAIN_LOOPS, "utf-8")
    results: dict[str, list[Run]] = {name: [] for name in ("loop", *LABELS)}
    for turn in range(runs):
        built = work / f"built_{turn}"
        results["first"].append(run("-m", "pav2gen", "build", spec, "--out", built))
        before = changed(built)
        results["second"].append(run("-m", "pav2gen", "build", spec, "--out", built))
        if changed(built) != before:
            raise SystemExit("the second build touched a file")
        results["loop"].append(run(loop, built, work / f"looped_{turn}"))
        results["start"].append(run("-c", "pass"))
        results["help"].append(run("-m", "pav2gen", "--help"))
    return results


def changed(root: Path) -> list[tuple[Path, int]]:
    """When everything below ``root``, and itself, last changed."""
    return [(path, path.stat().st_ctime_ns) for path in (root, *sorted(root.rglob("*")))]


def main() -> None:
    """Measure, and print the best of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="how often each is measured")
    parser.add_argument("--spec", type=Path, help="write the spec to this file, and stop")
    options = parser.parse_args()
    if options.spec:
        options.spec.write_text(LARGE_SPEC, "utf-8")
        return
    with tempfile.TemporaryDirectory() as work:
        results = measure(Path(work), options.runs)
    loops = [each.output.split() for each in results["loop"]]
    loop, pathlib = (min(float(output[column]) for output in loops) for column in (0, 1))
    print(f"{loops[0][2]} files, {int(loops[0][3]) / 2**20:.1f} MiB; best of {options.runs} runs; peak: of all")
    print(f"loop with open(), in process      {loop:.3f} s  1.00")
    print(f"loop with pathlib, in process     {pathlib:.3f} s  {pathlib / loop:.2f}")
    for name, label in LABELS.items():
        best, peak = min(results[name]), max(each.peak_mib for each in results[name])
        print(f"{label:33} {best.seconds:.3f} s  {best.seconds / loop:.2f}  CPU {best.cpu:.3f} s  peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
