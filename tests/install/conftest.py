"""vLLM trees to install into, and generated packages to install."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pav2gen.commands.build import BuildOptions, build
from pav2gen.errors import UserError
from pav2gen.install.apply import InstallOptions, Outcome, install
from pav2gen.install.editing import source_edit
from pav2gen.install.package_contents import Choice, PackageContents, cuda_sources, package_contents
from pav2gen.render.templates import Templates
from pav2gen.runtime.building.compiling import write_index
from pav2gen.runtime.building.library_record import Record as LibraryRecord

from .fake_package import answers, hooks  # noqa: F401
from .forms import make_bi
from .vllm_files import cached

ROOT = Path(__file__).parents[2]
NOBODY = 65534
PAV2 = "vllm/attention/ops/pav2"

SPEC = """\
schema: 1
name: {name}
target: bi-v100
model: {{num_heads: {heads}, num_kv_heads: 4, max_seq_len: 65536}}
axes: {{head_size: {head_size}, gqa_ratio: {ratio}, partition_size: [256, 512]}}
backends: [torch]
dispatch: {{min_seq_len: 8192}}
"""
#: Two specs: the shape of qwen36 in float16, and another.
ALPHA = SPEC.format(name="alpha", heads=24, head_size=256, ratio=6)
BETA = SPEC.format(name="beta", heads=4, head_size=128, ratio=1)


@pytest.fixture(scope="session", autouse=True)
def edit_once() -> Iterator[None]:
    """Edit a text once and remember the result: the trees of most tests are alike, and libcst takes 0.2 s for each."""
    edit, known = source_edit._edited, {}

    def edited(text: str, insertions: Sequence[source_edit.Insertion], tests: Mapping[int, str], where: str) -> str:
        key = text, tuple(insertions), tuple(tests.items())
        if key not in known:
            known[key] = edit(text, insertions, tests, where)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_edit, "_edited", edited)
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, the current one, and one for temporary files, where the locks lie."""
    for name in ("work", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def make_package(folder: Path, *specs: str, templates: Path | None = None) -> Path:
    """Build specs, given as text, to ``folder``/generated, as ``pav2gen build`` does."""
    paths = []
    for text in specs:
        name = text.split("name: ")[1].split("\n")[0]
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(text)
    build(paths, BuildOptions(folder / "generated", templates=templates and Templates(templates)))
    return folder / "generated"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of both specs; not to be changed."""
    return make_package(tmp_path_factory.mktemp("built"), ALPHA, BETA)


@pytest.fixture
def generated(built: Path, folder: Path) -> Path:
    """The package of both specs, at ``generated``, to be changed at will."""
    shutil.copytree(built, folder / "generated")
    return Path("generated")


@pytest.fixture
def put(built: Path) -> Callable[..., Outcome]:
    """Installs the package, without trying its import: that takes seconds, and is tried elsewhere."""

    def put(tree: Path, *specs: str, generated: Path = built, **options: object) -> Outcome:
        names = ("min_seq_len", "tests", "prebuilt")
        choice = Choice(specs, **{name: options.pop(name) for name in names if name in options})  # type: ignore[arg-type]
        return install(tree, InstallOptions(generated, choice, **{"python": "", **options}))  # type: ignore[arg-type]

    return put


@pytest.fixture
def vllm(tmp_path: Path) -> Callable[..., Path]:
    """Makes a tree with the files of a version of vLLM, and returns the folder that holds ``vllm``."""

    def vllm(version: str = "0.6.3.post1", name: str = "tree") -> Path:
        shutil.copytree(cached(version) / "vllm", tmp_path / name / "vllm")
        return tmp_path / name

    return vllm


@pytest.fixture
def bi(vllm: Callable[..., Path]) -> Path:
    """A tree in the form of the BI-V100 fork."""
    tree = vllm(name="bi")
    make_bi(tree / "vllm")
    return tree


def checksums(root: Path) -> dict[str, tuple[int, str]]:
    """The mode and the sha256 of every file below ``root``, its folders and the targets of its links."""
    found = {}
    for path in sorted(root.rglob("*")):
        content = str(path.readlink()).encode() if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(root))] = (stat.S_IMODE(path.lstat().st_mode), hashlib.sha256(content).hexdigest())
    return found


@pytest.fixture
def as_nobody(tmp_path: Path) -> Callable[[Callable[[], object]], str]:
    """Runs a function in a process whose user owns nothing here, and returns the UserError that it ends with."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")

    def run(function: Callable[[], object]) -> str:
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | 0o055)
        (tmp_path / "temporary").chmod(0o777)
        read, write = os.pipe()
        if not (child := os.fork()):
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            try:
                function()
                said = "no error"
            except BaseException as error:
                said = str(error) if isinstance(error, UserError) else repr(error)
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            said = answer.read()
        os.waitpid(child, 0)
        return said

    return run


@pytest.fixture
def cuda(folder: Path) -> Path:
    """A package whose kernels are built for CUDA as well; what is in them does not matter."""
    templates = folder / "templates"
    shutil.copytree(ROOT / "templates", templates)
    (templates / "cuda").mkdir(exist_ok=True)
    (templates / "cuda/kernel.cu.j2").write_text("{{ header }}\n")
    both = "[torch, cuda]"
    (folder / "cuda").mkdir()
    return make_package(
        folder / "cuda", ALPHA.replace("[torch]", both), BETA.replace("[torch]", both), templates=templates
    )


@pytest.fixture
def prebuilt(folder: Path, cuda: Path) -> Path:
    """A library that says that it holds those kernels for a BI-V100."""
    return make_library(folder, package_contents(cuda, Choice(), ()))


def make_library(folder: Path, package: PackageContents, toolchain: str = "corex", **sources: str) -> Path:
    """A library with the record of the kernels of ``package``, and none of them. sources: digests that differ."""
    kernels = {**cuda_sources(package), **sources}
    record = LibraryRecord(toolchain, "ivcore10", 64, False, "clang 16", kernels)
    index = write_index(folder, record)
    library = folder / "libpav2.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", str(index), "-o", str(library)], check=True)
    return library


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_bytes().decode()
    assert old in text
    file.write_bytes(text.replace(old, new, 1).encode())


def refusal(action: Callable[..., object], tree: Path, *args: object, **options: object) -> str:
    """What ``action`` is refused with; nothing may have changed."""
    before = checksums(tree)
    with pytest.raises(UserError) as refused:
        action(tree, *args, **options)
    assert checksums(tree) == before
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(f"{tree}/", "")
