"""The hook that a patched vLLM calls to write keys and values into the KV cache.

The generated cache writers can fill caches of dtypes that vLLM's own writer does not support.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from typing import Any

from . import NoKernelError
from .serving import disabled, foreign_codes, how_to_build, log_once, stored, stored_dtype


def serve_write(*, writer: str, always: bool, **call: Any) -> bool:
    """Run the generated ``reshape_and_cache`` with the arguments ``call``, or leave the call to vLLM's own writer.

    Returns True if the generated writer has filled the cache, and False if vLLM must run its own writer.

    writer: which caches vLLM's own writer can fill. "whole": caches of every kv_cache_dtype. "plain": only caches of
    the kv_cache_dtype "auto". "none": no cache, because vLLM's writer only raises an error.
    always: whether to prefer the generated writer. If False, the generated writer gets only the calls that vLLM's own
    writer cannot serve.

    Raises ValueError or NoKernelError for a call that neither of the two writers can serve.
    """
    if disabled():
        return False
    named = call["kv_cache_dtype"]
    able = (writer == "whole" or (writer == "plain" and named == "auto")) and not foreign_codes(named)
    if able and not always:
        return False
    write = getattr(importlib.import_module(__package__), "reshape_and_cache", None)
    given = {
        **call,
        "kv_cache_dtype": stored_dtype(named),
        "key_cache": stored(call["key_cache"], named),
        "value_cache": stored(call["value_cache"], named),
    }
    try:
        if write is None:
            raise NoKernelError(f"the package has no writer of {stored_dtype(named)} caches: {how_to_build('cache')}")
        write(**given)
    except (ValueError, NoKernelError) as error:  # refused before anything was written
        if not able:
            raise
        log_once(logging.WARNING, f"{error}; vLLM's own writer fills the cache", ("serve_write", named))
        return False
    return True


def check_writer(kv_cache_dtype: str) -> None:
    """Raise ValueError if vLLM's own writer would write fp8 codes into a cache that must contain int8 codes.

    kv_cache_dtype: vLLM's name for the cache dtype.
    """
    write = getattr(sys.modules.get("vllm._custom_ops"), "reshape_and_cache", None)
    if not foreign_codes(kv_cache_dtype) or write is None or hasattr(write, "__pav2__"):
        return
    code = getattr(inspect.unwrap(write), "__code__", None)
    if code is None or "serve_write" not in code.co_names:
        raise ValueError(
            f"PAV2_KV_CACHE_DTYPE={stored_dtype(kv_cache_dtype)}: vLLM's own writer would fill the cache with "
            f"{kv_cache_dtype}; install the kernels with --writer always, or set PAV2_WRITER=always for the plugin"
        )
