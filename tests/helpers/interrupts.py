"""Simulated Ctrl-C: an exception before a bytecode, or by a signal.

Must never look at the interrupted code.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

TRACED = (
    "client/blocking/client.py",
    "client/blocking/driver.py",
    "client/blocking/sender.py",
    "client/aio/client.py",
    "client/aio/driver.py",
    "client/publishing/batch_sender.py",
    "client/publishing/publisher.py",
    "client/publishing/send_buffer.py",
    "client/api/driver.py",
    "client/protocol/core.py",
    "memory.py",
    "publish_store/protocol.py",
    "builder.py",
)


class Interrupt(BaseException):
    """Raised by the signal handler."""


def interrupt() -> None:
    """Raise: a signal handler."""
    raise Interrupt


def interrupt_until_gone(connection: socket.socket) -> None:
    """Send the main thread SIGUSR1 as soon as data arrives on `connection`, until the peer disconnects.

    Python notices a signal between its last check and a wait for a lock only with the next signal.
    """
    with connection:
        connection.recv(1)
        connection.settimeout(1.0)
        while True:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            with contextlib.suppress(TimeoutError):
                while connection.recv(4096):
                    pass
                return


def interrupted_at(
    step: int,
    act: Callable[[], None],
    traced: tuple[str, ...] = TRACED,
    handler: Callable[[], None] = interrupt,
) -> bool:
    """Run `act`, with a call of `handler` before bytecode number `step`. Return whether that step existed."""
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
