"""Measures PyTorch code: the number of ATen calls, and the peak of allocated bytes.

Before each measurement, the kernels' cached workspace is freed, because the reuse of this memory would hide an
allocation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from ..attention import workspace

#: The names of ATen functions that read a value from the device on the host.
HOST_READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "_unique2", "masked_select")


class CallCounter(TorchDispatchMode):
    """A context manager that counts ATen calls in its ``with`` block, except calls that return views.

    ``counts`` maps the name of an ATen function to the number of its calls.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.counts: Counter[str] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, because newer PyTorch versions would otherwise import their compiler, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if func.namespace == "aten" and not is_view:
            self.counts[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def count_calls(run: Callable[[], Any]) -> Counter[str]:
    """Return how often the function ``run`` calls each ATen function, except calls that return views."""
    counter = CallCounter()
    workspace.forget()
    with counter:
        run()
    return counter.counts


def peak_bytes(run: Callable[[], Any]) -> int:
    """Return the largest number of bytes that ``run`` holds on the CPU at any time.

    ``run`` is called once before the measurement, so that one-time allocations are not counted.
    """
    run()
    workspace.forget()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    assert recorded.profiler is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns() if hasattr(event, "start_ns") else event.start_us()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
