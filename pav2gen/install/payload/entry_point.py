"""The entry point of a wheel of generated kernels: the module that vLLM imports when it starts.

The module imports the kernels only if the environment variable PAV2_PLUGIN is on. In a wheel of the package ``NAME``,
this file is the module ``NAME_plugin``, beside the package.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec

#: The values that leave the plugin off, in lower case, as in the package's module ``runtime.environment``.
OFF = ("", "0", "false", "no", "off")


def register() -> None:
    """Make the vLLM of this process use the generated kernels, if the environment variable PAV2_PLUGIN is switched on.

    vLLM calls this function in each of its processes.
    """
    if os.environ.get("PAV2_PLUGIN", "").strip().lower() in OFF:
        return
    if find_spec("torch") is None:
        logging.getLogger("vllm.pav2").warning("pav2: this Python has no torch; the plugin applied nothing")
        return
    import_module(f"{__name__.removesuffix('_plugin')}.plugin").register()
