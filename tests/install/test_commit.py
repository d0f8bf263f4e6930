"""``pav2gen install --commit``: one commit, of just what was installed, or nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.install.apply import Outcome
from pav2gen.install.payload.softcap_structure import BACKEND
from pav2gen.install.payload.structure import DECODE, LAYER, OPS

from .conftest import checksums

Put = Callable[..., Outcome]


def git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n")


@pytest.fixture
def fork(vllm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A tree under version control, whose repository ignores what ours holds."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A Maintainer")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "maintainer@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    tree = vllm("0.5.5")
    (tree / ".gitignore").write_text("__pycache__/\n*.json\n")
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "vLLM")
    return tree


def test_one_commit_of_what_was_installed(fork: Path, put: Put) -> None:
    outcome = put(fork, commit=True)
    assert outcome.commit == git(fork, "rev-parse", "--short", "HEAD")
    assert git(fork, "status", "--porcelain") == ""
    assert git(fork, "rev-list", "--count", "HEAD") == "2"
    changed = set(git(fork, "show", "--name-only", "--format=", "HEAD").splitlines())
    expected = {f"vllm/attention/ops/pav2/{path}" for path in (*outcome.contents.files, "INSTALLED.json")}
    assert changed == expected | {f"vllm/{path}" for path in (OPS, DECODE, LAYER, BACKEND)}


def test_the_message_names_specs_and_hashes(fork: Path, put: Put) -> None:
    outcome = put(fork, commit=True)
    sha = {name: entry.spec["sha256"] for name, entry in outcome.contents.specs.items()}
    assert git(fork, "show", "--no-patch", "--format=%B", "HEAD").splitlines() == [
        "Install generated paged-attention V2 kernels (alpha, beta)",
        "",
        "vllm/attention/ops/pav2, by pav2gen 0.1.0:",
        f"  alpha: 2 kernels, spec sha256:{sha['alpha']}",
        f"  beta: 2 kernels, spec sha256:{sha['beta']}",
        f"  package sha256:{outcome.contents.digest}",
        "",
        "Decodes above 8192 tokens take V2 where a kernel serves the shape. PAV2_DISABLE=1 gives the old path back.",
    ]


def test_an_update_is_committed_with_what_it_removes(fork: Path, put: Put) -> None:
    put(fork, commit=True)
    put(fork, "alpha", commit=True)
    assert git(fork, "status", "--porcelain") == ""
    assert "vllm/attention/ops/pav2/beta/README.md" not in git(fork, "ls-files").splitlines()


def test_files_that_were_never_tracked_may_go(fork: Path, put: Put) -> None:
    """Installed by hand into a repository that ignores the folder."""
    (fork / ".gitignore").write_text("pav2/\n")
    put(fork)
    git(fork, "commit", "--quiet", "--all", "--message", "by hand")
    assert git(fork, "status", "--porcelain") == ""
    put(fork, "alpha", commit=True)
    assert "vllm/attention/ops/pav2/dispatch.py" in git(fork, "show", "--name-only", "--format=").splitlines()


def test_nothing_to_do_makes_no_commit(fork: Path, put: Put) -> None:
    put(fork, commit=True)
    assert put(fork, commit=True).commit == ""
    assert git(fork, "rev-list", "--count", "HEAD") == "2"


def refused(put: Put, tree: Path) -> str:
    before = checksums(tree)
    with pytest.raises(UserError) as refusal:
        put(tree, commit=True)
    after = checksums(tree)
    volatile = (".git/index", ".git/objects", ".git/COMMIT_EDITMSG")
    assert {path: after[path] for path in after if not path.startswith(volatile)} == {
        path: before[path] for path in before if not path.startswith(volatile)
    }
    return str(refusal.value)


@pytest.mark.parametrize("change", ["edited", "new", "staged"])
def test_a_dirty_tree_is_refused(fork: Path, put: Put, change: str) -> None:
    name = "vllm/mine.py" if change == "new" else "vllm/envs.py"
    (fork / name).write_text("mine = 1\n")
    if change == "staged":
        git(fork, "add", ".")
    assert refused(put, fork) == (
        f"{fork}/vllm: --commit: the work tree is dirty ({name}); commit or stash that first. Nothing was changed"
    )


def test_no_repository_is_refused(vllm: Callable[..., Path], put: Put) -> None:
    tree = vllm()
    before = checksums(tree)
    with pytest.raises(UserError, match="--commit: git rev-parse says: fatal: not a git repository"):
        put(tree, commit=True)
    assert checksums(tree) == before


def test_a_commit_that_a_hook_refuses_takes_all_back(fork: Path, put: Put) -> None:
    hook = fork / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'not today' >&2\nexit 1\n")
    hook.chmod(0o755)
    assert refused(put, fork) == f"{fork}/vllm: --commit: git commit says: not today; nothing was changed"
    assert git(fork, "status", "--porcelain") == ""


def test_without_git_it_is_refused(fork: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="--commit: git cannot be run \\(No such file or directory\\)"):
        put(fork, commit=True)


def test_without_commit_git_is_not_asked(fork: Path, put: Put) -> None:
    (fork / "vllm/mine.py").write_text("mine = 1\n")
    assert put(fork).changed
