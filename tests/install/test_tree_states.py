"""``pav2gen install`` and ``uninstall`` on trees that are not as they should be: handled, or the right sentence."""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.install.apply import Outcome
from pav2gen.install.payload.softcap_structure import BACKEND
from pav2gen.install.payload.structure import DECODE, LAYER, OPS
from pav2gen.install.status import status
from pav2gen.install.undo import uninstall

from . import forms
from .conftest import PAV2, ROOT, checksums, edit, refusal

Put = Callable[..., Outcome]
Vllm = Callable[..., Path]


@pytest.mark.parametrize(
    ("path", "old", "new", "sentence"),
    [
        (OPS, "def paged_attention_v2(", "def gone(", "vllm/_custom_ops.py: defines no function paged_attention_v2; "),
        (DECODE, "def forward_decode(", "def gone(", "paged_attn.py: has no PagedAttention.forward_decode; vLLM 0.4.3"),
        (
            DECODE,
            "            ops.paged_attention_v2(",
            "            raise X(",
            "paged_attn.py: line 87: forward_decode has no if",
        ),
        (
            OPS,
            "exp_sum: torch",
            "sums: torch",
            "_custom_ops.py: line 123: paged_attention_v2 has no parameter exp_sums or",
        ),
        (OPS, "import torch\n", "import torch (\n", "vllm/_custom_ops.py: is not Python (invalid syntax)"),
    ],
)
def test_a_tree_that_is_not_as_known_is_refused(
    vllm: Vllm, put: Put, path: str, old: str, new: str, sentence: str
) -> None:
    tree = vllm()
    edit(tree / "vllm" / path, old, new)
    assert sentence in refusal(put, tree)


@pytest.mark.parametrize("path", [OPS, DECODE])
def test_a_vllm_that_decodes_otherwise_is_refused(vllm: Vllm, put: Put, path: str) -> None:
    tree = vllm()
    (tree / "vllm" / path).unlink()
    said = refusal(put, tree)
    assert said == f"vllm/{path}: does not exist; only vLLM 0.4.3 to 0.11, which have this file, can be patched"


def test_a_tree_without_layers_of_the_known_kind_is_installed_without_the_check(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    edit(tree / "vllm" / LAYER, "class Attention(", "class Other(")
    without = (tree / "vllm" / LAYER).read_text()
    assert put(tree).trees[0].edited == (OPS, DECODE)
    assert "pav2" in without
    assert "pav2" not in (tree / "vllm" / LAYER).read_text()


def test_an_operator_patched_by_hand_stays_as_the_fallback(bi: Path, put: Put) -> None:
    edit(bi / "vllm" / DECODE, "        use_v1 = True\n", "")
    ops = bi / "vllm" / OPS
    start = ops.read_text().index("def paged_attention_v2(")
    patched = ops.read_text()[start:].replace(forms.STUB, "    from mine import v2\n    v2(out, query)\n", 1)
    ops.write_text(ops.read_text()[:start] + patched)
    before = checksums(bi)
    assert put(bi).trees[0].fork.v2_works
    assert "        return\n    from mine import v2\n    v2(out, query)\n" in ops.read_text()
    uninstall(bi)
    assert checksums(bi) == before


def test_a_choice_patched_by_hand_is_told_to_ours(bi: Path, put: Put) -> None:
    edit(bi / "vllm" / DECODE, "        use_v1 = True\n", "")
    edit(bi / "vllm" / DECODE, "        if use_v1:\n", "        if max_seq_len <= 32768:\n")
    before = checksums(bi)
    put(bi)
    text = (bi / "vllm" / DECODE).read_text()
    assert re.search(r"use_v1 = choose_v1\(\n +max_seq_len <= 32768,\n(.*\n)+ +if use_v1:\n", text)
    uninstall(bi)
    assert checksums(bi) == before


def test_extra_parameters_are_served_at_their_defaults_only(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    ops = tree / "vllm" / OPS
    text = ops.read_text()
    start = text.index("def paged_attention_v2(")
    last = "    blocksparse_head_sliding_step: int = 0,\n"
    extra = text[start:].replace(
        last, f"{last}    k_zero: float = 0.0,\n    out_scales: Optional[torch.Tensor] = None,\n", 1
    )
    ops.write_text(text[:start] + extra)
    put(tree)
    assert "    if k_zero == 0.0 and out_scales is None and serve_v2(\n" in ops.read_text()


def test_a_tree_with_the_calls_but_no_record_is_refused(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    shutil.rmtree(tree / PAV2)
    said = refusal(put, tree)
    assert (
        said == "vllm/_custom_ops.py: has the calls of an install that left no record; restore it from version control"
    )


def test_a_folder_of_someone_else_is_not_taken(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    (tree / PAV2).mkdir()
    (tree / PAV2 / "__init__.py").write_text("mine = 1\n")
    said = "exists, but pav2gen did not install it (it has no INSTALLED.json); move it away"
    assert refusal(put, tree) == f"{PAV2}: {said}"
    assert refusal(uninstall, tree) == f"{PAV2}: {said}"


def test_a_link_in_the_place_of_the_package_is_not_followed(vllm: Vllm, put: Put, tmp_path: Path) -> None:
    tree = vllm()
    (tmp_path / "elsewhere").mkdir()
    (tree / PAV2).symlink_to(tmp_path / "elsewhere")
    said = f"{PAV2}: is a symbolic link, but the package needs a folder of this name; remove it"
    assert refusal(put, tree) == refusal(uninstall, tree) == said


def test_installed_files_edited_by_hand_are_not_lost(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    before = checksums(tree)
    put(tree)
    edit(tree / PAV2 / "hooks.py", "V1_LIMIT = 8192", "V1_LIMIT = 4096")
    said = f"{PAV2}: 1 file edited by hand would be lost: hooks.py; nothing was changed. To replace them, add --force"
    assert refusal(put, tree) == said
    assert refusal(uninstall, tree) == said
    put(tree, force=True)
    assert "V1_LIMIT = 8192" in (tree / PAV2 / "hooks.py").read_text()
    edit(tree / PAV2 / "hooks.py", "V1_LIMIT = 8192", "V1_LIMIT = 4096")
    uninstall(tree, force=True)
    assert checksums(tree) == before


def test_a_missing_file_is_put_back(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    after = checksums(tree)
    (tree / PAV2 / "hooks.py").unlink()
    assert put(tree).changed
    assert checksums(tree) == after


def test_what_others_put_into_the_folder_is_kept(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    (tree / PAV2 / "notes.txt").write_text("mine")
    (tree / PAV2 / "__pycache__").mkdir()
    (tree / PAV2 / "__pycache__/hooks.cpython-310.pyc").write_bytes(b"")
    (undone,) = uninstall(tree)
    assert undone.kept == ("notes.txt",)
    assert [path.name for path in (tree / PAV2).iterdir()] == ["notes.txt"]


def test_what_python_compiled_there_goes_too(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    before = checksums(tree)
    put(tree)
    (tree / PAV2 / "runtime/__pycache__").mkdir()
    (tree / PAV2 / "runtime/__pycache__/op.cpython-310.pyc").write_bytes(b"")
    uninstall(tree)
    assert checksums(tree) == before


@pytest.mark.parametrize("mode", py_compile.PycInvalidationMode)
def test_compiled_files_that_python_would_run_unchecked_are_told(
    vllm: Vllm, put: Put, mode: py_compile.PycInvalidationMode
) -> None:
    tree = vllm()
    file = tree / "vllm" / DECODE
    compiled = py_compile.compile(str(file), invalidation_mode=mode)
    (planned,) = put(tree).trees
    said = f"Python runs {Path(compiled).name} without checking {DECODE}; remove {compiled}"
    assert planned.notes == ((said,) if mode is py_compile.PycInvalidationMode.UNCHECKED_HASH else ())


def test_edits_made_since_are_kept_by_install_and_uninstall(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    file = tree / "vllm" / DECODE
    edit(file, "import torch\n", "import torch\nimport mine\n")
    file.write_text(file.read_text() + "# mine too\n")
    (planned,) = put(tree).trees
    assert planned.notes == (f"{DECODE} was edited since the last install; these edits are kept",)
    assert not put(tree).trees[0].notes
    edit(file, "import mine\n", "import mine, yours\n")
    (undone,) = uninstall(tree)
    assert undone.edited == (DECODE,)
    text = file.read_text()
    assert "import mine, yours\n" in text
    assert text.endswith("# mine too\n")
    assert "pav2" not in text


@pytest.mark.parametrize("action", ["put", "uninstall"])
def test_our_lines_edited_by_hand_are_left_to_that_hand(vllm: Vllm, put: Put, action: str) -> None:
    tree = vllm()
    put(tree)
    edit(tree / "vllm" / DECODE, '            v1="whole",\n', '            v1="none",\n')
    said = refusal(put if action == "put" else uninstall, tree)
    sentence = "the lines that pav2gen inserted were edited; remove them by hand, then run the command again"
    assert said == f"vllm/{DECODE}: {sentence}"


def test_a_source_restored_by_hand_is_patched_again(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    before = (tree / "vllm" / DECODE).read_bytes()
    put(tree)
    after = checksums(tree)
    (tree / "vllm" / DECODE).write_bytes(before)
    assert put(tree).trees[0].notes == ()
    assert checksums(tree) == after
    (tree / "vllm" / DECODE).write_bytes(before)
    (undone,) = uninstall(tree)
    assert undone.restored == (OPS, LAYER, BACKEND)


def test_uninstalling_nothing_says_so(vllm: Vllm) -> None:
    (undone,) = uninstall(vllm())
    assert not undone.installed


def test_a_dry_uninstall_changes_nothing(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    after = checksums(tree)
    (undone,) = uninstall(tree, dry_run=True)
    assert checksums(tree) == after
    assert "-    from vllm.attention.ops.pav2.hooks import serve_v2\n" in undone.diff


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 9}', '{"schema": 1}'])
def test_a_broken_record_is_named(vllm: Vllm, put: Put, content: str) -> None:
    tree = vllm()
    put(tree)
    (tree / PAV2 / "INSTALLED.json").write_text(content)
    assert refusal(put, tree).startswith(f"{PAV2}/INSTALLED.json: is not as pav2gen install wrote it (")
    assert refusal(uninstall, tree).startswith(f"{PAV2}/INSTALLED.json: is not as pav2gen install wrote it (")


def test_a_record_whose_lines_do_not_restore_the_file_is_not_followed(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    record = tree / PAV2 / "INSTALLED.json"
    data = json.loads(record.read_text())
    data["edits"][OPS]["hunks"][0][0] = "# not what stood there\n"
    record.write_text(json.dumps(data))
    assert "the lines that pav2gen inserted were edited" in refusal(uninstall, tree)


@pytest.mark.parametrize("action", ["put", "uninstall"])
@pytest.mark.parametrize("path", [OPS, "attention/ops", "attention/layer.py"])
def test_a_link_out_of_the_tree_is_not_followed(vllm: Vllm, put: Put, tmp_path: Path, path: str, action: str) -> None:
    """Whoever can write to the tree could otherwise have any file edited that the user of pav2gen can write."""
    tree, victims = vllm(), tmp_path / "victims"
    if action == "uninstall":
        put(tree)
    shutil.copytree(tree / "vllm", victims)
    place = tree / "vllm" / path
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(victims / path)
    before = checksums(victims)
    said = refusal(put if action == "put" else uninstall, tree)
    assert (
        said == f"vllm/{path}: is a link to {victims}/{path}, outside of this tree; name the tree of that file instead"
    )
    assert checksums(victims) == before


def test_a_link_inside_the_tree_is_followed(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    (tree / "vllm" / OPS).rename(tree / "vllm/_ops_of_this_platform.py")
    (tree / "vllm" / OPS).symlink_to("_ops_of_this_platform.py")
    before = checksums(tree)
    put(tree)
    assert "serve_v2" in (tree / "vllm/_ops_of_this_platform.py").read_text()
    uninstall(tree)
    assert checksums(tree) == before


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["link", "file"])
def test_nothing_is_written_below_what_is_not_a_folder(
    vllm: Vllm, put: Put, tmp_path: Path, kind: str, force: bool
) -> None:
    tree = vllm()
    put(tree, "alpha")
    (tmp_path / "elsewhere").mkdir()
    if kind == "link":
        (tree / PAV2 / "beta").symlink_to(tmp_path / "elsewhere")
    else:
        (tree / PAV2 / "beta").write_text("mine")
    assert (
        refusal(put, tree, force=force)
        == f"{PAV2}/beta: is not a folder, but the package needs a folder of this name; remove it"
    )
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_not_followed(vllm: Vllm, put: Put, tmp_path: Path) -> None:
    tree = vllm()
    put(tree)
    (tmp_path / "victim").write_text("mine")
    (tree / PAV2 / "hooks.py").unlink()
    (tree / PAV2 / "hooks.py").symlink_to(tmp_path / "victim")
    said = f"{PAV2}/hooks.py: is not a regular file, but the package needs a file of this name; remove it"
    assert refusal(put, tree, force=True) == said
    assert (tmp_path / "victim").read_text() == "mine"


def test_lines_that_no_install_puts_in_are_not_undone(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    record = tree / PAV2 / "INSTALLED.json"
    data = json.loads(record.read_text())
    data["edits"][OPS]["hunks"] = [["import evil\n", "import torch\n"]]
    data["edits"][OPS]["after"] = "0" * 64
    record.write_text(json.dumps(data))
    assert "it would remove lines that no install inserts" in refusal(uninstall, tree)


def test_a_record_cannot_lead_out_of_its_folder(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree)
    record = tree / PAV2 / "INSTALLED.json"
    data = json.loads(record.read_text())
    data["files"]["../../../_custom_ops.py"] = "0"
    record.write_text(json.dumps(data))
    assert "not a relative path below the package" in refusal(uninstall, tree)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("absent", "nowhere: has no generated package; run: pav2gen build specs/NAME.yaml"),
        (
            "edited",
            "generated/dispatch.py: was edited by hand; repair the package first: pav2gen check",
        ),
        (
            "missing",
            "generated/alpha/README.md: is missing; repair the package first: pav2gen check",
        ),
        ("cut short", "generated: is incomplete: its build was cut short; run pav2gen check"),
    ],
)
def test_a_package_that_is_not_sound_is_not_installed(
    vllm: Vllm, put: Put, generated: Path, damage: str, sentence: str
) -> None:
    if damage == "edited":
        edit(generated / "dispatch.py", "ROWS", "# mine\nROWS")
    if damage == "missing":
        (generated / "alpha/README.md").unlink()
    if damage == "cut short":
        (generated / ".pav2gen-build").mkdir()
    tree = vllm()
    assert refusal(put, tree, generated=Path("nowhere") if damage == "absent" else generated) == sentence


def test_a_spec_that_is_not_built_is_refused(vllm: Vllm, put: Put, generated: Path) -> None:
    assert (
        refusal(put, vllm(), "alpa", generated=generated)
        == "generated: there is no spec 'alpa' in it; did you mean alpha?"
    )


def test_an_edit_that_is_saved_while_the_install_runs_is_kept(vllm: Vllm, put: Put, tmp_path: Path) -> None:
    """The Python that tries the import runs after the files were read and before the first write."""
    tree = vllm()
    file = tree / "vllm" / DECODE
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '# mine' >> {file}\nexit 9\n")
    python.chmod(0o755)
    expected = file.read_text() + "# mine\n"
    with pytest.raises(UserError) as refused:
        put(tree, python=str(python))
    assert (
        str(refused.value)
        == f"{file}: was changed while the command ran; all changes were undone. Run the command again"
    )
    assert file.read_text() == expected
    assert not (tree / PAV2).exists()
    put(tree)
    assert file.read_text().endswith("# mine\n")


def test_two_installs_into_a_tree_follow_each_other_whatever_their_temporary_folders(
    vllm: Vllm, built: Path, tmp_path: Path
) -> None:
    tree = vllm()
    command = [sys.executable, "-m", "pav2gen", "install", str(tree), "--out", str(built), "--python", ""]
    started = []
    for spec in ("alpha", "beta", "alpha", "beta"):
        (tmp_path / f"temporary-{len(started)}").mkdir()
        environment = {**os.environ, "TMPDIR": str(tmp_path / f"temporary-{len(started)}"), "PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen([*command, "--spec", spec], env=environment, stderr=subprocess.PIPE))
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    (found,) = status(tree, built)
    assert found.sound
    assert found.record is not None
    assert len(found.record.specs) == 1
