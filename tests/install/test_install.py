"""``pav2gen install`` and ``uninstall`` on vLLM's own files: each family, each form, each state of a tree."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.install.apply import InstallOptions, Outcome, install
from pav2gen.install.payload.softcap_structure import BACKEND
from pav2gen.install.payload.structure import DECODE, LAYER, OPS
from pav2gen.install.undo import uninstall

from . import forms
from .conftest import PAV2, checksums, refusal

Put = Callable[..., Outcome]
Vllm = Callable[..., Path]

#: vLLM's families, each by a version of it.
VERSIONS = {
    "0.4.3": "one kv_scale, as vLLM 0.4.3 to 0.5.2; V1 works; V2 works and stays as the fallback",
    "0.5.5": "float scales, as vLLM 0.5.3 to 0.6; V1 works; V2 works and stays as the fallback",
    "0.6.3.post1": "float scales, as vLLM 0.5.3 to 0.6; V1 works; V2 works and stays as the fallback",
    "0.7.3": "tensor scales, as vLLM 0.7 to 0.11; V1 works; V2 works and stays as the fallback",
    "0.9.2": "tensor scales, as vLLM 0.7 to 0.11; V1 works; V2 works and stays as the fallback",
    "0.11.2": "tensor scales, as vLLM 0.7 to 0.11; V1 works; V2 works and stays as the fallback",
}

#: Those whose XFormers backend refuses a softcap; a later one leaves it out, with a warning.
REFUSING = ("0.5.5", "0.6.3.post1")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_family_is_installed_and_restored_to_the_byte(version: str, vllm: Vllm, put: Put) -> None:
    tree = vllm(version)
    before = checksums(tree)
    outcome = put(tree)
    (planned,) = outcome.trees
    assert str(planned.fork) == VERSIONS[version]
    edited = (OPS, DECODE, LAYER, *([BACKEND] if version in REFUSING else []))
    assert planned.edited == edited
    assert bool(planned.notes) is (version in ("0.9.2", "0.11.2"))
    after = checksums(tree)
    changed = {path for path in before if after[path] != before[path]}
    assert changed == {f"vllm/{path}" for path in edited}
    assert {path for path in after.keys() - before.keys() if not path.startswith(PAV2)} == set()
    for path in changed:
        ast.parse((tree / path).read_text(), feature_version=(3, 8))
    (undone,) = uninstall(tree)
    assert undone.restored == edited
    assert checksums(tree) == before


@pytest.mark.parametrize("version", VERSIONS)
def test_lines_are_put_in_and_none_is_taken_out(version: str, vllm: Vllm, put: Put) -> None:
    diff = put(vllm(version), dry_run=True).trees[0].diff
    taken = [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    given = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert taken == []
    assert max(map(len, given)) <= 81  # vLLM's own limit, and the plus


def test_the_form_of_the_bi_v100_fork(bi: Path, put: Put) -> None:
    before = checksums(bi)
    (planned,) = put(bi).trees
    assert str(planned.fork) == (
        "float scales, as vLLM 0.5.3 to 0.6; V1 works, but takes neither kv_cache_dtype nor the block-sparse pattern; "
        "V2 is a stub"
    )
    text = (bi / "vllm" / DECODE).read_text()
    assert text.index("use_v1 = True") < text.index("use_v1 = choose_v1(") < text.index("if use_v1:")
    assert 'v1="plain"' in text
    assert "fallback=False" in (bi / "vllm" / OPS).read_text()
    uninstall(bi)
    assert checksums(bi) == before


def test_a_v1_that_is_a_stub_too_is_known(vllm: Vllm, put: Put) -> None:
    tree = vllm("0.7.3")
    stub = '    raise NotImplementedError("Do not use this in our implement")\n'
    forms.make_v1_stub(tree / "vllm", stub)
    forms.make_v2_stub(tree / "vllm", stub)
    assert str(put(tree).trees[0].fork) == "tensor scales, as vLLM 0.7 to 0.11; V1 is a stub; V2 is a stub"
    assert 'v1="none"' in (tree / "vllm" / DECODE).read_text()


def test_only_the_operator_of_that_name_is_edited(bi: Path, put: Put) -> None:
    """V1 and the one of ROCm may have the same text; the public patcher hit the first of them."""
    forms.replace(
        bi / "vllm" / OPS, r"(?P<h>def paged_attention_v1\(.*?\):\n).*?(?=^\S)", r"\g<h>" + forms.STUB + "\n\n"
    )
    put(bi)
    tree = ast.parse((bi / "vllm" / OPS).read_text())
    calls = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and "serve_v2" in ast.unparse(node)}
    assert calls == {"paged_attention_v2"}


def test_a_dry_run_prints_what_an_install_does_and_does_nothing(vllm: Vllm, put: Put, tmp_path: Path) -> None:
    tree = vllm()
    before = checksums(tree)
    outcome = put(tree, dry_run=True)
    assert checksums(tree) == before
    patched = tmp_path / "patched"
    shutil.copytree(tree, patched)
    subprocess.run(
        ["git", "apply", "--unsafe-paths", "-"], cwd=patched, input=outcome.trees[0].diff.encode(), check=True
    )
    put(tree)
    for path in (OPS, DECODE, LAYER, BACKEND):
        assert (patched / "vllm" / path).read_bytes() == (tree / "vllm" / path).read_bytes()


def test_twice_is_once(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    assert put(tree).changed
    after = checksums(tree)
    again = put(tree)
    assert not again.changed
    assert checksums(tree) == after


def test_another_choice_replaces_the_first(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    before = checksums(tree)
    put(tree)
    everything = checksums(tree)
    put(tree, "alpha", min_seq_len=512, tests=True)
    pav2 = tree / PAV2
    assert sorted(path.name for path in pav2.iterdir() if path.is_dir()) == ["alpha", "runtime", "tests"]
    assert {row.split('"')[3] for row in rows(pav2)} == {"alpha"}
    assert all("min_seq_len=512, fixed_partition=0, multiprocessors=16" in row for row in rows(pav2))
    assert (pav2 / "alpha/tests").is_dir()
    assert (pav2 / "pytest.ini").is_file()
    assert (pav2 / "runtime/simt/include").is_dir()
    put(tree)
    assert checksums(tree) == everything
    assert not (pav2 / "alpha/tests").exists()
    assert not (pav2 / "runtime/simt/include").exists()
    uninstall(tree)
    assert checksums(tree) == before


def rows(pav2: Path) -> list[str]:
    return [line for line in (pav2 / "dispatch.py").read_text().splitlines() if line.startswith("    Row(")]


def test_a_part_of_the_specs_has_a_table_of_its_own(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree, "beta")
    assert {row.split('"')[3] for row in rows(tree / PAV2)} == {"beta"}
    put(tree, min_seq_len=77)
    assert {
        (row.split('"')[3], "min_seq_len=77, fixed_partition=0, multiprocessors=16" in row) for row in rows(tree / PAV2)
    } == {
        ("alpha", True),
        ("beta", True),
    }


def test_an_unchanged_choice_has_the_table_that_was_built(vllm: Vllm, put: Put, built: Path) -> None:
    tree = vllm()
    put(tree)
    assert (tree / PAV2 / "dispatch.py").read_bytes() == (built / "dispatch.py").read_bytes()
    assert len(rows(tree / PAV2)) == 4


def test_the_import_is_tried_first(vllm: Vllm, generated: Path) -> None:
    tree = vllm()
    assert install(tree, InstallOptions(generated)).imported
    uninstall(tree)
    hooks = generated / "runtime/op.py"
    record = generated / "MANIFEST.json"
    assert hooks.is_file() and record.is_file()
    said = refusal(install, tree, InstallOptions(generated, python="/nowhere/python"))
    assert said == "/nowhere/python: cannot import the package (No such file or directory)"


def test_a_package_that_cannot_be_imported_is_not_installed(
    vllm: Vllm, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    broken = {"__init__.py": b"", "hooks.py": b"import torch\nraise RuntimeError('no')\n"}
    from pav2gen.install.tree.trial_import import try_import

    with pytest.raises(UserError) as refused:
        try_import(broken, sys.executable)
    assert str(refused.value) == f"{sys.executable}: cannot import the package (RuntimeError: no); nothing was changed"


def test_a_python_without_torch_is_said_to_have_tried_nothing(tmp_path: Path) -> None:
    from pav2gen.install.tree.trial_import import try_import

    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    assert not try_import({"__init__.py": b"", "hooks.py": b""}, str(python))


def test_installed_tests_run_in_the_tree_and_import_nothing_of_it(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    put(tree, "beta", tests=True)
    (tree / "vllm/__init__.py").write_text("raise RuntimeError('the tree was imported')\n")
    command = [sys.executable, "-m", "pytest", "-q", PAV2, "-k", "p512 and clamped"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # one process is faster here than several
    done = subprocess.run(command, cwd=tree, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_files_with_a_bom_and_windows_line_ends_keep_them(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    for path in (OPS, DECODE, LAYER):
        file = tree / "vllm" / path
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    before = checksums(tree)
    put(tree)
    for path in (OPS, DECODE, LAYER):
        content = (tree / "vllm" / path).read_bytes()
        assert content.startswith(b"\xef\xbb\xbf")
        assert content.count(b"\n") == content.count(b"\r\n")
        assert b"pav2gen" in content
    assert not put(tree).changed
    uninstall(tree)
    assert checksums(tree) == before


def test_modes_are_kept_and_read_only_files_are_written(vllm: Vllm, put: Put) -> None:
    tree = vllm()
    for path, mode in ((OPS, 0o444), (DECODE, 0o750), (LAYER, 0o600)):
        (tree / "vllm" / path).chmod(mode)
    before = checksums(tree)
    put(tree)
    assert [checksums(tree)[f"vllm/{path}"][0] for path in (OPS, DECODE, LAYER)] == [0o444, 0o750, 0o600]
    uninstall(tree)
    assert checksums(tree) == before


def test_a_tree_that_cannot_be_written_is_refused(
    vllm: Vllm, put: Put, generated: Path, as_nobody: Callable[..., str]
) -> None:
    tree = vllm()
    before = checksums(tree)
    said = as_nobody(lambda: put(tree, generated=generated))
    assert said == f"{tree}: cannot be written ({tree}/vllm: no permission); nothing was changed"
    put(tree)
    said = as_nobody(lambda: uninstall(tree))
    assert said == f"{tree}: cannot be written ({tree}/vllm: no permission); nothing was changed"
    uninstall(tree)
    assert checksums(tree) == before


def test_twins_are_both_installed_and_links_once(vllm: Vllm, put: Put, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    for lib in ("lib", "lib64"):
        (prefix / lib / "python3/dist-packages").mkdir(parents=True)
        shutil.copytree(vllm(name=f"from-{lib}") / "vllm", prefix / lib / "python3/dist-packages/vllm")
    before = checksums(prefix)
    assert len(put(prefix / "lib/python3/dist-packages").trees) == 2
    assert len([path for path in checksums(prefix) if path.endswith("INSTALLED.json")]) == 2
    assert len(uninstall(prefix)) == 2
    assert checksums(prefix) == before
    shutil.rmtree(prefix / "lib64")
    (prefix / "lib64").symlink_to("lib")
    assert len(put(prefix).trees) == 1


def test_a_file_that_two_trees_share_is_edited_once(vllm: Vllm, put: Put, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    for lib in ("lib", "lib64"):
        (prefix / lib / "python3/dist-packages").mkdir(parents=True)
        shutil.copytree(vllm(name=f"from-{lib}") / "vllm", prefix / lib / "python3/dist-packages/vllm")
    first, second = (prefix / lib / "python3/dist-packages/vllm" / OPS for lib in ("lib", "lib64"))
    second.unlink()
    second.symlink_to(first)
    before = checksums(prefix)
    put(prefix)
    assert first.read_text().count("import serve_v2") == 1
    assert second.is_symlink()
    uninstall(prefix)
    assert checksums(prefix) == before


def test_a_file_that_two_trees_share_but_need_to_edit_differently_is_refused(
    vllm: Vllm, put: Put, tmp_path: Path
) -> None:
    prefix = tmp_path / "prefix"
    for lib, change in (("lib", lambda vllm: None), ("lib64", forms.make_v1_stub)):
        (prefix / lib / "python3/dist-packages").mkdir(parents=True)
        shutil.copytree(vllm(name=f"from-{lib}") / "vllm", prefix / lib / "python3/dist-packages/vllm")
        change(prefix / lib / "python3/dist-packages/vllm")
    first, second = (prefix / lib / "python3/dist-packages/vllm" / DECODE for lib in ("lib", "lib64"))
    second.unlink()
    second.symlink_to(first)
    said = refusal(put, prefix)
    assert said == f"lib/python3/dist-packages/vllm/{DECODE}: is shared by two trees that need different edits of it"
