"""Faults at chosen steps of a build: a step is a call to the operating system that changes the disk."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

#: The calls that change the disk. ``open`` is one where it may create a file.
STEPS = ("mkdir", "open", "write", "fsync", "fchmod", "replace", "rename", "unlink", "rmdir")


class Step(NamedTuple):
    """The ``number``-th step, counted from 1: ``call(*args)`` would take it."""

    number: int
    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]


@contextmanager
def before_each_step(fault: Callable[[Step], None]) -> Iterator[list[Step]]:
    """Within, ``fault`` is called before each step; it may raise, or end the process. The steps gather in the list."""
    originals = {name: getattr(os, name) for name in STEPS}
    steps: list[Step] = []

    def wrap(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "open" or args[1] & os.O_CREAT:
                steps.append(Step(len(steps) + 1, name, originals[name], args))
                fault(steps[-1])
            return originals[name](*args, **kwargs)

        return call

    for name in STEPS:
        setattr(os, name, wrap(name))
    try:
        yield steps
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def raise_at(number: int, error: BaseException, onwards: bool = False) -> Callable[[Step], None]:
    """A fault that raises ``error`` at a step, or at each step from there ``onwards``."""

    def fault(step: Step) -> None:
        if step.number == number or (onwards and step.number > number):
            raise error

    return fault


def kill_at(number: int) -> Callable[[Step], None]:
    """A fault that kills the process at a step; what it was writing is then written by half."""

    def fault(step: Step) -> None:
        if step.number == number:
            if step.name == "write":
                handle, content = step.args
                step.call(handle, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def killed(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that is killed at its ``number``-th step. False if it came to its end before."""
    child = os.fork()
    if child == 0:
        try:
            with before_each_step(kill_at(number)):
                work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the build failed before it was killed; see stderr"
    return False
