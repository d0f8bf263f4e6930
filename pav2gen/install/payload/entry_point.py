"""The entry point of a wheel of kernels for vLLM. Without PAV2_PLUGIN=1 it does nothing, and imports nothing of them.

A wheel of the package ``NAME`` has this file beside it, as ``NAME_plugin``.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec


def register() -> None:
    """Called by vLLM in each of its processes: apply the kernels to the vLLM of this process, if that is wanted."""
    if os.environ.get("PAV2_PLUGIN", "") != "1":
        return
    if find_spec("torch") is None:
        logging.getLogger("vllm.pav2").warning("pav2: this Python has no torch; the plugin applied nothing")
        return
    import_module(f"{__name__.removesuffix('_plugin')}.plugin").register()
