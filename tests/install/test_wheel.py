"""``pav2gen wheel``: a wheel by the letter of its specification, always the same, and a plugin that vLLM finds."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pav2gen.errors import UserError
from pav2gen.install.package_contents import Choice
from pav2gen.install.wheel import Wheel, build_wheel


@pytest.fixture
def wheel(built: Path, folder: Path) -> Wheel:
    return build_wheel(folder / "dist", Choice(), built)


def test_the_file_is_what_was_returned(wheel: Wheel, folder: Path) -> None:
    assert (folder / "dist" / wheel.name).read_bytes() == wheel.data


def test_the_name_says_what_is_in_it(wheel: Wheel, built: Path, folder: Path) -> None:
    assert wheel.name == f"pav2_kernels-0.1.0+{wheel.contents.digest[:12]}-py3-none-any.whl"
    alpha = build_wheel(folder, Choice(("alpha",)), built, "pav2_other")
    assert alpha.name.startswith("pav2_other-0.1.0+")
    assert alpha.contents.digest != wheel.contents.digest


def test_each_file_is_in_the_record_with_its_hash(wheel: Wheel) -> None:
    archive = zipfile.ZipFile(io.BytesIO(wheel.data))
    (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    recorded = {path: (digest, size) for path, digest, size in csv.reader(archive.read(record).decode().splitlines())}
    assert recorded.keys() == {*archive.namelist()}
    assert len(recorded) == len(archive.namelist())
    assert recorded.pop(record) == ("", "")
    for path, (digest, size) in recorded.items():
        content = archive.read(path)
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert int(size) == len(content)


def test_the_bytes_depend_on_the_package_alone(built: Path, folder: Path) -> None:
    script = (
        "import sys, os; os.umask(0o77)\n"
        "from pathlib import Path\n"
        "from pav2gen.install.wheel import *\n"
        "wheel = build_wheel(Path(sys.argv[2]), Choice(), Path(sys.argv[1]))\n"
        "sys.stdout.write(hashlib.sha256(wheel.data).hexdigest())\n"
    )
    found = set()
    for number, extra in enumerate(
        ({"PYTHONHASHSEED": "0", "TZ": "Asia/Tokyo"}, {"PYTHONHASHSEED": "7", "LC_ALL": "C"})
    ):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **extra}
        command = [sys.executable, "-c", script, str(built), str(folder / f"to-{number}")]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd="/").stdout)
    assert len(found) == 1


def test_pip_installs_it_and_vllm_would_find_the_plugin(wheel: Wheel, folder: Path) -> None:
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", str(target), str(folder / "dist" / wheel.name)]
    subprocess.run(command, check=True, capture_output=True)
    script = (
        "import json, sys\nfrom importlib.metadata import entry_points, metadata\n"
        "points = entry_points(group='vllm.general_plugins')\n"
        "found = [[point.name, point.value] for point in points]\n"
        "print(json.dumps([*found, metadata('pav2-kernels')['Requires-Dist']]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [["pav2", "pav2_kernels_plugin:register"], None]
    assert not list(target.glob("pav2_kernels/**/tests"))
    assert not (target / "pav2_kernels/runtime/simt/include").exists()


def test_a_prebuilt_library_makes_it_a_wheel_of_its_machine(
    built: Path, folder: Path, prebuilt: Path, cuda: Path
) -> None:
    wheel = build_wheel(folder, Choice(prebuilt=prebuilt), cuda)
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    archive = zipfile.ZipFile(io.BytesIO(wheel.data))
    assert archive.read("pav2_kernels/prebuilt/libpav2.so") == prebuilt.read_bytes()
    (info,) = [name for name in archive.namelist() if name.endswith("/WHEEL")]
    assert b"Root-Is-Purelib: false\nTag: py3-none-linux_x86_64\n" in archive.read(info)


@pytest.mark.parametrize("name", ["", "Pav2", "pav2-kernels", "pav2.kernels", "2pav", "../up", "pav2_", "class"])
def test_a_name_that_cannot_be_imported_is_refused(name: str, built: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="is not an import name; write it as pav2_kernels, in small letters"):
        build_wheel(folder, Choice(), built, name)


@pytest.mark.parametrize(
    "name", ["vllm", "torch", "json", "pav2gen", "pip", "setuptools", "flash_attn", "site", "pav2"]
)
def test_a_name_that_could_be_another_packages_is_refused(name: str, built: Path, folder: Path) -> None:
    with pytest.raises(UserError) as refusal:
        build_wheel(folder, Choice(), built, name)
    assert str(refusal.value) == (
        f"--name '{name}' does not begin with pav2_, and could replace another package; take pav2_{name}"
    )
    assert list(folder.iterdir()) == []


def test_the_entry_point_imports_nothing_unless_it_is_wanted(wheel: Wheel, folder: Path) -> None:
    """Tools import the entry points of all packages, also where there is no torch."""
    zipfile.ZipFile(io.BytesIO(wheel.data)).extractall(folder / "site")
    script = (
        "import logging, sys\nlogging.basicConfig(format='%(message)s')\n"
        "import pav2_kernels_plugin\npav2_kernels_plugin.register()\n"
        "print(*sorted({'torch', 'pav2_kernels'} & {*sys.modules}))\n"
    )
    for wanted, printed, logged in (
        ("0", "", ""),
        ("1", "", "pav2: this Python has no torch; the plugin applied nothing\n"),
    ):
        environment = {"PYTHONPATH": str(folder / "site"), "PAV2_PLUGIN": wanted}
        command = [sys.executable, "-S", "-c", script]  # without site-packages, and so without torch
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr, done.returncode) == (printed, logged, 0)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_library_that_may_never_end_is_not_read(kind: str, cuda: Path, folder: Path) -> None:
    library = Path("/dev/zero") if kind == "device" else folder / "library.so"
    if kind == "pipe":
        os.mkfifo(library)
    if kind == "folder":
        library.mkdir()
    with pytest.raises(UserError) as refusal:
        build_wheel(folder / "dist", Choice(prebuilt=library), cuda)
    assert str(refusal.value) == f"{library}: is not usable: it is not a regular file"
    assert not (folder / "dist").exists()


def test_a_folder_that_cannot_be_written_is_named(built: Path, folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(UserError, match="file: cannot be written"):
        build_wheel(folder / "file", Choice(), built)
