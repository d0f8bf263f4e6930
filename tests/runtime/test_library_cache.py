"""The cache of libraries: whose folder it is, what was planted or damaged in it, and builds that failed."""

import concurrent.futures
import os
import threading

import pytest
import torch

from pav2gen.runtime import library, simt
from pav2gen.runtime.building import cache as library_cache
from pav2gen.runtime.building import compiling
from pav2gen.runtime.library import Library, LibraryError

from .conftest import GENERATED, load
from .stand_in import is_current
from .test_library_record import library_of, record_of


@pytest.fixture
def cache(tmp_path):
    """The folder of the libraries that ``machine`` compiles."""
    return tmp_path / "cache" / "corex"


def test_the_folder_is_ours_alone(machine, kernels, cache):
    library.build(kernels, "corex", jobs=1)
    assert cache.stat().st_mode & 0o777 == cache.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("folder", ["cache", "cache/corex"])
def test_a_folder_that_others_can_write_to_is_not_used(machine, kernels, tmp_path, folder):
    library.build(kernels, "corex", jobs=1)
    machine.calls()
    for mode in (0o777, 0o770, 0o702):
        (tmp_path / folder).chmod(mode)
        with pytest.raises(
            LibraryError, match=r"its files are executed, but other users can write there; remove it, or .* chmod 700"
        ):
            library.build(kernels, "corex", jobs=1)
    (tmp_path / folder).chmod(0o755)
    assert library.build(kernels, "corex", jobs=1) and machine.calls() == []


def test_a_folder_of_another_user_is_not_used(machine, kernels, cache, monkeypatch):
    library.build(kernels, "corex", jobs=1)
    owner = cache.stat().st_uid
    if os.geteuid() == 0:
        os.chown(cache, 12345, -1)
        owner = 12345
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(LibraryError, match=f"it belongs to user {owner}; use a folder of yours"):
        library.build(kernels, "corex", jobs=1)


def test_a_link_in_the_place_of_a_lock_is_not_followed(machine, kernels, cache, tmp_path):
    path = library.build(kernels, "corex", jobs=1)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.with_suffix(".lock").symlink_to(victim)
    with pytest.raises(LibraryError, match=r"\.lock: Too many levels of symbolic links"):
        library.build(kernels, "corex", jobs=1)
    assert victim.read_text() == "precious"


def test_locks_are_removed(machine, kernels, cache):
    library.build(kernels, "corex", jobs=1)
    machine.breaks()
    kernels["pav2_one"].write_text("int changed;\n")
    with pytest.raises(LibraryError):
        library.build(kernels, "corex", jobs=1)
    assert not list(cache.glob("*.lock"))


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    inside, most = [], []

    def hold(_):
        with library_cache.locked(tmp_path / "x.so"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, range(200)))
    assert max(most) == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["so", "so.json", "failed.json", "o", "o.json", "cu"])
def test_a_fifo_in_the_cache_ends_nothing(machine, kernels, cache, suffix):
    path = library.build(kernels, "corex", jobs=1)
    machine.calls()
    stem = path.with_suffix("") if suffix in ("so", "so.json", "failed.json") else next(cache.glob("index-*.o"))
    planted = stem.with_suffix(f".{suffix}") if suffix != "cu" else next(cache.glob("index-*.cu"))
    planted.unlink(missing_ok=True)
    os.mkfifo(planted)
    if suffix.startswith("o"):
        path.unlink()
    assert library.build(kernels, "corex", jobs=1) == path and is_current(path)


def test_a_damaged_library_is_made_again(machine, kernels, cache):
    path = library.build(kernels, "corex", jobs=1)
    machine.calls()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")
    assert library.build(kernels, "corex", jobs=1) == path and path.read_bytes() == content
    assert len(machine.calls()) == 1  # the link: the objects are as they were


def test_a_damaged_library_is_not_loaded(tmp_path, monkeypatch):
    """It is found by its digest, before the loader sees it: one with pages of zeros ends the process."""
    source = tmp_path / "one.cu"
    source.write_text("int one;\n")
    kernels = {"pav2_one": source}
    path = library_of(record_of(kernels), tmp_path)
    simt.note_library(path, [], simt.Digests())
    assert Library(path, kernels).kernels == {"pav2_one"}
    content = bytearray(path.read_bytes())
    content[0x1000:0x1008] = b"\xcc" * 8  # code
    path.write_bytes(content)
    monkeypatch.setattr("ctypes.CDLL", lambda name: pytest.fail("the loader was called"))
    with pytest.raises(LibraryError, match=r"lib\.so is damaged: its bytes have changed"):
        Library(path, kernels)


def test_a_bare_name_is_a_file_here(tmp_path, monkeypatch):
    """``dlopen`` would search the system's folders for it."""
    monkeypatch.chdir(tmp_path)
    package = load(GENERATED, "pav2_of_a_bare_name")
    with pytest.raises(package.runtime.library.LibraryError, match=r"/libm\.so\.6 can't be read: No such file"):
        package.load(library="libm.so.6")
    source = tmp_path / "one.cu"
    source.write_text("int one;\n")
    library_of(record_of({"pav2_one": source}), tmp_path, "x.so")
    assert Library("x.so").path == tmp_path / "x.so"


def test_a_user_without_a_home(monkeypatch, kernels):
    """A container may run under a number that no user has."""
    for name in ("PAV2_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987654)
    with pytest.raises(LibraryError, match="no home folder to keep compiled files in; set PAV2_CACHE"):
        library.build(kernels, "host")


# ---- builds that failed


@pytest.fixture
def on_a_card(machine, monkeypatch, request):
    """A package on a machine that seems to have a GPU, and a CoreX compiler that fails."""
    machine.breaks()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return load(GENERATED, f"pav2_{request.node.name}")


def check_model(package):
    package.check_model(14, 2, 64, 16, torch.float32)


def another_process(package):
    """Forget what only this process knows."""
    package.runtime.building.cache._failed.clear()


def test_a_build_that_failed_is_not_tried_by_each_layer(machine, on_a_card, caplog):
    check_model(on_a_card)
    assert machine.calls()
    for _ in range(3):
        check_model(on_a_card)
        on_a_card.load()
    another_process(on_a_card)
    check_model(on_a_card)
    assert machine.calls() == []
    said = [record.getMessage() for record in caplog.records if "the PyTorch kernels are used" in record.getMessage()]
    assert len(said) == 2 and all("frobnicator" in text for text in said)  # the reason; and that it stands
    assert "it failed before and is not tried again; to try again: python" in said[1]


def test_a_failure_is_tried_again_when_something_changes(machine, on_a_card, monkeypatch):
    check_model(on_a_card)
    machine.calls()
    monkeypatch.setenv("CPATH", "/opt/include")
    check_model(on_a_card)
    assert machine.calls()


def test_who_asks_for_a_toolchain_gets_it_tried(machine, on_a_card):
    check_model(on_a_card)
    machine.calls()
    with pytest.raises(on_a_card.runtime.library.LibraryError, match="frobnicator"):
        on_a_card.load("corex")
    assert machine.calls()


def test_ranks_that_waited_do_not_repeat_a_failure(machine, kernels, monkeypatch):
    path = library.build(kernels, "corex", jobs=1)
    machine.calls()
    machine.breaks()
    asked, said = threading.Semaphore(0), []

    class Failures(library_cache.Failures):
        def __init__(self, library):
            super().__init__(library)
            asked.release()

    def rank():
        with pytest.raises(LibraryError, match="frobnicator") as raised:
            library.build(kernels, "corex", jobs=1)
        said.append(str(raised.value))

    monkeypatch.setattr(compiling, "Failures", Failures)
    ranks = [threading.Thread(target=rank) for _ in range(4)]
    with library_cache.locked(path):
        for file in path.parent.glob("*.json"):
            file.unlink()
        for thread in ranks:
            thread.start()
        for _ in ranks:
            asked.acquire()
    for thread in ranks:
        thread.join()
    assert sum("it failed before" in text for text in said) == 3


@pytest.mark.parametrize("words", ["fatal error: No space left on device", "Killed signal terminated program cc1plus"])
def test_a_failure_that_may_pass_is_not_remembered(machine, kernels, cache, words):
    machine.breaks(words)
    with pytest.raises(LibraryError):
        library.build(kernels, "corex", jobs=1)
    assert not list(cache.glob("*.failed.json"))
    machine.breaks(None)
    assert library.build(kernels, "corex", jobs=1, again=False)


def test_a_build_that_works_ends_the_memory_of_one_that_did_not(machine, kernels, cache):
    machine.breaks()
    with pytest.raises(LibraryError):
        library.build(kernels, "corex", jobs=1)
    assert len(list(cache.glob("*.failed.json"))) == 1
    machine.breaks(None)
    assert library.build(kernels, "corex", jobs=1) == library.build(kernels, "corex", jobs=1, again=False)
    assert not list(cache.glob("*.failed.json"))
