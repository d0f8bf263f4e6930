"""Finding vLLM, wherever it is installed, each real folder once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.install.tree.trees import find_trees


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "_custom_ops.py").write_text("x = 1\n")
    return folder


@pytest.mark.parametrize("at", ["", "vllm", "lib/python3.10/site-packages/vllm", "lib64/python3/dist-packages/vllm"])
def test_a_tree_is_found_from_where_it_lies_and_from_above(tmp_path: Path, at: str) -> None:
    folder = make(tmp_path / "root" / at) if at else make(tmp_path / "root")
    (found,) = find_trees(tmp_path / "root")
    assert found.folder == folder
    (again,) = find_trees(folder)
    assert again.folder == folder


def test_a_link_is_the_folder_it_leads_to(tmp_path: Path) -> None:
    folder = make(tmp_path / "lib/python3/dist-packages/vllm")
    (tmp_path / "lib64").symlink_to("lib")
    for path in (tmp_path, tmp_path / "lib64/python3/dist-packages", folder.parent):
        (found,) = find_trees(path)
        assert found.folder == folder
    (tmp_path / "link").symlink_to(folder)
    (found,) = find_trees(tmp_path / "link")
    assert (found.folder, found.shown) == (folder, str(tmp_path / "link"))


def test_twins_that_are_two_folders_are_both_found(tmp_path: Path) -> None:
    both = [make(tmp_path / lib / "python3/dist-packages/vllm") for lib in ("lib", "lib64")]
    for path in (tmp_path, both[0].parent, both[1]):
        assert [tree.folder for tree in find_trees(path)] == both


def test_a_twin_within_a_twin_is_not_looked_for(tmp_path: Path) -> None:
    """Only one component is exchanged at a time, so a path with two of them has two twins."""
    folder = make(tmp_path / "lib/x/lib64/vllm")
    make(tmp_path / "lib64/x/lib/vllm")
    assert [tree.folder for tree in find_trees(folder)] == [folder]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("absent", "is not a folder; name a vLLM checkout, or the folder that vLLM is installed in"),
        ("file", "is not a folder; name a vLLM checkout, or the folder that vLLM is installed in"),
        ("empty", "is not a vLLM tree: there is no vllm/_custom_ops.py below it"),
    ],
)
def test_what_is_no_tree_is_refused(tmp_path: Path, kind: str, sentence: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("")
    if kind == "empty":
        path.mkdir()
    with pytest.raises(UserError, match=re.escape(f"{path}: {sentence}")):
        find_trees(path)


def test_a_loop_of_links_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match="is not a folder"):
        find_trees(tmp_path / "a")


def test_a_vllm_without_the_files_is_still_found_as_one(tmp_path: Path) -> None:
    (tmp_path / "vllm/model_executor/models").mkdir(parents=True)
    (found,) = find_trees(tmp_path)
    assert found.folder == tmp_path / "vllm"
