"""What a library says of itself, read from its bytes: for which device, from which sources, whole or damaged."""

import os
import subprocess

import pytest

from pav2gen.runtime.building import compiling
from pav2gen.runtime.building.library_record import (
    Record,
    RecordError,
    mismatch,
    read_record,
    source_digest,
    source_digests,
)
from pav2gen.runtime.library import Library, LibraryError, identify


def record_of(kernels, toolchain="nvcc", **fields):
    values = {"arch": "sm_75", "warp_size": 32, "checked": False, "compiler": 'clang "16" \\ é', **fields}
    return Record(toolchain, kernels=source_digests(kernels), **values)


@pytest.fixture
def kernels(tmp_path):
    """Two sources with a header, by the names of their entry functions."""
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "args.h").write_text("// head\nint version = 1;\n")
    (tmp_path / "spec").mkdir()
    for name in ("one", "two"):
        text = (
            f'// Generated. spec: sha256:00\n\n// more\n#include "../runtime/args.h"\n#include <math.h>\nint {name};\n'
        )
        (tmp_path / "spec" / f"{name}.cu").write_text(text)
    return {f"pav2_{name}": tmp_path / "spec" / f"{name}.cu" for name in ("one", "two")}


def library_of(record, folder, name="lib.so"):
    """A real shared library with a record, and no kernels behind it."""
    source = compiling.write_index(folder, record)
    out = folder / name
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
    subprocess.run(["g++", *flags, str(source), "-o", str(out)], check=True)
    return out


def test_a_library_is_what_it_says(tmp_path, kernels):
    record = record_of(kernels)
    found = read_record(library_of(record, tmp_path))
    assert found._replace(machine="") == record and found.machine == os.uname().machine
    assert str(found) == "nvcc, sm_75, warp size 32, 2 kernels" and found.on_gpu
    assert not record_of(kernels, "host").on_gpu


def test_a_record_survives_strip(tmp_path, kernels):
    path = library_of(record_of(kernels), tmp_path)
    subprocess.run(["strip", str(path)], check=True)
    assert read_record(path).kernels == source_digests(kernels)


def test_digests_are_of_code(tmp_path, kernels):
    """Comments at the head name the spec; headers of the compiler's are not read; code and our headers count."""
    before = source_digests(kernels)
    assert before["pav2_one"] != before["pav2_two"]
    one = kernels["pav2_one"]
    one.write_text(one.read_text().replace("sha256:00", "sha256:11"))
    assert source_digests(kernels) == before
    one.write_text(one.read_text().replace("int one", "int  one"))
    after = source_digests(kernels)
    assert after["pav2_one"] != before["pav2_one"] and after["pav2_two"] == before["pav2_two"]
    (tmp_path / "runtime" / "args.h").write_text("int version = 2;\n")
    assert source_digests(kernels)["pav2_two"] != before["pav2_two"]


def test_a_digest_is_the_same_wherever_the_package_lies(tmp_path, kernels):
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert source_digest("spec/one.cu", files.__getitem__) == source_digests(kernels)["pav2_one"]
    with pytest.raises(KeyError):
        source_digest("spec/three.cu", files.__getitem__)


def test_what_does_not_fit_a_package(kernels):
    record, sources = record_of(kernels), source_digests(kernels)
    assert mismatch(record, sources) == "" and mismatch(record, {**sources, "pav2_three": "0"}) == ""
    assert record.lacking({**sources, "pav2_three": "0"}) == ["pav2_three"]
    assert mismatch(record, {"pav2_two": sources["pav2_two"]}) == ""
    assert mismatch(record, {"pav2_three": "0"}) == "it has none of the kernels of this package"
    assert mismatch(record, {**sources, "pav2_two": "0"}).startswith(
        "1 of its 2 kernels (as pav2_two) was compiled from"
    )


def test_a_library_of_older_sources_is_not_loaded(tmp_path, kernels):
    path = library_of(record_of(kernels), tmp_path)
    assert identify(path, kernels).toolchain == "nvcc"
    kernels["pav2_two"].write_text("int two = 2;\n")
    with pytest.raises(LibraryError, match=r"lib\.so does not fit this package: 1 of its 2 kernels .as pav2_two."):
        Library(path, kernels)


@pytest.mark.parametrize("text", ["", "not a library", "\x7fELF", "\x7fELF" + 200 * "\x01"])
def test_files_that_are_no_libraries(tmp_path, text):
    (tmp_path / "x.so").write_text(text)
    with pytest.raises(RecordError):
        read_record(tmp_path / "x.so")


def test_every_damaged_byte_is_met_with_one_error(tmp_path, kernels):
    """Cut short at any place, or with the bytes of the headers changed: a record, or RecordError, and nothing else."""
    whole = library_of(record_of(kernels), tmp_path).read_bytes()
    damaged = tmp_path / "damaged.so"
    table = int.from_bytes(whole[40:48], "little")
    sizes = [0, 3, 63, 64, 100, len(whole) // 2, table, table + 63, len(whole) - 1]
    versions = [whole[:size] for size in sizes]
    places = [*range(64), *range(table, len(whole), 7)]
    versions += [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in places]
    refused = 0
    for version in versions:
        damaged.write_bytes(version)
        try:
            read_record(damaged)
        except RecordError:
            refused += 1
    assert refused >= len(sizes)


@pytest.mark.parametrize("text", ["[]", "{}", "{", "[" * 100_000, '{"format": 1, "kernels": 3}', '{"format": 2}'])
def test_records_of_another_form(tmp_path, kernels, monkeypatch, text):
    monkeypatch.setattr(Record, "text", lambda self: text)
    with pytest.raises(RecordError, match="its record"):
        read_record(library_of(record_of(kernels), tmp_path))


def test_a_fifo_and_a_device_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "x.so")
    for path in (tmp_path / "x.so", "/dev/zero", tmp_path):
        with pytest.raises((RecordError, IsADirectoryError)):
            read_record(path)
    with pytest.raises(LibraryError, match=r"x\.so is not a library of pav2 kernels: it is not a regular file"):
        identify(tmp_path / "x.so")
