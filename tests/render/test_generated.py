"""The committed package: current, whole, in the form it is rendered in, and of the versions of the BI-V100 image."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pav2gen.commands.build import BuildOptions
from pav2gen.commands.check import check

GENERATED = Path("generated")
MANIFESTS = [json.loads(path.read_text()) for path in sorted(GENERATED.glob("*/MANIFEST.json"))]
ROWS = [row for manifest in MANIFESTS for row in manifest["rows"]]
SOURCES = sorted(GENERATED.rglob("*.py"))
#: xdist is imported only where it is installed: by its own hook.
ALLOWED = {*sys.stdlib_module_names, "torch", "pytest", "numpy", "xdist"}


def tool(name):
    """A tool on the path or beside this Python; without it the test is skipped, and fails on CI, which installs it."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.fail(f"no {name}, and CI installs it") if os.environ.get("CI") else pytest.skip(f"no {name} here")
    return found


def test_it_is_current():
    report = check(sorted(Path("specs").glob("*.yaml")), BuildOptions(GENERATED), whole=True)
    assert not report.drifts, f"run: pav2gen build specs/*.yaml\n{report.drifts[:5]}"


def test_every_spec_is_built():
    assert {manifest["spec"]["name"] for manifest in MANIFESTS} == {path.stem for path in Path("specs").glob("*.yaml")}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_it_is_python_3_10(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        assert {name.split(".")[0] for name in names} <= ALLOWED, f"{path}:{node.lineno}"


def test_python_3_10_imports_what_needs_no_torch():
    python = shutil.which("python3.10")
    if python is None or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip("no python3.10 here")
    script = str(GENERATED / "runtime" / "library.py")
    done = subprocess.run([python, script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--toolchain" in done.stdout, done.stderr


def test_every_kernel_has_its_sources_and_its_test_module():
    assert len({row["symbol"] for row in ROWS}) == len(ROWS) > 50
    for row in ROWS:
        module = GENERATED / (row["torch"].replace(".", "/") + ".py")
        assert module.exists() and (GENERATED / row["cuda"]).exists()
        assert f'SYMBOL = "{row["symbol"]}"' in (GENERATED / row["test"]).read_text()
    tests = {str(path.relative_to(GENERATED)) for path in GENERATED.glob("*/tests/test_*.py")}
    assert tests == {row["test"] for row in ROWS}


def test_every_kernel_s_tests_are_collected():
    command = [sys.executable, "-m", "pytest", "--collect-only", "--full", "-q", "--assert=plain", str(GENERATED)]
    collected = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first = {
        "decode": r"test_lengths_at_every_boundary\[False\]",
        "extend": r"test_mixed_batch\[False\]",
        "cache": "test_prompt_and_single_tokens",
    }
    for row in ROWS:
        name = Path(row["test"]).name
        assert re.search(rf"{name}::{first[row['operator']]}$", collected, re.MULTILINE), name
        for host in ("warp64", "warp32"):
            assert f"{name}::test_cuda_counters_are_the_plan_s[{host}]" in collected, name


def test_the_specs_cover_every_branch_of_the_templates():
    keys = [row["key"] for row in ROWS if row["operator"] == "decode"]
    written = {row["key"]["kv_cache_dtype"] for row in ROWS if row["operator"] == "cache"}
    assert written == {key["kv_cache_dtype"] for key in keys}
    assert {key["dtype"] for key in keys} == {"float16", "bfloat16", "float32"}
    assert {key["kv_cache_dtype"] for key in keys} == {"auto", "fp8_e4m3", "fp8_e5m2", "int8"}
    assert {key["alibi"] for key in keys} == {key["blocksparse"] for key in keys} == {False, True}


@pytest.mark.parametrize("path", sorted(path for path in GENERATED.rglob("*") if path.is_file()), ids=str)
def test_no_file_names_a_machine(path):
    if "__pycache__" in path.parts:
        pytest.skip("left by a run")
    text = path.read_text()
    assert not re.search(r"(?<![\w.~$])/(?:home|root|tmp|Users|work)/", text)
    assert "\r" not in text and text.endswith("\n")


def test_python_is_formatted_as_it_is_rendered():
    done = subprocess.run([tool("ruff"), "format", "--diff", str(GENERATED)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[:2000]
    done = subprocess.run([tool("ruff"), "check", str(GENERATED)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[:2000]


def test_cuda_is_formatted_as_it_is_rendered():
    files = [str(path) for path in GENERATED.rglob("*.cu*") if "simt" not in path.parts]
    command = [tool("clang-format"), "--style=file:.clang-format", "--dry-run", "--Werror", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
