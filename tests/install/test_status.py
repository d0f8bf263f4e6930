"""``pav2gen status``: what is installed, whether it is current, and whether someone edited it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pav2gen.install.apply import Outcome
from pav2gen.install.payload.structure import DECODE
from pav2gen.install.status import Status, status

from .conftest import ALPHA, checksums, make_package

Put = Callable[..., Outcome]
Vllm = Callable[..., Path]


def of(tree: Path, generated: Path) -> Status:
    before = checksums(tree)
    (found,) = status(tree, generated)
    assert checksums(tree) == before
    return found


def test_nothing_installed(vllm: Vllm, built: Path) -> None:
    found = of(vllm(), built)
    assert found.record is None
    assert not found.sound


def test_installed_current_and_unedited(vllm: Vllm, put: Put, built: Path) -> None:
    tree = vllm()
    put(tree)
    found = of(tree, built)
    assert found.sound
    assert found.record is not None
    assert {name: spec["kernels"] for name, spec in found.record.specs.items()} == {"alpha": 2, "beta": 2}


def test_a_choice_is_current_as_that_choice(vllm: Vllm, put: Put, built: Path) -> None:
    tree = vllm()
    put(tree, "alpha", min_seq_len=99, tests=True)
    assert of(tree, built).sound


def test_a_prebuilt_library_is_not_part_of_the_comparison(vllm: Vllm, put: Put, cuda: Path, prebuilt: Path) -> None:
    tree = vllm()
    put(tree, generated=cuda, prebuilt=prebuilt)
    found = of(tree, cuda)
    assert found.sound
    assert found.library == "corex, ivcore10, warp size 64, 4 kernels"
    (tree / "vllm/attention/ops/pav2/prebuilt/libpav2.so").write_bytes(b"damaged")
    found = of(tree, cuda)
    assert not found.sound
    assert "attention/ops/pav2/prebuilt/libpav2.so is not usable: it is not a shared library (not an ELF file)" in (
        found.edited
    )


def test_a_package_that_was_built_anew_is_told(vllm: Vllm, put: Put, folder: Path, built: Path) -> None:
    tree = vllm()
    put(tree)
    changed = make_package(folder, ALPHA.replace("min_seq_len: 8192", "min_seq_len: 4096"))
    found = of(tree, changed)
    assert not found.sound
    assert found.edited == ()
    assert found.stale is not None
    assert found.stale[:2] == ("alpha has another spec", "beta is gone")
    assert found.stale[2].endswith(" files differ")
    put(tree, "alpha")
    whole = of(tree, built)
    assert whole.stale == ()
    put(tree, generated=changed)
    assert of(tree, built).stale is not None
    assert "beta is new" in (of(tree, built).stale or ())


def test_without_a_package_it_is_unknown_whether_it_is_current(vllm: Vllm, put: Put, folder: Path) -> None:
    tree = vllm()
    put(tree)
    found = of(tree, folder / "nowhere")
    assert found.stale is None
    assert found.unknown == f"{folder}/nowhere: has no generated package; run: pav2gen build specs/NAME.yaml"
    assert not found.sound


def test_what_someone_edited_is_told(vllm: Vllm, put: Put, built: Path) -> None:
    tree = vllm()
    before = (tree / "vllm" / DECODE).read_bytes()
    put(tree)
    pav2 = tree / "vllm/attention/ops/pav2"
    (pav2 / "hooks.py").write_text("mine")
    (pav2 / "dispatch.py").unlink()
    (pav2 / "notes").write_text("mine")
    (pav2 / "__pycache__").mkdir()
    (pav2 / "__pycache__/hooks.cpython-311.pyc").write_bytes(b"")
    (tree / "vllm/_custom_ops.py").write_text((tree / "vllm/_custom_ops.py").read_text() + "# mine\n")
    (tree / "vllm" / DECODE).write_bytes(before)
    found = of(tree, built)
    assert found.edited == (
        "_custom_ops.py was edited since",
        "attention/ops/paged_attn.py does not call the kernels: its lines were removed",
        "attention/ops/pav2/dispatch.py is missing",
        "attention/ops/pav2/hooks.py was edited",
        "attention/ops/pav2/notes is not from pav2gen",
    )
    assert not found.sound


def test_an_install_that_was_cut_short_is_not_sound(vllm: Vllm, put: Put, built: Path) -> None:
    tree = vllm()
    put(tree)
    record = tree / "vllm/attention/ops/pav2/INSTALLED.json"
    record.write_text(record.read_text().replace('"complete": true', '"complete": false'))
    assert not of(tree, built).sound
    shutil.rmtree(tree)
