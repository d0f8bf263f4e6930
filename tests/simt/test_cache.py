"""A compiled file is used again only if it would be made the same way: headers found by any means count."""

import os
import shutil

import pytest

from pav2gen.runtime import simt
from pav2gen.runtime.simt import cache as files


@pytest.fixture
def source(tmp_path):
    (tmp_path / "a.h").write_text("#define VALUE 1\n")
    path = tmp_path / "macro.cu"
    path.write_text('#define H "a.h"\n#include H\nextern "C" int value() { return VALUE; }\n')
    return path


def compiled_again(source, cache, **options):
    """Whether a build of the source runs the compiler; it is run if so."""
    command = simt.compile_commands([source], None, cache_dir=cache, **options).compile[1]
    again = not simt.is_current(command.output, simt.Digests())
    if again:
        simt.run_command(command)
    return again


def test_a_header_named_by_a_macro(source, cache):
    assert compiled_again(source, cache) and not compiled_again(source, cache)
    (source.parent / "a.h").write_text("#define VALUE 2\n")
    assert compiled_again(source, cache) and not compiled_again(source, cache)


def test_a_header_found_through_the_environment(tmp_path, cache, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "found.h").write_text("#define VALUE 1\n")
    source = tmp_path / "environment.cu"
    source.write_text('#include <found.h>\nextern "C" int value() { return VALUE; }\n')
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "one"))
    assert compiled_again(source, cache) and not compiled_again(source, cache)
    (tmp_path / "one" / "found.h").write_text("#define VALUE 2\n")
    assert compiled_again(source, cache)
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "two"))
    assert compiled_again(source, cache)


def test_another_compiler_of_the_same_version(source, cache, tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    assert compiled_again(source, cache, compiler=str(compiler))
    assert not compiled_again(source, cache, compiler=str(compiler))
    compiler.write_text(f'#!/bin/sh\n# patched\nexec {shutil.which("g++")} "$@"\n')
    assert compiled_again(source, cache, compiler=str(compiler))


def test_a_damaged_object_is_made_again(source, cache):
    command = simt.compile_commands([source], None, cache_dir=cache).compile[1]
    simt.run_command(command)
    whole = command.output.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1] + b"?", b""):
        command.output.write_bytes(damaged)
        assert compiled_again(source, cache)
    command.output.unlink()
    os.mkfifo(command.output)
    assert compiled_again(source, cache) and command.output.is_file()


def test_what_a_compiler_lists(tmp_path):
    listed = tmp_path / "x.d"
    listed.write_text("x.o: /a/b.cu /a/with\\ space.h \\\n  /a/num\\#ber.h /a/dol$$lar.h\n")
    assert files.read_dependencies(listed) == ["/a/b.cu", "/a/with space.h", "/a/num#ber.h", "/a/dol$lar.h"]
    assert files.read_dependencies(tmp_path / "none.d") == []


def test_the_cache_of_a_program_is_ours_alone(source, tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(simt.ToolchainError, match="its files are executed, but other users can write there"):
        simt.compile_commands([source], None, cache_dir=folder)
