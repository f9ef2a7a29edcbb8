"""Counted work of a call: steps of the interpreter, independent of other processes.

Must never read a clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps_of(run: Callable[[], object]) -> int:
    """Return the Python instructions that a call executes, those of loops each time.

    The work of a C function counts as one.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count
