"""Implements ``pav2gen wheel``: packs the generated package as a wheel with a vLLM plugin.

The plugin makes vLLM call the kernels without a change of vLLM's files. Two wheels of the same package have the same
bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import keyword
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pav2gen
from pav2gen.errors import UserError
from pav2gen.install.apply import MODULES as HOOK_MODULES
from pav2gen.install.package_contents import PAYLOAD, Choice, PackageContents, package_contents
from pav2gen.output.lock import no_wait, shared
from pav2gen.output.tree import DEFAULT_FOLDER
from pav2gen.render.kernels import GENERATOR
from pav2gen.runtime.choice.key import NAME_FORM
from pav2gen.wording import quoted

#: The import name of the package in a wheel, unless the user chooses another.
NAME = "pav2_kernels"

#: The import name must begin with this prefix, so that the installed wheel never replaces another project's package.
PREFIX = "pav2_"

#: The modules of the folder ``payload`` that are copied into the wheel's package, together with the generated package.
MODULES = (*HOOK_MODULES, "plugin", "structure", "cache_structure", "softcap_structure", "syntax")

#: The date and time of all files in a wheel, so that the wheel's bytes do not depend on the time of the build. It is
#: the earliest that a zip file can hold: year, month, day, hour, minute, second.
NO_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """A Python wheel in memory.

    name: the file name of the wheel.
    data: the bytes of the wheel.
    contents: the part of the generated package that the wheel contains.
    """

    name: str
    data: bytes
    contents: PackageContents


def build_wheel(dest: Path, choice: Choice, generated: Path = DEFAULT_FOLDER, name: str = NAME) -> Wheel:
    """Write a wheel of the part ``choice`` of the package at ``generated`` into the folder ``dest``, and return the
    wheel.

    name: the import name of the package in the wheel, which must begin with ``PREFIX``.

    Raises UserError if ``name`` cannot be used, if ``generated`` has no complete package, or if ``dest`` cannot be
    written.
    """
    if not NAME_FORM.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"--name {quoted(name)} is not an import name; write it as pav2_kernels, in small letters")
    if not name.startswith(PREFIX):
        raise UserError(
            f"--name {quoted(name)} does not begin with {PREFIX}, and could replace another package; "
            f"take {PREFIX}{name}"
        )
    with shared(generated, no_wait):
        wheel = render(package_contents(generated, choice, MODULES), name)
    try:
        dest.mkdir(parents=True, exist_ok=True)
        (dest / wheel.name).write_bytes(wheel.data)
    except OSError as error:
        raise UserError(f"cannot be written ({error.strerror})", str(dest)) from error
    return wheel


def render(chosen: PackageContents, name: str) -> Wheel:
    """Return the wheel of ``chosen``, with the import name ``name``.

    The wheel's version contains a digest of ``chosen``, so that wheels with different files have different versions.
    """
    version = f"{pav2gen.__version__}+{chosen.digest[:12]}"
    tag = f"py3-none-linux_{chosen.machine}" if chosen.machine else "py3-none-any"
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/{path}": content for path, content in chosen.files.items() if path != ".gitignore"}
    files[f"{name}_plugin.py"] = (PAYLOAD / "entry_point.py").read_bytes()
    files |= {f"{info}/{path}": text.encode() for path, text in _metadata(chosen, name, version, tag).items()}
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return Wheel(f"{name}-{version}-{tag}.whl", _zipped(files), chosen)


def _metadata(chosen: PackageContents, name: str, version: str, tag: str) -> dict[str, str]:
    """Return a dict from the name of each file in the wheel's dist-info folder, except RECORD, to its text."""
    # The wheel requires neither torch nor vLLM, because vendors supply their own builds of both.
    specs = ", ".join(f"{spec} ({len(entry.rows)})" for spec, entry in chosen.specs.items())
    return {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            f"Summary: Paged-attention decode kernels for vLLM, of the specs: {specs}\n"
            "License: Apache-2.0\nRequires-Python: >=3.10\nDescription-Content-Type: text/markdown\n\n"
            f"Kernels by specs: {specs}. A vLLM plugin, inactive unless `PAV2_PLUGIN=1`: it then takes decodes longer "
            "than the specs' `min_seq_len` from V1 to these kernels. `PAV2_DISABLE=1` gives vLLM's own path back.\n"
        ),
        "WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: {GENERATOR}\n"
            f"Root-Is-Purelib: {'false' if chosen.machine else 'true'}\nTag: {tag}\n"
        ),
        "entry_points.txt": f"[vllm.general_plugins]\npav2 = {name}_plugin:register\n",
        "top_level.txt": f"{name}\n{name}_plugin\n",
    }


def _digest(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in the form that a wheel's file RECORD needs."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip file of ``files`` that has the same bytes on every machine.

    files: maps the path of each file in the zip file to its content.
    """
    # No dates, owners, or facts about this machine go into the zip file.
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, NO_DATE)
            entry.create_system = 3  # Unix, on every machine: the modes below are Unix's
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_STORED  # deflate's bytes depend on the version of zlib
            archive.writestr(entry, content)
    return buffer.getvalue()
