"""Counted work of a call: steps of the interpreter, independent of other processes.

Must never read a clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


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


def result_of(work: Generator[None, None, T]) -> T:
    """Return the result of work that yields between its steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def steps_of_each(work: Generator[None, None, object]) -> list[int]:
    """Return the Python instructions of each step of work that yields between its steps."""
    counts: list[int] = []
    over = False

    def step() -> None:
        nonlocal over
        over = next(work, work) is work

    while not over:
        counts.append(steps_of(step))
    return counts
