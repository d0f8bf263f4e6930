"""Compiling and loading: the exact command lines, the cache, what is said when something is wrong, the C interface."""

import concurrent.futures
import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from pav2gen import cli
from pav2gen.runtime import launch, library
from pav2gen.runtime.building import toolchain
from pav2gen.runtime.building.toolchain import CompilerMissingError, corex, nvcc
from pav2gen.runtime.choice.key import Key
from pav2gen.runtime.testing.cases import Case, copy_outputs, make

from .conftest import GENERATED, load
from .stand_in import is_current, output_of


def test_corex_gets_the_flags_that_are_known_to_work(machine, kernels):
    path = library.build(kernels, "corex", jobs=1)
    *compiles, link = machine.calls()
    assert len(compiles) == 3 and is_current(path)
    for call, source in zip(compiles, (*kernels.values(), None)):
        assert call[:6] == [
            "-std=c++17",
            "-O3",
            "-fPIC",
            f"--cuda-path={machine.home}",
            "--cuda-gpu-arch=ivcore10",
            "--no-cuda-version-check",
        ]
        assert call[6:8] == ["-DPAV2_WARP_SIZE=64", "-c"] and call[9] == "-o"
        assert source is None or call[8] == str(source)
    assert link[0] == "-shared" and [Path(o).name for o in link[1:4]] == [
        Path(output_of(call)).name for call in compiles
    ]
    lib64 = f"{machine.home}/lib64"
    assert link[4:7] == [f"-L{lib64}", "-lcudart", f"-Wl,-rpath,{lib64}"] and link[7] == "-o"


def test_another_card_of_the_family(machine, kernels):
    library.build(kernels, "corex", arch="ivcore11", jobs=1)
    assert all("--cuda-gpu-arch=ivcore11" in call for call in machine.calls()[:-1])


def test_corex_comes_first_where_it_is_found(machine, kernels):
    assert library.find_toolchain(None, None).name == "corex"


def test_a_second_build_runs_no_compiler(machine, kernels):
    first = library.build(kernels, "corex", jobs=2)
    machine.calls()
    assert library.build(kernels, "corex", jobs=2) == first and machine.calls() == []


@pytest.mark.parametrize("left", [0, 63, 127])
def test_what_a_power_cut_left_is_made_again(machine, kernels, left):
    path = library.build(kernels, "corex", jobs=1)
    one = path.parent / next(name for name in machine.compiled() if name.startswith("one-"))
    for file in (path, one):
        os.truncate(file, left)
    assert library.build(kernels, "corex", jobs=1) == path
    assert is_current(path) and is_current(one) and len(machine.calls()) == 2


@pytest.mark.parametrize("change", ["source", "compiler", "arch", "kernels"])
def test_whatever_goes_in_is_part_of_the_key(machine, kernels, change):
    first = library.build(kernels, "corex", jobs=1)
    machine.calls()
    if change == "source":
        kernels["pav2_one"].write_text("int changed;\n")
    elif change == "compiler":
        machine.version("clang version 18.1.8 (CoreX 4.4.0)")
    elif change == "kernels":
        kernels = {"pav2_one": kernels["pav2_one"]}
    second = library.build(kernels, "corex", arch="ivcore11" if change == "arch" else None, jobs=1)
    compiled = len(machine.calls()) - 1  # the index, which has the digests of all sources, among them
    assert second != first and compiled == {"source": 2, "compiler": 3, "arch": 3, "kernels": 1}[change]


def test_a_file_that_only_the_compiler_knows_of(machine, kernels, tmp_path):
    """Its own list of dependencies counts, whatever way the file was found."""
    hidden = tmp_path / "found by other means.h"
    hidden.write_text("// a\n")
    (machine.home / "dependencies").write_text(str(hidden).replace(" ", "\\ "))
    first = library.build(kernels, "corex", jobs=1)
    machine.calls()
    assert library.build(kernels, "corex", jobs=1) == first and machine.calls() == []
    hidden.write_text("// b\n")
    assert library.build(kernels, "corex", jobs=1) == first and len(machine.calls()) == 4
    hidden.unlink()
    assert library.build(kernels, "corex", jobs=1) == first and len(machine.calls()) == 4


def test_a_compiler_that_lists_no_dependencies(machine, kernels, tmp_path):
    """Headers are then found by reading."""
    (machine.home / "old").touch()
    (tmp_path / "a.cuh").write_text("int a;\n")
    kernels["pav2_one"].write_text('#include "a.cuh"\n')
    library.build(kernels, "corex", jobs=1)
    machine.calls()
    (tmp_path / "a.cuh").write_text("int b;\n")
    library.build(kernels, "corex", jobs=1)
    assert len(machine.calls()) == 5  # the source and the index, with the flags and without, and the link


@pytest.mark.parametrize("change", ["CPLUS_INCLUDE_PATH", "COMPILER_PATH", "another program of the same version"])
def test_the_compiler_and_its_environment_are_part_of_the_key(machine, kernels, monkeypatch, change):
    first = library.build(kernels, "corex", jobs=1)
    machine.calls()
    if change.isupper():
        monkeypatch.setenv(change, "/opt/elsewhere")
    else:
        with (machine.home / "bin" / "clang++").open("a") as compiler:
            compiler.write("# patched\n")
    assert library.build(kernels, "corex", jobs=1) != first and len(machine.calls()) == 4


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(machine, kernels, tmp_path):
    machine.breaks()
    with pytest.raises(library.LibraryError) as raised:
        library.build(kernels, "corex", jobs=1)
    text = str(raised.value)
    assert "k.cu:7: error: no such thing as a frobnicator" in text
    assert f"to repeat: {machine.home}/bin/clang++ -std=c++17" in text
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".o", ".so")]
    machine.breaks(None)
    assert library.build(kernels, "corex", jobs=1).exists()


def test_two_builders_at_once_compile_once(machine, kernels):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: library.build(kernels, "corex", jobs=1), range(4)))
    assert len(paths) == 1 and len(machine.calls()) == 4  # three sources and the link


def test_the_command_ends_with_2_and_the_reason(machine, monkeypatch):
    machine.breaks()
    done = CliRunner().invoke(cli.main, ["compile", str(GENERATED), "--toolchain", "corex", "--jobs", "1"])
    assert done.exit_code == 2 and "\nto repeat: " in done.output
    assert done.stderr.splitlines()[0] == "error: k.cu:7: error: no such thing as a frobnicator"


def test_a_missing_compiler_says_where_it_was_looked_for(tmp_path, monkeypatch, kernels):
    monkeypatch.setenv("COREX_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(CompilerMissingError, match=r"looked for bin/clang.. in .*nowhere; set COREX_HOME"):
        corex()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(toolchain, "pip_folders", list)
    with pytest.raises(CompilerMissingError, match=r"no nvcc on the path or in .*/bin, and .* has one; set CUDA_HOME"):
        nvcc("sm_75")
    with pytest.raises(library.LibraryError, match="no nvcc"):
        library.build(kernels, "nvcc", "sm_75")


def test_options_of_the_other_kind_of_toolchain(machine, kernels):
    with pytest.raises(library.LibraryError, match=r"--arch sm_75 names a GPU; the host toolchain builds for this"):
        library.build(kernels, "host", "sm_75")
    with pytest.raises(library.LibraryError, match=r"a checked build runs on the CPU: --toolchain host --checked"):
        library.build(kernels, "corex", checked=True)
    assert machine.calls() == []


def test_without_a_device_the_architecture_must_be_named(kernels):
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(library.LibraryError, match="name it: --arch sm_75"):
        library.build(kernels, "nvcc")


def test_a_toolchain_that_there_is_not():
    with pytest.raises(library.LibraryError, match="no toolchain 'icc'; choose corex or nvcc"):
        library.find_toolchain("icc", None)


def test_a_package_without_cuda_kernels_says_what_to_do():
    with pytest.raises(library.LibraryError, match="add cuda to the spec's backends"):
        library.build({}, "host")


def test_run_as_a_file_it_compiles_the_package_without_torch(machine, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    command = [sys.executable, str(GENERATED / "runtime" / "library.py"), "--toolchain", "corex", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.suffix == ".so" and path.exists() and re.search(r"\[\s*\d+/\d+\]", done.stderr)
    assert len(machine.calls()) == len(library.kernels_of(library.package_rows(GENERATED), GENERATED)) + 2


def test_a_folder_that_is_no_package(tmp_path):
    assert library.main(["--toolchain", "host"], tmp_path) == 2


KEY = Key(64, 7, 16, "float32", "auto", False, False)


@pytest.fixture(scope="module")
def loaded():
    """A copy of the package with one kernel compiled for the CPU."""
    package = load(GENERATED, "pav2_of_the_library_tests")
    row = package.operator.table.serving(KEY)[0]
    path = library.build(library.kernels_of([row], GENERATED), "host")
    package.kernels.load("host", library=path)
    return package, row, path


def test_a_loaded_library_lists_its_kernels(loaded):
    package, row, _ = loaded
    assert package.kernels.libraries[False].kernels == {row.symbol}


def run(package, call, **options):
    scratch = call.scratch
    package.paged_attention_v2(
        *(call.out, *scratch, call.query, call.key_cache, call.value_cache, call.key_cache.shape[1], call.scale),
        *(call.block_tables, call.seq_lens, 16, call.max_seq_len, None, "auto", 1.0, 1.0),
        **options,
    )


def test_the_backend_is_the_caller_s_and_the_environment_s(loaded, monkeypatch):
    package, row, _ = loaded
    call = make(Case(KEY, row.partition_size, (40, 700)))
    outs = {}
    for name in ("torch", "cuda"):
        done = copy_outputs(call)
        run(package, done, backend=name)
        outs[name] = done.out
    torch.testing.assert_close(outs["torch"], outs["cuda"], rtol=1e-5, atol=1e-6)
    monkeypatch.setenv("PAV2_BACKEND", "cuda")
    done = copy_outputs(call)
    run(package, done)
    assert torch.equal(done.out, outs["cuda"]) and not torch.equal(done.out, outs["torch"])


def test_a_kernel_that_the_library_lacks(loaded):
    package, row, _ = loaded
    other = next(r for r in package.operator.table.rows if r.symbol != row.symbol)
    call = make(Case(other.key, other.partition_size, (5,)))
    with pytest.raises(package.runtime.library.LibraryError, match=f"lacks {other.symbol}: .*load.. again"):
        package.kernels.libraries[False].launch(other, call)


def test_no_library_loaded():
    package = load(GENERATED, "pav2_without_a_library")
    with pytest.raises(package.runtime.library.LibraryError, match=r'no library .* call load\("host"\) first'):
        run(package, make(Case(KEY, 512, (5,))), backend="cuda")


def test_a_file_that_is_no_library(tmp_path):
    (tmp_path / "x.so").write_text("not a library")
    package = load(GENERATED, "pav2_with_a_broken_library")
    with pytest.raises(package.runtime.library.LibraryError, match=r"x\.so is not a library of pav2 kernels"):
        package.load(library=tmp_path / "x.so")


def test_loading_by_default_never_raises(tmp_path, monkeypatch, caplog):
    package = load(GENERATED, "pav2_by_default")
    assert torch.cuda.is_available() or package.load() is None
    monkeypatch.setenv("PAV2_LIBRARY", str(tmp_path / "gone.so"))
    assert package.load() is None
    assert [record for record in caplog.records if "the PyTorch kernels are used, because" in record.getMessage()]


def test_another_version_of_the_interface_is_refused(loaded, monkeypatch):
    package, row, _ = loaded
    monkeypatch.setattr(package.runtime.launch, "VERSION", 99)
    with pytest.raises(RuntimeError, match="built from other sources than this package; compile it again"):
        run(package, make(Case(KEY, row.partition_size, (5,))), backend="cuda")


def test_the_struct_is_c_s(tmp_path):
    fields = [name for name, _ in launch.Args._fields_]
    lines = "".join(f'    printf("{name} %zu\\n", offsetof(Pav2Args, {name}));\n' for name in fields)
    source = tmp_path / "layout.c"
    header = GENERATED / "runtime" / "cuda" / "pav2_args.h"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n{lines}'
        '    printf("size %zu version %d\\n", sizeof(Pav2Args), PAV2_ARGS_VERSION);\n}\n'
    )
    subprocess.run(["gcc", str(source), "-o", str(tmp_path / "layout")], check=True)
    said = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[:-1] == [f"{name} {getattr(launch.Args, name).offset}" for name in fields]
    assert said[-1] == f"size {ctypes.sizeof(launch.Args)} version {launch.VERSION}"
    declared = re.findall(
        r"\b(\w+)(?=[,;\[])", header.read_text().split("typedef struct Pav2Args {")[1].split("} Pav2Args")[0]
    )
    assert set(declared) >= set(fields)


def test_partials_are_bounded_by_the_workspace():
    call = make(Case(KEY, 64, (200,) * 10))
    seqs = 10
    each = 4 * call.query.shape[1] * 4 * (64 + 2)  # 4 partitions of 64
    parts = list(launch.tiles(call, 4, 3 * each))
    assert [part.query.shape[0] for part in parts] == [3, 3, 3, 1] and sum(p.out.shape[0] for p in parts) == seqs
    assert [part.seq_lens.shape[0] for part in launch.tiles(call, 4, 1)] == [1] * seqs
    assert len(list(launch.tiles(call, 1, 1 << 20))) == 1


def test_tiles_of_sequences_give_the_same_bits(loaded):
    package, row, _ = loaded
    call = make(Case(KEY, row.partition_size, (600, 40, 1100, 0)))
    whole, tiled = copy_outputs(call), copy_outputs(call)
    package.kernels.libraries[False].launch(row, whole)
    package.kernels.libraries[False].launch(row._replace(workspace_mib=0), tiled)
    assert torch.equal(whole.out, tiled.out)
    assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(whole.scratch, tiled.scratch))


def test_a_sequence_s_bits_do_not_depend_on_its_batch(loaded):
    package, row, _ = loaded
    call = make(Case(KEY, row.partition_size, (600, 40, 1100)))
    whole = copy_outputs(call)
    package.kernels.libraries[False].launch(row, whole)
    for s in range(3):
        span = slice(s, s + 1)
        alone = copy_outputs(call)._replace(
            out=torch.empty_like(call.out[span]), query=call.query[span], block_tables=call.block_tables[span],
            seq_lens=call.seq_lens[span], scratch=None,
        )  # fmt: skip
        package.kernels.libraries[False].launch(row, alone)
        assert torch.equal(alone.out[0], whole.out[s])


def test_offsets_pass_two_to_the_31(loaded):
    package, row, _ = loaded
    small = make(Case(KEY, row.partition_size, (40,), kv_heads=1))
    stride, blocks = 2**31 // 2 + 2**20, small.key_cache.shape[0]

    def spread(cache):  # memory that is asked for and never touched, but for the pages
        storage = torch.empty(stride * (blocks - 1) + cache[0].numel(), dtype=cache.dtype)
        return storage.as_strided(cache.shape, (stride, *cache.stride()[1:])).copy_(cache)

    wide = copy_outputs(small)._replace(key_cache=spread(small.key_cache), value_cache=spread(small.value_cache))
    for call in (small, wide):
        package.kernels.libraries[False].launch(row, call)
    assert torch.equal(small.out, wide.out) and not wide.out.isnan().any()
