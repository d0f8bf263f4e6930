"""Locales that Python programs run under, whichever of them this machine has installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

#: Name -> the variables that set it. The first two are what Python makes of a locale without its own UTF-8 mode.
LOCALES = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "GBK": {"LC_ALL": "zh_CN.GBK", "PYTHONUTF8": "0"},
    "UTF-8": {"LC_ALL": "C.UTF-8"},
}


def variables(name: str, folder: Path) -> dict[str, str]:
    """The variables of the locale ``name``. GBK is compiled into ``folder``; the test is skipped where it cannot be."""
    if name != "GBK":
        return LOCALES[name]
    maker, place = shutil.which("localedef"), folder / "zh_CN.GBK"
    if maker and not place.exists():
        subprocess.run([maker, "-i", "zh_CN", "-f", "GBK", str(place)], capture_output=True)
    if not place.exists():
        pytest.skip("needs localedef and the sources of zh_CN")
    return {**LOCALES[name], "LOCPATH": str(folder)}
