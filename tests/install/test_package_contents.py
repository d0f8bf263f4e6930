"""What travels: all that is imported there, and a prebuilt library only if it holds the CUDA kernels of the specs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.install.apply import Outcome
from pav2gen.install.package_contents import Choice, cuda_sources, package_contents
from pav2gen.install.wheel import MODULES
from pav2gen.reading.spec_file import RESERVED_NAMES

from .conftest import make_library

Put = Callable[..., Outcome]


def modules(files: Mapping[str, bytes]) -> set[str]:
    return {path.removesuffix(".py") for path in files if path.endswith(".py")}


def imported(path: str, content: bytes) -> Iterator[str]:
    """The modules of the package that a module imports, also within a function, where no trial import sees it."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.split("/")[: -node.level]
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                yield "/".join([*folder, *name.split(".")])


def test_what_stays_behind_is_not_imported_by_what_travels(cuda: Path) -> None:
    travels = package_contents(cuda, Choice(), MODULES).files
    behind = modules(package_contents(cuda, Choice(tests=True), MODULES).files) - modules(travels)
    assert {"runtime/testing/cases", "runtime/testing/harness", "runtime/testing/oracle"} <= behind
    for path in (path for path in travels if path.endswith(".py")):
        assert not behind.intersection(imported(path, travels[path])), path


def test_it_is_installed_beside_the_kernels(vllm: Callable[..., Path], put: Put, cuda: Path, prebuilt: Path) -> None:
    tree = vllm()
    put(tree, generated=cuda, prebuilt=prebuilt)
    pav2 = tree / "vllm/attention/ops/pav2"
    assert (pav2 / "prebuilt/libpav2.so").read_bytes() == prebuilt.read_bytes()
    put(tree, generated=cuda)
    assert not (pav2 / "prebuilt").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "is not usable: it is not a shared library (not an ELF file)"),
        (b"MZ" + bytes(100), "is not usable: it is not a shared library (not an ELF file)"),
        (b"\x7fELF" + bytes(100), "is not usable: it is not a 64-bit little-endian library"),
    ],
)
def test_what_is_not_that_library_is_refused(
    content: bytes | None, sentence: str, vllm: Callable[..., Path], put: Put, cuda: Path, folder: Path
) -> None:
    library = folder / "lib.so"
    if content is not None:
        library.write_bytes(content)
    with pytest.raises(UserError) as refused:
        put(vllm(), generated=cuda, prebuilt=library)
    assert str(refused.value).startswith(f"{library}: {sentence}")


def test_a_library_is_judged_by_what_it_says(
    vllm: Callable[..., Path], put: Put, cuda: Path, folder: Path, tmp_path: Path
) -> None:
    """One for the CPU, one of older sources, one of other kernels, one that lacks some."""
    package, other = package_contents(cuda, Choice(), ()), package_contents(cuda, Choice(("alpha",)), ())
    symbols = sorted(cuda_sources(package))
    foreign = replace(package, specs={})
    for toolchain, made, sources, sentence in (
        (
            "host",
            package,
            {},
            "is for the CPU (host, ivcore10, warp size 64, 4 kernels); --prebuilt takes a library for",
        ),
        ("corex", package, {symbols[0]: "0"}, "does not fit the package: 1 of its 4 kernels (as "),
        ("nvcc", foreign, {"pav2_other": "0"}, "does not fit the package: it has none of the kernels of this package"),
        ("nvcc", other, {}, "does not fit the package: it lacks 2 of the 4 CUDA kernels, such as pav2_beta"),
    ):
        library = make_library(folder, made, toolchain, **sources)
        with pytest.raises(UserError) as refused:
            put(vllm(name=f"{toolchain}{len(sentence)}"), generated=cuda, prebuilt=library)
        assert str(refused.value).startswith(f"{library}: {sentence}")


def test_no_spec_can_have_the_name_of_a_module_that_is_put_beside_it() -> None:
    assert {*MODULES} <= RESERVED_NAMES


def test_a_package_without_cuda_kernels_has_no_use_for_it(vllm: Callable[..., Path], put: Put, prebuilt: Path) -> None:
    with pytest.raises(UserError, match="--prebuilt: the chosen specs have no CUDA kernels"):
        put(vllm(), prebuilt=prebuilt)
