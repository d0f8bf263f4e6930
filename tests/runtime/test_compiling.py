"""How a library for the CPU is put together: sources in batches, quick builds for tests, and compiling ahead."""

import importlib.util
import os
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from pav2gen.runtime import library
from pav2gen.runtime.building import compiling, prefetch

from .conftest import GENERATED, settle


@pytest.fixture
def sources(tmp_path):
    """Sixteen sources of two specs, one of which takes its headers from a folder of its own."""
    for folder in ("runtime", "mutant", "a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runtime" / "x.h").write_text("int x;\n")
    (tmp_path / "mutant" / "x.h").write_text("int y;\n")
    found = [tmp_path / spec / f"k{i}.cu" for spec in "ab" for i in range(8)]
    for source in found:
        source.write_text('#include "../runtime/x.h"\n')
    found[3].write_text('#include "../mutant/x.h"\n')
    return found


def included(batch):
    return [line.split('"')[1] for line in batch.read_text().splitlines()]


def test_a_batch_is_of_the_same_headers(sources, tmp_path):
    out = tmp_path / "cache"
    out.mkdir()
    made = [included(batch) for batch in compiling.batches(out, reversed(sources))]
    assert sorted(name for names in made for name in names) == sorted(map(str, sources))
    assert [str(sources[3])] in made
    assert sorted(map(len, made)) == [1, 3, 12] and compiling.BATCH == 12


def test_batches_do_not_depend_on_the_order(sources, tmp_path):
    first = list(compiling.batches(tmp_path, sources))
    assert list(compiling.batches(tmp_path, sources[::-1])) == first


@pytest.mark.parametrize(
    "kind", [compiling.HostBuild(quick=True), compiling.HostBuild(), compiling.HostBuild(32, True)]
)
def test_only_tests_get_quick_builds(kind, tmp_path, monkeypatch):
    plans = []
    monkeypatch.setenv("PAV2_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "make", lambda plan, *rest: plans.append(plan))
    rows = [row for row in library.package_rows(GENERATED) if row.cuda][: compiling.BATCH + 2]
    compiling.build_host(library.kernels_of(rows, GENERATED), kind, jobs=1)
    runtime, *batches, index = [command.argv for command in plans[0].compile]
    assert 2 <= len(batches) < 8 and all("batch-" in argv[argv.index("-c") + 1] for argv in batches)
    for argv in (*batches, index):
        levels = [word for word in argv if word.startswith("-O")]
        assert levels[-1] == ("-O1" if kind.quick or kind.checked else "-O3")
    assert f"-DSIMT_WARP_SIZE={kind.warp_size}" in runtime


def test_a_package_of_the_tests_has_a_place_by_its_content(tmp_path, monkeypatch):
    monkeypatch.setenv("PAV2_CACHE", str(tmp_path / "cache"))
    places = []
    for number, text in enumerate(("int x;", "int x;", "int y;")):
        folder = tmp_path / f"built{number}"
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "k.cu").write_text(text)
        places.append(settle(folder))
        assert not folder.exists() and (places[-1] / "a" / "k.cu").read_text() == text
    assert places[0] == places[1] != places[2]
    assert sorted(places[0].parent.iterdir()) == sorted({*places})


# ---- compiling ahead


@pytest.fixture
def ahead(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(prefetch, "_running", [])
    yield prefetch
    prefetch.stop()


def test_what_is_compiled_ahead_is_what_the_tests_ask_for(ahead, tmp_path, monkeypatch):
    """The program imports the package's library module alone, and builds just these libraries, in their order."""
    commands = []
    (tmp_path / "runtime").mkdir()
    (tmp_path / "__init__.py").write_text("raise ImportError('the package was imported')\n")
    (tmp_path / "runtime" / "library.py").write_text(
        "def package_rows(root): return ['a', 'b', 'c']\n"
        "def kernels_of(rows, root): return {row: root / row for row in rows}\n"
        "def build_for_tests(*arguments): print(*arguments)\n"
    )
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: commands.append(command) or Mock())
    ahead.start(tmp_path, {(64, False): ["a", "c"], (32, True): ["b"]})
    monkeypatch.undo()
    said = subprocess.run(*commands, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [f"{ {name: tmp_path / name for name in 'ac'} } 64 False", f"{ {'b': tmp_path / 'b'} } 32 True"]


def test_one_process_compiles_and_ends_with_the_session(ahead, tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "PROGRAM", "import subprocess, sys; subprocess.run(['sleep', '600'])")
    ahead.start(tmp_path, {})
    assert not prefetch._running  # nothing is needed
    ahead.start(tmp_path, {(64, True): ["a"]})
    ahead.start(tmp_path, {(64, True): ["a"]})
    (process,) = prefetch._running
    while not (children := children_of(process.pid)):
        time.sleep(0.01)
    ahead.stop()
    assert process.returncode < 0 and not prefetch._running
    while any(os.path.exists(f"/proc/{child}/cmdline") and running(child) for child in children):
        time.sleep(0.01)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_only_the_first_worker_compiles(ahead, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    ahead.start(tmp_path, {(64, True): ["a"]})
    assert not prefetch._running


# ---- workers

TEST = "import os\n\ndef test_it():\n    print('in', os.environ.get('PYTEST_XDIST_WORKER', 'no worker'))\n"


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A folder with the package's pytest.ini and conftest, and two small test files."""
    pytest.importorskip("xdist")
    root = tmp_path_factory.mktemp("package")
    for name in ("pytest.ini", "tests/conftest.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes((GENERATED / name).read_bytes())
    for name in ("one", "two"):
        (root / name).mkdir()
        (root / name / f"test_{name}.py").write_text(TEST)
    return root


@pytest.mark.parametrize(
    "options, parallel",
    [((".",), True), ((".", "-n", "0"), False), ((".", "-p", "no:xdist"), False), (("one/test_one.py",), False)],
    ids=["folder", "n0", "without-xdist", "file"],
)
def test_whole_folders_are_spread_over_the_processors(tested, monkeypatch, options, parallel):
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    command = [sys.executable, "-m", "pytest", *options, "-rP", "-v"]
    done = subprocess.run(command, cwd=tested, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("in gw0" in done.stdout) == parallel and ("in no worker" in done.stdout) == (not parallel)


def test_cuda_tests_of_a_file_are_work_of_their_own():
    """Else the first worker waits for g++ while the PyTorch tests of other files remain."""
    pytest.importorskip("xdist")
    workers = load_conftest(GENERATED / "tests" / "conftest.py")
    option = Mock(dist="loadfile", loadscopereorder=False, tx=["popen"], maxschedchunk=None)
    config = Mock(option=option, rootpath=GENERATED.parent, getvalue=lambda name: getattr(option, name))
    scheduler = workers.pytest_xdist_make_scheduler(config, None)
    own, other = "generated/spec/tests/test_k.py", "tests/runtime/test_k.py"
    names = {f"{own}::test_a[1]": own, f"{own}::test_cuda_a[warp64]": f"{own}::cuda", f"{other}::test_cuda_a": other}
    assert {name: scheduler._split_scope(name) for name in names} == names
    assert workers.pytest_xdist_make_scheduler(Mock(option=Mock(dist="load")), None) is None


def load_conftest(path):
    """A conftest of the generated package as a module."""
    spec = importlib.util.spec_from_file_location("pav2_workers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
