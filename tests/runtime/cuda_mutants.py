"""Mutants of CUDA sources: kernels with one planted fault each, which checked runs must catch."""

import importlib
import re
from dataclasses import dataclass

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.runtime.library import package_rows

from .conftest import load, settle


@dataclass(frozen=True)
class Fault:
    """``old`` becomes ``new``, once; ``found`` is the kind of finding, or empty where the numbers tell.

    family: the kernel to change. header: the header to change instead of its source. run: the method of the test module
    that must catch it.
    """

    name: str
    found: str
    old: str
    new: str
    family: str = "dense"
    header: str = ""
    run: str = "short"


def narrow(name, old, header="", family="dense"):
    """The fault of an offset that is computed in 32 bits."""
    return Fault(f"{name} in 32 bits", "out", old, f"static_cast<int>({old})", family, header, run="far")


def kind(fault):
    """What makes two faults alike: what finds them, on which kernel, in which file, and by which run."""
    return fault.found, fault.family, fault.header, fault.run


def chosen(config, faults):
    """The places of the faults that a run plants: all with ``--full``, else the first of each kind."""
    if config.getoption("--full", default=False):
        return range(len(faults))
    kinds = [kind(fault) for fault in faults]
    return [number for number, own in enumerate(kinds) if own not in kinds[:number]]


def parametrize(metafunc, faults):
    """``number`` becomes the place of each fault that is planted, ``host`` the warp size of healthy kernels.

    Without ``--full`` it is 64 only: the generated tests check representatives of all kernels at 32 as well.
    """
    if "number" in metafunc.fixturenames and "mutants" in metafunc.fixturenames:
        numbers = chosen(metafunc.config, faults)
        metafunc.parametrize("number", numbers, ids=[faults[number].name.replace(" ", "-") for number in numbers])
    if "host" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full", default=False)
        metafunc.parametrize("host", ["warp64", "warp32"] if full else ["warp64"])


class Mutants:
    """A package with the sources of mutants beside the healthy ones, and their rows.

    specs: family -> text of its spec. numbers: the places of the faults to plant. operator: of the kernels to change.
    """

    def __init__(self, root, specs, faults, numbers, operator="decode"):
        self.root, self.faults = root / "package", faults
        paths = [root / f"{name}.yaml" for name in specs]
        for path, text in zip(paths, specs.values()):
            path.write_text(text)
        build(paths, BuildOptions(self.root))
        self.healthy = {row.spec: row for row in package_rows(self.root) if row.operator == operator}
        planted = {number: self.plant(number, faults[number]) for number in numbers}
        self.root = settle(self.root)
        self.package = load(self.root, f"pav2_of_the_{operator}_mutants")
        self.healthy = {row.spec: row for row in self.package.kernels.rows if row.operator == operator}
        self.rows = {
            number: self.healthy[faults[number].family]._replace(symbol=symbol, cuda=path)
            for number, (symbol, path) in planted.items()
        }

    def plant(self, number, fault):
        """Write the source of a mutant. Returns its symbol and its path."""
        row = self.healthy[fault.family]
        text = (self.root / row.cuda).read_text()
        if fault.header:
            self.copy_headers(number, fault)
            text = re.sub(r'runtime/cuda/(\w+\.cuh)"', rf'runtime/mutants/mutant{number}_\1"', text)
            text = text.replace("using namespace pav2;", f"using namespace mutant{number};")
        else:
            text = self.change(fault, text)
        own = f"{row.symbol}_mutant{number}"
        text = re.sub(rf"\b{row.symbol}\b", own, text)
        text = re.sub(rf"\b{row.symbol.removeprefix('pav2_')}\b", f"mutant{number}_kernel", text)
        path = f"{row.spec}/cuda_kernels/mutant{number}.cu"
        (self.root / path).write_text(text)
        return own, path

    def copy_headers(self, number, fault):
        """Write copies of all headers, in a namespace of their own, one of them changed.

        The copies of all mutants are in one folder, so that a compiler call takes several mutants.
        """
        folder = self.root / "runtime" / "mutants"
        folder.mkdir(exist_ok=True)
        for header in (self.root / "runtime" / "cuda").glob("*.cuh"):
            content = header.read_text()
            content = self.change(fault, content) if header.name == fault.header else content
            content = re.sub(r'#include "(\w+\.cuh)"', rf'#include "mutant{number}_\1"', content)
            content = re.sub(r'#include "(\w+\.h)"', r'#include "../cuda/\1"', content)
            content = content.replace("namespace pav2", f"namespace mutant{number}")
            (folder / f"mutant{number}_{header.name}").write_text(content)

    def change(self, fault, text):
        assert fault.old in text, f"{fault.name}: {fault.old!r} is not in the source"
        return text.replace(fault.old, fault.new, 1)

    def module(self, name):
        """A module of the package's runtime."""
        return importlib.import_module(f"{self.package.__name__}.runtime.{name}")

    def expect_caught(self, number, run):
        """Fail unless ``run()`` of mutant ``number`` fails as the fault says."""
        fault = self.faults[number]
        with pytest.raises((AssertionError, RuntimeError)) as raised:  # a finding is an AssertionError too
            run()
        findings = getattr(raised.value, "findings", ())
        kinds = {finding.kind for finding in findings}
        assert bool(findings) == bool(fault.found), f"{kinds}: {raised.value}"
        if fault.found:
            assert any(fault.found in kind for kind in kinds), kinds
            places = [place for finding in findings for place in finding.locations]
            lines = [(place.file, place.line) for place in places] + [
                caller for place in places for caller in place.callers
            ]
            named = any(f"mutant{number}" in file and line for file, line in lines)
            assert named, f"no line of the mutant: {raised.value}"
