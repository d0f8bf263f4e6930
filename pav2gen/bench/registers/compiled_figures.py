"""Computes the figures of a kernel's plan from the number of registers that ptxas (a part of nvcc) assigned.

The plan itself only estimates this number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pav2gen.bench.registers.ptxas import Measured, Progress, measure, quiet
from pav2gen.errors import UserError
from pav2gen.plan.kernel import AnyKernel, Kernel
from pav2gen.plan.occupancy import occupancy
from pav2gen.reading.selection import Selection

Figures = Mapping[str, int | float | str | None]


def figures(kernel: AnyKernel, measured: Measured | None) -> Figures:
    """Return the figures of the plan of ``kernel``, by name.

    If ``measured`` has the kernel, the number of registers of a thread is the one that ptxas assigned. For a decode
    kernel, the number of resident thread blocks and the bytes in flight (see ``plan.occupancy``) are then computed from
    this number. The figures of the wave model (``runtime.choice.waves``) stay as planned, because the dispatch table
    was rendered with them.

    measured: what ptxas printed about the kernels of the spec. With None, all figures are those of the plan.
    """
    usage = measured.usages.get(kernel.v.symbol) if measured else None
    if measured is None or usage is None:
        return kernel.p.figures
    compiled: dict[str, int | float | str | None] = {
        "registers": usage.registers,
        "registers_from": f"ptxas {measured.arch}",
        "spilled_bytes": usage.spilled_bytes,
    }
    if isinstance(kernel, Kernel):
        plan = kernel.p.cuda
        found = occupancy(kernel.v, plan.geometry, plan.shared_bytes, plan.target, _assigned(usage.registers))
        compiled |= found.figures()
    return {**kernel.p.figures, **compiled}


def _assigned(registers: int) -> int:
    """Return how many registers the hardware reserves for a thread: a multiple of 8.

    registers: the number of registers of a thread that ptxas prints.
    """
    return -(-registers // 8) * 8


def measure_all(
    selections: Sequence[Selection], arch: str | None = None, progress: Progress = quiet
) -> dict[str, Measured]:
    """Compile the CUDA kernels of ``selections``. Return a dict from each spec's name to what ptxas printed about them.

    arch, progress: as in ``measure``.

    Raises UserError if no spec has CUDA kernels, or if ``measure`` raises it.
    """
    with_cuda = [chosen for chosen in selections if "cuda" in chosen.spec.backends]
    if not with_cuda:
        raise UserError("--ptxas: no kernel here is a CUDA kernel; add cuda to the backends of the spec")
    return {chosen.spec.name: measure(chosen, arch, progress=progress) for chosen in with_cuda}


def notes(selections: Iterable[Selection], measured: Mapping[str, Measured]) -> list[str]:
    """Return sentences that say for which compiler and which architecture the numbers of registers are valid.

    measured: the result of ``measure_all``.
    """
    found = [_note(measured[chosen.spec.name], chosen) for chosen in selections if chosen.spec.name in measured]
    return list(dict.fromkeys(found))


def _note(measured: Measured, chosen: Selection) -> str:
    release = re.search(r"release ([\d.]+)", measured.compiler)
    text = f"registers: by ptxas for {measured.arch}, CUDA {release[1] if release else 'of an unknown release'}"
    arch = chosen.spec.target.arch
    if arch == measured.arch:
        return text
    if arch.startswith("sm_"):
        return f"{text}; the target is {arch}"
    return f"{text}; not those of {arch}, because CoreX's compiler assigns its own"
