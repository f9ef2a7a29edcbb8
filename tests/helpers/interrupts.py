"""Owns what stands for a Ctrl-C: an exception that comes before a bytecode, or with a signal.

Must never look at what it interrupts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

TRACED = (
    "client/blocking.py",
    "client/steps.py",
    "client/thread_driver.py",
    "client/aio.py",
    "client/loop_driver.py",
    "client/publishing.py",
    "client/lane.py",
    "client/keeping.py",
    "client/core.py",
    "memory.py",
    "publish_store/options.py",
    "builder.py",
)


class Interrupt(BaseException):
    """What the signal handler raises."""


def interrupt() -> None:
    """A signal handler that raises."""
    raise Interrupt


def interrupted_at(
    step: int,
    act: Callable[[], None],
    traced: tuple[str, ...] = TRACED,
    handler: Callable[[], None] = interrupt,
) -> bool:
    """Run `act`, calling `handler` before its bytecode number `step`; whether there was one."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(traced):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                handler()
                return None
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return left < 0
