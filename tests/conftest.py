"""What the tests of the generator share: a small spec, small templates, and a package built from them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from pav2gen.commands.build import BuildOptions, Outcome, build
from pav2gen.render.templates import Templates

settings.register_profile("pav2gen", deadline=None)  # a slow machine is no failure
settings.load_profile("pav2gen")

REPOSITORY = Path(__file__).resolve().parents[1]

SPEC = """\
schema: 1
name: {name}
about: a small family for tests
target: bi-v100
model: {{num_heads: 24, num_kv_heads: 4, max_seq_len: 32768, tensor_parallel: [1, 2]}}
axes:
  head_size: {head_size}
  gqa_ratio: 6
  partition_size: {partition_size}
  dtype: {dtype}
backends: {backends}
"""

TEMPLATES = {
    "torch/kernel.py.j2": '{{ header }}\n"""{{ v.slug }}."""\n\nPARTITION = {{ v.partition_size }}\n',
    "tests/test_kernel.py.j2": "{{ header }}\nSYMBOL = {{ v.symbol | tojson }}\n",
    "tests/conftest.py.j2": "{{ header }}\n",
    "cuda/kernel.cu.j2": "{{ header }}\nint {{ v.symbol }}(void) { return {{ v.head_size }}; }\n",
    "package/README.md.j2": "{{ header }}\n# {{ spec.name }}\n\n{{ kernels | length }} kernels\n",
    "package/__init__.py.j2": "{{ header }}\n",
    "package/dispatch.py.j2": "{{ header }}\nROWS = {{ rows | map(attribute='symbol') | list }}\n",
    "package/pytest.ini.j2": "{{ header }}\n[pytest]\n",
    "package/workers.py.j2": "{{ header }}\n",
    "package/gitignore.j2": "{{ header }}\n__pycache__/\n",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--full``: the slow matrices too."""
    with contextlib.suppress(ValueError):  # the generated package has added it
        parser.addoption("--full", action="store_true", help="run the slow matrices too")


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run, the same in each worker of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, the current one, with its own folder for temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def templates(tmp_path: Path, runtime: Path) -> Path:
    """A folder of small templates, with all that a build needs."""
    for name, text in TEMPLATES.items():
        file = tmp_path / "templates" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "templates"


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small runtime in the place of the generator's own."""
    runtime = tmp_path / "runtime"
    (runtime / "simt").mkdir(parents=True)
    (runtime / "__init__.py").write_text('"""The runtime."""\n')
    (runtime / "simt" / "warp.h").write_text("#define WARP 64\n")
    monkeypatch.setattr("pav2gen.render.kernels.RUNTIME", runtime)
    return runtime


@pytest.fixture
def write_spec(folder: Path) -> Callable[..., Path]:
    """Writes ``specs/NAME.yaml``, by default with two kernels in PyTorch, and returns its path."""

    def write(name: str = "small", **axes: object) -> Path:
        values = {"head_size": 256, "partition_size": [256, 512], "dtype": "float16", "backends": "[torch]"} | axes
        path = Path("specs", f"{name}.yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(SPEC.format(name=name, **values))
        return path

    return write


@pytest.fixture
def make(templates: Path) -> Callable[..., Outcome]:
    """Builds specs with the small templates."""

    def make(*paths: Path, **options: object) -> Outcome:
        return build(paths, BuildOptions(templates=Templates(templates), **options))  # type: ignore[arg-type]

    return make


def snapshot(root: Path) -> dict[str, tuple[int, str]]:
    """Everything below ``root``: path -> mode, and the sha256 of a file, the target of a link, or nothing."""
    return (
        {os.fspath(path.relative_to(root)): _state(path) for path in sorted(root.rglob("*"))} if root.exists() else {}
    )


def touched(root: Path) -> dict[str, tuple[int, int]]:
    """Everything below ``root``, and itself: path -> inode and time of its last change, to the nanosecond."""
    paths = [root, *root.rglob("*")]
    return {os.fspath(path): (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in paths}


def _state(path: Path) -> tuple[int, str]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return mode, os.readlink(path)
    return mode, hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else ""
