"""Probes for ``doctor``: short Python programs that examine an interpreter, its torch, or the driver of a GPU.

Each probe runs in a separate process, because a broken torch or a broken driver may crash or hang. A probe prints its
result as JSON. If a probe fails, the last line of its stderr is the reason.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

#: A probe may take this many seconds. The first import of torch on a slow disk takes half a minute.
SECONDS = 120

#: The probe that prints the version of a Python interpreter, and the folder of its vLLM. It does not import vLLM.
PYTHON = """
import importlib.util, json, platform, sys
def place(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        spec = None
    return list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else ""
print(json.dumps({"version": platform.python_version(), "executable": sys.executable,
                  "platform": platform.platform(), "vllm": place("vllm"), "torch": place("torch")}))
"""

#: The probe that prints the version of torch, and the names of the GPUs that torch sees.
TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda or "", "available": torch.cuda.is_available()}
number = torch.cuda.device_count() if found["available"] else 0
found["devices"] = [torch.cuda.get_device_name(index) for index in range(number)]
print(json.dumps(found))
"""

#: The probe that asks the CUDA driver for the GPUs and their figures. The driver of CoreX, the software of Iluvatar
#: GPUs, has the same name and interface.
DRIVER = """
import ctypes, json, os
homes = [os.environ.get("COREX_HOME", "/usr/local/corex"), "/usr/local/corex-3.2.3"]
names = ["libcuda.so.1", "libcuda.so", *(f"{home}/lib64/libcuda.so.1" for home in homes)]
cuda = None
for name in names:
    try:
        cuda = ctypes.CDLL(name)
        break
    except OSError:
        pass
if cuda is None:
    raise SystemExit("there is no libcuda.so.1")
def call(function, *arguments):
    code = getattr(cuda, function)(*arguments)
    if code:
        raise SystemExit(f"{function} says {code}")
call("cuInit", 0)
number, version = ctypes.c_int(), ctypes.c_int()
call("cuDeviceGetCount", ctypes.byref(number))
call("cuDriverGetVersion", ctypes.byref(version))
ATTRIBUTES = {"max_threads_per_block": 1, "shared_memory_bytes": 8, "warp_size": 10, "multiprocessors": 16,
              "threads_per_multiprocessor": 39, "major": 75, "minor": 76, "memory_clock_khz": 36, "memory_bits": 37}
cards = []
for index in range(number.value):
    device, title = ctypes.c_int(), ctypes.create_string_buffer(256)
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDeviceGetName", title, 256, device)
    card = {"name": title.value.decode(errors="replace")}
    for key, attribute in ATTRIBUTES.items():
        value = ctypes.c_int()
        if not cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            card[key] = value.value
    cards.append(card)
print(json.dumps({"library": name, "version": version.value, "cards": cards}))
"""


class NoAnswer(Exception):
    """Raised if a probe fails. The message is the reason, in one line."""


def ask(python: str, probe: str) -> Mapping[str, Any]:
    """Run ``probe`` with the interpreter at the path ``python``, and return the JSON object that the probe prints.

    Raises NoAnswer if the probe fails.
    """
    try:
        done = subprocess.run(
            [python, "-c", probe], capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer within {SECONDS} s") from None
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{python} cannot be run ({getattr(error, 'strerror', None) or error})") from None
    words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.returncode:
        raise NoAnswer(f"killed by signal {-done.returncode}" if done.returncode < 0 else words[:200])
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError, RecursionError):
        raise NoAnswer("an answer that is not JSON") from None
    if not isinstance(answer, dict):
        raise NoAnswer("an answer that is not an object")
    return answer
