"""The commands' words: what they print, and how they exit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pav2gen.cli.failures import Commands
from pav2gen.install import commands
from pav2gen.install.payload.structure import DECODE

from .conftest import checksums

Run = Callable[..., Result]
Vllm = Callable[..., Path]


@pytest.fixture
def run(generated: Path) -> Run:
    """Runs a command where the package is."""
    group = Commands(commands={name: getattr(commands, name) for name in ("install", "status", "uninstall", "wheel")})

    def run(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(group, [*map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    return run


def lines(result: Result, tree: Path) -> list[str]:
    return result.output.replace(str(tree), "TREE").splitlines()


BACKEND = ", attention/backends/xformers.py"
SERVED = [
    "  cache writes: the tree's own writer",
    "  prefills with a cached prefix: the tree's own path",
    "  softcap in the XFormers backend: refused when the model loads; no extend kernels are installed",
]
FORK = "TREE/vllm: float scales, as vLLM 0.5.3 to 0.6; V1 works; V2 works and stays as the fallback"


def test_a_life(vllm: Vllm, run: Run) -> None:
    tree = vllm()
    before = checksums(tree)
    assert lines(run("status", tree, code=1), tree) == [FORK, "  nothing is installed"]
    dry = lines(run("install", tree, "--dry-run", "--python", ""), tree)
    assert dry[0] == FORK
    assert dry[1:3] == ["--- a/vllm/_custom_ops.py", "+++ b/vllm/_custom_ops.py"]
    summary, edits, threshold, *served = dry[-7:-1]
    assert served == SERVED
    assert summary.startswith("  would install alpha (2 kernels), beta (2 kernels): ")
    assert summary.endswith(" files in attention/ops/pav2")
    assert edits == "  would edit _custom_ops.py, attention/ops/paged_attn.py, attention/layer.py" + BACKEND
    assert threshold == "  V2 serves decodes above 8192 tokens"
    assert checksums(tree) == before
    assert lines(run("install", tree), tree) == [
        FORK,
        summary.replace("would install", "installed"),
        edits.replace("would edit", "edited"),
        threshold,
        *SERVED,
    ]
    assert lines(run("install", tree), tree) == [
        FORK,
        "  already installed: alpha (2 kernels), beta (2 kernels); nothing to do",
    ]
    assert lines(run("status", tree), tree) == [
        FORK,
        "  installed by pav2gen 0.1.0: alpha (2 kernels), beta (2 kernels)",
        *SERVED,
        "  as it was installed",
        "  current with generated",
    ]
    again = lines(run("install", tree, "--spec", "alpha"), tree)
    assert again[2] == edits.replace("  would edit", "  the calls in") + " stay as they are"
    assert lines(run("uninstall", tree), tree) == [
        "TREE/vllm: removed attention/ops/pav2",
        "  restored _custom_ops.py, attention/ops/paged_attn.py, attention/layer.py" + BACKEND,
    ]
    assert lines(run("uninstall", tree), tree) == ["TREE/vllm: nothing is installed"]
    assert checksums(tree) == before


def test_different_thresholds_are_explained() -> None:
    assert commands._served_lengths([8192]) == "V2 serves decodes above 8192 tokens"
    assert commands._served_lengths([0, 8192]) == (
        "V2 serves decodes above 0 or 8192 tokens, because each spec has its own min_seq_len"
    )


def test_the_options_of_a_choice(vllm: Vllm, run: Run) -> None:
    tree = vllm()
    said = lines(run("install", tree, "--spec", "alpha", "--min-seq-len", 512, "--with-tests", "--python", ""), tree)
    assert said[1].startswith("  installed alpha (2 kernels): ")
    assert said[3] == "  V2 serves decodes above 512 tokens"
    assert said[7] == (
        "note: the import was not tried, because there is no Python with torch for it; give --python the one that runs "
        "the tree"
    )
    assert lines(run("status", tree), tree)[1] == (
        "  installed by pav2gen 0.1.0: alpha (2 kernels); min_seq_len 512; with tests"
    )


def test_the_state_of_an_edited_tree(vllm: Vllm, run: Run) -> None:
    tree = vllm()
    run("install", tree, "--python", "")
    (tree / "vllm/attention/ops/pav2/notes").write_text("mine")
    file = tree / "vllm" / DECODE
    file.write_text(file.read_text() + "# mine\n")
    assert lines(run("status", tree, "--out", "nowhere", code=1), tree)[5:] == [
        "  edited: attention/ops/paged_attn.py was edited since",
        "  edited: attention/ops/pav2/notes is not from pav2gen",
        "  current: unknown; nowhere: has no generated package; run: pav2gen build specs/NAME.yaml",
    ]
    dry = lines(run("uninstall", tree, "--dry-run"), tree)
    assert dry[0] == "--- a/vllm/_custom_ops.py"
    assert dry[-4:] == [
        "TREE/vllm: would remove attention/ops/pav2",
        "  would restore _custom_ops.py, attention/layer.py" + BACKEND,
        "  note: edited since the install; only the inserted lines were removed: attention/ops/paged_attn.py",
        "  note: kept in attention/ops/pav2, because pav2gen did not install them: notes",
    ]


def test_a_tree_whose_backends_decode_otherwise(vllm: Vllm, run: Run) -> None:
    tree = vllm("0.11.2")
    said = lines(run("install", tree, "--python", ""), tree)
    assert said[1:3] == [
        "note: attention/ops/rocm_aiter_paged_attn.py line 54: AITERPagedAttention decodes in its own way; its decodes "
        "do not reach these kernels",
        "note: no backend of this tree calls PagedAttention.forward_decode; only direct calls of the operator take V2",
    ]


def test_a_tree_with_no_place_for_the_check_at_load(vllm: Vllm, run: Run) -> None:
    tree = vllm()
    (tree / "vllm" / "attention" / "layer.py").unlink()
    note = "note: attention/layer.py has no place to insert check_layer: a missing kernel is reported at the first call"
    assert any(line.startswith(note) for line in lines(run("install", tree, "--dry-run", "--python", ""), tree))


def test_a_mistake_is_one_line_and_exit_code_2(folder: Path, run: Run) -> None:
    for command in ("install", "status", "uninstall"):
        result = run(command, folder, code=2)
        assert result.output == f"error: {folder}: is not a vLLM tree: there is no vllm/_custom_ops.py below it\n"
    assert "Invalid value for '--min-seq-len'" in run("install", folder, "--min-seq-len", -1, code=2).output


def test_a_wheel(run: Run) -> None:
    (file,) = run("wheel", "--spec", "alpha").output.splitlines()
    path, _, what = file.partition(": ")
    assert what == "alpha (2 kernels)"
    assert Path(path).is_file()
    assert "--name 'Bad' is not an import name" in run("wheel", "--name", "Bad", code=2).output


@pytest.mark.parametrize("command", ["install", "status", "uninstall", "wheel"])
def test_help_shows_an_example(command: str, run: Run) -> None:
    assert f"  pav2gen {command}" in run(command, "--help").output
