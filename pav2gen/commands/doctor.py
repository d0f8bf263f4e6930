"""Implements ``pav2gen doctor``: shows what pav2gen finds on this machine, and the command to type next.

The command writes nothing. A missing part of the machine, such as a compiler, is reported, but is never an error.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pav2gen
from pav2gen.commands.machine_probes import DRIVER, PYTHON, TORCH, NoAnswer, ask
from pav2gen.errors import UserError
from pav2gen.family.axes import KEY_AXES
from pav2gen.family.target import TARGETS, Target
from pav2gen.install.status import Status, status
from pav2gen.output.tree import DEFAULT_FOLDER, Tree, read_tree
from pav2gen.runtime.building import toolchain
from pav2gen.wording import flow_list, spelled

#: ``doctor`` prints a line about each spec of the package, but at most this many.
MOST_SPECS = 8

#: The names of the figures that ``doctor`` compares: the driver's figures of a GPU with those of its target.
COMPARED = ("multiprocessors", "warp_size", "max_threads_per_block", "shared_memory_bytes")


@dataclass(frozen=True)
class DoctorOptions:
    """What ``doctor`` examines.

    python: the path of the interpreter that runs vLLM.
    tree: a vLLM tree; None means the vLLM that the interpreter ``python`` imports.
    generated: the folder of the generated package.
    specs: the folder of the specs.
    """

    python: str = sys.executable
    tree: Path | None = None
    generated: Path = DEFAULT_FOLDER
    specs: Path = Path("specs")


@dataclass(frozen=True)
class Finding:
    """The result for one part of the machine, such as torch or a compiler.

    name: the name of the part.
    found: whether the part exists and is usable.
    text: the line that describes the part.
    figures: the values in ``text``, by their names. Only --json prints these values separately.
    more: further lines about the part, which are printed below ``text``.
    """

    name: str
    found: bool
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The results for all parts of the machine, the command to type next, and the reason for this command."""

    findings: tuple[Finding, ...]
    next: str
    because: str

    def lines(self) -> Iterator[str]:
        """Yield the lines to print: the line of each finding, followed by the finding's further lines, indented.

        The last line shows the next command.
        """
        width = max(len(finding.name) for finding in self.findings)
        for finding in self.findings:
            yield f"{finding.name:{width}}  {finding.text}"
            yield from (f"{'':{width}}  {line}" for line in finding.more)
        yield f"{'next':{width}}  {self.next}  ({self.because})"

    def document(self) -> dict[str, Any]:
        """Return the diagnosis as a dict, which --json prints."""
        findings = {
            finding.name: {k: v for k, v in asdict(finding).items() if k != "name"} for finding in self.findings
        }
        return {"schema": 1, "findings": findings, "next": self.next, "because": self.because}


def examine(options: DoctorOptions) -> Diagnosis:
    """Examine all parts of the machine, and return the diagnosis. A missing or broken part never raises an error."""
    python = _python(options)
    found = [_pav2gen(), python]
    found += [_torch(options), _card(options), *_compilers()]
    package, tree = _package(options.generated)
    place = options.tree or (Path(str(python.figures["vllm"])) if python.figures.get("vllm") else None)
    vllm, states = _vllm(place, options.generated)
    found += [package, vllm]
    step, because = _next(options, tree, place, states)
    return Diagnosis(tuple(found), step, because)


def _pav2gen() -> Finding:
    place = str(Path(pav2gen.__file__).parent)
    return Finding("pav2gen", True, f"{pav2gen.__version__}, in {place}", {"version": pav2gen.__version__})


def _python(options: DoctorOptions) -> Finding:
    """Examine the Python interpreter that runs vLLM."""
    try:
        answer = ask(options.python, PYTHON)
    except NoAnswer as reason:
        return Finding("Python", False, str(reason))
    text = f"{answer.get('version')}, {answer.get('executable')}, {answer.get('platform')}"
    return Finding("Python", True, text, answer)


def _torch(options: DoctorOptions) -> Finding:
    """Examine the torch that the interpreter of vLLM imports: the version, and the GPUs that torch sees."""
    try:
        answer = ask(options.python, TORCH)
    except NoAnswer as reason:
        return Finding("torch", False, f"cannot be imported: {reason}")
    built = f"built for CUDA {answer['cuda']}" if answer.get("cuda") else "built for CPUs only"
    devices = list(answer.get("devices") or ())
    sees = f"sees {len(devices)} device{'s' * (len(devices) != 1)}" if answer.get("available") else "sees no device"
    return Finding("torch", True, f"{answer.get('version')}, {built}; {sees}", answer, tuple(map(str, devices)))


def _card(options: DoctorOptions) -> Finding:
    """Examine the GPUs that the driver reports.

    Compare the first GPU with its target. A target is pav2gen's description of a GPU model, with figures such as the
    warp size.
    """
    try:
        answer = ask(options.python, DRIVER)
    except NoAnswer as reason:
        return Finding("card", False, f"no driver reports one: {reason}")
    cards = [card for card in answer.get("cards") or () if isinstance(card, dict)]
    if not cards:
        return Finding("card", False, "the driver reports no card", answer)
    first, more = cards[0], [line for card in cards[:1] for line in _against_target(card)]
    others = f", and {len(cards) - 1} more" if cards[1:] else ""
    return Finding("card", True, f"{first.get('name')}{others}; {_driver(answer.get('version'))}", answer, tuple(more))


def _driver(version: object) -> str:
    """Return a description of a GPU driver. ``version`` is the driver's CUDA release as a number: 12040 means 12.4."""
    known = isinstance(version, int) and version > 0
    return f"driver for CUDA {version // 1000}.{version % 1000 // 10}" if known else "a driver of an unknown release"  # type: ignore[operator]


def _against_target(card: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line that compares the figures of a GPU with the figures of the target for this GPU. If pav2gen has no
    target for this GPU, the line says so.
    """
    target = target_of(card)
    if target is None:
        yield f"no target for it: in the spec, take the nearest of {', '.join(TARGETS)}, and override its figures"
        return
    figures = [(name, card.get(name), getattr(target, name)) for name in COMPARED]
    yield f"target {target.name}: " + ", ".join(
        f"{name} {has}" if has == planned else f"{name} {spelled(has)} (the target says {spelled(planned)})"
        for name, has, planned in figures
    )


def target_of(card: Mapping[str, Any]) -> Target | None:
    """Return the target for a GPU, that is, pav2gen's description of the GPU model. Return None if pav2gen has no
    target for this GPU model.

    An Iluvatar GPU is recognised by its name, and any other GPU by its compute capability.

    card: the properties that the driver reports, such as the name.
    """
    name = str(card.get("name", "")).lower().replace(" ", "-").replace("_", "-")
    for target in TARGETS.values():
        if target.warp_size == 64 and target.name in name:
            return target
    if card.get("warp_size") == 64:
        return None
    return TARGETS.get(f"sm_{card.get('major')}{card.get('minor')}")


def _compilers() -> Iterator[Finding]:
    """Examine each compiler of CUDA sources: CoreX for Iluvatar GPUs, nvcc for NVIDIA GPUs, g++ for the CPU."""
    ways: Sequence[tuple[str, Callable[[], tuple[str, str]]]] = (
        ("CoreX", lambda: _toolchain(toolchain.corex())),
        ("nvcc", lambda: _toolchain(toolchain.nvcc("sm_75"))),
        ("g++", _host),
    )
    for name, look in ways:
        try:
            compiler, version = look()
        except (toolchain.CompilerMissingError, OSError) as reason:
            yield Finding(name, False, f"not found: {reason}" if name == "g++" else str(reason))
            continue
        release = re.search(r"release [\d.]+|version [\d.]+|\d+\.\d+\.\d+", version)
        text = f"{compiler}, {release[0] if release else version[:60]}"
        yield Finding(name, True, text, {"compiler": compiler, "version": version})


def _toolchain(found: toolchain.Toolchain) -> tuple[str, str]:
    return found.compiler, found.version


def _host() -> tuple[str, str]:
    compiler = shutil.which("g++")
    if compiler is None:
        raise toolchain.CompilerMissingError("no g++ on the path; CUDA kernels cannot be tested on this CPU")
    return compiler, toolchain.version(compiler).partition(" Copyright")[0]


def _package(generated: Path) -> tuple[Finding, Tree | None]:
    """Examine the generated package in the folder ``generated``: its specs, and the axis values of their kernels.

    Also returns the package as read from the disk, or None if there is no usable package.
    """
    try:
        tree = read_tree(generated)
        manifests = tree.sound_manifests()
    except UserError as reason:
        return Finding("package", False, str(reason)), None
    if not manifests:
        return Finding("package", False, f"{generated}: nothing was built there"), None
    number = sum(len(entry.rows) for entry in manifests)
    text = f"{generated}: {number} kernels of {len(manifests)} specs"
    if tree.incomplete:
        text += "; incomplete: a build was cut short"
    more = [f"{entry.owner}: {_served(entry.rows)}" for entry in manifests]
    if len(more) > MOST_SPECS:
        more = [*more[:MOST_SPECS], f"and {len(more) - MOST_SPECS} more: pav2gen list"]
    figures = {entry.owner: len(entry.rows) for entry in manifests}
    return Finding("package", not tree.incomplete, text, {"kernels": figures}, tuple(more)), tree


def _served(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the axis values of a spec's kernels as text. Unless all are decode kernels, the text also names the
    operators.

    rows: the rows of the kernels in the dispatch table.
    """
    operators = list(dict.fromkeys(row.get("operator", "decode") for row in rows))
    keys = shapes([row["key"] for row in rows])
    return keys if operators == ["decode"] else f"operators {flow_list(operators)}, {keys}"


def shapes(keys: Sequence[Mapping[str, Any]]) -> str:
    """Return the values of each axis as text, such as ``head_size 128, dtype [float16, bfloat16]``.

    Features that no kernel has are left out.

    keys: the kernel keys, as mappings from axes to values.
    """
    parts = []
    for name in KEY_AXES:
        values = list(dict.fromkeys(key[name] for key in keys if name in key))
        if values not in ([], [None], [False], ["auto"]):
            parts.append(f"{name} {spelled(values[0]) if len(values) == 1 else flow_list(values)}")
    return ", ".join(parts)


def _vllm(place: Path | None, generated: Path) -> tuple[Finding, tuple[Status, ...]]:
    """Examine the vLLM trees at ``place``, and the kernels that are installed in these trees.

    place: the folder of the trees, or None if no vLLM was found.
    generated: the folder of the generated package, with which the installed kernels are compared.
    """
    if place is None:
        return Finding("vLLM", False, "not found by that Python; name a tree: pav2gen doctor TREE"), ()
    try:
        states = tuple(status(place, generated))
    except (UserError, OSError) as reason:
        return Finding("vLLM", False, str(reason)), ()
    more = [line for state in states[1:] for line in (f"{state.tree.shown}: {state.fork}", _installed(state))]
    figures = {
        state.tree.shown: {
            "fork": str(state.fork),
            "installed": dict(state.record.specs) if state.record else None,
            "sound": state.sound,
        }
        for state in states
    }
    first = states[0]
    return Finding("vLLM", True, f"{first.tree.shown}: {first.fork}", figures, (_installed(first), *more)), states


def _installed(state: Status) -> str:
    """Return a line with the kernels that are installed in a vLLM tree, and the first problem of the install."""
    if state.record is None:
        return "pav2gen has installed nothing in it"
    specs = ", ".join(f"{name} ({entry['kernels']} kernels)" for name, entry in state.record.specs.items())
    if state.sound:
        return f"installed: {specs}; current"
    trouble = [*state.edited, *(state.stale or ()), state.unknown]
    return f"installed: {specs}; {next(filter(None, trouble), 'its install was cut short')}"


def _next(options: DoctorOptions, tree: Tree | None, place: Path | None, states: Sequence[Status]) -> tuple[str, str]:
    """Return the command to type next, and the reason for this command.

    tree: the generated package, or None if the package is missing or not usable.
    place: the folder of the vLLM trees, or None if no vLLM was found.
    states: the state of each vLLM tree.
    """
    out = [] if options.generated == DEFAULT_FOLDER else ["--out", str(options.generated)]
    if tree is None:
        specs = sorted(options.specs.glob("*.yaml"))
        if not specs:
            return "pav2gen init --from config.json", "there are no specs here yet"
        return shlex.join(["pav2gen", "build", *map(str, specs[:3]), *out]), "nothing is built from the specs yet"
    if tree.incomplete:
        return shlex.join(["pav2gen", "check", *out]), "a build was cut short"
    if place is None or not states:
        return f"pytest {shlex.quote(str(options.generated))}", "no vLLM tree to install into"
    if any(state.record is None for state in states):
        return shlex.join(["pav2gen", "install", str(place), "--dry-run", *out]), "nothing is installed in vLLM yet"
    if not all(state.sound for state in states):
        return shlex.join(["pav2gen", "status", str(place), *out]), "the install is not current, or was edited"
    return f"pytest {shlex.quote(str(options.generated))}", "everything is in place"
