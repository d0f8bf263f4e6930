"""vLLM's own source files, from its source distributions on the package index: fetched once, then kept in a cache.

pip downloads and unpacks a source distribution before it looks at what a build of it needs; asked to check that first,
it stops there, and nothing of vLLM is ever run. Of what it unpacked, the files that the tests read are kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs
import pytest

#: Below a source distribution, what is kept of it.
KEPT = (
    "vllm/*.py",
    "vllm/attention/**/*.py",
    "vllm/v1/attention/**/*.py",
    "vllm/platforms/*.py",
    "vllm/plugins/*.py",
    "vllm/logging/*.py",
    "vllm/logging_utils/*.py",
    "vllm/triton_utils/*.py",
    "vllm/worker/cache_engine.py",
    "vllm/engine/arg_utils.py",
    "tests/kernels/*.py",
)
#: Names what is kept, so that a change of it fetches the files anew.
KEY = hashlib.sha256(" ".join(KEPT).encode()).hexdigest()[:8]


def cached(version: str) -> Path:
    """The folder with the files of a version of vLLM; skips the test where they cannot be had, and fails it in CI."""
    cache = Path(os.environ.get("PAV2GEN_VLLM_CACHE") or platformdirs.user_cache_path("pav2gen") / "vllm")
    folder = cache / f"{version}-{KEY}"
    if not folder.is_dir():
        try:
            _fetch(version, folder)
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            message = f"vLLM {version} cannot be fetched: {error}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
    return folder


def _fetch(version: str, folder: Path) -> None:
    """Fill ``folder``, all of it at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{version}.part-") as scratch:
        unpacked = _download(version, Path(scratch))
        kept = Path(scratch, "kept")
        for pattern in KEPT:
            for file in unpacked.glob(pattern):
                to = kept / file.relative_to(unpacked)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, to)
        try:
            kept.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was first
                raise


def _download(version: str, scratch: Path) -> Path:
    """The folder that pip unpacked the source to. Raises LookupError, with pip's last line, if there is none."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "vllm", "--no-build-isolation", "--check-build-dependencies", "--no-clean"]
    command += ["--retries", "1", "--dest", str(scratch / "dest"), f"vllm=={version}"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    found = list(scratch.glob("pip-*/vllm_*/vllm"))
    if not found:
        raise LookupError((done.stderr.strip().splitlines() or ["pip says nothing"])[-1])
    return found[0].parent
